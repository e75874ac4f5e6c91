"""Rounds with trees of draft tokens: one draft forward per depth, one target forward over all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

import specdec_kernels as specdec
from specdec_kernels.generate.arguments import FROM_LAWS
from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Noise, Sampling, keywords, marked
from specdec_kernels.generate.parallel import verify
from specdec_kernels.generate.protocols import Drafts, Emitted, Law, Outcome, TreeDrafter, TreePolicy
from specdec_kernels.generate.results import Round, VerifiedTree
from specdec_kernels.generate.rounds import Rounds, Stopwatch
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel


class TreeRounds(Rounds):
    """Plays rounds with a tree of drafts, of one shape for the batch, as `policy` plans it.

    With method "paths" that is several chains. The verifier gets the trees that they merge to, one for each text.

    The cache slot of node i is that of the root plus i; after the verdict the accepted path moves together.
    """

    def __init__(
        self, target: LanguageModel, drafter: TreeDrafter, method: str, policy: TreePolicy, replacement: bool = False
    ) -> None:
        super().__init__(target, drafter, method, policy)
        self.replacement = replacement

    def room(self, limit: int) -> int:
        return self.policy.max_k

    def play(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None, watch: Stopwatch,
    ) -> Outcome:  # fmt: skip
        planned = DraftTree.from_parents(self.policy.plan_tree())
        tree = cut(planned, max(limit))
        chains = self.method == "paths"
        independent = self.replacement or chains
        proposed = self.drafter.propose_tree(text, length, tree, limit, noise, sampling, independent, record)
        parents, how, self.drafted = tree.tensor(text.device, torch.int64), {}, None
        if chains and tree.size:
            proposed, parents, how["leaves"], self.drafted = merged(proposed, tree)
        drafts, laws = proposed.tokens, proposed.logits
        watch.lap("draft")
        nodes = torch.arange(drafts.shape[1], device=text.device, dtype=torch.int64)
        logits = self.reader.read_tree(text, length, parents, drafts, nodes)
        watch.lap("target")
        law = keywords(noise, sampling, marked(noise, text, drafts, parents))
        drawn_from = proposed.laws(sampling) if self.method in FROM_LAWS else None
        verdict = verify(
            "verify_tree", self.target, drafts, logits, drawn_from, parents=parents,
            method="traversal" if chains and not how else self.method, replacement=self.replacement,
            max_depth=tree.depth, edits=None if record is None else record.of_requests(), **how, **law,
        )  # fmt: skip
        tokens, paths, accepted = verdict.tokens.tolist(), verdict.path.tolist(), verdict.num_accepted.tolist()
        watch.lap("verify")
        self.length, self.path, self.tokens, self.seen = length, verdict.path, verdict.tokens, (logits, laws)
        self.planned, self.whole = tree, [most >= planned.depth for most in limit]
        shapes = shapes_of(parents, drafts) if how else [tree] * len(paths)
        read = self.reader.passes[-1:]
        rows = zip(shapes, drafts.tolist(), paths, accepted, strict=True)
        self.trees = [
            VerifiedTree(shape, drawn[: len(shape.parents)], path[: count + 1]) for shape, drawn, path, count in rows
        ]
        return Outcome(
            [row[: count + 1] for row, count in zip(tokens, accepted, strict=True)],
            [entry.drafted for entry in self.trees], accepted, [entry.offers()[-1][0] == 0 for entry in self.trees],
            verdict.status.tolist(), self.trees, [None] * len(self.trees), read,
        )  # fmt: skip

    def laws_of(self, row: int) -> Iterator[Law]:
        shape = self.trees[row].shape
        for model, laws in zip((self.target, self.drafter.language_model), self.seen, strict=True):
            for depth, law in zip(shape.depths, [] if laws is None else laws[row], strict=False):
                yield Law(model, self.length[row] + depth, law)

    def emitted(self) -> Emitted:
        rows = torch.arange(len(self.path), device=self.path.device, dtype=torch.int64)[:, None]
        return Emitted(self.tokens, self.seen[0][rows, self.path.long().clamp(min=0)])

    def settle(self, rounds: Sequence[Round]) -> None:
        """Update estimates by the rounds whose whole tree was drafted, and reduce both caches to the accepted path."""
        for entry, whole in zip(rounds, self.whole, strict=True):
            if whole:
                self.policy.observe_tree(entry.tree.path, sum(entry.seconds.values()))
        self.reader.keep_path(self.path, self.length, [len(entry.path) for entry in self.trees])
        if self.planned.size:
            # The draft has not read leaves.
            read = [sum(bool(entry.shape.children[node]) for node in entry.path) for entry in self.trees]
            path = self.path
            if self.drafted is not None:
                path = self.drafted.take_along_dim(path.long().clamp(min=0), 1).masked_fill(path < 0, -1).int()
            self.drafter.keep_path(path, self.length, read)


def merged(proposed: Drafts, tree: DraftTree) -> tuple[Drafts, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Trees of a batch of chains, as large as the largest: (drafts, parents, leaves, the draft of each node)."""
    chains = len(tree.children[0])
    if tree != DraftTree.chains(chains, tree.depth):
        raise ValueError(f"tree: expected chains of one length with method paths; got parents {list(tree.parents)}")
    paths = proposed.tokens[:, 1:].unflatten(1, (chains, -1))
    tokens, parents, leaves = specdec.merge_chains(paths)
    tokens[:, 0] = proposed.tokens[:, 0]
    # The nodes are the drafts whose prefix no chain before has, in order.
    first = (paths[:, :, None] == paths[:, None]).cumprod(-1).argmax(2)
    chain = torch.arange(chains, device=paths.device, dtype=torch.int64)[:, None]
    is_first = ((first == chain) & (paths >= 0)).flatten(1)
    nodes = 1 + int(is_first.sum(1).max())
    drafted = pad(1 + is_first.int().argsort(dim=1, descending=True, stable=True), (1, 0))[:, :nodes]
    laws = proposed.logits.take_along_dim(drafted[..., None], 1)
    return Drafts(tokens[:, :nodes], laws, proposed.map), parents[:, :nodes], leaves, drafted


def shapes_of(parents: torch.Tensor, tokens: torch.Tensor) -> list[DraftTree]:
    """The trees of a batch, without the absent nodes at their ends."""
    sizes = 1 + (tokens[:, 1:] >= 0).sum(1)
    shape = cache(DraftTree)
    return [shape(tuple(row[:size])) for row, size in zip(parents.tolist(), sizes.tolist(), strict=True)]


def cut(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes of at most this depth, in order.

    Examples
    --------
    >>> cut(DraftTree.from_parents([-1, 0, 1, 0, 3]), 1).parents
    (-1, 0, 0)
    """
    shallow = [node for node, at in enumerate(tree.depths) if at <= depth]
    renumbered = {node: index for index, node in enumerate(shallow)} | {-1: -1}
    return DraftTree.from_parents([renumbered[tree.parents[node]] for node in shallow])
