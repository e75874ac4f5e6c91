"""Exact laws of ``method="paths"``: every tuple of chains, by independent formulas, which the oracle must match.

A walk's decisions depend on the remaining chains at a node alone, and on their next tokens. So their tokens are
enumerated node by node, and remaining chains are counted, not named: that covers every tuple of chains. The law of the
taken token is counted over tuples, too, where the oracle has it in powers of sums.
"""

import math
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import torch

from tests.support.enumeration import AS_PROBS, Case, emitted_law, near_of, run

NEAR, SHARES = 2.0**-14, (0.2, 0.4, 0.6, 0.8)


class End(NamedTuple):
    """The end of a walk on its way down, and its path."""

    chance: float
    said: tuple  # the tokens of the chain taken
    chains: tuple  # all tokens of all chains that were enumerated on the way
    looks: tuple  # a uniform for each token, by which so many chains are compared
    places: tuple  # (p, q', w) by depth, w after the token before


def bucket(p, q):
    return max(-12, min(8, math.floor(2 * math.log2(p / q)))) if p > 0 else -12


def taken(tokens, buckets):
    return max(tokens, key=lambda x: buckets[x])  # the first of the best


def look_law(p, q, weight, chains):
    """({number of chains looked at: probability}, q') at a node of this weight."""
    buckets = [bucket(*pair) for pair in zip(p, q, strict=True)]
    by_number = [[0.0] * len(q) for _ in range(chains)]
    for number in range(1, chains + 1):
        for tokens in product(range(len(q)), repeat=number):
            by_number[number - 1][taken(tokens, buckets)] += math.prod(q[x] for x in tokens)
    ways = [{j: 1.0} for j in range(1, chains + 1)]
    ways += [{i: s, j: 1 - s} for i, j in combinations(range(1, chains + 1), 2) for s in SHARES]

    def law(way):
        return [sum(share * by_number[j - 1][x] for j, share in way.items()) for x in range(len(q))]

    def reach(way):
        mixed, groups = law(way), sorted(set(buckets))
        sums = [[sum(row[x] for x in range(len(q)) if buckets[x] == b) for row in (p, mixed)] for b in groups]
        return sum(min(weight * of_p, of_mixed) for of_p, of_mixed in sums)

    reached = [reach(way) for way in ways]
    way = next(way for way, x in zip(ways, reached, strict=True) if x >= max(reached) - NEAR)
    return way, law(way), buckets


def ends(contexts, chains, length, *, given=None, named=False, wrong=None):
    """Every End. ``given``: the chains' tokens, instead of all. ``named``: remaining chains keep their names.

    ``wrong``: "peeks" draws no number of chains, it compares on while tokens are bad; "unclipped" weights.
    """
    look = lru_cache(None)(look_law)

    def down(chance, said, left, tokens, looks, places, weight):
        p, q = (tuple(laws_[said].tolist()) for laws_ in (contexts.p, contexts.q))
        if len(said) == length or not any(p):  # a row without weight ends the chains, whatever follows it
            behind = [0] * (length - len(said))
            tokens = [[*row, *behind] if c in left else row for c, row in enumerate(tokens)]
            yield End(chance, said, tuple(map(tuple, tokens)), looks, (*places, (p, None, weight)))
            return
        way, law, buckets = look(p, q, weight, len(left)) if len(left) > 1 else ({1: 1.0}, list(q), [0] * len(q))
        found = {}
        everything = product(range(len(q)), repeat=len(left))
        for drawn in everything if given is None else [[given[c][len(said)] for c in left]]:
            share = math.prod(q[x] for x in drawn) if given is None else 1.0
            uniform = 0.0
            for number, part in sorted(way.items()):
                if wrong == "peeks" and len(left) > 1:
                    number = next((i for i, x in enumerate(drawn, 1) if p[x] >= q[x]), len(left))
                x = taken(drawn[:number], buckets)
                stay = tuple(c for c, y in zip(left, drawn, strict=True) if y == x)
                if wrong == "stay among those looked at":
                    stay = stay[: list(drawn[:number]).count(x)]
                longer = [[*row, drawn[left.index(c)]] if c in left else row for c, row in enumerate(tokens)]
                key = (x, stay, uniform + part / 2, tuple(map(tuple, longer))) if named else (x, len(stay))
                found[key] = found.get(key, 0.0) + share * part
                uniform += part
        for (x, stay, *more), share in found.items():
            uniform, longer = more if named else (0.0, tokens)
            ratio = weight * p[x] / law[x]
            yield from down(
                chance * share, (*said, x), stay if named else tuple(range(stay)), list(map(list, longer)),
                (*looks, uniform), (*places, (p, law, weight)), ratio if wrong == "unclipped" else min(1.0, ratio),
            )  # fmt: skip

    yield from down(1.0, (), tuple(range(chains)), [[] for _ in range(chains)], (), (), 1.0)


def thresholds(end):
    """The bound below which each token's uniform accepts."""
    found = []
    for p, law, weight in end.places[1:]:
        if law is None:
            found.append(min(1.0, weight))
            continue
        s = sum(max(0.0, weight * x - y) for x, y in zip(p, law, strict=True))
        found.append(min(1.0, s / max(s + 1 - weight, 1e-300)))
    return found


def decided(contexts, end, wrong=None):
    """{emitted tokens: probability} for a walk with this end."""
    law, h = {}, thresholds(end)
    for accepted, (p, drafted, weight) in enumerate(end.places):
        chance = end.chance * (h[accepted - 1] if accepted else 1.0) * math.prod(1 - x for x in h[accepted:])
        if wrong == "residual of q" and drafted is not None:
            drafted = contexts.q[end.said[:accepted]].tolist()
        rest = p if drafted is None else [max(0.0, weight * x - y) for x, y in zip(p, drafted, strict=True)]
        if not any(p):
            rest = [1.0] * len(p)
        for token, share in enumerate(rest):
            if chance > 0 and share > 0:
                key = (*end.said[:accepted], token)
                law[key] = law.get(key, 0.0) + chance * share / sum(rest)
    return law


def path_law(contexts, chains, length, *, wrong=None, given=None):
    """{emitted tokens: probability} of a round."""
    law = {}
    for end in ends(contexts, chains, length, wrong=wrong, given=given, named=given is not None):
        for emitted, chance in decided(contexts, end, wrong).items():
            law[emitted] = law.get(emitted, 0.0) + chance
    return law


def two_rounds_of_one_noise(contexts, chains):
    """Two rounds of two drafts a chain, which do not depend on earlier tokens, under one nonce.

    If one token was emitted, each chain drafts at its position the token that it had drafted there.
    """
    found, q = {}, contexts.q[()].tolist()
    anything = list(product(product(range(len(q)), repeat=2), repeat=chains))

    def chance_of(tokens):
        return math.prod(q[x] for x in tokens)

    whole = path_law(contexts, chains, 2)
    second = {}
    for tokens in anything:
        for emitted, chance in path_law(contexts, chains, 2, given=tokens).items():
            firsts = tuple(x for _, x in tokens)
            if len(emitted) == 1 and firsts not in second:
                second[firsts] = law = {}
                for lasts in product(range(len(q)), repeat=chains):
                    chains_again = tuple(zip(firsts, lasts, strict=True))
                    for more, share in path_law(contexts, chains, 2, given=chains_again).items():
                        law[more] = law.get(more, 0.0) + chance_of(lasts) * share
            for more, share in (second[firsts] if len(emitted) == 1 else whole).items():
                part = chance_of(sum(tokens, ())) * chance * share
                found[emitted + more] = found.get(emitted + more, 0.0) + part
    return found


def merged(chains, nodes):
    """(tokens, parents, leaves) of the tree in which chains that begin alike share nodes."""
    known, tokens, parents, leaves = {(): 0}, [-1], [-1], []
    for chain in chains:
        for i in range(1, len(chain) + 1):
            if chain[:i] not in known:
                known[chain[:i]] = len(known)
                tokens.append(chain[i - 1]), parents.append(known[chain[: i - 1]])
        leaves.append(known[chain])
    padding = [-1] * (nodes - len(tokens))
    return tokens + padding, parents + padding, leaves, known


def oracle_law(contexts, chains, length, given=AS_PROBS):
    """`path_law` of the oracle: at each end its uniforms lie just below or just above the thresholds."""
    near, cases = near_of(given), []
    for end in ends(contexts, chains, length, named=True):
        chance, h, known = end.chance, thresholds(end), merged(end.chains, 0)[3]
        uniforms = {}
        for accepted in range(len(end.said), -1, -1):
            node, threshold = known[end.said[:accepted]], h[accepted - 1] if accepted else 1.0
            if chance * threshold > 0:
                cases.append((end, uniforms | {node: threshold * (1 - near)}, chance * threshold))
            uniforms[node] = threshold * (1 + near)
            chance *= 1 - threshold
    nodes = chains * length + 1
    tokens, parents, leaves, _ = zip(*(merged(end.chains, nodes) for end, _, _ in cases), strict=True)
    looks = [(*end.looks, *[0.0] * (length + 1 - len(end.looks))) for end, _, _ in cases]
    cases = [Case(x, *case[1:], look) for x, case, look in zip(tokens, cases, looks, strict=True)]
    options = {"method": "paths", "replacement": False, "leaves": torch.tensor(leaves)}
    return emitted_law(run(contexts, list(parents), cases, given, **options))
