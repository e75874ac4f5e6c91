"""What several chains of drafts give by rule on a pair of models, in tokens a round, by how many drafts are verified.

All rules decide about the same drafts at the same places: so their differences are known better than each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

import specdec_kernels as specdec
from specdec_kernels import Draft, Sampling
from specdec_kernels.studies.drawing import Figure, Panel, curve, panel
from specdec_kernels.studies.figures import PROMPTS
from specdec_kernels.studies.methods import Z
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel

LAWS = {
    "temperature 1": Sampling(),
    "temperature 0.6": Sampling(temperature=0.6),
    "temperature 1, top-p 0.9": Sampling(top_p=0.9),
}
BLOCKS = (2, 4, 6, 8, 12, 16)  # lengths of one chain
CHAINS = {4: (2, 4, 8), 8: (2, 4)}  # by their length, how many
WRITTEN_BY = 4  # rounds begin where those of `block` with so many drafts do
RULES = {
    "block, one chain": "black",
    "traversal, with replacement": "C0",
    "traversal, without": "C1",
    "greedy multi-path": "C2",
    "paths": "C3",
}
TURNS = 16  # texts a prompt, each with a seed of its own
Case = tuple[str, int, int]  # a rule, a number of chains, their length


class Laid(NamedTuple):
    """Chains as a tree in which they share the root alone. `first` is the node that each begins with."""

    shape: DraftTree
    first: list[int]

    def chain(self, index: int, length: int) -> list[int]:
        return list(range(self.first[index], self.first[index] + length))


class Drafted(NamedTuple):
    """Chains that were drafted, laid out: tokens [B, N], and what target and draft say after each, logits [B, N, V]."""

    laid: Laid
    tokens: torch.Tensor
    target: torch.Tensor
    draft: torch.Tensor


def figure(target: LanguageModel, draft: LanguageModel, tokens: int, turns: int = TURNS) -> Figure:
    """Tokens a round by verified nodes; bars are 95 % intervals over texts of about so many tokens."""
    measured = {name: play(target, draft, sampling, tokens // 4, turns) for name, sampling in LAWS.items()}
    return dict(
        title="Several chains: tokens a round",
        note=f"{turns * len(PROMPTS)} texts of {tokens // 4} rounds, which begin where those of block with "
        f"{WRITTEN_BY} drafts do. All rules decide about the same chains, but traversal without replacement: the first "
        "tokens of its chains differ. Drafts that chains share are counted once. Bars are 95 % intervals over texts",
        panels=[of_law(name, *found) for name, found in measured.items()],
        over_traversal={name: over_traversal(accepted) for name, (accepted, _) in measured.items()},
    )


def of_law(title: str, accepted: dict[Case, np.ndarray], nodes: dict[Case, float]) -> Panel:
    """A line through block's lengths, and for the others one by number of chains from each length that begins there."""
    curves = []
    for rule, colour in RULES.items():
        if rule == "block, one chain":
            lines = [[(rule, 1, length) for length in BLOCKS]]
        else:
            lines = [
                [("block, one chain", 1, length), *((rule, n, length) for n in CHAINS[length])] for length in CHAINS
            ]
        for line in lines:
            x = [nodes[case] for case in line]
            y, error = np.transpose([mean_and_interval(accepted[case] + 1) for case in line])
            curves += [
                curve(rule, x, y, colour=colour), curve(rule, x, y, error=error, points=True, colour=colour)
            ]  # fmt: skip
    return panel(title, "verified drafts", "tokens a round", *curves)


def over_traversal(accepted: dict[Case, np.ndarray]) -> dict[str, tuple[float, float]]:
    """By case, how many tokens a round paths gives more than traversal of the same chains, and half of its interval."""
    return {
        f"{n} chains of {length}": mean_and_interval(
            accepted["paths", n, length] - accepted["traversal, with replacement", n, length]
        )
        for length in CHAINS
        for n in CHAINS[length]
    }


def mean_and_interval(rounds: np.ndarray) -> tuple[float, float]:
    """Mean over rounds [texts, R], and half of its 95 % interval: texts are independent, their rounds are not."""
    texts = rounds.mean(1)
    return float(texts.mean()), float(Z * texts.std(ddof=1) / np.sqrt(len(texts)))


def laid_out() -> Laid:
    """The longest chains that any case needs, one after the other."""
    most = max(map(max, CHAINS.values()))
    lengths = [max(k for k in CHAINS if max(CHAINS[k]) > index) for index in range(most)]
    lengths[0] = max(*BLOCKS, *CHAINS)
    parents, first = [-1], []
    for length in lengths:
        first.append(len(parents))
        parents += [0, *range(len(parents), len(parents) + length - 1)]
    return Laid(DraftTree.from_parents(parents), first)


@torch.no_grad()
def play(
    target: LanguageModel, draft: LanguageModel, sampling: Sampling, rounds: int, turns: int
) -> tuple[dict[Case, np.ndarray], dict[Case, float]]:
    """By case, the drafts accepted in each round [texts, rounds], and the mean number of drafts verified."""
    from specdec_kernels.generate import ModelDrafter
    from specdec_kernels.generate.noise import Noise, of_round

    laid, prompts = laid_out(), [[256, *prompt.encode()] for prompt in turns * PROMPTS]
    batch, nodes = len(prompts), laid.shape.size
    length = torch.tensor([len(prompt) for prompt in prompts])
    text = torch.zeros(batch, int(length.max()) + (WRITTEN_BY + 1) * rounds + nodes + 2, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        text[row, : len(prompt)] = torch.tensor(prompt)
    reader, drafter = target.reader(*text.shape), ModelDrafter(draft)
    drafter.start(*text.shape, target.config.vocab_size)
    accepted: dict[Case, list[torch.Tensor]] = {}
    verified: dict[Case, list[torch.Tensor]] = {}
    for number in range(rounds):
        noise = of_round(Noise(torch.arange(batch), length), "traversal", number)
        ends = length.tolist()
        drawn = []
        for replacement in (True, False):
            room = batch * [laid.shape.depth]
            drafts = drafter.propose_tree(text, ends, laid.shape, room, noise, sampling, replacement)
            parents, every = laid.shape.tensor(dtype=torch.int64), torch.arange(nodes + 1)
            logits = reader.read_tree(text, ends, parents, drafts.tokens, every)
            drawn.append(Drafted(laid, drafts.tokens, logits, drafts.logits))
        for case, count, drafts in decided(*drawn, sampling, noise._asdict()):
            accepted.setdefault(case, []).append(count.double())
            verified.setdefault(case, []).append(drafts.double())
        tokens = one_chain(drawn[0], WRITTEN_BY, sampling, noise._asdict()).tokens
        for row, written in enumerate(tokens.tolist()):
            written = [token for token in written if token >= 0]
            text[row, length[row] : length[row] + len(written)] = torch.tensor(written)
            length[row] += len(written)
    return (
        {case: torch.stack(counts, 1).numpy() for case, counts in accepted.items()},
        {case: float(torch.stack(drafts).mean()) for case, drafts in verified.items()},
    )


def decided(
    independent: Drafted, distinct: Drafted, sampling: Sampling, noise: dict
) -> Iterator[tuple[Case, torch.Tensor, torch.Tensor]]:
    """Every case with the drafts accepted [B] and verified [B]. First tokens of `distinct` chains differ."""
    batch = len(independent.tokens)
    for length in BLOCKS:
        found = one_chain(independent, length, sampling, noise).num_accepted
        yield ("block, one chain", 1, length), found, torch.full((batch,), length)
    laws = [laws_of(rows, sampling) for rows in (independent.target, independent.draft)]
    for length, n in ((k, n) for k in CHAINS for n in CHAINS[k]):
        merged = merge(independent, n, length)
        distinct_nodes = (merged.tokens >= 0).sum(1)
        for rule, drafted, replacement in (("with replacement", independent, True), ("without", distinct, False)):
            nodes = [0, *(node for c in range(n) for node in drafted.laid.chain(c, length))]
            parents = [-1] + [0 if i % length == 0 else i for i in range(n * length)]
            rows = (x[:, nodes] for x in (drafted.tokens, drafted.target, drafted.draft))
            found = verify(
                *rows, sampling, noise, parents=torch.tensor(parents), method="traversal", replacement=replacement
            )
            yield (
                (f"traversal, {rule}", n, length), found.num_accepted,
                distinct_nodes if replacement else torch.full((batch,), n * length),
            )  # fmt: skip
        found = verify(
            merged.tokens, merged.rows(independent.target), merged.rows(independent.draft), sampling, noise,
            parents=merged.parents, leaves=merged.leaves, method="paths", max_depth=length,
        )  # fmt: skip
        yield ("paths", n, length), found.num_accepted, distinct_nodes
        chains = torch.tensor([independent.laid.chain(c, length) for c in range(n)])
        yield ("greedy multi-path", n, length), greedy(independent.tokens, *laws, chains), distinct_nodes


def verify(
    tokens: torch.Tensor, target: torch.Tensor, draft: torch.Tensor, sampling: Sampling, noise: dict, **options: object
) -> specdec.TreeVerdict:
    drawn_from = Draft(draft, sampling=sampling)
    return specdec.verify_tree(tokens, target, drawn_from, sampling=sampling, **noise, **options)


def one_chain(drafted: Drafted, length: int, sampling: Sampling, noise: dict) -> specdec.Verdict:
    """The first chain's first drafts by `block`."""
    rows = drafted.target[:, : length + 1], Draft(drafted.draft[:, :length], sampling=sampling)
    options = dict(method="block", sampling=sampling)
    return specdec.verify_chain(drafted.tokens[:, 1 : length + 1], *rows, **options, **noise)


class Merged(NamedTuple):
    """Trees of chains that share what they begin with, and which of the nodes laid out each node is."""

    tokens: torch.Tensor
    parents: torch.Tensor
    leaves: torch.Tensor
    nodes: torch.Tensor

    def rows(self, laid_out: torch.Tensor) -> torch.Tensor:
        return laid_out.gather(1, self.nodes[..., None].expand(-1, -1, laid_out.shape[-1]))


def merge(drafted: Drafted, chains: int, length: int) -> Merged:
    """The first tokens of the first chains."""
    nodes = torch.tensor([drafted.laid.chain(c, length) for c in range(chains)])
    tree = specdec.merge_paths(drafted.tokens[:, nodes])
    found, at = torch.zeros_like(tree.parents, dtype=torch.int64), tree.leaves.long()
    for depth in reversed(range(length)):
        found.scatter_(1, at, nodes[:, depth].expand(len(at), -1))
        at = tree.parents.long().gather(1, at)
    return Merged(tree.draft_tokens, tree.parents, tree.leaves, found)


def laws_of(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities, float64, of rows [..., V]."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    kept = torch.arange(logits.shape[-1]) < specdec.cutoff(logits, sampling=sampling).count[..., None]
    dropped = ~torch.empty_like(kept).scatter_(-1, order, kept)
    return (logits.double() / sampling.temperature).masked_fill(dropped, -torch.inf).softmax(-1)


def greedy(tokens: torch.Tensor, p: torch.Tensor, q: torch.Tensor, chains: torch.Tensor) -> torch.Tensor:
    """Expected accepted drafts [B] of greedy multi-path block verification (Thomas, Pal 2026), given the drafts.

    At each depth it takes the token with the largest p / q that any chain left has, and goes on with the chains that
    have it. Of m draws the best one is x with probability F(x)^m - F(<x)^m, where F sums q in the order of p / q. By
    this law the chain taken is verified as a block.

    Parameters
    ----------
    tokens : Tensor
        int64 [B, N]: of nodes.
    p, q : Tensor
        float64 [B, N, V]: laws after each node.
    chains : Tensor
        int64 [n, K]: the nodes of each chain.
    """
    everyone, left = torch.arange(len(tokens)), torch.ones(len(tokens), len(chains), dtype=torch.bool)
    node, weight = torch.zeros(len(tokens), dtype=torch.int64), torch.ones(len(tokens), dtype=torch.float64)
    thresholds = []
    for depth in range(chains.shape[1] + 1):
        here, drafted = p[everyone, node], q[everyone, node]
        if depth == chains.shape[1]:
            thresholds.append(weight)
            break
        order = torch.where(drafted > 0, here / drafted, torch.inf).sort(dim=-1, stable=True).indices
        upto = drafted.gather(-1, order).cumsum(-1) / drafted.sum(-1, keepdim=True)
        power = torch.nn.functional.pad(upto ** left.sum(-1, keepdim=True), (1, 0)).diff()
        taken_by = torch.zeros_like(drafted).scatter_(-1, order, power)
        rank = torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1]).expand_as(order))
        offered = tokens[:, chains[:, depth]]
        best = rank.gather(-1, offered).masked_fill(~left, -1).argmax(-1)
        x = offered[everyone, best]
        if depth:
            rest = (weight[:, None] * here - taken_by).clamp(min=0).sum(-1)
            thresholds.append(torch.where(weight < 1, rest / (rest + 1 - weight), 1.0))
        weight = (weight * here[everyone, x] / taken_by[everyone, x]).clamp(max=1)
        left &= offered == x[:, None]
        node = chains[best, depth]
    expected = torch.zeros_like(weight)
    for accepted, h in enumerate(thresholds, 1):  # the last of them whose coin is below h counts
        expected += h * (accepted - expected)
    return expected
