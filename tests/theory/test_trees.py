import math

import numpy as np
import pytest
import torch

from specdec_kernels import theory
from specdec_kernels.theory.trees import entropy_bounds, optimal_nodes
from tests.ops.test_traversal_laws import one_law
from tests.support.enumeration import expected_accepted
from tests.support.path_enumeration import path_law
from tests.support.traversal_enumeration import output_law
from tests.support.trees import shapes
from tests.theory.enumeration import P, Q, random_laws

R = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)


def test_optimal_nodes_stops_at_the_vocabulary():
    assert optimal_nodes([0.9], 3).values == pytest.approx([0.9, 0.81, 0.729])


def test_children_that_rise_have_a_bound_but_no_greedy_tree():
    with pytest.raises(ValueError, match=r"^R: expected no child above the one before it; got 0\.5 after 0\.2"):
        optimal_nodes([0.2, 0.5], 3)
    assert theory.tree_bound(R[::-1], 8) == theory.tree_bound(R, 8)


def naive_tree_bound(R, k):
    """Lemma 4.2 at the first 500 m, at further m in steps of a hundredth, and in the limit."""
    d = optimal_nodes(R, k).children
    seen, rest = np.array(R[:d]), 1 - sum(R[:d])
    entropy = -sum(x * math.log(x) for x in [*seen, rest] if x > 1e-15)
    least = max(1, math.ceil(rest / seen.min() - 1e-9))
    m = np.unique(np.append(np.arange(least, least + 500), np.ceil(least * np.exp(np.arange(0, 41, 0.01)))))
    limit = 1 / rest if rest > 1e-12 else math.inf
    return min(limit, ((np.log(d + m) + math.log(k + 1)) / (entropy + rest * np.log(m))).min())


@pytest.mark.parametrize("k", [1, 2, 4, 8, 12, 40, 384])
@pytest.mark.parametrize("R", [R, (0.6, 0.1, 0.05), (0.3, 0.3, 0.3), (0.05, 0.04, 0.01)])
def test_tree_bound_is_the_best_m_and_above_the_optimal_tree(R, k):
    bound = theory.tree_bound(R, k)
    assert bound <= naive_tree_bound(R, k) + 1e-9
    assert bound >= 1 + optimal_nodes(R, k).values.sum() - 1e-9
    assert bound >= naive_tree_bound(R, k) * (1 - 1e-5)


def test_tunstall_bound_is_above_the_optimal_tree_and_tightens():
    ratios = []
    for k in (1, 10, 100, 1000, 10000):
        generated = 1 + optimal_nodes(R, k).values.sum()
        bound = theory.tunstall_bound(R, k)
        assert bound >= generated
        ratios.append(generated / bound)
    assert ratios == sorted(ratios)
    assert ratios[-1] > 0.9
    entropy = -sum(r * math.log(r) for r in R)
    assert theory.tunstall_bound(R, 12) == pytest.approx((math.log(6) + math.log(13)) / entropy, abs=1e-12)


def test_bounds_of_certain_acceptance_are_infinite():
    assert theory.tunstall_bound([1, 0], 3) == math.inf
    assert theory.tree_bound([1.0], 3) == math.inf


def test_entropy_bounds_are_in_bits_and_ordered():
    divergence = float((P * np.log2(P / Q)).sum())
    bounds = entropy_bounds(P, Q)
    assert bounds.reference == pytest.approx(divergence, abs=1e-12)
    assert bounds.race == pytest.approx(divergence + math.log2(divergence + 1) + 4, abs=1e-12)
    rank = theory.race_rank_law(P, Q)
    assert -(rank * np.log2(rank)).sum() <= bounds.race
    assert entropy_bounds([0.5, 0.5], [1, 0]).race == math.inf


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("parents", [x for nodes in (1, 2, 3, 4) for x in shapes(nodes)] + [(-1, 0, 0, 1, 2)])
def test_traversal_expected_accepted_against_every_draft(parents, replacement):
    for p, q in (random_laws(np.random.default_rng(3), 3), random_laws(np.random.default_rng(4), 4, zeros=1)):
        law = output_law(one_law(*map(torch.tensor, (p, q)), depth=3), parents, drawn_with_replacement=replacement)
        expected = theory.traversal_expected_accepted(p, q, parents, replacement)
        assert expected == pytest.approx(expected_accepted(law), abs=1e-9)


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_traversal_of_a_chain_is_block(k):
    expected = theory.block_expected_accepted(P, Q, k)
    assert theory.traversal_expected_accepted(P, Q, range(-1, k)) == pytest.approx(expected, abs=1e-12)


def test_traversal_of_trees_that_are_deeper_or_wider_than_a_stack():
    assert theory.traversal_expected_accepted([0.5, 0.5], [0.5, 0.5], range(-1, 1100)) == pytest.approx(1100)
    wide = [-1] + [0] * 1100  # every child is the same token
    assert theory.traversal_expected_accepted([0.5, 0.5], [1.0, 0.0], wide, replacement=True) == pytest.approx(0.5)


@pytest.mark.parametrize("chains, length", [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_paths_expected_accepted_against_every_draft(chains, length):
    for p, q in ((P, Q), random_laws(np.random.default_rng(3), 3)):
        law = path_law(one_law(*map(torch.tensor, (p, q)), depth=3), chains, length)
        expected = sum(chance * (len(emitted) - 1) for emitted, chance in law.items())
        assert theory.paths_expected_accepted(p, q, chains, length) == pytest.approx(expected, abs=1e-9)


def test_paths_where_the_draft_knows_less():
    p, q = random_laws(np.random.default_rng(4), 4, zeros=1)
    one, three = (theory.paths_expected_accepted(p, q, n, 3) for n in (1, 3))
    assert one == pytest.approx(theory.block_expected_accepted(p, q, 3), abs=1e-12)
    assert one < three < 3
