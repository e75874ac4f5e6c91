"""Rounds with trees of draft tokens: one draft forward per depth, one target forward over all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from specdec_kernels.generate.arguments import FROM_LAWS
from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Noise, Sampling, keywords
from specdec_kernels.generate.parallel import verify
from specdec_kernels.generate.protocols import Emitted, Law, Outcome, TreeDrafter, TreePolicy, Watch
from specdec_kernels.generate.results import Round, VerifiedTree
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel


class TreeRounds:
    """Plays rounds with a tree of drafts, of one shape for the batch, as `policy` plans it.

    The cache slot of node i is that of the root plus i; after the verdict the accepted path moves together.
    """

    def __init__(
        self, target: LanguageModel, drafter: TreeDrafter, method: str, policy: TreePolicy, replacement: bool = False
    ) -> None:
        self.target, self.drafter, self.method, self.policy = target, drafter, method, policy
        self.replacement = replacement

    def room(self, limit: int) -> int:
        return self.policy.max_k

    def start(self, batch: int, capacity: int) -> None:
        self.reader = self.target.reader(batch, capacity)
        self.drafter.start(batch, capacity, self.target.config.vocab_size)

    def read(self, text: torch.Tensor, end: list[int]) -> None:
        self.reader.read(text, end, rows=1)

    def play(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None, watch: Watch,
    ) -> Outcome:  # fmt: skip
        planned = DraftTree.from_parents(self.policy.plan_tree())
        tree = cut(planned, max(limit))
        proposed = self.drafter.propose_tree(text, length, tree, limit, noise, sampling, self.replacement, record)
        drafts, laws = proposed.tokens, proposed.logits
        watch.lap("draft")
        parents, nodes = tree.tensor(text.device, torch.int64), torch.arange(len(tree.parents), device=text.device)
        logits = self.reader.read_tree(text, length, parents, drafts, nodes)
        watch.lap("target")
        drawn_from = proposed.laws(sampling) if self.method in FROM_LAWS else None
        verdict = verify(
            "verify_tree", self.target, drafts, logits, drawn_from, parents=parents, method=self.method,
            replacement=self.replacement, max_depth=tree.depth,
            edits=None if record is None else record.of_requests(), **keywords(noise, sampling),
        )  # fmt: skip
        tokens, paths, accepted = verdict.tokens.tolist(), verdict.path.tolist(), verdict.num_accepted.tolist()
        watch.lap("verify")
        self.length, self.path, self.tokens, self.seen = length, verdict.path, verdict.tokens, (logits, laws)
        self.whole = [most >= planned.depth for most in limit]
        rows = zip(drafts.tolist(), paths, accepted, strict=True)
        self.trees = [VerifiedTree(tree, drawn, path[: count + 1]) for drawn, path, count in rows]
        return Outcome(
            [row[: count + 1] for row, count in zip(tokens, accepted, strict=True)],
            [entry.drafted for entry in self.trees], accepted, [entry.offers()[-1][0] == 0 for entry in self.trees],
            verdict.status.tolist(), self.trees,
        )  # fmt: skip

    def laws_of(self, row: int) -> Iterator[Law]:
        shape = self.trees[row].shape
        for model, laws in zip((self.target, self.drafter.language_model), self.seen, strict=True):
            for depth, law in zip(shape.depths, [] if laws is None else laws[row], strict=False):
                yield Law(model, self.length[row] + depth, law)

    def emitted(self) -> Emitted:
        rows = torch.arange(len(self.path), device=self.path.device)[:, None]
        return Emitted(self.tokens, self.seen[0][rows, self.path.long().clamp(min=0)])

    def settle(self, rounds: Sequence[Round]) -> None:
        """Learn from the rounds whose whole tree was drafted, and keep the accepted path alone in both caches."""
        for entry, whole in zip(rounds, self.whole, strict=True):
            if whole:
                self.policy.observe_tree(entry.tree.path, sum(entry.seconds.values()))
        self.reader.keep_path(self.path, self.length, [len(entry.path) for entry in self.trees])
        if self.trees[0].shape.size:
            # The draft has not read leaves.
            read = [sum(bool(entry.shape.children[node]) for node in entry.path) for entry in self.trees]
            self.drafter.keep_path(self.path, self.length, read)

    def keep(self, rows: list[int]) -> None:
        self.reader.keep(rows)
        self.drafter.keep(rows)


def cut(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes of at most this depth, in order.

    Examples
    --------
    >>> cut(DraftTree.from_parents([-1, 0, 1, 0, 3]), 1).parents
    (-1, 0, 0)
    """
    kept = [node for node, at in enumerate(tree.depths) if at <= depth]
    index = {node: place for place, node in enumerate(kept)} | {-1: -1}
    return DraftTree.from_parents([index[tree.parents[node]] for node in kept])
