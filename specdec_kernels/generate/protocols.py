"""The interfaces between the loop, the rounds it plays, drafters and policies.

The loop (`loop`) plays `Rounds` (`rounds`) one after the other. A round gets the number of drafts from a policy, before
any of its tokens is drawn, the tokens from a drafter, logits from the target and a verdict from the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch

from specdec_kernels import Draft
from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Noise, Sampling
from specdec_kernels.generate.results import Round, VerifiedTree
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel


class Drafts(NamedTuple):
    """Draft tokens of a round.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, K], or [B, N] by node of a tree; -1 for an absent one.
    logits : Tensor or None
        [B, K, V] or by node [B, N, V], of the laws they were drawn from; None if there is no law.
    map : Tensor or None
        int32 [V], rising: the tokens of the logits' columns, if these are not the first ones.
    """

    tokens: torch.Tensor
    logits: torch.Tensor | None
    map: torch.Tensor | None = None

    def laws(self, sampling: Sampling) -> Draft | None:
        """The argument of the verifier."""
        return None if self.logits is None else Draft(self.logits, sampling=sampling, map=self.map)

    def wide(self, vocabulary: int) -> torch.Tensor | None:
        """The logits over so many tokens, -inf for those outside of the draft's vocabulary."""
        if self.map is None or self.logits is None:
            return self.logits
        return widened(self.logits, self.map, vocabulary)


def widened(logits: torch.Tensor, tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Logits of these tokens over the whole vocabulary."""
    wide = logits.new_full((*logits.shape[:-1], vocabulary), -torch.inf)
    wide[..., tokens] = logits
    return wide


class Law(NamedTuple):
    """Logits [V] of a model after a number of tokens of a text."""

    model: LanguageModel
    tokens: int
    logits: torch.Tensor


class DraftPlan(NamedTuple):
    """The number of drafts of each request in a round, decided before any of its tokens is drawn.

    Attributes
    ----------
    lengths : list of int
        Tokens to draft by request, at most the loop's limit.
    draft_prob : float or Tensor
        1.0, or float32 [B, max_k]: h_j, the probability that slot j was to be drafted given that the slots before it
        are accepted.
    """

    lengths: list[int]
    draft_prob: float | torch.Tensor


class Outcome(NamedTuple):
    """The results of a round for every text: lists over the batch."""

    tokens: list[list[int]]  # emitted, one more than accepted
    drafted: list[int]  # both: numbers of draft tokens
    accepted: list[int]
    # whether the text had no further draft, so that its last token is a bonus and not a replacement
    complete: list[bool]
    status: list[int]  # status bits
    trees: Sequence[VerifiedTree | None]  # the trees, None with chains
    chains: Sequence[list[int] | None]  # the chains' draft tokens, None with trees
    read: list[int]  # tokens of a text, padding included, in each forward of the target


class Emitted(NamedTuple):
    """Tokens int64 [B, L], -1 after the last, and the target's logits [B, L, V] that they were drawn from."""

    tokens: torch.Tensor
    logits: torch.Tensor


@runtime_checkable
class Drafter(Protocol):
    """A source of the tokens of a chain."""

    @property
    def language_model(self) -> LanguageModel | None:
        """The model that drafts, if there is one."""

    @property
    def laws(self) -> bool:
        """Whether it returns the logits that its tokens are drawn from; without them its drafts count as certain."""

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens whose target has `vocabulary` tokens."""

    def propose(
        self, text: torch.Tensor, length: list[int], counts: list[int], slots: int, noise: Noise, sampling: Sampling,
        record: Record | None = None,
    ) -> Drafts:  # fmt: skip
        """Write counts[b] drafts, at most, to text[b, length[b]:]; returns them and their logits for all `slots`.

        Tokens with logits are drawn with `sampling`, filters included, as the verifier assumes. With a `record` the
        logits are edited (`record.edited`).
        A request that drafts less than `slots` still needs the law of its first undrafted slot.
        """

    def roll_back(self, length: list[int]) -> None:
        """Remove the drafts at positions length[b] and beyond."""

    def keep(self, rows: list[int]) -> None:
        """Drop all texts but those of indices `rows`."""


@runtime_checkable
class TreeDrafter(Drafter, Protocol):
    """A drafter that drafts trees, too."""

    def propose_tree(
        self, text: torch.Tensor, length: list[int], tree: DraftTree, limit: list[int], noise: Noise,
        sampling: Sampling, replacement: bool, record: Record | None = None,
    ) -> Drafts:  # fmt: skip
        """The tokens of a tree of this shape per text, the root's included, no deeper than limit[b].

        The children of a node are the first arrivals of its race or, with `replacement`, independent of each other.
        Logits are those of nodes with children; with a `record` they are edited.
        """

    def keep_path(self, path: torch.Tensor, length: list[int], read: list[int]) -> None:
        """Continue after the first `read[b]` nodes of path [B, D + 1]; the root was the last of length[b] tokens."""


@runtime_checkable
class ChainPolicy(Protocol):
    """The number of tokens to draft."""

    @property
    def max_k(self) -> int:
        """The most drafts of a round."""

    @property
    def randomised(self) -> bool:
        """Whether some h_j is below 1, which needs draft laws and the method "rejection"."""

    def plan(self, noise: Noise, limit: list[int]) -> DraftPlan:
        """Plan a round of requests that can use at most limit[b] drafts."""

    def look(
        self, drafts: torch.Tensor, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, sampling: Sampling
    ) -> None:
        """Observe a verification's inputs: drafts [B, K] (-1: none), logits [B, K + 1, V] and [B, K, V].

        Edited texts have edited logits.
        """

    def observe(self, rounds: Sequence[Round]) -> None:
        """Observe its results, in the order of the plan."""


@runtime_checkable
class TreePolicy(Protocol):
    """The tree to draft."""

    @property
    def max_k(self) -> int:
        """The most nodes of a round, without the root."""

    def plan_tree(self) -> Sequence[int]:
        """The parents of the next round's tree: the root's -1 first, children of a node in draft order."""

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Observe a round of the planned tree: the accepted nodes, from the root's 0 on, and the round's seconds."""
