"""Draft trees: the best nodes for given acceptances by child, and upper bounds for any tree."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec_kernels.theory.checks import TOLERANCE, count, law, law_pair, non_negative


class EntropyBounds(NamedTuple):
    """Bounds on H[R], the entropy of the accepted child's index, in bits; see `entropy_bounds`."""

    reference: float
    rejection: float
    race: float


class OptimalNodes(NamedTuple):
    """The k best nodes of a tree: values, falling; parents, from the root's -1 on; how many child indices occur."""

    values: np.ndarray
    parents: list[int]
    children: int


def optimal_nodes(R: ArrayLike, k: int) -> OptimalNodes:
    r"""Acceptance probabilities of the `k` nodes of the best tree; ``1 + sum(values)`` tokens are expected.

    Node (j_1 … j_l) is accepted with probability ``prod R(j_i)``; its parent and its elder sibling are never worse, so
    a priority queue pops the nodes in falling order (Kobus and Gündüz 2025, Algorithm 3; Chen et al. 2025). R [d] may
    not rise: then growing greedily would not be optimal.

    Examples
    --------
    >>> R = (.5, .2, .12, .08, .06, .04)
    >>> [round(float(1 + optimal_nodes(R, k).values.sum()), 4) for k in (4, 8, 12)]
    [2.075, 2.475, 2.7175]
    """
    R = child_acceptances(R)
    values, parents, children = [], [-1], 0
    heap = [(-R[0], 1.0, 0, 0)]  # (-value, value of the parent, the parent, child index)
    for node in range(1, count(k, "k") + 1):
        value, parent_value, parent, child = heapq.heappop(heap)
        values.append(-value)
        parents.append(parent)
        children = max(children, child + 1)
        heapq.heappush(heap, (value * R[0], -value, node, 0))
        if child + 1 < len(R):
            heapq.heappush(heap, (-parent_value * R[child + 1], parent_value, parent, child + 1))
    return OptimalNodes(np.array(values), parents, children)


def traversal_expected_accepted(p: ArrayLike, q: ArrayLike, parents: Sequence[int], replacement: bool = False) -> float:
    r"""Expected number of accepted tokens of traversal verification of a tree, with the same p and q at every node.

    Some node of a subtree is accepted with probability alpha, the weight of its root at the first visit. So a subtree
    is worth alpha and the value of its children: the first with weight ``min(1, alpha p(x)/q(x))``, and, if nothing of
    it is accepted, the others by the remaining laws and weight. Every order of children is summed up, V^c terms at a
    node of c children and a weight: meant for small vocabularies. On a chain it is `block_expected_accepted`.

    Parameters
    ----------
    parents : list of int
        As in `DraftTree`: -1 for the root, then for each node the index of its parent, which is smaller.
    replacement : bool
        Whether siblings are drawn independently of each other.

    References
    ----------
    Weng et al. (2025), "Traversal verification for speculative tree decoding".

    Examples
    --------
    >>> p, q = [.4, .3, .2, .1], [.1, .2, .3, .4]
    >>> round(traversal_expected_accepted(p, q, [-1, 0, 1]), 12)
    1.03
    >>> round(traversal_expected_accepted(p, q, [-1, 0, 0, 1, 2]), 4)  # rejection: 1.2229
    1.3014
    """
    p, q = law_pair(p, q)
    if not len(parents) or parents[0] != -1 or any(not 0 <= at < node for node, at in enumerate(parents) if node):
        raise ValueError(f"parents: expected -1, then for each node a smaller one; got {list(parents)}")
    below = [[child for child, at in enumerate(parents) if at == node] for node in range(len(parents))]

    total = 0.0
    reached: list[dict[float, float]] = [{} for _ in parents]  # by node: the probability of each weight at the visit
    reached[0][1.0] = 1.0
    for node, children in enumerate(below):
        for alpha, share in reached[node].items():
            for chance, child, accepted in tries(children, alpha, p, q, replacement):
                total += share * chance * accepted
                reached[child][accepted] = reached[child].get(accepted, 0.0) + share * chance
    return float(total)


def tries(
    children: Sequence[int], alpha: float, p: np.ndarray, q: np.ndarray, replacement: bool
) -> Iterator[tuple[float, int, float]]:  # fmt: skip
    """(chance, child, the child's weight) for every child that may be tried under a node of weight `alpha`."""
    waiting = [(1.0, 0, alpha, p, q)]  # the remaining laws when this many children were refused
    while waiting:
        chance, index, weight, p, q = waiting.pop()
        if index == len(children):
            continue
        left = np.maximum(weight * p - q, 0)
        rest = left.sum() + 1 - weight
        after, later = (left / left.sum() if left.any() else left), float(left.sum() / rest) if rest > 0 else 1.0
        for x in np.flatnonzero(q):
            # 14 decimals merge weights that differ by a rounding, so that each is worked out once.
            accepted = round(min(1.0, float(weight * p[x] / q[x])), 14)
            yield chance * q[x], children[index], accepted
            if accepted < 1:
                without = q if replacement else np.where(np.arange(len(q)) == x, 0, q)
                without = without / without.sum() if without.any() else without
                waiting.append((chance * q[x] * (1 - accepted), index + 1, later, after, without))


def tunstall_bound(R: ArrayLike, k: int) -> float:
    r"""Upper bound on the expected tokens of any tree with `k` nodes, ``(log |Omega| + log(k + 1)) / H[R]``.

    Asymptotically right in k; dominated by the vocabulary when k is small, where `tree_bound` is better. It is infinite
    when R is certain.

    Parameters
    ----------
    R : array_like [V]
        Law of the accepted child's index, over the whole vocabulary: sums to 1.

    References
    ----------
    Kobus and Gündüz (2025), Theorem 4.1 (Equation 26, its last form).

    Examples
    --------
    >>> round(tunstall_bound((.5, .2, .12, .08, .06, .04), 12), 4)
    3.0627
    """
    R = law(R, "R")
    return _ratio(np.log(len(R)) + np.log(count(k, "k") + 1), _entropy(R))


def tree_bound(R: ArrayLike, k: int) -> float:
    r"""Lemma 4.2 at its best m: an upper bound on the expected tokens that only needs R where the tree looks.

    With d the number of child indices in the best tree, ``rest = 1 - sum_{i<=d} R(i)`` spread evenly over m further
    indices gives ``(log(d + m) + log(k + 1)) / (H[R(1) … R(d), rest] + rest log m)`` for every integer
    ``m >= rest / R(d)``. A convex over a linear function of log m has one valley, found by doubling and bisection;
    where it falls without end the bound is its limit, ``1 / rest``.

    Parameters
    ----------
    R : array_like [>= d]
        Acceptance by child index, in any order; what is missing to 1 belongs to children never drafted.

    References
    ----------
    Kobus and Gündüz (2025), Lemma 4.2.

    Examples
    --------
    >>> round(tree_bound((.5, .2, .12, .08, .06, .04), 4), 4)
    2.3507
    """
    falling = np.sort(_acceptances(R))[::-1]
    d = optimal_nodes(falling, count(k, "k", least=1)).children
    seen = falling[:d]
    rest = max(0.0, 1 - float(seen.sum()))
    entropy, nodes = _entropy(np.append(seen, rest)), math.log(k + 1)

    def bound(m: int) -> float:
        return _ratio(math.log(d + m) + nodes, entropy + rest * math.log(m))

    # The sign of the derivative: differences of bound() drown in rounding on its long flat tail.
    def rising(m: int) -> bool:
        return m / (d + m) * (entropy + rest * math.log(m)) > rest * (math.log(d + m) + nodes)

    if seen[-1] == 0 or entropy <= rest * nodes:  # it falls without end: return the limit
        return _ratio(1, rest)
    least = low = max(1, math.ceil(rest / seen[-1] - 1e-9))
    high = low
    while not rising(high) and high < 2**1000:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rising(middle) else (middle + 1, high)
    return min(bound(low), bound(max(least, low - 1)))


def entropy_bounds(p: ArrayLike, q: ArrayLike) -> EntropyBounds:
    r"""The bounds of Kobus and Gündüz (2025) on H[R] in bits, from ``D = KL(p || q)``; infinite where q = 0 < p.

    ``reference = D`` is Equation 6, which holds for drafts with replacement only: a reference line, not a bound, for
    the trees of Algorithms 4 and 5. ``rejection = D + log2(D + 1)`` is Equation 7 without its unknown constant and its
    (1 + eps); ``race = D + log2(D + 1) + 4`` is Equation 8. See Li and El Gamal (2018), Harsha et al. (2010).

    Examples
    --------
    >>> [round(bound, 4) for bound in entropy_bounds([.5, .5], [.25, .75])]
    [0.2075, 0.4796, 4.4796]
    """
    p, q = law_pair(p, q)
    some = p > 0
    with np.errstate(divide="ignore"):
        divergence = float((p[some] * np.log2(p[some] / q[some])).sum())
    greedy = divergence + np.log2(divergence + 1)
    return EntropyBounds(divergence, float(greedy), float(greedy + 4))


def child_acceptances(R: ArrayLike) -> np.ndarray:
    """Acceptances by child index that do not rise."""
    R = _acceptances(R)
    if (risen := np.flatnonzero(np.diff(R) > 0)).size:
        before, child = R[risen[0]], R[risen[0] + 1]
        raise ValueError(f"R: expected no child above the one before it; got {child:g} after {before:g}")
    return R


def _acceptances(R: ArrayLike) -> np.ndarray:
    """Acceptances by child index: at most one child is accepted, so they sum to 1 at most."""
    R = non_negative(R, "R")
    if R.sum() > 1 + TOLERANCE:
        raise ValueError(f"R: expected a sum of at most 1; got {R.sum():.9g}")
    return R


def _entropy(law: np.ndarray) -> float:
    """Entropy in nats."""
    some = law[law > 0]
    return float(-(some * np.log(some)).sum())


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else float("inf")
