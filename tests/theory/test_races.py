import numpy as np
import pytest

from specdec_kernels import theory
from specdec_kernels.theory import races
from tests.theory.enumeration import P, Q, random_laws, rank_law

PAIRS = [(P, Q), (P, P), *(random_laws(np.random.default_rng(seed), 6, zeros=seed % 3) for seed in range(8))]


def by_definition(p, q):
    """1 / sum_j max(p_j / p_i, q_j / q_i) for each token i, as it is printed."""
    return np.array([1 / np.maximum(p / p[i], q / q[i]).sum() if p[i] > 0 and q[i] > 0 else 0 for i in range(len(p))])


@pytest.mark.parametrize("p, q", PAIRS)
def test_race_acceptance_is_the_double_sum(p, q):
    np.testing.assert_allclose(theory.race_acceptance(p, q, by_token=True), by_definition(p, q), atol=1e-14)
    assert theory.race_acceptance(p, q) == pytest.approx(by_definition(p, q).sum(), abs=1e-13)


def test_race_of_section_7():
    np.testing.assert_allclose(
        theory.race_acceptance(P, Q, by_token=True), [1 / 10, 6 / 35, 6 / 35, 1 / 10], atol=1e-15
    )
    assert theory.race_acceptance(P, Q) == pytest.approx(19 / 35, abs=1e-14)
    assert theory.race_rank_law(P, Q)[:2].sum() == pytest.approx(163 / 210, abs=1e-13)


@pytest.mark.parametrize("p, q", PAIRS)
def test_bounds_enclose_the_acceptance(p, q):
    bounds, exact = theory.race_bounds(p, q), theory.race_acceptance(p, q)
    assert bounds.harmonic <= bounds.joint <= exact + 1e-14
    assert bounds.variation <= exact + 1e-14
    assert exact <= bounds.upper + 1e-14
    assert bounds.upper == pytest.approx(theory.acceptance(p, q), abs=1e-14)
    assert bounds.variation == pytest.approx((1 - (tv := theory.total_variation(p, q))) / (1 + tv), abs=1e-14)


def test_rank_law_against_quantiles_of_the_arrivals():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(theory.race_rank_law(p, q), rank_law(p, q), atol=5e-3)


@pytest.mark.parametrize("p, q", PAIRS)
def test_rank_law_starts_with_the_acceptance_and_sums_to_what_can_be_drafted(p, q):
    law = theory.race_rank_law(p, q)
    assert len(law) == len(p)
    assert law.min() >= -1e-12
    assert law[0] == pytest.approx(theory.race_acceptance(p, q), abs=1e-12)
    assert law.sum() == pytest.approx(np.asarray(p)[np.asarray(q) > 0].sum(), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_quadrature_equals_inclusion_exclusion(seed, monkeypatch):
    p, q = random_laws(np.random.default_rng(seed), 11, zeros=seed)
    exact = theory.race_rank_law(p, q)
    monkeypatch.setattr(races, "EXACT_VOCABULARY", 0)
    np.testing.assert_allclose(theory.race_rank_law(p, q), exact, atol=1e-10)
    np.testing.assert_allclose(theory.race_rank_law(p, q, max_rank=3), exact[:3], atol=1e-10)


def test_rank_law_of_a_larger_vocabulary_with_extreme_ratios():
    p, q = (np.random.default_rng(5).dirichlet(np.full(80, 0.05)) for _ in range(2))
    q = np.roll(p, 1) if np.array_equal(p, q) else q
    law = theory.race_rank_law(p, q)
    assert law[0] == pytest.approx(theory.race_acceptance(p, q), abs=1e-10)
    assert law.sum() == pytest.approx(p[q > 0].sum(), abs=1e-9)


def test_one_hot_laws():
    assert theory.race_acceptance([1, 0], [0, 1]) == 0
    assert theory.race_acceptance([1, 0], [1, 0]) == 1
    np.testing.assert_allclose(theory.race_rank_law([0.7, 0.3], [1, 0]), [0.7, 0])
