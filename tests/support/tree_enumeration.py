"""Exact laws of the oracle's decisions on trees; tests/support/enumeration.py has those on chains.

Every draft of a tree, every side of every accept test and every token drawn, weighted by probability. A child's uniform
only matters by its side of one threshold, for its elder siblings were rejected or it is not tried; the thresholds are
computed here a second time, so a wrong one of the oracle's would spoil the law.
"""

from itertools import pairwise, product

import pytest
import torch

from specdec_kernels.backends import reference
from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.calls.values import Edit, Noise
from tests.support.calls import backends_call
from tests.support.enumeration import AS_PROBS, shares_of
from tests.support.trees import children, depths

UNTRIED = -1.0


def output_law(contexts, parents, *, drawn_with_replacement=False, replacement=None, certain=False, repeats=True,
               shared_uniforms=False, given=AS_PROBS):  # fmt: skip
    """{(path, emitted tokens): probability} of one round with this tree.

    Siblings are drawn with or without replacement, and verified by ``replacement`` (as drawn, by default).
    Variants: ``certain`` verifies without draft laws; ``repeats=False`` drops a sibling with the token of an elder one;
    ``shared_uniforms`` draws one uniform for all siblings.
    """
    replacement = drawn_with_replacement if replacement is None else replacement
    cases = []
    for tokens, chance in drafts(contexts, parents, drawn_with_replacement):
        if not repeats:
            tokens = without_repeats(parents, tokens)
        q = None if certain else contexts.q
        for uniforms, width in uniform_cells(contexts.p, q, parents, tokens, replacement, shared_uniforms):
            cases += [(tokens, uniforms, chance * width, drawn) for drawn in range(contexts.vocabulary)]
    return run(contexts, parents, cases, replacement, certain, given)


def context(parents, tokens, node):
    """The tokens from the root to a node; None if one is absent."""
    said = ()
    while node:
        if tokens[node] == -1:
            return None
        said, node = (tokens[node], *said), parents[node]
    return said


def drafts(contexts, parents, with_replacement):
    """(tokens, probability) of all trees of tokens; -1 where the draft has no token left to draw."""
    found = [((-1,), 1.0)]
    for node in range(1, len(parents)):
        longer = []
        for tokens, chance in found:
            q = contexts.q.get(context(parents, (*tokens, *([-1] * len(parents))), parents[node]))
            elder = [] if with_replacement else [tokens[c] for c in range(1, node) if parents[c] == parents[node]]
            left = [] if q is None else [x for x in range(contexts.vocabulary) if x not in elder and q[x] > 0]
            mass = sum(float(q[x]) for x in left)
            longer += [((*tokens, x), chance * float(q[x]) / mass) for x in left] or [((*tokens, -1), chance)]
        found = longer
    return found


def without_repeats(parents, tokens):
    kept = list(tokens)
    for node in range(1, len(parents)):
        if any(parents[c] == parents[node] and tokens[c] == tokens[node] for c in range(1, node)):
            kept[node] = -1
    return tuple(kept)


def thresholds(p, q, tokens, replacement):
    """p^m(x) / q^m(x) of siblings with these tokens; UNTRIED for one that is not tried."""
    found, tried = [], []
    for x in tokens:
        if x == -1 or (x in tried and (q is None or not replacement)):
            found.append(UNTRIED)
            continue
        drafted = torch.nn.functional.one_hot(torch.tensor(x), len(p)).double() if q is None else q
        found.append(min(1.0, float(p[x] / drafted[x])))
        tried.append(x)
        p = (p - drafted).clamp(min=0.0)
        p = p / p.sum() if p.sum() > 0 else p
        if q is not None and not replacement:
            q = q.index_fill(0, torch.tensor(tried), 0.0)
            q = q / q.sum() if q.sum() > 0 else q
    return found


def uniform_cells(p, q, parents, tokens, replacement, shared):
    """(uniforms of nodes 1.., probability): one uniform from each interval between thresholds."""
    threshold = [UNTRIED] * len(parents)
    for node, below in enumerate(children(parents)):
        said = context(parents, tokens, node)
        if said is not None and below:
            at_node = thresholds(p[said], None if q is None else q[said], [tokens[c] for c in below], replacement)
            for child, value in zip(below, at_node, strict=True):
                threshold[child] = value
    groups = [below for below in children(parents) if below] if shared else [[c] for c in range(1, len(parents))]
    choices = []
    for group in groups:
        edges = sorted({0.0, 1.0, *(threshold[c] for c in group if threshold[c] != UNTRIED)})
        choices.append([(group, (low + high) / 2, high - low) for low, high in pairwise(edges)])
    for choice in product(*choices):
        uniforms, width = [0.0] * len(parents), 1.0
        for group, uniform, share in choice:
            width *= share
            for child in group:
                uniforms[child] = uniform
        yield uniforms[1:], width


def run(contexts, parents, cases, replacement, certain, given):
    """The oracle on all cases at once, with the uniforms and draws of the cases."""
    nodes, count = len(parents), len(cases)
    drafted = torch.tensor([tokens for tokens, _, _, _ in cases])
    uniform_table = torch.tensor([uniforms for _, uniforms, _, _ in cases], dtype=torch.float64).reshape(
        count, nodes - 1
    )
    forced = torch.tensor([drawn for _, _, _, drawn in cases])
    drawn_with = torch.zeros(count, dtype=torch.float64)
    p_rows, q_rows = torch.full((2, count, nodes, contexts.vocabulary), torch.nan, dtype=torch.float64)
    for case, (tokens, _, _, _) in enumerate(cases):
        for node in range(nodes):
            said = context(parents, tokens, node)
            if said is not None:  # rows of absent nodes must not be read: they stay NaN
                p_rows[case, node] = contexts.p[said]
                q_rows[case, node] = contexts.q.get(said, q_rows[case, node])

    def uniforms(whose, stream, index):
        return uniform_table[whose.seed, index]

    def case_as_arrivals(whose, stream, size):
        return whose.seed.unsqueeze(-1)

    def draw(weights, case):
        case = case.squeeze(-1)
        drawn_with[case] = shares_of(weights).gather(-1, forced[case].unsqueeze(-1)).squeeze(-1)
        return forced[case]

    width = max(depths(parents)) + 1
    tokens, path = torch.empty(count, width, dtype=torch.int64), torch.empty(count, width, dtype=torch.int32)
    num_accepted, status = torch.empty(2, count, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "uniforms", uniforms)
        patch.setattr(noise, "arrivals", case_as_arrivals)
        patch.setattr(laws, "draw", draw)
        target, draft = given.rows(p_rows, q_rows)
        call = backends_call(
            "verify_tree", draft_tokens=drafted, parents=torch.tensor(parents), target=target,
            draft=None if certain else draft, draft_map=given.draft_map, method="rejection", replacement=replacement,
            target_law=given.target, draft_law=given.draft, edits=Edit(), noise=Noise(torch.arange(count), 0, 0),
            tokens=tokens, path=path, num_accepted=num_accepted, status=status, output_format=0,
        )  # fmt: skip
        reference.verify_tree(call)
    law = {}
    chances = torch.tensor([chance for _, _, chance, _ in cases], dtype=torch.float64) * drawn_with
    for walked, emitted, chance in zip(path.tolist(), tokens.tolist(), chances.tolist(), strict=True):
        key = tuple(x for x in walked if x != -1), tuple(x for x in emitted if x != -1)
        law[key] = law.get(key, 0.0) + chance
    return law


def emitted_law(law):
    """The law without the paths."""
    found = {}
    for (_, emitted), chance in law.items():
        found[emitted] = found.get(emitted, 0.0) + chance
    return found


def acceptance_by_child(law):
    """P(the root's m-th child is accepted), for a tree of one level."""
    accepted = {}
    for (path, _), chance in law.items():
        if len(path) == 2:
            accepted[path[1]] = accepted.get(path[1], 0.0) + chance
    return [accepted[child] for child in sorted(accepted)]
