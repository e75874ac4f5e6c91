"""Chains over slices of rows: on every rank the verdict of the whole rows."""

import functools

import pytest
import torch

from specdec_kernels import Sampling, Status, sharded
from tests.sharded import test_races
from tests.sharded.test_races import BEGINS, VOCABULARY
from tests.support.cases import DTYPES, ragged, seeds
from tests.support.ranks import chain_call_with_hits, on_ranks

COUNTS = torch.tensor([3, 0, 1, 2, 3, 3, 2, 1])


METHODS = {"rejection": {}, "block": {"method": "block"}, "race": {"method": "race", "draft": None}}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)

check = functools.partial(test_races.check, "verify_chain")


def chain(method, vocabulary=VOCABULARY, **how):
    """Drafts that are accepted now and then; those of blocks under laws that are near each other."""
    call = chain_call_with_hits(vocabulary, **how)
    if method == "block":
        call["draft"][::2] = call["target"][::2, :-1] + 0.3 * call["draft"][::2]
    return call | METHODS[method]


@EVERY_METHOD
@pytest.mark.parametrize("begins", BEGINS, ids=len)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_verdicts_of_chains_on_any_number_of_ranks(fast_backend, method, begins, dtype):
    call = chain(method, dtype=dtype)
    verdict = check(call, begins)
    assert len(set(verdict.num_accepted.tolist())) > 2
    assert Status.TOKEN_RANGE in set(verdict.status.tolist())
    packed = ragged(call, COUNTS.repeat(2))
    check(packed, begins)
    check({**packed, "packing.max_drafts": 2}, begins)
    if method != "race":  # without draft laws the residual is p without the draft
        check({**call, "draft": None}, begins)
        check({**packed, "draft": None}, begins)


@EVERY_METHOD
def test_bounds_begin_with_0(fast_backend, method):
    call = ragged(chain(method), COUNTS.repeat(2))
    good = check(call)
    for first in (1, 2, 9):
        call["packing.cu_drafts"][0] = first
        found = check(call)
        assert (found.tokens[0, 0], found.status[0]) == (0, Status.PARAMETER)
        assert torch.equal(found.tokens[1:], good.tokens[1:])
        assert torch.equal(found.status[1:], good.status[1:])


@EVERY_METHOD
def test_rows_without_weight_end_the_chain(fast_backend, method):
    """tests/ops/test_empty_rows.py has the rule."""
    call = chain(method)
    requests, rows = call["target"].shape[:2]
    call["target"][torch.rand(requests, rows, generator=torch.Generator().manual_seed(5)) < 0.3] = -torch.inf
    if method == "rejection":
        check({**call, "epsilon": 0.4})
    verdict = check(call)
    assert {0, int(Status.NON_FINITE)} <= set(verdict.status.tolist())


@pytest.mark.interpreted
@EVERY_METHOD
def test_verdicts_on_every_backend(parts_backend, method):
    call = chain(method, 2048 + 9, requests=4, slots=2)
    check(call, [0, 1024])
    if method == "rejection":
        check({**call, "draft": None}, [0, 1024])


def test_numbers_of_slots_and_requests(fast_backend):
    call = chain_call_with_hits(VOCABULARY)
    generator = torch.Generator().manual_seed(3)
    check({**call, "draft_prob": 0.7})
    check({**call, "draft_prob": torch.rand(16, generator=generator)})
    check({**call, "draft_prob": torch.rand(16, 3, generator=generator) * 1.2 - 0.1})
    check({**call, "epsilon": torch.rand(16, generator=generator) * 0.1})
    check({**call, "temperature": 0.8})
    check({**call, "temperature": 0.7, "draft": None})
    check({**call, "temperature": 0.0})
    check({**call, "temperature": None, "sampling": Sampling(temperature=0.8)})
    check({**call, "draft.sampling": Sampling(temperature=1.3)})
    packed = ragged(call, COUNTS.repeat(2))
    check({**packed, "draft_prob": torch.rand(30, generator=generator)})
    check({**packed, "draft_prob": torch.rand(16, 1, generator=generator)})


@EVERY_METHOD
def test_requests_by_their_index(fast_backend, method):
    call = chain(method, requests=8)
    call["request_index"] = torch.tensor([0, 4, -1, 3, 8, 2, 2, 1], dtype=torch.int32)
    check(call)
    check({**call, "draft": None})
    check(ragged({**call, "draft": None}, COUNTS))


def test_an_index_where_there_is_one_entry_or_none(fast_backend):
    """A tensor of one entry has that one. Numbers have none: an index only says whether a request is idle."""
    call = chain_call_with_hits(VOCABULARY, requests=4) | {"draft": None, "temperature": 0.8}
    for index in (torch.int32, torch.int64):
        call["request_index"] = torch.tensor([0, 4, -1, -2], dtype=index)
        one = check({**call, "seed": torch.tensor([3]), "position": torch.tensor([5])})
        assert one.status.tolist() == [0, 8, 0, 8]
        none = {name: call[name][1:2] for name in ("draft_tokens", "target", "request_index")}
        assert check({**call, **none, "seed": 3, "position": 5}).status.item() == 0


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_packed_requests_by_the_index_of_their_draft_rows(fast_backend, method):
    call = chain_call_with_hits(VOCABULARY, requests=8)
    call |= {"request_index": torch.tensor([0, 4, -1, 3, 8, 2, 2, 1], dtype=torch.int32), "method": method}
    packed = {**ragged({**call, "draft": None}, COUNTS), "draft": call["draft"]}
    assert len(set(check(packed).num_accepted.tolist())) > 2
    check({**packed, "draft": torch.cat([call["draft"], call["draft"]], dim=1)})
    check({**packed, "draft": call["draft"][:, :2], "packing.max_drafts": 2})
    check({**packed, "draft.sampling": Sampling(torch.linspace(0.5, 1.5, 8), top_k=30)})
    check({**packed, "draft_tokens": torch.full_like(packed["draft_tokens"], -1)})
    if method == "rejection":
        check({**packed, "draft_prob": torch.linspace(0.4, 1, 8).unsqueeze(-1), "epsilon": 0.1})
    narrow = {**packed, "draft": call["draft"][:, :2]}
    with pytest.raises(ValueError, match="draft: expected rows for 3 drafts"):
        on_ranks(sharded.verify_chain, [0], narrow)


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_faults_of_rows_that_decided(fast_backend, method):
    """NaN and +inf in one slice; rows without weight; temperatures that are none."""
    call = chain(method)
    call["target"][0, 0, 5000], call["target"][1, 3, 5000], call["target"][2, 0, 3] = torch.nan, torch.nan, torch.inf
    call["draft"][4, 0, 4100], call["draft"][5, 2, 4100] = torch.nan, torch.nan
    call["target"][6], call["draft"][8] = -torch.inf, -torch.inf
    call["temperature"][[9, 10]] = torch.tensor([-1.0, torch.nan])
    assert Status.NON_FINITE in set(check(call).status.tolist())
    check({**call, "draft": None})


@pytest.mark.interpreted
def test_equal_laws_leave_no_residual(parts_backend):
    """A slot that could have been drafted, and was not: p - q is nothing, so the token is from p."""
    target = torch.randn(2, 2, 2048, generator=torch.Generator().manual_seed(1))
    call = {
        "draft_tokens": torch.tensor([[-1], [7]]), "target": target, "draft": target[:, :1] + 0.0, "seed": seeds(2),
        "position": 1, "draft_prob": torch.tensor([1.0 - 2**-24, 1.0]),
    }  # fmt: skip
    check(call, [0, 1024])


LAWS = {
    "top_k": (Sampling(0.8, top_k=7), None),
    "top_k and top_p": (Sampling(1.2, top_k=40, top_p=0.8), None),
    "min_p": (Sampling(min_p=0.02), None),
    "top_p of the row": (Sampling(0.6, top_p=0.7), None),
    "before the temperature": (Sampling.llamacpp(0.6, top_k=20, top_p=0.9, min_p=0.01), Sampling(0.9)),
    "both": (Sampling(0.8, top_k=7), Sampling(1.1, top_k=30, top_p=0.9)),
    "the draft's": (Sampling(), Sampling.huggingface(top_k=20)),
    "an argmax of the draft": (Sampling(), Sampling(0.0)),
}


@pytest.mark.parametrize("laws", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("certain", [False, True], ids=["drafted", "certain"])
def test_filters(fast_backend, laws, certain):
    call = {**chain_call_with_hits(VOCABULARY), "temperature": None, "sampling": laws[0]}
    if certain and laws[1] is not None:
        pytest.skip("there are no draft laws")
    call |= {"draft": None} if certain else {"draft.sampling": laws[1]}
    if laws[1] == Sampling(0.0):
        call["target"][::2, :-1] = 4 * call["draft"][::2]
        call["draft_tokens"][::2] = call["draft"][::2].argmax(dim=-1)
    assert len(set(check(call, BEGINS[2]).num_accepted.tolist())) > 1
    check({**ragged(call, COUNTS.repeat(2)), "epsilon": 0.05})
    if not certain:
        check({**call, "draft_prob": 0.7, "epsilon": torch.linspace(0, 0.3, 16)})


def test_filters_by_their_entries(fast_backend):
    """Temperatures 0 and bad numbers on both sides."""
    call = chain_call_with_hits(VOCABULARY, requests=8)
    index, temperature = torch.arange(8), torch.tensor([1.0, 0.0, 0.7])
    sampling = Sampling(temperature[index % 3], torch.tensor([5, 0, 1, 40])[index % 4], torch.linspace(-0.1, 1, 8))
    draft_sampling = Sampling(temperature[index % 2], torch.tensor([0, 30])[index // 4], min_p=index / 100)
    draft_sampling.min_p[5] = -0.1
    call["draft_tokens"][5] = -1  # then no row of that draft is looked at
    draft_sampling.temperature[7] = torch.nan
    call |= {"temperature": None, "sampling": sampling, "draft.sampling": draft_sampling}
    assert Status.PARAMETER in set(check(call).status.tolist())
    call["request_index"] = torch.tensor([0, 4, -1, 3, 8, 2, 2, 1], dtype=torch.int32)
    check(call)
    check({**call, "draft": None, "draft.sampling": None})


def test_over_acceptance_of_what_has_no_weight(fast_backend):
    """Where no filter is on in a row, a draft whose logit is -inf is spared as any other is."""
    call = chain_call_with_hits(VOCABULARY, requests=8) | {"temperature": None, "epsilon": 0.95}
    call["target"].scatter_(2, call["draft_tokens"].clamp(0, VOCABULARY - 1)[..., None], -torch.inf)
    found = check({**call, "sampling": Sampling(0.9, top_k=torch.tensor([0, 9]).repeat(4))}).num_accepted
    assert found[::2].sum() > 0 == found[1::2].sum()


@pytest.mark.interpreted
def test_filters_on_every_backend(parts_backend):
    call = {**chain_call_with_hits(1024 + 9, requests=3, slots=1), "temperature": None}
    check({**call, "sampling": Sampling(0.8, top_k=9, top_p=0.8)}, [0, 1024])


# ---- blocks ---------------------------------------------------------------------------------------------------------


def test_blocks_with_filters(fast_backend):
    call = chain("block")
    check({**call, "temperature": None, "sampling": Sampling(0.9, top_k=30), "draft.sampling": Sampling(top_k=50)})
    check({**call, "temperature": None, "sampling": Sampling(0.9, top_p=0.9), "draft": None})


def test_blocks_read_the_rows_of_a_draft_out_of_range_only_for_their_sums(fast_backend):
    call = chain("block", requests=64)
    call["target"][:, 1, 5000], call["draft_tokens"][:, 1] = torch.nan, VOCABULARY + 5
    assert len(set(check(call).status.tolist())) > 1
    check({**call, "draft": None})


def test_what_is_refused_is_named():
    call = chain_call_with_hits(2048, requests=4)
    shard = sharded.VocabShard(2048, 0)
    with pytest.raises(ValueError, match="space: expected 'logits', for slices"):
        sharded.verify_chain(**{**call, "space": "probs"}, shard=shard)
    with pytest.raises(ValueError, match="draft: expected the target's 2048 columns"):
        sharded.verify_chain(**{**call, "draft": call["draft"][..., :2000]}, shard=shard)
