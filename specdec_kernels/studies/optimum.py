"""How near `paths` comes to the best that any rule can do with chains drawn independently of each other.

What its parts cost, buckets in the place of the exact order of p / q and few mixtures, and what is left to the optimum:
by a closed form for one place, by a linear programme for several.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from specdec_kernels import theory
from specdec_kernels.studies.drawing import Figure, curve, panel
from specdec_kernels.studies.figures import pair_laws

LOWEST, HIGHEST = -6, 4  # octaves of p / q: all that lies beyond is in one bucket
NEAR = 2.0**-14  # ways to look that are so near to the best are as good
FOUR, NINETEEN = (0.2, 0.4, 0.6, 0.8), tuple(np.arange(1, 20) / 20)
DRAFTS, WIDTHS = (1, 2, 3, 4, 6, 8), (0.125, 0.25, 0.5, 1.0, 2.0, 5.0)
CASES = ((6, 2, 2), (4, 3, 2), (3, 4, 2), (3, 2, 3))  # tokens, chains, their length
Order = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Rule(NamedTuple):
    """A token's place in the order by which the best is taken, and the shares by which two numbers of chains are mixed.

    Without shares, None, all chains are always looked at.
    """

    order: Order
    shares: Sequence[float] | None


def by_ratio(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Every token for itself, those of equal p / q by rising id."""
    ratio = np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0)
    return np.argsort(np.argsort(ratio, kind="stable"), kind="stable")


def in_octaves(width: float) -> Order:
    """Buckets of so many octaves."""

    def order(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            octaves = np.where(q > 0, np.log2(p) - np.log2(q), np.inf)
        return np.floor(octaves.clip(LOWEST, HIGHEST) / width).astype(int) - math.floor(LOWEST / width)

    return order


PATHS = Rule(in_octaves(0.5), FOUR)
EXACT = Rule(by_ratio, FOUR)
GREEDY = Rule(by_ratio, None)


def looking(p: np.ndarray, q: np.ndarray, drafts: int, weight: float, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """(the probabilities of looking at 1, 2, … drafts; the law of the token taken) where the laws are p and q."""
    places = rule.order(p, q)
    of_p, of_q = (np.bincount(places, law) for law in (p, q))
    upto = np.append(0.0, of_q.cumsum() / of_q.sum()).clip(max=1.0)
    powers = upto ** np.arange(1, drafts + 1)[:, None]
    gain = np.divide(np.diff(powers), of_q, out=np.zeros((drafts, len(of_q))), where=of_q > 0)
    one = np.eye(drafts)
    ways = one[-1:]
    if rule.shares is not None:
        pairs = itertools.combinations(one, 2)
        ways = np.array([*one, *(s * few + (1 - s) * many for few, many in pairs for s in rule.shares)])
    reach = np.minimum(weight * of_p, of_q * (ways @ gain)).sum(1)
    way = ways[int((reach >= reach.max() - NEAR).argmax())]
    return way, q * (way @ gain)[places]


def accepted_at(p: np.ndarray, q: np.ndarray, drafts: int, rule: Rule) -> float:
    """Probability that one of the drafts for one place is accepted."""
    return float(np.minimum(p, looking(p, q, drafts, 1.0, rule)[1]).sum())


def reached_at(p: np.ndarray, q: np.ndarray, drafts: int, rule: Rule) -> float:
    """What that would be if p / q were the same all over each bucket: the figure by which `looking` chooses."""
    places, law = rule.order(p, q), looking(p, q, drafts, 1.0, rule)[1]
    return float(np.minimum(np.bincount(places, p), np.bincount(places, law)).sum())


def rejected_one_by_one(p: np.ndarray, q: np.ndarray, drafts: int) -> float:
    """That of rejection with replacement, draft by draft, which for one place is traversal's, too."""
    left = p
    for _ in range(drafts):
        left = (left - left.sum() * q).clip(min=0.0)
    return float(1 - left.sum())


def best_at(p: np.ndarray, q: np.ndarray, drafts: int) -> float:
    """The largest that any lossless rule can have: the least of P(H) + 1 - Q(H)^n over sets H of tokens.

    Whatever is accepted is drawn, and in H with probability P(H) at most; outside of H only if not all drafts are in H.
    That is a cut of the flow from tuples of drafts to tokens, so the least one is reached. For a given Q(H) the least
    P(H) is that of the tokens of small p / q, and -Q^n is concave: so only sets that begin their order count.
    """
    order = np.argsort(by_ratio(p, q))
    of_p, of_q = (np.append(0.0, law[order].cumsum()) for law in (p, q))
    return float((of_p + 1 - of_q**drafts).min())


def expected_accepted(p: np.ndarray, q: np.ndarray, chains: int, length: int, rule: Rule) -> float:
    """Drafts accepted by such a rule where p and q are the laws at each node: every tuple of next tokens is counted.

    As by block verification at least i are accepted with probability E[w_i].
    """
    tokens = range(len(p))

    @cache
    def below(left: int, weight: float, more: int) -> float:
        if more == 0:
            return 0.0
        way, law = looking(p, q, left, weight, rule) if left > 1 else (np.ones(1), q)
        places, found = rule.order(p, q), Counter()
        for drawn in itertools.product(tokens, repeat=left):
            chance = math.prod(q[x] for x in drawn)
            for looked in np.flatnonzero(way) + 1:
                x = max(drawn[:looked], key=lambda y: places[y])
                found[x, drawn.count(x)] += chance * way[looked - 1]
        total = 0.0
        for (x, still), chance in found.items():
            own = round(min(1.0, weight * p[x] / law[x]), 14)
            total += chance * (own + below(still, own, more - 1))
        return total

    return below(chains, 1.0, length)


def best_expected(p: np.ndarray, q: np.ndarray, chains: int, length: int) -> float:
    """The most drafts that any lossless rule can accept where p and q are the laws at each node: a linear programme.

    Let a(X, s) be the probability that chains X are drawn and at least the drafts s are accepted, and D(s) its sum over
    X. Below a node no more can be accepted than at it: the sum of a(X, s y) over the children of s in X is at most
    a(X, s). And a rule is lossless iff D(s y) <= D(s) p(y): the rest of D(s) p(y) is drawn after s.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    each = list(itertools.product(range(len(p)), repeat=length))
    variables, rows, most = [], [], []
    accepted: dict[tuple, list[int]] = {}  # by drafts, the variables that D sums
    for drawn in itertools.combinations_with_replacement(each, chains):
        counts = Counter(drawn)
        ways = math.factorial(chains) / math.prod(map(math.factorial, counts.values()))
        index: dict[tuple, int] = {}
        for said in sorted({chain[:i] for chain in drawn for i in range(1, length + 1)}, key=len):
            index[said] = len(variables)
            variables.append(said)
            accepted.setdefault(said, []).append(index[said])
        for said in [(), *(said for said in index if len(said) < length)]:
            row = {index[child]: 1.0 for child in index if child[:-1] == said}
            if said:
                row[index[said]] = -1.0
            rows.append(row)
            most.append(0.0 if said else ways * math.prod(q[x] for chain in drawn for x in chain))
    for said, own in accepted.items():
        row = dict.fromkeys(own, 1.0)
        for above in accepted.get(said[:-1], []):
            row[above] = row.get(above, 0.0) - p[said[-1]]
        rows.append(row)
        most.append(p[said[-1]] if len(said) == 1 else 0.0)
    entries = [(i, j, value) for i, row in enumerate(rows) for j, value in row.items()]
    i, j, values = zip(*entries, strict=True)
    limits = coo_array((values, (i, j)), shape=(len(rows), len(variables))).tocsr()
    found = linprog(-np.ones(len(variables)), A_ub=limits, b_ub=most, method="highs")
    if not found.success:
        raise RuntimeError(f"the linear programme was not solved: {found.message}")
    return float(-found.fun)


def figure(runs: int) -> Figure:
    """One place of the embedded pair by number of drafts and by width of buckets; small laws beside the optimum."""
    laws = list(zip(*pair_laws(), strict=True))

    def mean(accepted: Callable[..., float], *options: object) -> float:
        return float(np.mean([accepted(p, q, *options) for p, q in laws]))

    best = {n: mean(best_at, n) for n in DRAFTS}
    one_place = {
        "optimum": best,
        "exact order of p/q": {n: mean(accepted_at, n, EXACT) for n in DRAFTS},
        "paths": {n: mean(accepted_at, n, PATHS) for n in DRAFTS},
        "greedy multi-path": {n: mean(accepted_at, n, GREEDY) for n in DRAFTS},
        "rejection, traversal": {n: mean(rejected_one_by_one, n) for n in DRAFTS},
    }
    mixtures = {"no mixtures": (), "4 mixtures": FOUR, "19 mixtures": NINETEEN}
    lost = {
        name: [best[4] - mean(accepted_at, 4, Rule(in_octaves(width), shares)) for width in WIDTHS]
        for name, shares in mixtures.items()
    }
    exact = best[4] - mean(accepted_at, 4, Rule(by_ratio, NINETEEN))
    small = {f"{n} chains of {k}, {v} tokens": small_laws(v, n, k, max(4, runs // 250)) for v, n, k in CASES}
    return dict(
        title="Several chains: how near to the optimum",
        note=f"{len(laws)} places of four texts of the embedded target; small laws p are uniform on the simplex, q is "
        "halfway from p to another of them",
        panels=[
            panel("one place of the embedded pair", "drafts", "probability that one is accepted",
                  *(curve(name, DRAFTS, list(found.values())) for name, found in one_place.items())),
            panel("four drafts, by width of buckets", "octaves of p/q", "lost against the optimum",
                  *(curve(name, WIDTHS, found) for name, found in lost.items()),
                  curve("exact order, 19 mixtures", WIDTHS, [exact] * len(WIDTHS), colour="black")),
            panel("small laws", "drafts accepted by the optimum", "share of the optimum",
                  *(curve(f"paths, {name}", found["optimum"], found["paths"] / found["optimum"], points=True,
                          colour=f"C{index}") for index, (name, found) in enumerate(small.items()))),
        ],
        lost_within_buckets={n: mean(reached_at, n, PATHS) - mean(accepted_at, n, PATHS) for n in DRAFTS},
        small_laws={name: {rule: float(np.mean(x)) for rule, x in found.items()} for name, found in small.items()},
    )  # fmt: skip


def small_laws(vocabulary: int, chains: int, length: int, pairs: int) -> dict[str, np.ndarray]:
    """Drafts accepted of so many chains, by rule, for random p and for q halfway to another law."""
    rng = np.random.default_rng(0)
    parents = [-1] + [0 if i % length == 0 else i for i in range(chains * length)]
    found = []
    for _ in range(pairs):
        p, other = rng.dirichlet(np.ones(vocabulary), 2)
        q = (p + other) / 2
        found.append({
            "block, one chain": theory.block_expected_accepted([p] * length, [q] * length),
            "traversal": theory.traversal_expected_accepted(p, q, parents, replacement=True),
            "greedy multi-path": expected_accepted(p, q, chains, length, GREEDY),
            "paths": expected_accepted(p, q, chains, length, PATHS),
            "exact order of p/q": expected_accepted(p, q, chains, length, EXACT),
            "optimum": best_expected(p, q, chains, length),
        })  # fmt: skip
    return {rule: np.array([each[rule] for each in found]) for rule in found[0]}
