"""Filters over slices of rows: what they keep of whole rows."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling, sharded
from specdec_kernels.sharded import _filters
from tests.sharded.test_races import BEGINS, VOCABULARY, assert_all_equal, check
from tests.sharded.test_rejection import chain
from tests.support.cases import adversarial_rows, seeds
from tests.support.ranks import chain_call_with_hits, on_ranks, tree_call_with_hits

SAMPLINGS = {
    "top_k": Sampling(0.8, top_k=7),
    "top_k 1": Sampling(0.8, top_k=1),
    "top_k more than a slice has": Sampling(top_k=3000),
    "top_k all": Sampling(top_k=10**6),
    "top_k and top_p": Sampling(1.2, top_k=40, top_p=0.6),
    "min_p": Sampling(min_p=0.1),
    "min_p, long lists": Sampling(min_p=1e-3),
    "min_p and top_p": Sampling(0.9, min_p=0.02, top_p=0.7),
    "ties stay together": Sampling.huggingface(top_k=5),
    "before the temperature": Sampling.llamacpp(0.6, top_k=20, top_p=0.9, min_p=0.01),
    "top_p of the row": Sampling(0.9, top_p=0.8),
    "the same beside top_k": Sampling.flashinfer_joint(top_k=50, top_p=0.5),
    "the same, ties together": Sampling(top_p=0.3, ties="all", at_temperature=False),
}


def rows_of(sampling, count):
    """Temperatures, 0 among them, and ``top_k``, off among them, for each row."""
    index = torch.arange(count)
    temperature = torch.tensor([1.0, 0.0, 0.7])[index % 3]
    return sampling._replace(temperature=temperature, top_k=torch.tensor([5, 0, 1, 40])[index % 4])


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("begins", BEGINS[1:3], ids=len)
def test_races_over_what_filters_keep(fast_backend, name, begins):
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    call = {"target": rows, "seed": seeds(len(rows)), "position": 3, "sampling": SAMPLINGS[name]}
    check("race_sample", call, begins)


def test_numbers_of_rows(fast_backend):
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    call = {"target": rows, "seed": seeds(len(rows)), "position": 3, "sampling": rows_of(Sampling(), len(rows))}
    check("race_sample", call, BEGINS[1])
    call["sampling"] = call["sampling"]._replace(min_p=torch.linspace(-0.1, 1, len(rows)))
    assert check("race_sample", call, BEGINS[1])[1][0] & 8


def test_ties_across_a_boundary(fast_backend):
    """Of equal logits those of the lowest ids stay: all in the first slice, or some of the second, too."""
    rows = torch.full((2, 2048), -5.0)
    rows[:, 1000:1100] = 3.0
    for k in (24, 30, 100, 101):
        call = {"target": rows, "seed": seeds(2), "position": 1, "sampling": Sampling(top_k=k)}
        check("race_sample", call, [0, 1024])
        call["sampling"] = Sampling(top_k=k, ties="all")
        check("race_sample", call, [0, 1024])


def test_arrivals_and_verdicts(fast_backend):
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    sampling = Sampling(0.9, top_k=6, top_p=0.9)
    call = {"draft": rows, "k": 8, "seed": seeds(len(rows)), "position": 3, "sampling": sampling}
    check("race_topk", call, BEGINS[1])
    call = {**chain("race"), "temperature": None, "sampling": rows_of(Sampling(), 16)}
    check("verify_chain", call, BEGINS[1])
    call = {**tree_call_with_hits(VOCABULARY, requests=8, nodes=7), "draft": None, "method": "race"}
    call |= {"temperature": None, "sampling": sampling}
    check("verify_tree", call, BEGINS[1])


def test_requests_by_their_index(fast_backend):
    call = {
        "target": 2 * torch.randn(4, 2048), "seed": seeds(3), "position": 1, "sampling": rows_of(Sampling(), 3),
        "request_index": torch.tensor([2, -1, 7, 0], dtype=torch.int32),
    }  # fmt: skip
    check("race_sample", call, [0, 1024])


@pytest.mark.interpreted
def test_filters_on_every_backend(parts_backend):
    call = {"target": 2 * torch.randn(2, 1500), "seed": seeds(2), "position": 1}
    call["sampling"] = Sampling(0.8, top_k=9, top_p=0.8)
    check("race_sample", call, [0, 1024])


@pytest.mark.parametrize(
    "name", ["top_k", "top_k and top_p", "min_p and top_p", "before the temperature", "top_p of the row"]
)
def test_cutoff(fast_backend, name):
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    call = {"rows": rows, "sampling": SAMPLINGS[name]}
    check("cutoff", call, BEGINS[2])


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


def test_shares_of_whole_rows_by_row(fast_backend):
    """Where cuts end: shares of whole rows beside shares of what top_k keeps, off, 0, NaN, and argmaxes."""
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    index = torch.arange(len(rows))
    top_p = torch.tensor([0.9, 1.0, 0.0, 0.3, torch.nan, 0.99])[index % 6]
    sampling = rows_of(Sampling(), len(rows))._replace(top_p=top_p, min_p=torch.tensor([0.0, 1e-3, -0.1])[index % 3])

    def end(op):
        return lambda **call: op(**call)[:2]

    call = {"rows": rows, "sampling": sampling}
    assert_all_equal(on_ranks(end(sharded.cutoff), BEGINS[2], call), end(specdec_kernels.cutoff)(**call))


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
