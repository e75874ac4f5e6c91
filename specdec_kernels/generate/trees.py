"""Rounds with trees of draft tokens: one draft forward per depth, one target forward over all nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import specdec_kernels as specdec
from specdec_kernels.generate.chains import Outcome
from specdec_kernels.generate.models import Tree
from specdec_kernels.trees import DraftTree

DEFAULT_ACCEPTANCE = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)
"""Acceptance by child index that `--tree optimal:k` assumes where none was measured."""


@dataclass(frozen=True)
class DraftedTree:
    """A tree of one request's round.

    Attributes
    ----------
    shape : DraftTree
    tokens : token id by node, the root's known already; -1 where nothing was drafted
    path : accepted nodes, from the root's 0 on
    """

    shape: DraftTree
    tokens: list[int]
    path: list[int]

    @property
    def drafted(self) -> int:
        return sum(token >= 0 for token in self.tokens[1:])

    def offers(self) -> list[tuple[int, int | None]]:
        """For every node of the path: how many children it offered, and the index of the accepted one, or None."""
        offered = [[child for child in self.shape.children[node] if self.tokens[child] >= 0] for node in self.path]
        return [
            (len(children), None if following is None else children.index(following))
            for children, following in zip(offered, [*self.path[1:], None], strict=True)
        ]

    @property
    def tested(self) -> int:
        """Draft tokens the verifier decided on: the children of accepted nodes, up to the accepted one."""
        return sum(count if taken is None else taken + 1 for count, taken in self.offers())


class FixedTree:
    """Always the same tree.

    A tree policy has these names: `max_k`, the most nodes without the root; `plan_tree`, which gives the parents of the
    next round's tree before any of its tokens is seen; `observe_tree`, which is shown every round that ended.
    """

    randomised = False

    def __init__(self, tree: DraftTree):
        self.parents, self.max_k = tree.parents, tree.size

    def plan_tree(self) -> tuple[int, ...]:
        return self.parents

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Learn nothing."""


class TreeRounds:
    """Plays rounds with a tree of drafts, of one shape for the batch, as `policy` plans it.

    The cache slot of node i is that of the root plus i; after the verdict the accepted path moves together.
    """

    def __init__(self, target, drafter, method, policy, replacement=False):
        self.target, self.drafter, self.method, self.policy = target, drafter, method, policy
        self.replacement, self.room = replacement, policy.max_k

    def start(self, batch: int, capacity: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens, drafts included."""
        self.reader = self.target.reader(batch, capacity)
        self.drafter.start(batch, capacity, self.target.config.vocab_size)

    def play(self, text: torch.Tensor, length: list[int], limit: list[int], clock, watch) -> Outcome:
        """A round of texts of length[b] tokens that can use at most limit[b] drafts."""
        planned = DraftTree.from_parents(self.policy.plan_tree())
        tree = cut(planned, max(limit))
        drafts, laws = grow(self.drafter, text, length, tree, limit, clock, self.replacement)
        watch.lap("draft")
        logits = self.reader.read_tree(text, length, drafts, torch.arange(len(tree.parents), device=text.device))
        watch.lap("target")
        verdict = specdec.verify_tree(
            drafts.tokens, logits, laws if self.method == "rejection" else None, parents=drafts.parents,
            method=self.method, replacement=self.replacement, max_depth=tree.depth, **clock._asdict(),
        )  # fmt: skip
        tokens, paths, accepted = verdict.tokens.tolist(), verdict.path.tolist(), verdict.num_accepted.tolist()
        watch.lap("verify")
        self.length, self.path = length, verdict.path
        self.whole = [most >= planned.depth for most in limit]
        rows = zip(drafts.tokens.tolist(), paths, accepted, strict=True)
        self.trees = [DraftedTree(tree, drawn, path[: count + 1]) for drawn, path, count in rows]
        return Outcome(
            [row[: count + 1] for row, count in zip(tokens, accepted, strict=True)],
            [entry.drafted for entry in self.trees], accepted, [entry.offers()[-1][0] == 0 for entry in self.trees],
            verdict.status.tolist(), self.trees,
        )  # fmt: skip

    def settle(self, rounds) -> None:
        """Learn from a round that has ended, and keep the accepted path alone in both caches."""
        for entry, whole in zip(rounds, self.whole, strict=True):
            if whole:
                self.policy.observe_tree(entry.tree.path, sum(entry.seconds.values()))
        self.reader.keep_path(self.path, self.length, [len(entry.path) for entry in self.trees])
        if self.trees[0].shape.size:
            # The draft has not read leaves.
            read = [sum(bool(entry.shape.children[node]) for node in entry.path) for entry in self.trees]
            self.drafter.reader.keep_path(self.path, self.length, read)

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.reader.keep(rows)
        self.drafter.keep(rows)


def cut(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes of at most this depth, in order.

    >>> cut(DraftTree.from_parents([-1, 0, 1, 0, 3]), 1).parents
    (-1, 0, 0)
    """
    kept = [node for node, at in enumerate(tree.depths) if at <= depth]
    index = {node: place for place, node in enumerate(kept)} | {-1: -1}
    return DraftTree.from_parents([index[tree.parents[node]] for node in kept])


def grow(drafter, text, length, tree: DraftTree, limit: list[int], clock, replacement=False):
    """Draft a tree per text: the `Tree`, and the draft's logits [B, N, V] at the nodes that have children.

    The children of a node are the first arrivals of its race, or with `replacement` the winners of races of their own
    (nonces 1, 2, …). Nodes deeper than limit[b], and all below an absent node, are absent.
    """
    device, batch, nodes = text.device, len(length), len(tree.parents)
    drafts = Tree(tree.tensor(device, torch.int64), torch.full((batch, nodes), -1, device=device))
    drafts.tokens[:, 0] = text[torch.arange(batch, device=device), clock.position - 1]
    most, laws = torch.tensor(limit, device=device), None
    for depth in range(tree.depth):
        parents = [node for node, at in enumerate(tree.depths) if at == depth and tree.children[node]]
        logits = drafter.reader.read_tree(text, length, drafts, torch.tensor(parents, device=device))
        logits = logits[..., : drafter.vocabulary]
        if laws is None:
            laws = logits.new_zeros(batch, nodes, logits.shape[-1])
        laws[:, parents] = logits
        width = max(len(tree.children[node]) for node in parents)
        arrivals = draw(logits, width, clock._replace(position=clock.position + depth), replacement)
        places = [(node, row, index) for row, parent in enumerate(parents)
                  for index, node in enumerate(tree.children[parent])]  # fmt: skip
        children, rows, indices = torch.tensor(places, device=device).unbind(1)
        absent = (drafts.tokens[:, drafts.parents[children]] < 0) | (most <= depth)[:, None]
        drafts.tokens[:, children] = arrivals[:, rows, indices].masked_fill(absent, -1)
    return drafts, laws


def draw(logits, width: int, clock, replacement: bool) -> torch.Tensor:
    """Children int64 [B, R, width] of nodes with these logits [B, R, V]; -1 where the vocabulary has no more."""
    noise = {name: value[:, None].expand(logits.shape[:2]) for name, value in clock._asdict().items()}
    if replacement:
        return torch.stack([specdec.race_sample(logits, nonce=1 + index, **noise) for index in range(width)], dim=-1)
    arrivals = specdec.race_topk(logits, min(width, logits.shape[-1]), **noise)
    return torch.nn.functional.pad(arrivals, (0, width - arrivals.shape[-1]), value=-1)
