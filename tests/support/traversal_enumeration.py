"""Exact laws of the oracle's decisions under ``traversal``, and under ``block`` by the page of rules.

For given drafts a walk over a tree has few ends: each leaf that is tried is accepted, or in the end nothing is. The
leaves and their weights are computed here a second time, in another form than the oracle's: the multiples of q that
were subtracted from p are added up, as in the kernels.
"""

import numpy as np

from specdec_kernels.backends.reference import naive
from tests.support.enumeration import AS_PROBS, Case, cases_of, drafts, near_of, rows_by_node, run
from tests.support.trees import children


class Place:
    """A node on the path: its weight, T, W and R, and the tokens tried."""

    def __init__(self, node, weight):
        self.node, self.weight, self.tried = node, weight, []
        self.subtracted, self.residual_mass, self.untried_mass = 0.0, 1.0, 1.0


def leaves(p, q, tree, tokens, replacement):
    """[(leaf, its weight)] in the order in which leaves are tried, the root left out. p and q: laws by node."""
    found, path, remaining = [], [Place(0, 1.0)], [list(below) for below in children(tree)]
    while path:
        here = path[-1]
        if remaining[here.node]:
            child = remaining[here.node].pop(0)
            x = tokens[child]
            if not p[here.node].any():  # the branch ends at a row without weight
                continue
            if x == -1 or (x in here.tried and (q is None or not replacement)):
                continue
            drafted = 1.0 if q is None else float(q[here.node][x]) / here.untried_mass
            rest = max(0.0, float(p[here.node][x]) - (0.0 if q is None else here.subtracted * float(q[here.node][x])))
            weighs = drafted > 0 and here.residual_mass > 0
            weight = min(1.0, here.weight * rest / here.residual_mass / drafted) if weighs else 0.0
            path.append(Place(child, weight))
            continue
        path.pop()
        if path:
            found.append((here.node, here.weight))
            remove(path[-1], tokens[here.node], p, q, replacement)
    return found


def remove(place, x, p, q, replacement):
    """T += W / (alpha R); s = alpha W' / W; alpha = s / (s + 1 - alpha)."""
    place.tried.append(x)
    if place.weight == 0:
        return
    row = p[place.node]
    if q is None:
        residual_mass = max(0.0, place.residual_mass - float(row[x]))
    else:
        place.subtracted += place.residual_mass / (place.weight * place.untried_mass) if place.untried_mass > 0 else 0.0
        residual_mass = float((row - place.subtracted * q[place.node]).clip(min=0.0).sum())
        if not replacement:
            place.untried_mass = float(np.delete(q[place.node], place.tried).sum())
    s = place.weight * residual_mass / place.residual_mass if place.residual_mass > 0 else 0.0
    rest = s + 1.0 - place.weight
    place.weight, place.residual_mass = (s / rest if rest > 0 else 1.0), residual_mass


def output_law(contexts, parents, *, drawn_with_replacement=False, replacement=None, certain=False, given=AS_PROBS,
               op="verify_tree", drafted=None):  # fmt: skip
    """{(path, emitted tokens): probability} of one round with this tree; with ``op="verify_chain"`` it is a chain.

    ``drafted``: [(tokens, probability)] instead of all drafts.
    """
    replacement, near = drawn_with_replacement if replacement is None else replacement, near_of(given)
    drafted, cases = drafted or drafts(contexts, parents, drawn_with_replacement), []
    if op == "verify_chain":
        cases = cases_of(contexts, parents, drafted, naive.block, near, certain=certain)
        return run(contexts, parents, cases, given, certain, op, method="block", draft_prob=1.0, epsilon=0.0)
    for tokens, chance in drafted:
        p, q = rows_by_node(contexts, parents, tokens)
        uniforms = {}
        for leaf, weight in leaves(p, None if certain else q, parents, tokens, replacement):
            if chance * weight > 0:
                cases.append(Case(tokens, uniforms | {leaf: weight * (1 - near)}, chance * weight))
            uniforms[leaf] = weight * (1 + near)
            chance *= 1 - weight
        if chance > 0:
            cases.append(Case(tokens, uniforms, chance))
    return run(contexts, parents, cases, given, certain, method="traversal", replacement=replacement)
