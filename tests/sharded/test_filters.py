"""Filters over slices of rows: what they keep of whole rows."""

import pytest
import torch

from specdec_kernels import Sampling, sharded
from specdec_kernels.sharded import _filters
from tests.sharded.test_races import BEGINS, VOCABULARY, check
from tests.support.cases import adversarial_rows, seeds
from tests.support.random_calls import random_slices
from tests.support.ranks import chain_call_with_hits, on_ranks


@pytest.mark.parametrize("op", ["race_sample", "race_topk", "cutoff"])
def test_random_calls(fast_backend, op):
    for number in range(60):
        check(op, *random_slices(number, op))


@pytest.mark.parametrize("sampling", [Sampling(top_k=3000), Sampling(min_p=1e-3)], ids=["top_k", "min_p"])
def test_more_than_a_slice_or_a_list_has(fast_backend, sampling):
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    check("race_sample", {"target": rows, "seed": seeds(len(rows)), "position": 3, "sampling": sampling}, BEGINS[1])


def test_a_list_inside_the_support_beside_a_list_outside(fast_backend):
    """The first token of the second slice is in no support; the first slice has more of it than its list."""
    rows = torch.full((1, 2048), -50.0)
    rows[:, :100] = 0.0
    assert check("cutoff", {"rows": rows, "sampling": Sampling(min_p=0.5)}, [0, 1024])[2].item() == 100


def test_ties_across_a_boundary(fast_backend):
    """Of equal logits those of the lowest ids stay: all in the first slice, or some of the second, too."""
    rows = torch.full((2, 2048), -5.0)
    rows[:, 1000:1100] = 3.0
    for k in (24, 30, 100, 101):
        call = {"target": rows, "seed": seeds(2), "position": 1, "sampling": Sampling(top_k=k)}
        check("race_sample", call, [0, 1024])
        call["sampling"] = Sampling(top_k=k, ties="all")
        check("race_sample", call, [0, 1024])


def test_filters_on_every_backend(parts_backend):
    call = {"target": 2 * torch.randn(2, 1500), "seed": seeds(2), "position": 1}
    call["sampling"] = Sampling(0.8, top_k=9, top_p=0.8)
    check("race_sample", call, [0, 1024])


def test_lists_are_as_short_as_filters_allow(fast_backend, monkeypatch):
    """k entries where top_k says so, and no second round; else as many rounds as it takes."""
    asked = []
    largest_of_slice = _filters.largest_of_slice
    monkeypatch.setattr(_filters, "largest_of_slice", lambda *args: asked.append(args[3]) or largest_of_slice(*args))
    rows = {"rows": torch.zeros(1, 4096)}
    on_ranks(sharded.cutoff, [0, 2048], {**rows, "sampling": Sampling(top_k=50, top_p=0.9)})
    assert asked == [50, 50]
    asked.clear()
    on_ranks(sharded.cutoff, [0, 2048], {**rows, "sampling": Sampling(min_p=0.5)})  # all are kept
    assert asked == [64, 64, 512, 512, 4096, 4096]


def test_shares_of_whole_rows_need_whole_tiles():
    call = {"target": torch.zeros(1, 2048), "seed": 1, "position": 1, "sampling": Sampling(top_p=0.9)}
    with pytest.raises(ValueError, match="shard: expected slices that begin with multiples of 1,024 for top_p"):
        on_ranks(sharded.race_sample, [0, 128], call)


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_residuals_of_rows_whose_cuts_are_among_ties(fast_backend, method):
    """Elements of three values, so that the last token kept has hundreds of equals on both sides of a boundary."""
    call = {**chain_call_with_hits(VOCABULARY), "method": method}
    for name in ("target", "draft"):
        call[name] = call[name].float().clamp(-1, 1).round() * 2
    call["temperature"] = None
    for top_k in (900, 1100, 1500, 2500):
        for side in ({"sampling": Sampling(0.8, top_k=top_k)}, {"draft.sampling": Sampling(top_k=top_k)}):
            check("verify_chain", call | side, BEGINS[2])
