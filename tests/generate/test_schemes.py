"""The schemes of randomised drafting, proved lossless by enumeration, and their near misses, proved biased.

Each scheme is run on every combination of uniforms that decides differently, with that combination's probability, and
the oracle on every draft of these lengths.
"""

import itertools

import numpy as np
import pytest
import torch

from specdec_kernels.conformance import Contexts
from specdec_kernels.generate.policies import SCHEMES, DrawnLength
from tests.support.enumeration import output_law

K, V = 3, 2
A = [0.3, 0.8, 1.0]


def outcomes(scheme, a):
    """(probability, length) over intervals of the uniforms: a and the multiples of 1/12 and of a/4 are their ends."""
    ends = np.unique([0.0, a, *np.arange(1, 13) / 12, *(a * np.arange(1, 5) / 4)])
    middles, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    for cells in itertools.product(range(len(middles)), repeat=K):
        yield np.prod(widths[list(cells)]), scheme(K, a, lambda slot, cells=cells: middles[cells[slot]])


def bias(scheme, a, h=None):
    """Total variation between texts of K + 1 tokens under the scheme and the target's."""
    lengths = [0.0] * (K + 1)
    for probability, draft in outcomes(scheme, a):
        lengths[draft.length] += probability
    contexts = Contexts(V, K)
    return contexts.distance(output_law(contexts, lengths, torch.tensor(draft.h if h is None else h)), K + 1)


@pytest.mark.parametrize("a", A)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_policy_is_lossless(scheme, a):
    assert bias(scheme, a) < 1e-6


@pytest.mark.parametrize("a", A)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_h_is_the_conditional_probability_of_drafting(scheme, a):
    reached = np.zeros(K + 1)
    for probability, draft in outcomes(scheme, a):
        reached[: draft.length + 1] += probability
    np.testing.assert_allclose(draft.h, reached[1:] / reached[:-1], atol=1e-12)


@pytest.mark.parametrize("a", [0.3, 0.8])
def test_thresholds_a_to_the_i_are_biased(a):
    # One uniform for all slots, below a^i to draft slot i, gives the count the law of a uniform per token: h = a would
    # do there too, and the unconditional a^i is as wrong.
    assert bias(SCHEMES["token"], a, h=[a, a**2, a**3]) > 1e-3


@pytest.mark.parametrize("a", [0.3, 0.8])
def test_one_uniform_but_a_at_every_slot_is_biased(a):
    assert bias(SCHEMES["chain"], a, h=[a] * K) > 1e-3


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_nothing_to_draft(scheme):
    assert scheme(0, 0.5, lambda slot: 0.0) == DrawnLength(0, ())
    assert scheme(2, 0.0, lambda slot: 0.0).length == 0
    assert scheme(2, 1.0, lambda slot: 1 - 2**-24).length == 2
