"""The rule `paths`: accepted tokens of several chains that are drawn independently of each other."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike

from specdec_kernels.theory.checks import count, law_pair


def paths_expected_accepted(p: ArrayLike, q: ArrayLike, n: int, k: int) -> float:
    r"""Expected number of accepted tokens of ``n`` chains of ``k`` tokens, with the same p and q at every position.

    Of the chain taken at least i tokens are accepted with probability ``E[w_i]``, as by block verification, where
    ``w_i = min(1, w_(i-1) p(x)/q'(x))`` and q' is the law of the token taken. q' depends on w and on how many chains
    are left, so the joint law of both is carried along, exactly: meant for small vocabularies, as w may take V^k
    values. Of one chain it is `block_expected_accepted`.

    Parameters
    ----------
    n : int
        Number of chains, at least 1.
    k : int
        Tokens of each.

    Examples
    --------
    >>> p, q = [.4, .3, .2, .1], [.1, .2, .3, .4]
    >>> [round(paths_expected_accepted(p, q, n, 2), 4) for n in (1, 2, 4)]
    [1.03, 1.3503, 1.5373]
    """
    from specdec_kernels.backends.reference.paths import buckets_of, looking  # the rule; the module needs torch

    p, q = law_pair(p, q)
    n, k = count(n, "n", least=1), count(k, "k")
    buckets = buckets_of(p, q)
    sums = [np.bincount(buckets, law, minlength=buckets.max() + 1) for law in (p, q)]
    through = sums[1].cumsum() / sums[1].sum()
    before = np.append(0.0, through[:-1])

    total, states = 0.0, {(1.0, n): 1.0}  # how likely a weight is, with so many chains left
    for _ in range(k):
        next_states: dict[tuple[float, int], float] = {}
        for (weight, left), share in states.items():
            pi, gain = looking(sums[0], sums[1], left, weight)
            for x in np.flatnonzero((q > 0) & (p > 0)):
                taken = q[x] * gain[buckets[x]]
                # 14 decimals merge weights that differ by a rounding, so that each is worked out once.
                next_weight = round(min(1.0, float(weight * p[x] / taken)), 14)
                total += share * taken * next_weight
                at = buckets[x]
                for others, chance in enumerate(survivors(q[x], before[at], through[at], pi, left)):
                    state = next_weight, 1 + others
                    next_states[state] = next_states.get(state, 0.0) + share * chance
        states = next_states
    return float(total)


def survivors(q: float, before: float, through: float, pi: np.ndarray, chains: int) -> np.ndarray:
    """Probabilities that a token is taken and 0, 1, … further chains have it, too.

    Of j chains that are compared it is the first of the best if those before it lie in worse buckets (`before`, their
    mass) and those after it in no better one (`through`). Chains that were not compared may have any token.
    """
    of_looked, of_others = Polynomial([through - q, q]), Polynomial([1 - q, q])
    return sum(
        share * q * before**first * of_looked ** (j - 1 - first) * of_others ** (chains - j)
        for j, share in enumerate(pi.tolist(), 1) if share for first in range(j)
    ).coef  # fmt: skip
