import numpy as np
import pytest

from specdec_kernels import theory
from tests.theory.enumeration import P, Q, norm, one_draft, random_laws

WORKLOAD = np.stack([random_laws(np.random.default_rng(seed), 6, zeros=seed % 3) for seed in range(5)], axis=1)
CASES = [(P, Q), (P, P), random_laws(np.random.default_rng(9), 6, zeros=2), WORKLOAD, ([1, 0], [0, 1])]
GRID = np.linspace(0, 1, 2001)


@pytest.mark.parametrize("a, acceptance", [(0.8, 27 / 40), (0.5, 4 / 5), (0.2, 1), (1, 3 / 5)])
def test_drafting_acceptance_of_section_7(a, acceptance):
    assert theory.drafting_acceptance(P, Q, a) == pytest.approx(acceptance, abs=1e-14)


@pytest.mark.parametrize("a", [0.1, 0.35, 0.8, 1])
@pytest.mark.parametrize("p, q", CASES)
def test_drafting_acceptance_is_the_rule_enumerated(p, q, a):
    accepted, tokens = [], []
    for row_p, row_q in zip(np.atleast_2d(p), np.atleast_2d(q), strict=True):
        chance = np.divide(row_p, a * row_q, out=np.zeros(len(row_p)), where=row_q > 0)
        replacement = norm(np.maximum(row_p - a * row_q, 0))
        output, accept = one_draft(row_p, row_q, chance, replacement)
        np.testing.assert_allclose(a * output + (1 - a) * replacement, row_p, atol=1e-14)
        accepted.append(accept)
        tokens.append(1 + a * accept)
    assert theory.drafting_acceptance(p, q, a) == pytest.approx(np.mean(accepted), abs=1e-14)
    assert theory.drafting_rate(p, q, a, 0.6) == pytest.approx(np.mean(tokens) / (1 + 0.6 * a), abs=1e-14)
    rate = a * (np.mean(accepted) * 2 + 1 - np.mean(accepted)) / 1.6 + 1 - a
    assert theory.drafting_rate(p, q, a, 0.6, "paper") == pytest.approx(rate, abs=1e-14)


@pytest.mark.parametrize("p, q", CASES)
def test_acceptance_is_not_lower_for_less_drafting(p, q):
    curve = [theory.drafting_acceptance(p, q, a) for a in GRID]
    assert np.all(np.diff(curve) <= 1e-12)


@pytest.mark.parametrize("kind", ["renewal", "paper"])
@pytest.mark.parametrize("lam", [0, 0.05, 0.3, 0.5, 0.6, 0.9, 1.5])
@pytest.mark.parametrize("p, q", CASES)
def test_best_draft_prob_beats_a_fine_grid(p, q, lam, kind):
    best = theory.best_draft_prob(p, q, lam, kind)
    top = max(theory.drafting_rate(p, q, a, lam, kind) for a in GRID)
    assert theory.drafting_rate(p, q, best, lam, kind) >= top - 1e-12
    p, q = np.asarray(p, float), np.asarray(q, float)
    ratios = (p / np.where(q > 0, q, np.nan)).ravel()
    assert best in (0, 1) or np.isclose(ratios, best, atol=1e-12).any()


@pytest.mark.parametrize("lam", [0.2, 0.45, 0.7])
def test_the_papers_best_is_a_weighted_median(lam):
    p, q = random_laws(np.random.default_rng(3), 8)
    objective = [np.abs(p - a * q).sum() + a * (2 * lam - 1) for a in GRID]
    best = theory.best_draft_prob(p, q, lam, "paper")
    assert np.abs(p - best * q).sum() + best * (2 * lam - 1) <= min(objective) + 1e-12


@pytest.mark.parametrize("kind", ["renewal", "paper"])
@pytest.mark.parametrize("p, q", [(P, Q), random_laws(np.random.default_rng(9), 6, zeros=2), WORKLOAD])
def test_gain_condition_is_where_drafting_less_starts_to_help(p, q, kind):
    threshold = theory.drafting_gain_condition(p, q, kind)
    assert theory.best_draft_prob(p, q, threshold + 1e-6, kind) < 1
    assert theory.best_draft_prob(p, q, threshold - 1e-6, kind) == 1


def test_gain_condition_counts_ties_and_is_strict():
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]  # the tie at the second token belongs to the sum
    assert theory.drafting_gain_condition(p, q, "paper") == pytest.approx(0.5)
    at_threshold = [theory.drafting_rate(p, q, a, 0.5, "paper") for a in GRID]
    assert max(at_threshold) <= theory.drafting_rate(p, q, 1, 0.5, "paper") + 1e-12
    assert theory.drafting_acceptance(p, q, 0.99) > theory.drafting_acceptance(p, q, 1)
    assert theory.drafting_acceptance(P, P, 0.5) == theory.drafting_acceptance(P, P, 1)  # not "strictly higher"
