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
@pytest.mark.parametrize("token", [1023, 1024, VOCABULARY - 1])
def test_counts_move_along_the_drafts(fast_backend, method, token):
    """A token at the end of a slice is drafted again and again, each time it is worth less; a sibling's counts not."""
    target = torch.zeros(16, 7, VOCABULARY)
    target[..., token] = 12.0
    call = {"target": target[:, :5].clone(), "method": method, "seed": seeds(16), "position": 3}
    call |= {"draft_tokens": torch.full((16, 4), token)}
    target[..., 5] = 11.0
    tree = call | {"target": target, "parents": torch.tensor([-1, 0, 0, 2, 3, 3, 4])}
    tree |= {"draft_tokens": torch.tensor([0, 5, token, token, token, 5, token]).repeat(16, 1)}
    pending = torch.tensor([[token, -1], [token, token]]).repeat(8, 1)
    for op, each, edits in (
        ("verify_chain", call, LogitEdits(frequency=2.0, presence=0.5, repetition=1.1)),
        ("verify_tree", tree, LogitEdits(frequency=0.7, presence=0.2, repetition=1.1)),
    ):
        assert len(set(check(op, {**each, "edits": edits}).num_accepted.tolist())) > 1
        check(op, {**each, "edits": edits._replace(pending=pending)})


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


TOKENS = [3, 900, 7, 8, 9, 10, 1023, 1024, 1024, 5, 2048, 4097, 4096, 12]


@pytest.mark.parametrize("spans", [[[0, 7], [2, 5], [4, 4]], [[0, 14]] * 3, [[5, 14]] * 3, [[1, 9]] * 3], ids=str)
@pytest.mark.parametrize("tokens", [sorted({*TOKENS}), TOKENS], ids=["rising", "not rising"])
def test_spans_that_share_entries_some_of_which_do_not_rise(fast_backend, spans, tokens):
    """These are passed over, whichever is asked for, and the first of two that have one token counts."""
    bias = torch.tensor(tokens).int(), torch.arange(len(tokens)) + 3.0, torch.tensor(spans).clamp(max=len(tokens)).int()
    rows = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2))
    for asked in tokens:
        check("logprobs", {"rows": rows, "tokens": torch.full((3,), asked), "edits": LogitEdits(bias=bias), "top": 3})


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
