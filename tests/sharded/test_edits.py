"""LogitEdits over slices of rows: on every rank what the op gives on whole rows that are edited."""

import pytest
import torch

from specdec_kernels import LogitEdits, Sampling, sharded
from tests.sharded.test_races import VOCABULARY, assert_all_equal, check
from tests.support.cases import seeds
from tests.support.edits import random_edits
from tests.support.ops import grouped
from tests.support.parts import edited
from tests.support.random_calls import random_slices
from tests.support.ranks import chain_call_with_hits


def chains(method, slots=3, **how):
    """Calls whose drafts the target often draws, with everything that edits may be."""
    call = {**chain_call_with_hits(VOCABULARY, slots=slots, **how), "method": method}
    count = len(call["draft_tokens"])
    call["edits"] = random_edits(count, slots + 1, vocabulary=VOCABULARY, seed=3)
    return call if method == "rejection" else {**call, "draft": None}


@pytest.mark.parametrize("op", ["verify_chain", "verify_tree", "race_sample", "race_topk", "logprobs", "cutoff"])
def test_random_calls(fast_backend, op):
    for number in range(24):
        check(op, *random_slices(number, op, edited=True))


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_no_requests(fast_backend, method):
    call = {name: x[:0] if isinstance(x, torch.Tensor) else x for name, x in chains(method, requests=4).items()}
    edits = LogitEdits(*(x[:0] if isinstance(x, torch.Tensor) else x for x in call["edits"]))
    check("verify_chain", call | {"edits": edits._replace(bias=(*edits.bias[:2], edits.bias[2][:1]))})


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_counts_move_along_the_draft(fast_backend, method):
    """A token at the end of a slice is drafted again and again, and each time it is worth less."""
    for token in (1023, 1024, VOCABULARY - 1):
        target = torch.zeros(16, 5, VOCABULARY)
        target[..., token] = 12.0
        call = {
            "draft_tokens": torch.full((16, 4), token), "target": target, "method": method, "seed": seeds(16),
            "position": 3, "edits": LogitEdits(frequency=2.0, presence=0.5, repetition=1.1),
        }  # fmt: skip
        assert len(set(check("verify_chain", call).num_accepted.tolist())) > 1
        pending = torch.tensor([[token, -1], [token, token]]).repeat(8, 1)
        check("verify_chain", {**call, "edits": call["edits"]._replace(pending=pending)})


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_counts_move_along_the_path(fast_backend, method):
    """Each child has its parent's token, which is worth less each time; a sibling's does not count."""
    for token in (1023, 1024, VOCABULARY - 1):
        target = torch.zeros(16, 7, VOCABULARY)
        target[..., token], target[..., 5] = 12.0, 11.0
        call = {
            "draft_tokens": torch.tensor([0, 5, token, token, token, 5, token]).repeat(16, 1), "target": target,
            "parents": torch.tensor([-1, 0, 0, 2, 3, 3, 4]), "method": method, "seed": seeds(16), "position": 3,
            "edits": LogitEdits(frequency=0.7, presence=0.2, repetition=1.1),
        }  # fmt: skip
        assert len(set(check("verify_tree", call).num_accepted.tolist())) > 1
        check("verify_tree", {**call, "edits": call["edits"]._replace(pending=torch.tensor([[token, -1]] * 16))})


@pytest.mark.interpreted
def test_a_race_over_an_edited_slice(parts_backend):
    """The local half: tokens have their own noise, and the edits that the slice's words tell of."""
    generator = torch.Generator().manual_seed(2)
    rows, half = torch.randn(4, 3000, generator=generator), torch.randint(-(2**31), 2**31, (4, 94), generator=generator)
    edits = random_edits(4, vocabulary=3000, seed=7)
    edits = edits._replace(bias=None, pending=torch.tensor([[5], [-1], [5], [1975]]), allowed=half.int())
    own = edits._replace(**{
        name: getattr(edits, name)[:, 32:] for name in ("allowed", "prompt_mask", "output_mask")
    }, output_counts=edits.output_counts[:, 1024:])  # fmt: skip
    part, expected = rows[:, 1024:], edited(rows[:, 1024:], own)
    how = {"vocab_start": 1024, "seed": seeds(4), "position": 3}
    for more in ({}, {"sampling": Sampling(0.7, top_k=30)}, {"temperature": 0.0}, {"k": 3}):
        found = sharded.race_partial(part, edits=own, **how, **more)
        assert_all_equal([found], sharded.race_partial(expected, **how, **more))
        assert not torch.equal(found.scores, sharded.race_partial(part, **how, **more).scores)


def test_spans_that_share_entries(fast_backend):
    """Rows may have parts of one list of biases."""
    tokens = torch.tensor([3, 40, 1023, 1024, 2000, 2048, 4097], dtype=torch.int32)
    spans = torch.tensor([[0, 7], [2, 5], [0, 3], [3, 3], [4, 7], [1, 6]], dtype=torch.int32)
    edits = LogitEdits(bias=(tokens, torch.arange(7) + 3.0, spans))
    rows = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    for asked in tokens.tolist():
        check("logprobs", {"rows": rows, "tokens": torch.full((6,), asked), "edits": edits, "top": 3})


def test_entries_that_do_not_rise_are_passed_over(fast_backend):
    """Whichever of them are asked for, and the first of two that have one token counts."""
    tokens = torch.tensor([3, 900, 7, 8, 9, 10, 1023, 1024, 1024, 5, 2048, 4097, 4096, 12], dtype=torch.int32)
    rows = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2))
    for begin, end in ((0, 14), (5, 14), (1, 9)):
        spans = torch.tensor([[begin, end]] * 3, dtype=torch.int32)
        edits = LogitEdits(bias=(tokens, torch.arange(14) + 3.0, spans))
        for asked in tokens.tolist():
            check("logprobs", {"rows": rows, "tokens": torch.full((3,), asked), "edits": edits, "top": 3})


def test_a_bias_on_the_boundary(fast_backend):
    rows = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(2))
    for token in (0, 1023, 1024, VOCABULARY - 1):
        bias = torch.tensor([token], dtype=torch.int32), torch.tensor([40.0]), torch.tensor([0, 1, 1, 1, 1]).int()
        call = {"target": rows, "seed": seeds(4), "position": 1, "edits": LogitEdits(bias=bias)}
        assert check("race_sample", call)[0][0] == token


def test_what_is_not_there_is_refused_by_name():
    call, shard = chains("rejection", requests=4), sharded.VocabShard(VOCABULARY, 0)
    shard.ranks = 1
    with pytest.raises(ValueError, match=r"draft\.map: expected None in sharded\.verify_chain"):
        sharded.verify_chain(**grouped({**call, "draft.map": torch.arange(3).int()}), shard=shard)
    short = call["edits"]._replace(prompt_mask=torch.zeros(4, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"edits\.prompt_mask: expected .* words or more"):
        sharded.verify_chain(**{**call, "edits": short}, shard=shard)


@pytest.mark.parametrize("op", ["verify_chain", "verify_tree"])
def test_a_seed_for_each_row_is_refused_by_name(op):
    """Only the op on whole rows takes it; on slices its rows were read at the positions of a request."""
    shard, tokens, rows = sharded.VocabShard(VOCABULARY, 0), torch.zeros(2, 3, dtype=torch.int64), 3
    shard.ranks = 1
    call = {"parents": torch.tensor([-1, 0, 1])} if op == "verify_tree" else {}
    rows += op == "verify_chain"
    seeds = torch.arange(2 * rows).view(2, rows)
    expected = rf"^seed: expected an int or \[B\] in sharded\.{op}: one for each request; got .*\[2, {rows}\]"
    with pytest.raises(ValueError, match=expected):
        getattr(sharded, op)(
            tokens, torch.zeros(2, rows, VOCABULARY), method="race", seed=seeds, position=0, shard=shard, **call
        )
