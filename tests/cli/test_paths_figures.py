"""`specdec-kernels figures paths` and `optimum`: the rules and bounds that they draw beside the kernels."""

from itertools import product

import numpy as np
import pytest
import torch

from specdec_kernels import Sampling, theory
from specdec_kernels.backends.reference.paths import looking
from specdec_kernels.generate import load_model
from specdec_kernels.studies import optimum, paths
from specdec_kernels.studies.figures import PAIR
from specdec_kernels.trees import DraftTree
from tests.ops.test_tree_laws import one_law
from tests.support.path_enumeration import path_law
from tests.theory.enumeration import P, Q


def pairs_of_laws():
    rng = np.random.default_rng(3)
    return [(P, Q), *((p, (p + other) / 2) for p, other in rng.dirichlet(np.ones(4), (3, 2)))]


def test_the_linear_programme_is_the_closed_form_at_one_place_and_block_of_one_chain():
    for p, q in pairs_of_laws():
        for drafts in (1, 2, 3):
            assert optimum.best_expected(p, q, drafts, 1) == pytest.approx(optimum.best_at(p, q, drafts))
        assert optimum.best_expected(p, q, 1, 2) == pytest.approx(theory.block_expected_accepted(p, q, 2))


def test_paths_lies_between_block_and_the_optimum():
    for p, q in pairs_of_laws():
        block, best = theory.block_expected_accepted(p, q, 2), optimum.best_expected(p, q, 2, 2)
        assert block < optimum.expected_accepted(p, q, 2, 2, optimum.PATHS) < best


def test_expectations_are_those_of_all_tuples_of_chains():
    law = path_law(one_law(depth=2), 2, 2)
    accepted = sum(chance * (len(emitted) - 1) for emitted, chance in law.items())
    assert optimum.expected_accepted(P, Q, 2, 2, optimum.PATHS) == pytest.approx(accepted)
    for n in (1, 2, 3):
        assert optimum.accepted_at(P, Q, n, optimum.PATHS) == pytest.approx(
            optimum.expected_accepted(P, Q, n, 1, optimum.PATHS)
        )


def test_buckets_and_mixtures_are_the_rules_own():
    for p, q in pairs_of_laws():
        of_p, of_q = (np.bincount(optimum.PATHS.order(p, q), law) for law in (p, q))
        expected = looking(of_p, of_q, 3, 0.8)[0]
        assert optimum.looking(p, q, 3, 0.8, optimum.PATHS)[0] == pytest.approx(expected)


def test_greedy_multi_path_by_all_chains():
    """Two chains of two tokens, every tuple of them as one text."""
    drawn = torch.tensor(list(product(range(4), repeat=4)))
    rows = [torch.tensor(law).expand(len(drawn), 5, -1) for law in (P, Q)]
    tokens, chains = torch.nn.functional.pad(drawn, (1, 0)), torch.tensor([[1, 2], [3, 4]])
    accepted = (torch.tensor(Q)[drawn].prod(1) * paths.greedy(tokens, *rows, chains)).sum().item()
    assert accepted == pytest.approx(optimum.expected_accepted(P, Q, 2, 2, optimum.GREEDY))


def test_merged_nodes_are_those_laid_out():
    laid = paths.Laid(DraftTree.from_parents([-1, 0, 1, 2, 0, 4]), [1, 4])
    tokens = torch.tensor([[9, 5, 6, 7, 5, 8], [9, 5, 6, 7, 5, 6]])
    merged = paths.merge(paths.Drafted(laid, tokens, torch.empty(0), torch.empty(0)), 2, 2)
    there = merged.tokens >= 0
    assert there.sum(1).tolist() == [3, 2]
    assert torch.equal(tokens.gather(1, merged.nodes)[there], merged.tokens[there])


def test_played_rounds(monkeypatch):
    monkeypatch.setattr(paths, "BLOCKS", (1, 2))
    monkeypatch.setattr(paths, "CHAINS", {2: (2,)})
    monkeypatch.setattr(paths, "WRITTEN_BY", 2)
    monkeypatch.setattr(paths, "LAWS", {"top-p": Sampling(top_p=0.9)})
    figure = paths.figure(*map(load_model, PAIR), tokens=16, turns=1)
    (panel,) = figure["panels"]
    assert [data["label"] for data in panel["curves"][::2]] == list(paths.RULES)
    for data in panel["curves"]:
        assert all(1 <= y <= 3 for y in data["y"])
        assert data["x"][-1] == 2 if data["label"].startswith("block") else 2 <= data["x"][-1] <= 4


def test_filtered_laws_are_those_that_are_kept():
    law = paths.laws_of(torch.tensor([0.5, 0.2, 0.3]).log(), Sampling(top_p=0.7))
    assert law.tolist() == pytest.approx([0.625, 0.0, 0.375])


def test_the_optimum_on_given_laws(monkeypatch):
    laws = tuple(np.stack(each) for each in zip(*pairs_of_laws(), strict=True))
    monkeypatch.setattr(optimum, "pair_laws", lambda: laws)
    monkeypatch.setattr(optimum, "CASES", ((3, 2, 2),))
    one_place, widths, small = optimum.figure(1000)["panels"]
    best, *others = (np.array(data["y"]) for data in one_place["curves"])
    assert all((y <= best + 1e-12).all() for y in others)
    assert all(min(data["y"]) >= -1e-12 for data in widths["curves"])
    assert max(small["curves"][0]["y"]) <= 1 + 1e-9
