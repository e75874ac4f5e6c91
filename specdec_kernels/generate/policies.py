"""Policies that fix the number of drafts beforehand; `protocols` has their interface, `control` an adaptive one.

A scheme of randomised drafting decides, before any token of the round is drawn, how many tokens to draft, and gives for
every slot i the probability h_i that it is drafted given that the tokens before it were drafted and accepted. The
verifier accepts with ``min(1, p / (h_i q))`` and draws from ``norm((p - h_i q)^+)`` on a rejection and at the first
undrafted slot; after k drafts the bonus token comes from p. It is lossless exactly because h_i is this conditional
probability: a slot is drafted and accepted with mass ``h_i q min(1, p / (h_i q)) = min(p, h_i q)``, and the residual is
what is missing to p. This extends Toner et al. (2025), Algorithm 2, from one token to k. Not lossless: sampling p
itself at an undrafted slot, the unconditional probabilities a^i for h_i, and a at every slot with one uniform for all.

A scheme is called as ``scheme(k, a, uniform)``. ``uniform(i)`` is a number in [0, 1): the policy uniform (stream 6)
with first counter word i at the round's first position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from specdec_kernels.generate.checks import real_number, whole_number
from specdec_kernels.generate.noise import Noise, Sampling, policy_uniform
from specdec_kernels.generate.protocols import DraftPlan
from specdec_kernels.generate.results import Round
from specdec_kernels.trees import DraftTree

LONGEST_RANDOM = 1024  # slots for which a scheme computes a probability in every round


class DrawnLength(NamedTuple):
    """The number of tokens to draft, and h for each of the k slots."""

    length: int
    h: tuple[float, ...]


Uniform = Callable[[int], float]


def per_token(k: int, a: float, uniform: Uniform) -> DrawnLength:
    """Go on drafting while a uniform for each slot is below `a`: h = (a, a, …).

    Examples
    --------
    >>> per_token(3, 0.5, [0.2, 0.9, 0.1].__getitem__)
    DrawnLength(length=1, h=(0.5, 0.5, 0.5))
    """
    return DrawnLength(next((slot for slot in range(k) if uniform(slot) >= a), k), (a,) * k)


def per_chain(k: int, a: float, uniform: Uniform) -> DrawnLength:
    """Draft k tokens if one uniform is below `a`, else none: h = (a, 1, 1, …).

    Examples
    --------
    >>> per_chain(3, 0.5, lambda slot: 0.2)
    DrawnLength(length=3, h=(0.5, 1.0, 1.0))
    """
    return DrawnLength(k if uniform(0) < a else 0, ((a,) + (1.0,) * k)[:k])


def uniform_length(k: int, a: float, uniform: Uniform) -> DrawnLength:
    """With probability `a` draft a length drawn uniformly from 0 … k, else nothing: h = (a k/(k+1), (k-1)/k, …, 1/2).

    Examples
    --------
    >>> uniform_length(2, 1.0, lambda slot: 0.5)
    DrawnLength(length=1, h=(0.6666666666666666, 0.5))
    """
    u = uniform(0)
    count = min(k, int(u / a * (k + 1))) if u < a else 0
    return DrawnLength(count, tuple((a if slot == 0 else 1.0) * (k - slot) / (k + 1 - slot) for slot in range(k)))


SCHEMES: dict[str, Callable[[int, float, Uniform], DrawnLength]] = {
    "token": per_token,
    "chain": per_chain,
    "uniform": uniform_length,
}


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
    """Drafts a random number of tokens, at most k, by one of `SCHEMES`.

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
