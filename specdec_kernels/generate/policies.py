"""Policies that fix the number of drafts beforehand; `protocols` has their interface, `control` an adaptive one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from specdec_kernels.generate.checks import real_number, whole_number
from specdec_kernels.generate.noise import Noise, Sampling, policy_uniform
from specdec_kernels.generate.protocols import DraftPlan
from specdec_kernels.generate.results import Round
from specdec_kernels.generate.schemes import SCHEMES
from specdec_kernels.trees import DraftTree

LONGEST_RANDOM = 1024  # slots for which a scheme computes a probability in every round


class FixedLength:
    """Drafts k tokens in every round.

    Parameters
    ----------
    k : int
        The number of drafts; fewer where the text ends before.
    """

    randomised = False

    def __init__(self, k: int) -> None:
        self.max_k = whole_number("k", k)

    def plan(self, noise: Noise, limit: list[int]) -> DraftPlan:
        return DraftPlan([min(self.max_k, most) for most in limit], 1.0)

    def look(
        self, drafts: torch.Tensor, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, sampling: Sampling
    ) -> None:
        """Does nothing: this policy does not use drafts."""

    def observe(self, rounds: Sequence[Round]) -> None:
        """Does nothing: this policy does not adapt."""


class RandomLength(FixedLength):
    """Drafts a random number of tokens, at most k, by a scheme of `specdec_kernels.generate.schemes`.

    Parameters
    ----------
    k : int
        The most tokens to draft.
    draft_prob : float
        The scheme's probability a.
    scheme : {"chain", "token", "uniform"}
        "chain" (k tokens or none, by one uniform), "token" (a uniform for every token) or "uniform".
    """

    randomised = True

    def __init__(self, k: int, draft_prob: float, scheme: str = "chain") -> None:
        super().__init__(k)
        if self.max_k > LONGEST_RANDOM:
            raise ValueError(f"k: expected at most {LONGEST_RANDOM} with a random length; got {k}")
        if not 0 <= real_number("draft_prob", draft_prob) <= 1:
            raise ValueError(f"draft_prob: expected a probability; got {draft_prob}")
        if scheme not in SCHEMES:
            raise ValueError(f"scheme: expected one of {', '.join(SCHEMES)}; got {scheme!r}")
        self.draft_prob, self.scheme = draft_prob, SCHEMES[scheme]

    def plan(self, noise: Noise, limit: list[int]) -> DraftPlan:
        uniforms = cache(lambda index: policy_uniform(noise, index))
        uniform_of = [lambda index, row=row: uniforms(index)[row] for row in range(len(limit))]
        drafts = [self.scheme(self.max_k, self.draft_prob, uniform) for uniform in uniform_of]
        h = torch.tensor([entry.h for entry in drafts], dtype=torch.float32, device=noise.seed.device)
        return DraftPlan([min(entry.length, most) for entry, most in zip(drafts, limit, strict=True)], h)


class FixedTree:
    """Drafts the same tree in every round.

    Parameters
    ----------
    tree : DraftTree
        Its shape.
    """

    def __init__(self, tree: DraftTree) -> None:
        self.parents, self.max_k = tree.parents, tree.size

    def plan_tree(self) -> tuple[int, ...]:
        return self.parents

    def observe_tree(self, path: list[int], seconds: float) -> None:
        """Does nothing: this policy does not adapt."""
