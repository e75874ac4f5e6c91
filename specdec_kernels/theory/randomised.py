"""Randomised drafting: drafting with probability a only (Toner et al. 2025), for one prompt or a workload.

Everything follows from ``S(a) = E[sum min(p, a q)]``, the probability that a token is drafted and accepted. It is
concave and piecewise linear with corners at the ratios p/q, so its best point is always one of them, 0 or 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specdec_kernels.theory.checks import choice, cost, law_pair, unit

KINDS = ("renewal", "paper")


def drafting_acceptance(p: ArrayLike, q: ArrayLike, a: float) -> float:
    r"""Acceptance given that a token was drafted, ``(1 + a - sum |p - a q|) / (2 a)``.

    Not lower for smaller a (the paper says "strictly higher", which fails where no p/q lies between).

    Parameters
    ----------
    p, q : array_like [V] or [N, V]
        The target's and the draft's law, of one prompt or of N prompts that weigh the same.
    a : float
        Probability of drafting, in [0, 1]; at 0 the limit, ``sum of q where p > 0``.

    References
    ----------
    Toner et al. (2025), Lemma 4.1 (Equation 4).

    Examples
    --------
    >>> [round(drafting_acceptance([.4, .3, .2, .1], [.1, .2, .3, .4], a), 12) for a in (1, .8, .5, .2)]
    [0.6, 0.675, 0.8, 1.0]
    """
    p, q = law_pair(p, q, ndims=(1, 2))
    a = unit(a, "a")
    if a == 0:
        return float((q * (p > 0)).sum() / _prompts(p))
    return _drafted_and_accepted(p, q, a) / a


def drafting_rate(p: ArrayLike, q: ArrayLike, a: float, lam: float, kind: str = "renewal") -> float:
    r"""Tokens per unit of the target's time when one token is drafted with probability `a`.

    "renewal" is the long-run rate by renewal-reward, ``(1 + S(a)) / (1 + a lam)``. "paper" is the paper's TPS, which
    averages the rates of the cases instead, ``(S(a) + a) / (1 + lam) + 1 - a``. Plain decoding is 1; ``a = 1`` is plain
    speculative decoding with one draft token, where the two agree. A round without a draft costs 1: its draft row is
    computed meanwhile.

    References
    ----------
    Toner et al. (2025), appendix A.1.

    Examples
    --------
    >>> round(drafting_rate([.4, .3, .2, .1], [.1, .2, .3, .4], .5, .6), 6)
    1.076923
    """
    p, q = law_pair(p, q, ndims=(1, 2))
    a, lam = unit(a, "a"), cost(lam, "lam")
    return float(_rate(_drafted_and_accepted(p, q, a), a, lam, choice(kind, "kind", KINDS)))


def best_draft_prob(p: ArrayLike, q: ArrayLike, lam: float, kind: str = "renewal") -> float:
    r"""The `a` in [0, 1] that maximises `drafting_rate`; the smallest of equals.

    For "paper" it minimises ``E|p - a q| + a (2 lam - 1)``: a weighted median of the ratios p/q. Both kinds are
    monotone between the corners of S, so the corners, 0 and 1 are compared; no solver is needed.

    Parameters
    ----------
    p, q : array_like [V] or [N, V]
        The laws of one prompt, or of a workload: one `a` for all N prompts.

    References
    ----------
    Toner et al. (2025), Lemma 4.4 (Equation 6).

    Examples
    --------
    >>> best_draft_prob([.5, .3, .2], [.2, .3, .5], .6), best_draft_prob([.5, .3, .2], [.2, .3, .5], .1)
    (0.4, 1.0)
    """
    p, q = law_pair(p, q, ndims=(1, 2))
    lam = cost(lam, "lam")
    corners, mass = drafted_mass(p.ravel(), q.ravel(), _prompts(p))
    return float(corners[np.argmax(_rate(mass, corners, lam, choice(kind, "kind", KINDS)))])


def drafting_gain_condition(p: ArrayLike, q: ArrayLike, kind: str = "renewal") -> float:
    r"""The threshold of `lam` above which some ``a < 1`` beats ``a = 1``.

    With ``s = sum of q where p >= q`` (the slope of S just below 1) and ``alpha = sum min(p, q)`` it is ``s`` for
    "paper" and ``s / (1 + alpha - s)`` for "renewal"; the comparison is strict.

    References
    ----------
    Toner et al. (2025), Lemma 4.3; it prints ``p > q`` and a weak inequality.

    Examples
    --------
    >>> p, q = [.4, .3, .2, .1], [.1, .2, .3, .4]
    >>> round(drafting_gain_condition(p, q, kind="paper"), 12), round(drafting_gain_condition(p, q), 12)
    (0.3, 0.230769230769)
    """
    p, q = law_pair(p, q, ndims=(1, 2))
    slope = float((q * (p >= q)).sum() / _prompts(p))
    if choice(kind, "kind", KINDS) == "paper":
        return slope
    return slope / (1 + _drafted_and_accepted(p, q, 1.0) - slope)


def drafted_mass(p: np.ndarray, q: np.ndarray, prompts: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """S at its corners in [0, 1], with 0 and 1 added: two float64 arrays, corners rising. Unchecked, flat arguments.

    ``sum min(p, a q)`` is the sum of p where ``p/q < a`` and of ``a q`` elsewhere: one sort gives every corner.
    """
    drawn = q > 0
    ratio = p[drawn] / q[drawn]
    order = np.argsort(ratio, kind="stable")
    corners = np.unique(np.concatenate([[0.0, 1.0], ratio[ratio < 1]]))
    below = np.searchsorted(ratio[order], corners)
    passed = np.concatenate([[0.0], np.cumsum(p[drawn][order])])[below]
    left = q.sum() - np.concatenate([[0.0], np.cumsum(q[drawn][order])])[below]
    return corners, (passed + corners * left) / prompts


def _rate(mass: float | np.ndarray, a: float | np.ndarray, lam: float, kind: str) -> float | np.ndarray:
    """`drafting_rate` from S(a)."""
    return (1 + mass) / (1 + a * lam) if kind == "renewal" else (mass + a) / (1 + lam) + 1 - a


def _drafted_and_accepted(p: np.ndarray, q: np.ndarray, a: float) -> float:
    """S(a), averaged over the prompts."""
    return float(np.minimum(p, a * q).sum() / _prompts(p))


def _prompts(p: np.ndarray) -> int:
    return 1 if p.ndim == 1 else len(p)
