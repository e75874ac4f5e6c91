"""Rejection over slices of rows: on every rank the verdict of the whole rows."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling, Status, sharded
from tests.sharded.test_races import BEGINS, VOCABULARY, assert_all_equal
from tests.support.cases import DTYPES, ragged, seeds
from tests.support.ranks import chain_call_with_hits, on_ranks

COUNTS = torch.tensor([3, 0, 1, 2, 3, 3, 2, 1])


def check(call, begins=BEGINS[1]):
    expected = specdec_kernels.verify_chain(**call)
    assert_all_equal(on_ranks(sharded.verify_chain, begins, call), expected)
    return expected


@pytest.mark.parametrize("begins", BEGINS, ids=len)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_verdicts_of_chains_on_any_number_of_ranks(fast_backend, begins, dtype):
    call = chain_call_with_hits(VOCABULARY, dtype=dtype)
    verdict = check(call, begins)
    assert len(set(verdict.num_accepted.tolist())) > 2
    assert Status.TOKEN_RANGE in set(verdict.status.tolist())
    check(ragged(call, COUNTS.repeat(2)), begins)
    check({**ragged(call, COUNTS.repeat(2)), "max_drafts": 2}, begins)


@pytest.mark.parametrize("begins", BEGINS[1:3], ids=len)
def test_certain_drafts(fast_backend, begins):
    """Without draft laws the residual is p without the draft."""
    call = {**chain_call_with_hits(VOCABULARY), "draft": None}
    check(call, begins)
    check({**call, "temperature": 0.7}, begins)
    check(ragged(call, COUNTS.repeat(2)), begins)


@pytest.mark.interpreted
def test_verdicts_on_every_backend(backend):
    call = chain_call_with_hits(2048 + 9, requests=4, slots=2)
    check(call, [0, 1024])
    check({**call, "draft": None}, [0, 1024])


def test_numbers_of_slots_and_requests(fast_backend):
    call = chain_call_with_hits(VOCABULARY)
    generator = torch.Generator().manual_seed(3)
    check({**call, "draft_prob": 0.7})
    check({**call, "draft_prob": torch.rand(16, generator=generator)})
    check({**call, "draft_prob": torch.rand(16, 3, generator=generator) * 1.2 - 0.1})
    check({**call, "epsilon": torch.rand(16, generator=generator) * 0.1})
    check({**call, "temperature": 0.8})
    check({**call, "temperature": 0.0})
    check({**call, "temperature": None, "sampling": Sampling(temperature=0.8)})
    check({**call, "draft_sampling": Sampling(temperature=1.3)})
    packed = ragged(call, COUNTS.repeat(2))
    check({**packed, "draft_prob": torch.rand(30, generator=generator)})
    check({**packed, "draft_prob": torch.rand(16, 1, generator=generator)})


def test_requests_by_their_index(fast_backend):
    call = chain_call_with_hits(VOCABULARY, requests=8)
    call["request_index"] = torch.tensor([0, 4, -1, 3, 8, 2, 2, 1], dtype=torch.int32)
    check(call)
    check({**call, "draft": None})
    check({**ragged({**call, "draft": None}, COUNTS)})


def test_faults_of_rows_that_decided(fast_backend):
    """NaN and +inf in one slice; rows without weight; temperatures that are none."""
    call = chain_call_with_hits(VOCABULARY)
    call["target"][0, 0, 5000], call["target"][1, 3, 5000], call["target"][2, 0, 3] = torch.nan, torch.nan, torch.inf
    call["draft"][4, 0, 4100], call["draft"][5, 2, 4100] = torch.nan, torch.nan
    call["target"][6], call["draft"][8] = -torch.inf, -torch.inf
    call["temperature"][[9, 10]] = torch.tensor([-1.0, torch.nan])
    assert Status.NON_FINITE in set(check(call).status.tolist())
    check({**call, "draft": None})


@pytest.mark.interpreted
def test_equal_laws_leave_no_residual(backend):
    """A slot that could have been drafted, and was not: p - q is nothing, so the token is from p."""
    target = torch.randn(2, 2, 2048, generator=torch.Generator().manual_seed(1))
    call = {
        "draft_tokens": torch.tensor([[-1], [7]]), "target": target, "draft": target[:, :1] + 0.0, "seed": seeds(2),
        "position": 1, "draft_prob": torch.tensor([1.0 - 2**-24, 1.0]),
    }  # fmt: skip
    if backend == "reference":
        pytest.skip("float64 leaves something")
    check(call, [0, 1024])


def test_what_is_refused_is_named():
    call = chain_call_with_hits(2048, requests=4)
    shard = sharded.VocabShard(2048, 0)
    for name, value in (("space", "probs"), ("sampling", Sampling(top_k=5)), ("draft_sampling", Sampling(top_p=0.5))):
        own = {**call, name: value} | ({"temperature": None} if name == "sampling" else {})
        with pytest.raises(ValueError, match=f"{name}.*method='rejection' on slices"):
            sharded.verify_chain(**own, shard=shard)
    with pytest.raises(ValueError, match="draft: expected the target's 2048 columns"):
        sharded.verify_chain(**{**call, "draft": call["draft"][..., :2000]}, shard=shard)
