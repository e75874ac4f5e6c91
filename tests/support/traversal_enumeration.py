"""Exact laws of the oracle's decisions under ``block`` and ``traversal``.

For given drafts such a walk has few ends: each leaf that is tried is accepted, or in the end nothing is. The leaves and
their weights are computed here a second time, in another form than the oracle's: the multiples of q that were
subtracted from p are added up, as in the kernels. The uniforms of a case then lie just below or just above these
weights: an error of 1e-9 in the oracle's shows. The last draw is recorded as a law.
"""

import pytest
import torch

from specdec_kernels.backends import reference
from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Edit, Noise
from tests.support.calls import backends_call
from tests.support.enumeration import AS_PROBS, shares_of
from tests.support.tree_enumeration import context, drafts
from tests.support.trees import children, depths

FIRST_UNIFORM = 2**30


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
        residual_mass = float((row - place.subtracted * q[place.node]).clamp(min=0.0).sum())
        if not replacement:
            place.untried_mass = float(q[place.node].index_fill(0, torch.tensor(place.tried), 0.0).sum())
    s = place.weight * residual_mass / place.residual_mass if place.residual_mass > 0 else 0.0
    rest = s + 1.0 - place.weight
    place.weight, place.residual_mass = (s / rest if rest > 0 else 1.0), residual_mass


def output_law(contexts, parents, *, drawn_with_replacement=False, replacement=None, certain=False, given=AS_PROBS,
               op="verify_tree", drafted=None):  # fmt: skip
    """{(path, emitted tokens): probability} of one round with this tree; with ``op="verify_chain"`` it is a chain.

    ``drafted``: [(tokens, probability)] instead of all drafts.
    """
    replacement = drawn_with_replacement if replacement is None else replacement
    cases = []
    near = 1e-9 if given.target.space == given.draft.space == "probs" else 1e-5  # logits are scaled in float32
    for tokens, chance in drafted or drafts(contexts, parents, drawn_with_replacement):
        said = [context(parents, tokens, node) for node in range(len(parents))]
        p = [contexts.p.get(x) for x in said]
        q = None if certain else [contexts.q.get(x) for x in said]
        uniforms = {}
        for leaf, weight in leaves(p, q, parents, tokens, replacement):
            if chance * weight > 0:
                cases.append((tokens, uniforms | {leaf: weight * (1 - near)}, chance * weight))
            uniforms[leaf] = weight * (1 + near)
            chance *= 1 - weight
        if chance > 0:
            cases.append((tokens, uniforms, chance))
    return run(contexts, parents, cases, replacement, certain, given, op)


def run(contexts, parents, cases, replacement, certain, given, op):
    """The oracle on all cases at once, with their uniforms; its draws are recorded."""
    nodes, count = len(parents), len(cases)
    drafted = torch.tensor([tokens for tokens, _, _ in cases])
    uniform_table = torch.full((count, nodes), torch.nan, dtype=torch.float64)
    p_rows, q_rows = torch.full((2, count, nodes, contexts.vocabulary), torch.nan, dtype=torch.float64)
    for case, (tokens, uniforms, _) in enumerate(cases):
        for node, uniform in uniforms.items():
            uniform_table[case, node] = uniform
        for node in range(nodes):
            said = context(parents, tokens, node)
            if said is not None:  # rows of absent nodes must not be read: they stay NaN
                p_rows[case, node] = contexts.p[said]
                q_rows[case, node] = contexts.q.get(said, q_rows[case, node])
    drawn_from = torch.zeros(count, contexts.vocabulary, dtype=torch.float64)

    def draw(weights, case):
        drawn_from[case.squeeze(-1)] = shares_of(weights)
        return torch.zeros(len(weights), dtype=torch.int64)

    width = max(depths(parents)) + 1
    tokens, path = torch.empty(count, width, dtype=torch.int64), torch.empty(count, width, dtype=torch.int32)
    num_accepted, status = torch.empty(2, count, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            noise, "uniforms", lambda whose, stream, index: uniform_table[whose.seed, index - FIRST_UNIFORM + 1]
        )
        patch.setattr(noise, "arrivals", lambda whose, stream, size: whose.seed.unsqueeze(-1))
        patch.setattr(laws, "draw", draw)
        target, draft = given.rows(p_rows, q_rows)
        shared = dict(
            target=target, draft_map=given.draft_map, target_law=given.target, draft_law=given.draft, edits=Edit(),
            noise=Noise(torch.arange(count), 0, 0), tokens=tokens, num_accepted=num_accepted, status=status,
            output_format=0,
        )  # fmt: skip
        if op == "verify_chain":
            reference.verify_chain(backends_call(
                op, draft_tokens=drafted[:, 1:], draft=None if certain else draft[:, :-1], method="block",
                draft_prob=1.0, epsilon=0.0, **shared,
            ))  # fmt: skip
            path = torch.where(tokens >= 0, torch.arange(width), -1)
        else:
            reference.verify_tree(backends_call(
                op, draft_tokens=drafted, parents=torch.tensor(parents), draft=None if certain else draft,
                method="traversal", replacement=replacement, path=path, **shared,
            ))  # fmt: skip
    law = {}
    for (_, _, chance), walked, emitted, last in zip(
        cases, path.tolist(), tokens.tolist(), drawn_from.tolist(), strict=True
    ):
        walked, emitted = (tuple(x for x in entries if x != -1) for entries in (walked, emitted))
        for token, share in enumerate(last):
            if share > 0:
                key = walked, (*emitted[:-1], token)
                law[key] = law.get(key, 0.0) + chance * share
    return law


def expected_accepted(law):
    return sum(chance * (len(path) - 1) for (path, _), chance in law.items())


def after(contexts, said):
    """The contexts after these tokens."""
    later = type(contexts)(contexts.vocabulary, 0)
    later.p, later.q = ({x[len(said) :]: law for x, law in laws_.items() if x[: len(said)] == said}
                        for laws_ in (contexts.p, contexts.q))  # fmt: skip
    return later


def two_rounds(contexts, parents, **options):
    """{emitted tokens: probability} of a round and the one after it, whose noise is fresh."""
    found = {}
    for (_, emitted), chance in output_law(contexts, parents, **options).items():
        for (_, more), again in output_law(after(contexts, emitted), parents, **options).items():
            found[emitted + more] = found.get(emitted + more, 0.0) + chance * again
    return found
