"""Exact laws of the oracle's decisions: every uniform and every draw that it could meet, weighted by probability.

The rules on one page (``reference/naive.py``) are run on every side of each of their comparisons, and so say which
uniforms a decision depends on, and where it changes. The oracle's own code then runs on uniforms that lie just below or
just above these points: an error of 1e-9 in its thresholds shows. Its draws are recorded as laws. The seed of a case is
its number. The law of what is emitted is then a finite sum.
"""

import functools
from itertools import product
from typing import NamedTuple

import pytest
import torch

from specdec_kernels._constants import LEAF_UNIFORMS
from specdec_kernels.backends import reference
from specdec_kernels.backends.reference import laws, naive, noise
from specdec_kernels.calls.values import Edit, Law, Noise
from tests.support.calls import backends_call
from tests.support.trees import depths

PROBS, LOOK_UNIFORM = Law("probs", 1.0), 2**31


class Given(NamedTuple):
    """How the oracle is given the laws of a target and a draft: what its rows hold, and at which temperatures."""

    target: Law = PROBS
    draft: Law = PROBS
    draft_map: torch.Tensor | None = None

    def rows(self, p, q):
        """Rows that become these probabilities; of the draft those of the tokens it knows."""
        return rows_of(p, self.target), rows_of(q if self.draft_map is None else q[..., self.draft_map], self.draft)


def rows_of(probabilities, law):
    """At temperature 0 the one token is the largest of either kind of row."""
    return probabilities if law.space == "probs" or law.temperature == 0 else law.temperature * probabilities.log()


AS_PROBS = Given()


def shares_of(weights):
    """Laws of rows of weights; of a row without weight any token may come."""
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, 1 / weights.shape[-1])


class Uniform:
    """A uniform that takes both sides of each comparison in turn, and remembers how probable its side is."""

    def __init__(self, answers, asked):
        self.answers, self.asked, self.low, self.high, self.below = answers, asked, 0.0, 1.0, None

    def __mul__(self, q):
        return Scaled(self, q)

    def __lt__(self, threshold):
        cut = min(max(float(threshold), self.low), self.high)
        if cut in (self.low, self.high):
            self.below = cut == self.high
            return self.below
        self.below = self.answers.pop(0) if self.answers else True
        self.asked.append(self.below)
        self.low, self.high = (self.low, cut) if self.below else (cut, self.high)
        return self.below

    def value(self, near):
        """A number of this side, beside the threshold; NaN if nothing was compared with the uniform."""
        if self.below is None:
            return torch.nan
        return self.high * (1 - near) if self.below else max(near, self.low * (1 + near))


class Scaled(NamedTuple):
    uniform: Uniform
    factor: float

    def __lt__(self, threshold):
        return self.uniform < threshold / self.factor


class Branch(NamedTuple):
    """A way in which a rule decides: its path, uniforms by node, their probability, and the weights of its draw."""

    path: tuple
    uniforms: dict
    chance: float
    weights: object


def branches(decide, groups, near=0.0):
    """Every Branch of ``decide(uniforms, draw)``. Nodes of one group share a uniform. Branches of one path are one."""
    by_path, pending = {}, [[]]
    while pending:
        answers = pending.pop()
        asked, left, drawn = [], list(answers), []
        uniforms = {group: Uniform(left, asked) for group in groups}
        path, _ = decide([uniforms[group] for group in groups], lambda row, node, drawn=drawn: drawn.append(row) or 0)
        pending += [[*asked[:index], False] for index in range(len(answers), len(asked))]
        chance = 1.0
        for uniform in uniforms.values():
            chance *= uniform.high - uniform.low
        values = {node: uniforms[group].value(near) for node, group in enumerate(groups)}
        path = tuple(path)
        if path in by_path:  # they differ in uniforms that do not matter
            chance, values = chance + by_path[path].chance, dict(by_path[path].uniforms.items() & values.items())
        by_path[path] = Branch(path, values, chance, drawn[-1])
    return [branch for branch in by_path.values() if branch.chance > 1e-13]


def rows_by_node(contexts, parents, tokens):
    """(p, q) of the rules on one page: rows by node, None for an absent one."""
    said = [context(parents, tokens, node) for node in range(len(parents))]
    return tuple([None if x not in laws_ else laws_[x].numpy() for x in said] for laws_ in (contexts.p, contexts.q))


def context(parents, tokens, node):
    """The tokens from the root to a node; None if one is absent."""
    said = ()
    while node:
        if tokens[node] == -1:
            return None
        said, node = (tokens[node], *said), parents[node]
    return said


def near_of(given):
    """How near to their thresholds uniforms lie: logits are scaled in float32."""
    return 1e-9 if given.target.space == given.draft.space == "probs" else 1e-5


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


class Case(NamedTuple):
    """A call: the drafts and the uniforms by node, and their probability. ``looks`` of paths: uniforms by depth."""

    tokens: tuple
    uniforms: dict
    chance: float
    looks: tuple = ()


def decided(contexts, parents, drafted, rule, near=0.0, groups=None, certain=False):
    """(tokens, their probability, Branch) of drafts [(tokens, probability)], by ``rule(p, q, tokens, u, draw)``."""
    for tokens, chance in drafted:
        p, q = rows_by_node(contexts, parents, tokens)
        q = None if certain else q
        decide = functools.partial(rule, p, q, tokens)
        for branch in branches(decide, groups or range(len(parents)), near):
            yield tokens, chance, branch


def cases_of(*arguments, **options):
    """What is ``decided``, as cases for the oracle."""
    return [Case(x, branch.uniforms, chance * branch.chance) for x, chance, branch in decided(*arguments, **options)]


def page_law(contexts, parents, drafted, rule):
    """{(path, emitted tokens): probability} of what is ``decided``."""
    law = {}
    for tokens, chance, branch in decided(contexts, parents, drafted, rule):
        for token, share in enumerate(naive.norm(branch.weights)):
            key = branch.path, (*(tokens[node] for node in branch.path[1:]), token)
            law[key] = law.get(key, 0.0) + chance * branch.chance * share
    return law


def output_law(contexts, draft_lengths, draft_prob=1.0, epsilon=0.0, given=AS_PROBS):
    """{emitted tokens: probability} of one round that drafts l tokens with probability ``draft_lengths[l]``.

    draft_prob [K] is what verification is told about it: the probability that slot j is drafted if it is reached.
    """
    slots = len(draft_lengths) - 1
    draft_prob = torch.as_tensor(draft_prob, dtype=torch.float32).expand(slots)
    parents, shares, added = tuple(range(-1, slots)), [*draft_prob.tolist(), 1.0], torch.tensor(epsilon).item()

    def rule(p, q, tokens, u, draw):  # u h q(x) < p(x) + epsilon
        p = [row if row is None else row + added * (row > 0) for row in p]
        q = [row if row is None else h * row for row, h in zip(q, shares, strict=True)]
        return naive.rejection(p, q, tokens, parents, u, draw)

    drafted = [
        ((-1, *drafts, *[-1] * (slots - length)), chance * contexts.chance(contexts.q, drafts))
        for length, chance in enumerate(draft_lengths)
        for drafts in product(range(contexts.vocabulary), repeat=length)
        if chance > 0
    ]
    cases = cases_of(contexts, parents, drafted, rule, near_of(given))
    options = {"method": "rejection", "draft_prob": draft_prob.expand(len(cases), -1), "epsilon": epsilon}
    return emitted_law(run(contexts, parents, cases, given, op="verify_chain", **options))


def tree_law(contexts, parents, *, drawn_with_replacement=False, replacement=None, certain=False, repeats=True,
             shared_uniforms=False, given=AS_PROBS):  # fmt: skip
    """{(path, emitted tokens): probability} of one round with this tree.

    Siblings are drawn with or without replacement, and verified by ``replacement`` (as drawn, by default).
    Variants: ``certain`` verifies without draft laws; ``repeats=False`` drops a sibling with the token of an elder one;
    ``shared_uniforms`` draws one uniform for all siblings.
    """
    replacement = drawn_with_replacement if replacement is None else replacement
    drafted = drafts(contexts, parents, drawn_with_replacement)
    if not repeats:
        drafted = [(without_repeats(parents, tokens), chance) for tokens, chance in drafted]

    def rule(p, q, tokens, u, draw):
        return naive.rejection(p, q, tokens, parents, u, draw, replacement)

    cases = cases_of(contexts, parents, drafted, rule, near_of(given), parents if shared_uniforms else None, certain)
    return run(contexts, parents, cases, given, certain, method="rejection", replacement=replacement)


def without_repeats(parents, tokens):
    kept = list(tokens)
    for node in range(1, len(parents)):
        if any(parents[c] == parents[node] and tokens[c] == tokens[node] for c in range(1, node)):
            kept[node] = -1
    return tuple(kept)


def run(contexts, parents, cases, given=AS_PROBS, certain=False, op="verify_tree", **options):
    """{(path, emitted tokens): probability} of the oracle on all cases at once, with their uniforms.

    ``parents``: of all cases, or a list by case. Rows of absent nodes are NaN, and so are uniforms that do not matter.
    """
    trees = [parents] * len(cases) if isinstance(parents, tuple) else parents
    count, nodes, width = len(cases), len(trees[0]), 1 + max(max(depths(tree)) for tree in {*map(tuple, trees)})
    uniform_table = torch.full((count, nodes), torch.nan, dtype=torch.float64)
    p_rows, q_rows = torch.full((2, count, nodes, contexts.vocabulary), torch.nan, dtype=torch.float64)
    for index, (case, tree) in enumerate(zip(cases, trees, strict=True)):
        for node, uniform in case.uniforms.items():
            uniform_table[index, node] = uniform
        for node in range(nodes):
            said = context(tree, case.tokens, node)
            if said is not None:
                p_rows[index, node] = contexts.p[said]
                q_rows[index, node] = contexts.q.get(said, q_rows[index, node])
    looks = torch.tensor([case.looks for case in cases], dtype=torch.float64)
    drawn_from = torch.zeros(count, contexts.vocabulary, dtype=torch.float64)

    def uniforms(whose, stream, index):
        if index == LOOK_UNIFORM:
            return looks[whose.seed, whose.position]
        return uniform_table[whose.seed, index % LEAF_UNIFORMS + 1]

    def draw(weights, case):
        drawn_from[case.squeeze(-1)] = shares_of(weights)
        return torch.zeros(len(weights), dtype=torch.int64)

    tokens, path = torch.empty(count, width, dtype=torch.int64), torch.empty(count, width, dtype=torch.int32)
    num_accepted, status = torch.empty(2, count, dtype=torch.int32)
    target, draft = given.rows(p_rows, q_rows)
    drafted, draft = torch.tensor([case.tokens for case in cases]), None if certain else draft
    if op == "verify_chain":
        options |= {"draft_tokens": drafted[:, 1:], "draft": None if certain else draft[:, :-1]}
    else:
        options |= {"draft_tokens": drafted, "draft": draft, "parents": torch.tensor(parents), "path": path}
    call = backends_call(
        op, target=target, draft_map=given.draft_map, target_law=given.target, draft_law=given.draft, edits=Edit(),
        noise=Noise(torch.arange(count), 0, 0), tokens=tokens, num_accepted=num_accepted, status=status,
        output_format=0, **options,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "uniforms", uniforms)
        patch.setattr(noise, "arrivals", lambda whose, stream, size: whose.seed.unsqueeze(-1))
        patch.setattr(laws, "draw", draw)
        getattr(reference, op)(call)
    if op == "verify_chain":
        path = torch.where(tokens >= 0, torch.arange(width), -1)
    law = {}
    for case, walked, emitted, last in zip(cases, path.tolist(), tokens.tolist(), drawn_from.tolist(), strict=True):
        walked, emitted = (tuple(x for x in entries if x != -1) for entries in (walked, emitted))
        for token, share in enumerate(last):  # the last draw of a case is the one that ended it
            if share > 0:
                key = walked, (*emitted[:-1], token)
                law[key] = law.get(key, 0.0) + case.chance * share
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


def expected_accepted(law):
    return sum(chance * (len(path) - 1) for (path, _), chance in law.items())


def after(contexts, said):
    """The contexts after these tokens."""
    later = type(contexts)(contexts.vocabulary, 0)
    later.p, later.q = ({x[len(said) :]: law for x, law in laws_.items() if x[: len(said)] == said}
                        for laws_ in (contexts.p, contexts.q))  # fmt: skip
    return later


def two_rounds(contexts, round_law):
    """{emitted tokens: probability} of a round and the one after it, whose noise is fresh."""
    found = {}
    for emitted, chance in round_law(contexts).items():
        for more, again in round_law(after(contexts, emitted)).items():
            found[emitted + more] = found.get(emitted + more, 0.0) + chance * again
    return found
