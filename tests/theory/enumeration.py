"""Brute force: laws of the decision rules by summing over every draft, uniform interval and policy outcome.

By the rules on one page (``reference/naive.py``), not by the formulas under test: uniforms are integrated as the
probability of the interval they fall in. Exact up to float64 rounding.
"""

import numpy as np

from specdec_kernels.backends.reference import naive
from specdec_kernels.backends.reference.naive import norm
from specdec_kernels.conformance import Contexts
from tests.support.enumeration import drafts as drafts_of
from tests.support.enumeration import emitted_law, expected_accepted, page_law

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])


def random_laws(rng, size, zeros=0):
    """A pair of laws, each with `zeros` entries of probability 0."""
    pair = []
    for _ in range(2):
        law = rng.dirichlet(np.ones(size))
        law[rng.choice(size, zeros, replace=False)] = 0
        pair.append(law / law.sum())
    return pair


def one_draft(p, q, chance, replacement):
    """Output law and P(accept) of one draft: x is accepted with probability min(1, chance[x]), else `replacement`."""
    output, accepted = np.zeros(len(p)), 0.0
    for x in range(len(p)):
        output[x] += q[x] * min(1, chance[x])
        accepted += q[x] * min(1, chance[x])
    return output + (1 - accepted) * replacement, accepted


def drafts_with_replacement(p, q, drafts):
    """P(one of M independent drafts is accepted) and the output law, over every tuple of drafts."""
    contexts, parents = Contexts.of(p, q, 1), (-1, *[0] * drafts)

    def rule(p, q, tokens, u, draw):
        return naive.rejection(p, q, tokens, parents, u, draw, replacement=True)

    law = page_law(contexts, parents, drafts_of(contexts, parents, True), rule)
    output = np.zeros(len(p))
    for (_, emitted), chance in law.items():
        output[emitted[0]] += chance
    return expected_accepted(law), output


def rejections_by_paths(target, draft, x0, drafts):
    """Expected rejections of T tokens, walking every state path with the flag "the last token was a rejection"."""

    def walk(n, state, at_root):
        if n == len(target):
            return 0.0
        p, q = target[n, state], draft[n, state]
        tries = drafts if at_root else 1
        total, current, alive = 0.0, p, 1.0
        emitted = np.zeros(len(p))
        for _ in range(tries):
            emitted += alive * np.minimum(current, q)
            alive *= 1 - np.minimum(current, q).sum()
            current = norm(np.maximum(current - q, 0))
        total += alive
        for x in range(len(p)):
            if emitted[x]:
                total += emitted[x] * walk(n + 1, x, False)
            if alive * current[x]:
                total += alive * current[x] * walk(n + 1, x, True)
        return total

    return sum(prob * walk(0, state, True) for state, prob in enumerate(x0))


def rank_law(p, q):
    """Law of the rank of the p-winner among the arrivals under q: three arrivals on a grid of Exp(1) quantiles."""
    grid = -np.log1p(-(np.arange(120) + 0.5) / 120)
    e = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), -1).reshape(-1, 3)
    winner = (e / p).argmin(1)
    ahead = (e / q < (e / q)[np.arange(len(e)), winner][:, None]).sum(1)
    return np.bincount(ahead, minlength=3) / len(e)


def block_law(p, q, k):
    """Block verification (Sun et al.) over every draft: E[accepted] and the joint law of the first k + 1 tokens."""
    contexts, parents = Contexts.of(p, q, k), tuple(range(-1, k))
    law = page_law(contexts, parents, drafts_of(contexts, parents, False), naive.block)
    joint = np.zeros((len(p),) * (k + 1))
    for text, chance in contexts.completed(emitted_law(law), k + 1).items():
        joint[text] = chance
    return expected_accepted(law), joint
