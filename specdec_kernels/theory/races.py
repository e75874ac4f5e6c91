"""The race (Gumbel coupling): how often both races have one winner, and the rank of the target's winner otherwise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike

from specdec_kernels.theory.chains import overlap_mass
from specdec_kernels.theory.checks import count, law_pair

EXACT_VOCABULARY = 12  # inclusion-exclusion walks 2^(V-1) subsets per token


class RaceBounds(NamedTuple):
    """Bounds on `race_acceptance`: three from below, then the one from above."""

    harmonic: float
    joint: float
    variation: float
    upper: float


def race_acceptance(p: ArrayLike, q: ArrayLike, by_token: bool = False) -> float | np.ndarray:
    r"""Probability that the races under p and q with shared arrivals have the same winner.

    ``sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)``, in O(V log V): sorted by p/q, the maximum is a tail sum of p and a
    head sum of q.

    Parameters
    ----------
    by_token : bool
        Return the probability that token i wins both races, for every i, instead of the sum.

    References
    ----------
    Kobus and Gündüz (2025), Algorithm 2; Li and Anantharam (2021) for the exact form.

    Examples
    --------
    >>> round(race_acceptance([.4, .3, .2, .1], [.1, .2, .3, .4]) * 35, 9)
    19.0
    """
    p, q = law_pair(p, q)
    wins = np.zeros(len(p))
    both = (p > 0) & (q > 0)
    ratio = np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0)
    order = np.argsort(ratio, kind="stable")
    head = np.concatenate([[0.0], np.cumsum(q[order])])
    tail = np.concatenate([np.cumsum(p[order][::-1])[::-1], [0.0]])
    below = np.searchsorted(ratio[order], ratio[both])
    wins[both] = 1 / (tail[below] / p[both] + head[below] / q[both])
    return wins if by_token else float(wins.sum())


def race_bounds(p: ArrayLike, q: ArrayLike) -> RaceBounds:
    r"""Bounds on `race_acceptance` that need no sort.

    Returns
    -------
    RaceBounds
        From below ``harmonic = sum pq / (p + q)``, the sharper ``joint = sum pq / (p + q - pq)`` and
        ``variation = (1 - TV) / (1 + TV)``; from above ``upper = 1 - TV``.

    References
    ----------
    Kobus and Gündüz (2025), Lemma 3.1; the other two lower bounds follow from the exact form.

    Examples
    --------
    >>> [round(bound, 6) for bound in race_bounds([.4, .3, .2, .1], [.1, .2, .3, .4])]
    [0.4, 0.44664, 0.428571, 0.6]
    """
    p, q = law_pair(p, q)
    p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
    upper = overlap_mass(p, q)
    return RaceBounds(
        harmonic=float((p * q / (p + q)).sum()),
        joint=float((p * q / (p + q - p * q)).sum()),
        variation=upper / (2 - upper),
        upper=upper,
    )


def race_rank_law(p: ArrayLike, q: ArrayLike, max_rank: int | None = None) -> np.ndarray:
    r"""Law of the rank that the winner under p has among the arrivals under q.

    Summed up to k it is the acceptance of k alternatives drafted by `race_topk`. If token i wins at time t (density
    ``p_i exp(-t)``), token j has arrived before it under q with probability ``1 - exp(-t d_j)``,
    ``d_j = (q_j p_i / q_i - p_j)^+``, independently: the rank is one more than a Poisson-binomial count. Up to 12
    tokens the integral over t is done by inclusion–exclusion; beyond, by the trapezoidal rule in log t, to 1e-10.
    Time and memory grow as V² · max_rank, so give `max_rank` when V is large.

    Parameters
    ----------
    max_rank : int, optional
        How many ranks to compute; V when None.

    Returns
    -------
    float64 [min(max_rank, V)]
        Entry r is the probability of rank r + 1. All V ranks sum to the p-mass of the tokens with q > 0: a winner
        that the draft cannot give has no rank.

    References
    ----------
    Kobus and Gündüz (2025), section 3, the batch strategy.

    Examples
    --------
    The first two arrivals contain the winner with probability 163/210.

    >>> law = race_rank_law([.4, .3, .2, .1], [.1, .2, .3, .4])
    >>> round(float(law[:2].sum()) * 210, 9)
    163.0
    """
    p, q = law_pair(p, q)
    ranks = len(p) if max_rank is None else min(len(p), count(max_rank, "max_rank", least=1))
    count_law = _counts_by_subsets if len(p) <= EXACT_VOCABULARY else _counts_by_quadrature
    ranked = np.zeros(ranks)
    for i in np.flatnonzero((p > 0) & (q > 0)):
        rates = p[i] / q[i] * q - p
        ahead = count_law(rates[rates > 0], ranks)
        ranked[: len(ahead)] += p[i] * ahead
    return ranked


def _counts_by_subsets(rates: np.ndarray, ranks: int) -> np.ndarray:
    """E over t ~ Exp(1) of the law of how many of the independent events "before t at these rates" happened, exactly.

    The generating function is ``prod_j (z + (1 - z) exp(-d_j t))``, and ``E exp(-d t) = 1 / (1 + d)``.
    """
    sums, sizes = np.zeros(1), np.zeros(1, dtype=int)
    for rate in rates:
        sums, sizes = np.concatenate([sums, sums + rate]), np.concatenate([sizes, sizes + 1])
    moments = np.bincount(sizes, 1 / (1 + sums))
    law = np.zeros(len(rates) + 1)
    for size, moment in enumerate(moments):
        law[len(rates) - size :] += moment * (Polynomial([1, -1]) ** size).coef
    return law[:ranks]


def _counts_by_quadrature(rates: np.ndarray, ranks: int) -> np.ndarray:
    """As `_counts_by_subsets` for any number of rates, to about 1e-10."""
    # In x = log t the integrand is analytic in a strip of half-width pi/2, and its spectrum around rank m is Gaussian
    # of deviation sqrt(m) before it falls as exp(-pi/2 |omega|): the step puts 2 pi / h beyond both.
    step = 2 * np.pi / (25 + 8.5 * np.sqrt(ranks))
    t = np.exp(np.arange(-37, 4, step))
    law = np.zeros((ranks, len(t)))
    law[0] = t * np.exp(-t) * step
    for rate in rates:
        late = np.exp(-rate * t)
        law[1:] = law[1:] * late + law[:-1] * (1 - late)
        law[0] *= late
    return law.sum(axis=1)
