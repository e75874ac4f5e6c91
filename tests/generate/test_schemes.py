"""The schemes of randomised drafting, proved lossless by enumeration, and their near misses, proved biased.

Each scheme is run on every combination of uniforms that decides differently, with that combination's probability, and
the verifier's rule is summed over every draft. Laws depend on the token before; four tokens are followed, one more than
are drafted.
"""

import itertools

import numpy as np
import pytest

from specdec_kernels.generate.policies import SCHEMES, DrawnLength

K, V = 3, 3
A = [0.3, 0.8, 1.0]


def chain(seed):
    """Target and draft [V + 1, V]: row x follows token x, the last row starts."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(V), V + 1), rng.dirichlet(np.full(V, 0.5), V + 1)


def sampled(target, token, steps):
    """Joint law of `steps` tokens of the target after `token`."""
    if steps == 0:
        return np.ones(())
    return np.stack([target[token, x] * sampled(target, x, steps - 1) for x in range(V)])


def emitted(target, draft, count, h, token=-1, slot=0, undrafted="residual"):
    """Joint law of the tokens of slots `slot` … K when `count` are drafted, the target writing on after a rejection."""
    p, q = target[token], draft[token]
    if slot == K:
        return p
    later = np.stack([sampled(target, x, K - slot) for x in range(V)])
    weights = np.maximum(p - h[slot] * q, 0)
    residual = weights / weights.sum() if weights.sum() else p
    if slot == count:
        law = residual if undrafted == "residual" else p
        return law.reshape(-1, *[1] * (K - slot)) * later
    accept = np.minimum(1, p / (h[slot] * q))
    law = (1 - q @ accept) * residual.reshape(-1, *[1] * (K - slot)) * later
    for x in range(V):
        law[x] += q[x] * accept[x] * emitted(target, draft, count, h, x, slot + 1, undrafted)
    return law


def outcomes(scheme, a):
    """(probability, length) over intervals of the uniforms: a and the multiples of 1/12 and of a/4 are their ends."""
    ends = np.unique([0.0, a, *np.arange(1, 13) / 12, *(a * np.arange(1, 5) / 4)])
    middles, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    for cells in itertools.product(range(len(middles)), repeat=K):
        yield np.prod(widths[list(cells)]), scheme(K, a, lambda slot, cells=cells: middles[cells[slot]])


def bias(scheme, a, h=None, undrafted="residual"):
    """Total variation between the law of K + 1 tokens under the scheme and the target's, the worst of three chains."""
    lengths = np.zeros(K + 1)
    for probability, draft in outcomes(scheme, a):
        lengths[draft.length] += probability
    h = draft.h if h is None else h
    worst = 0.0
    for seed in range(3):
        target, draft_law = chain(seed)
        law = sum(p * emitted(target, draft_law, n, h, undrafted=undrafted) for n, p in enumerate(lengths) if p > 1e-15)
        worst = max(worst, np.abs(law - sampled(target, -1, K + 1)).sum() / 2)
    return worst


@pytest.mark.parametrize("a", A)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_policy_is_lossless(scheme, a):
    assert bias(scheme, a) < 1e-14


@pytest.mark.parametrize("a", A)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_h_is_the_conditional_probability_of_drafting(scheme, a):
    reached = np.zeros(K + 1)
    for probability, draft in outcomes(scheme, a):
        reached[: draft.length + 1] += probability
    np.testing.assert_allclose(draft.h, reached[1:] / reached[:-1], atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_sampling_the_target_at_an_undrafted_slot_is_biased(scheme):
    assert bias(scheme, 0.5, undrafted="target") > 0.01


@pytest.mark.parametrize("a", [0.3, 0.8])
def test_thresholds_a_to_the_i_are_biased(a):
    # One uniform for all slots, below a^i to draft slot i, gives the count the law of a uniform per token: h = a would
    # do there too, and the unconditional a^i is as wrong.
    assert bias(SCHEMES["token"], a, h=[a, a**2, a**3]) > 0.01


@pytest.mark.parametrize("a", [0.3, 0.8])
def test_one_uniform_but_a_at_every_slot_is_biased(a):
    assert bias(SCHEMES["chain"], a, h=[a] * K) > 0.01


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_nothing_to_draft(scheme):
    assert scheme(0, 0.5, lambda slot: 0.0) == DrawnLength(0, ())
    assert scheme(2, 0.0, lambda slot: 0.0).length == 0
    assert scheme(2, 1.0, lambda slot: 1 - 2**-24).length == 2
