"""Schemes of randomised drafting that keep the target's law, for chains of any length.

A scheme decides, before any token of the round is drawn, how many tokens to draft, and gives for every slot i the
probability h_i that it is drafted given that the tokens before it were drafted and accepted. The verifier accepts
with ``min(1, p / (h_i q))`` and draws from ``norm((p - h_i q)^+)`` on a rejection and at the first undrafted slot;
after k drafts the bonus token comes from p. It is lossless exactly because h_i is this conditional probability: a
slot is drafted and accepted with mass ``h_i q min(1, p / (h_i q)) = min(p, h_i q)``, and the residual is what is
missing to p. This extends Toner et al. (2025), Algorithm 2, from one token to k. Not lossless: sampling p itself at
an undrafted slot, the unconditional probabilities a^i for h_i, and a at every slot with one uniform for all.

A scheme is called as ``scheme(k, a, uniform)``. ``uniform(i)`` is a number in [0, 1): the policy uniform (stream 6)
with first counter word i at the round's first position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Draft(NamedTuple):
    """The number of tokens to draft, and h for each of the k slots."""

    length: int
    h: tuple[float, ...]


Uniform = Callable[[int], float]


def per_token(k: int, a: float, uniform: Uniform) -> Draft:
    """Go on drafting while a uniform for each slot is below `a`: h = (a, a, …).

    Examples
    --------
    >>> per_token(3, 0.5, [0.2, 0.9, 0.1].__getitem__)
    Draft(length=1, h=(0.5, 0.5, 0.5))
    """
    return Draft(next((slot for slot in range(k) if uniform(slot) >= a), k), (a,) * k)


def per_chain(k: int, a: float, uniform: Uniform) -> Draft:
    """Draft k tokens if one uniform is below `a`, else none: h = (a, 1, 1, …).

    Examples
    --------
    >>> per_chain(3, 0.5, lambda slot: 0.2)
    Draft(length=3, h=(0.5, 1.0, 1.0))
    """
    return Draft(k if uniform(0) < a else 0, ((a,) + (1.0,) * k)[:k])


def uniform_length(k: int, a: float, uniform: Uniform) -> Draft:
    """With probability `a` draft a length drawn uniformly from 0 … k, else nothing: h = (a k/(k+1), (k-1)/k, …, 1/2).

    Examples
    --------
    >>> uniform_length(2, 1.0, lambda slot: 0.5)
    Draft(length=1, h=(0.6666666666666666, 0.5))
    """
    u = uniform(0)
    count = min(k, int(u / a * (k + 1))) if u < a else 0
    return Draft(count, tuple((a if slot == 0 else 1.0) * (k - slot) / (k + 1 - slot) for slot in range(k)))


SCHEMES: dict[str, Callable[[int, float, Uniform], Draft]] = {
    "token": per_token,
    "chain": per_chain,
    "uniform": uniform_length,
}
