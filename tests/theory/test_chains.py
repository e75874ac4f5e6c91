from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_kernels import theory
from specdec_kernels.conformance import Contexts
from specdec_kernels.theory.chains import residual_mass
from tests.support.enumeration import expected_accepted
from tests.support.traversal_enumeration import output_law
from tests.theory.enumeration import (
    P,
    Q,
    block_law,
    drafts_with_replacement,
    norm,
    one_draft,
    random_laws,
    rejections_by_paths,
)

PAIRS = [(P, Q), *(random_laws(np.random.default_rng(seed), 5, zeros=seed % 3) for seed in range(6))]


def chains(rng, steps, states):
    """A target, a draft [T, S, S] and a law of the prompt."""
    target, draft = rng.dirichlet(np.ones(states), (steps, states)), rng.dirichlet(np.ones(states), (steps, states))
    return target, draft, rng.dirichlet(np.ones(states))


def named_generator(steps):
    """Yin et al.'s example as far as it is determined: RandomState(10), draft drawn before target."""
    rng = np.random.RandomState(10)
    draft, target = (m / m.sum(-1, keepdims=True) for m in (rng.rand(steps, 7, 7), rng.rand(steps, 7, 7)))
    return target, draft, np.full(7, 1 / 7)


@pytest.mark.parametrize("p, q", PAIRS)
def test_acceptance_is_the_rule_enumerated(p, q):
    ratio = np.divide(p, q, out=np.zeros(len(p)), where=q > 0)
    output, accepted = one_draft(p, q, ratio, norm(np.maximum(p - q, 0)))
    assert theory.acceptance(p, q) == pytest.approx(accepted, abs=1e-14)
    assert theory.acceptance(p, q) + theory.total_variation(p, q) == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(output, p, atol=1e-14)


def test_acceptance_of_identical_and_disjoint_laws():
    assert theory.acceptance(P, P) == pytest.approx(1, abs=1e-15)
    assert theory.acceptance([1, 0], [0, 1]) == 0


def test_expected_accepted_depends_on_the_order():
    assert theory.expected_accepted([0.88, 0.96, 0.65]) == pytest.approx(2.27392, abs=1e-12)
    assert theory.expected_accepted([0.65, 0.96, 0.88]) == pytest.approx(1.82312, abs=1e-12)
    assert theory.expected_accepted([]) == 0
    assert theory.expected_tokens([0.88, 0.96, 0.65, 0.1], 3) == pytest.approx(3.27392, abs=1e-12)


@pytest.mark.parametrize("k", [0, 1, 2, 7])
@pytest.mark.parametrize("alpha", [0, 0.3, 0.8, 1 - 1e-12, 1])
def test_expected_tokens_sums_over_the_accepted_length(alpha, k):
    lengths = [(1 - alpha) * alpha**n for n in range(k)] + [alpha**k]
    assert theory.expected_tokens(alpha, k) == pytest.approx(sum(p * (n + 1) for n, p in enumerate(lengths)), abs=1e-9)
    if alpha < 0.9:
        assert theory.expected_tokens(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha), abs=1e-12)


def test_speedup_peaks_at_six():
    curve = [theory.speedup(0.8, k, 0.1) for k in range(20)]
    assert np.argmax(curve) == 6
    assert curve[6] == pytest.approx(2.46964, abs=5e-6)
    assert curve[0] == 1


@pytest.mark.parametrize("alpha", np.linspace(0, 1, 11))
@pytest.mark.parametrize("c", [0.01, 0.1, 0.4, 1.0, 1.7])
def test_best_draft_length_is_the_first_maximum(alpha, c):
    assert theory.best_draft_length(alpha, c, max_k=40) == np.argmax([theory.speedup(alpha, k, c) for k in range(41)])


def test_best_draft_length_at_its_edges():
    assert theory.best_draft_length(0.3, 0.4) == 0  # no optimum inside
    assert theory.best_draft_length(0.3, 0, max_k=64) == 64
    assert theory.best_draft_length(0, 0) == 0
    assert theory.best_draft_length([0.9, 0.9, 0, 0.9], 0) == 2
    assert theory.best_draft_length([0.1, 1, 1, 1, 1, 1, 1, 1], 0.05) == 8  # a weak first slot, then a free ride


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_expected_rejections_against_every_path(drafts):
    target, draft, x0 = chains(np.random.default_rng(drafts), 4, 3)
    expected = rejections_by_paths(target, draft, x0, drafts)
    assert theory.expected_rejections(target, draft, x0, drafts) == pytest.approx(expected, abs=1e-13)


def test_expected_rejections_survives_an_exhausted_residual():
    target = draft = np.tile(np.full((2, 2), 0.5), (3, 1, 1))
    assert theory.expected_rejections(target, draft, [0.5, 0.5], drafts=3) == 0


@pytest.mark.parametrize("steps, rejections", [(50, 16.40489018), (100, 33.53484854)])
def test_expected_rejections_on_the_named_generator(steps, rejections):
    assert theory.expected_rejections(*named_generator(steps)) == pytest.approx(rejections, abs=5e-9)


def test_more_drafts_never_reject_more_and_do_not_reach_zero():
    target, draft, x0 = named_generator(50)
    curve = [theory.expected_rejections(target, draft, x0, drafts) for drafts in (1, 2, 4, 8, 16, 256, 512)]
    assert np.all(np.diff(curve) <= 1e-9)
    assert curve[-1] > 12


@pytest.mark.parametrize("drafts, accepted", [(2, Fraction(18, 25)), (3, Fraction(96, 125))])
def test_residual_mass_with_replacement(drafts, accepted):
    enumerated, output = drafts_with_replacement(P, Q, drafts)
    assert 1 - residual_mass(P, Q, drafts).sum() == pytest.approx(float(accepted), abs=1e-14)
    assert enumerated == pytest.approx(float(accepted), abs=1e-14)
    np.testing.assert_allclose(output, P, atol=1e-14)


@pytest.mark.parametrize("residual", ["optimal", "target"])
@pytest.mark.parametrize("epsilon", [0, 0.03, 0.1, 0.4, 1])
@pytest.mark.parametrize("p, q", PAIRS)
def test_over_acceptance_is_the_rule_enumerated(p, q, epsilon, residual):
    replacement = norm(np.maximum(p - q, 0)) if residual == "optimal" else p
    chance = np.divide(p + epsilon, q, out=np.zeros(len(p)), where=q > 0)
    output, accepted = one_draft(p, q, chance, replacement)
    reject, loss = theory.over_acceptance(p, q, epsilon, residual)
    assert reject == pytest.approx(1 - accepted, abs=1e-14)
    assert loss == pytest.approx(np.abs(output - p).sum() / 2, abs=1e-14)
    front = theory.total_variation(p, q)
    if residual == "optimal":
        assert reject + loss == pytest.approx(front, abs=1e-14)
    else:
        assert reject + loss >= front - 1e-14


def test_over_acceptance_of_section_7():
    assert theory.over_acceptance(P, Q, 0.1) == pytest.approx((0.2, 0.2), abs=1e-15)
    assert theory.over_acceptance(P, Q, 0.1, "target").loss > 0.2


@pytest.mark.parametrize("k, accepted", [(1, Fraction(3, 5)), (2, Fraction(103, 100)), (3, Fraction(673, 500))])
def test_block_expected_accepted_of_section_7(k, accepted):
    enumerated, joint = block_law(P, Q, k)
    assert theory.block_expected_accepted(P, Q, k) == pytest.approx(float(accepted), abs=1e-12)
    assert enumerated == pytest.approx(float(accepted), abs=1e-12)
    expected = P
    for _ in range(k):
        expected = np.multiply.outer(expected, P)
    np.testing.assert_allclose(joint, expected, atol=1e-14)


def test_block_expected_accepted_by_position():
    """Laws of every position its own; a later slot can rescue an earlier one, so their order matters."""
    contexts = Contexts(4, 3, seed=5)
    p, q = (np.array([laws[(0,) * slot].tolist() for slot in range(3)]) for laws in (contexts.p, contexts.q))
    for laws, rows in ((contexts.p, p), (contexts.q, q)):
        laws.update({said: torch.tensor(rows[len(said)]) for said in laws if len(said) < 3})
    enumerated = expected_accepted(output_law(contexts, (-1, 0, 1, 2), op="verify_chain"))
    assert theory.block_expected_accepted(p, q) == pytest.approx(enumerated, abs=1e-9)
    assert theory.block_expected_accepted(p[::-1], q[::-1]) != pytest.approx(enumerated, abs=1e-3)


@pytest.mark.parametrize("p, q", PAIRS)
def test_block_accepts_at_least_as_much_as_rejection(p, q):
    for k in (1, 2, 4):
        block, rejection = (
            theory.block_expected_accepted(p, q, k),
            theory.expected_accepted([theory.acceptance(p, q)] * k),
        )
        assert block == pytest.approx(block_law(p, q, k)[0], abs=1e-11)
        assert block >= rejection - 1e-12


def test_a_law_may_miss_one_by_a_millionth():
    assert theory.acceptance([0.5, 0.5 + 9e-7], [0.5, 0.5]) == pytest.approx(1, abs=1e-6)
