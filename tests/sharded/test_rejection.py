"""Chains over slices of rows: on every rank the verdict of the whole rows."""

import functools

import pytest
import torch

from specdec_kernels import Sampling, Status, sharded
from tests.sharded import test_races
from tests.sharded.test_races import VOCABULARY
from tests.support.cases import ragged, seeds
from tests.support.random_calls import random_slices
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


def test_random_calls(fast_backend):
    seen = set()
    for number in range(60):
        verdict = check(*random_slices(number, "verify_chain"))
        seen |= set(verdict.num_accepted.tolist())
    assert seen >= {-1, 0, 1, 2, 3, 4}


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
def test_verdicts_on_every_backend(parts_backend, method):
    call = chain(method, 2048 + 9, requests=4, slots=2)
    check(call, [0, 1024])
    if method == "rejection":
        check({**call, "draft": None}, [0, 1024])


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


def test_equal_laws_leave_no_residual(parts_backend):
    """A slot that could have been drafted, and was not: p - q is nothing, so the token is from p."""
    target = torch.randn(2, 2, 2048, generator=torch.Generator().manual_seed(1))
    call = {
        "draft_tokens": torch.tensor([[-1], [7]]), "target": target, "draft": target[:, :1] + 0.0, "seed": seeds(2),
        "position": 1, "draft_prob": torch.tensor([1.0 - 2**-24, 1.0]),
    }  # fmt: skip
    check(call, [0, 1024])


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
    for change in (
        {"sampling": sampling._replace(temperature=0.0)},
        {"sampling": Sampling(0.0)},
        {"sampling": None, "draft": None, "draft.sampling": None, "temperature": 0.0, "epsilon": index - 1.0},
    ):
        assert Status.PARAMETER in set(check(call | change).status.tolist())


def test_over_acceptance_of_what_has_no_weight(fast_backend):
    """Where no filter is on in a row, a draft whose logit is -inf is spared as any other is."""
    call = chain_call_with_hits(VOCABULARY, requests=8) | {"temperature": None, "epsilon": 0.95}
    call["target"].scatter_(2, call["draft_tokens"].clamp(0, VOCABULARY - 1)[..., None], -torch.inf)
    found = check({**call, "sampling": Sampling(0.9, top_k=torch.tensor([0, 9]).repeat(4))}).num_accepted
    assert found[::2].sum() > 0 == found[1::2].sum()


def test_filters_on_every_backend(parts_backend):
    call = {**chain_call_with_hits(1024 + 9, requests=3, slots=1), "temperature": None}
    check({**call, "sampling": Sampling(0.8, top_k=9, top_p=0.8)}, [0, 1024])


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
