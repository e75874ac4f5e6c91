"""Wrong arguments of the theory are refused by their name."""

import pytest

from specdec_kernels import theory
from tests.theory.enumeration import P, Q
from tests.theory.test_trees import R


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: theory.acceptance([0.5, -0.5, 1.0], [1, 0, 0]), "p"),
        (lambda: theory.acceptance([0.5, 0.5], [0.5, 0.5 + 3e-6]), "q"),
        (lambda: theory.acceptance([0.5, 0.5], [1, 0, 0]), "q"),
        (lambda: theory.acceptance([], []), "p"),
        (lambda: theory.total_variation([float("nan"), 1], [0.5, 0.5]), "p"),
        (lambda: theory.expected_accepted([0.5, 1.2]), "betas"),
        (lambda: theory.expected_accepted([-0.1]), "betas"),
        (lambda: theory.expected_tokens(1.2, 3), "alpha"),
        (lambda: theory.expected_tokens(0.5, -1), "k"),
        (lambda: theory.expected_tokens(0.5, 1.5), "k"),
        (lambda: theory.expected_tokens([0.5], 2), "alpha"),
        (lambda: theory.speedup(0.5, 2, -0.1), "c"),
        (lambda: theory.speedup(0.5, 2, float("nan")), "c"),
        (lambda: theory.best_draft_length(0.5, 0.1, max_k=-1), "max_k"),
        (lambda: theory.over_acceptance(P, Q, -0.1), "epsilon"),
        (lambda: theory.over_acceptance(P, Q, 0.1, "best"), "residual"),
        (lambda: theory.expected_rejections([P], [Q], P), "target"),
        (lambda: theory.expected_rejections([[P, P]], [[Q, Q]], P), "target"),
        (lambda: theory.expected_rejections([[P] * 4], [[Q] * 4], [0.5, 0.5]), "x0"),
        (lambda: theory.expected_rejections([[P] * 4], [[Q] * 4, [Q] * 4], P), "draft"),
        (lambda: theory.expected_rejections([[P] * 4], [[Q] * 4], P, drafts=0), "drafts"),
        (lambda: theory.block_expected_accepted(P, Q, -1), "k"),
        (lambda: theory.block_expected_accepted(P, Q), "k"),
        (lambda: theory.block_expected_accepted([P], [Q], 1), "k"),
        (lambda: theory.race_acceptance([0.5, 0.6], [0.5, 0.5]), "p"),
        (lambda: theory.race_bounds(P, Q[:3]), "q"),
        (lambda: theory.race_rank_law(P, -Q), "q"),
        (lambda: theory.race_rank_law(P, Q, max_rank=0), "max_rank"),
        (lambda: theory.drafting_acceptance(P, Q, 1.1), "a"),
        (lambda: theory.drafting_acceptance(P, Q, -0.1), "a"),
        (lambda: theory.drafting_acceptance(P[:3], Q, 0.5), "p"),
        (lambda: theory.drafting_acceptance([P], Q, 0.5), "q"),
        (lambda: theory.drafting_rate(P, Q, float("nan"), 0.5), "a"),
        (lambda: theory.drafting_rate(P, Q, 0.5, -1), "lam"),
        (lambda: theory.drafting_rate(P, Q, 0.5, 0.5, "long-run"), "kind"),
        (lambda: theory.best_draft_prob([[0.5, 0.5], [0.5, 0.6]], [[0.5, 0.5]] * 2, 0.5), "p"),
        (lambda: theory.best_draft_prob(P, Q, 0.5, "long-run"), "kind"),
        (lambda: theory.drafting_gain_condition(P, -Q), "q"),
        (lambda: theory.tunstall_bound((0.5, 0.2), 3), "R"),
        (lambda: theory.tunstall_bound(R, -1), "k"),
        (lambda: theory.tree_bound((0.9, 0.2), 3), "R"),
        (lambda: theory.tree_bound((0.9, -0.2), 3), "R"),
        (lambda: theory.tree_bound(R, 0), "k"),
        (lambda: theory.traversal_expected_accepted(P, Q, [-1, 1]), "parents"),
        (lambda: theory.traversal_expected_accepted(P, Q, [0]), "parents"),
        (lambda: theory.paths_expected_accepted(P, Q, 0, 2), "n"),
    ],
)
def test_are_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name}: expected .*; got "):
        call()
