"""LogitEdits over slices of rows: on every rank what the op gives on whole rows that are edited."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import LogitEdits, Sampling, Status, sharded
from tests.sharded.test_races import BEGINS, VOCABULARY, assert_all_equal, check
from tests.support.cases import ragged, seeds
from tests.support.edits import random_edits
from tests.support.ops import grouped
from tests.support.parts import edited
from tests.support.ranks import chain_call_with_hits, tree_call_with_hits

COUNTS = torch.tensor([3, 0, 1, 2, 3, 3, 2, 1])
SHARPER = Sampling(0.6, top_k=50, top_p=0.9)


def chains(method, slots=3, **how):
    """Calls whose drafts the target often draws, with everything that edits may be."""
    call = {**chain_call_with_hits(VOCABULARY, slots=slots, **how), "method": method}
    count = len(call["draft_tokens"])
    call["edits"] = random_edits(count, slots + 1, vocabulary=VOCABULARY, seed=3)
    return call if method == "rejection" else {**call, "draft": None}


def of_requests(edits):
    """One mask of what is allowed for all rows of a request."""
    return edits._replace(allowed=edits.allowed[:, 0])


@pytest.mark.parametrize("begins", BEGINS, ids=len)
@pytest.mark.parametrize("method", ["race", "rejection"])
def test_edited_chains(fast_backend, begins, method):
    call = chains(method)
    verdict = check("verify_chain", call, begins)
    assert len(set(verdict.num_accepted.tolist())) > 2
    check("verify_chain", {**call, "edits": of_requests(call["edits"])}, begins)
    by_row = random_edits(16, 4, vocabulary=VOCABULARY, seed=5, bias_by_row=True)
    check("verify_chain", {**call, "edits": by_row}, begins)


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_edited_chains_with_filters_and_packed(fast_backend, method):
    call = chains(method)
    check("verify_chain", {**call, "temperature": None, "sampling": SHARPER})
    edits = of_requests(call["edits"])
    packed = {**ragged({**call, "edits": None}, COUNTS.repeat(2)), "edits": edits._replace(allowed=None)}
    check("verify_chain", packed)
    check("verify_chain", {**packed, "edits": edits._replace(allowed=edits.allowed.unsqueeze(1))})
    check("verify_chain", {**packed, "temperature": None, "sampling": SHARPER})
    if method == "rejection":
        check("verify_chain", {**call, "draft": None})
        check("verify_chain", {**call, "epsilon": 0.3, "temperature": 0.8})
        check("verify_chain", {**call, "temperature": 0.0})
    call = chains(method, requests=8)
    call["request_index"] = torch.tensor([0, 4, -1, 3, 8, 2, 2, 1], dtype=torch.int32)
    check("verify_chain", {**call, "edits": of_requests(call["edits"])})


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize(("requests", "slots"), [(0, 2), (3, 0)])
def test_no_requests_and_no_drafts(fast_backend, method, requests, slots):
    call = chains(method, requests=4, slots=slots)
    call = {name: x[:requests] if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    edits = LogitEdits(*(x[:requests] if isinstance(x, torch.Tensor) else x for x in call["edits"]))
    call["edits"] = edits._replace(bias=(*edits.bias[:2], edits.bias[2][: requests + 1]))
    check("verify_chain", call)
    if requests:
        packed = ragged({**call, "edits": None}, torch.tensor([0] * requests))
        check("verify_chain", {**packed, "edits": call["edits"]._replace(allowed=None)})


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


def test_edited_blocks(fast_backend):
    """All of a block's sums are of edited rows, with what filters keep of these."""
    call = chains("rejection")
    call["draft"][::2] = call["target"][::2, :-1] + 0.3 * call["draft"][::2]
    edits = of_requests(call["edits"])._replace(allowed=None)
    call |= {"method": "block", "edits": edits._replace(repetition=torch.full((16,), 1.1))}
    assert len(set(check("verify_chain", call).num_accepted.tolist())) > 1
    check("verify_chain", {**call, "edits": chains("rejection")["edits"]})
    check("verify_chain", {**call, "temperature": None, "sampling": SHARPER})
    check("verify_chain", {**call, "draft": None})
    check("verify_chain", ragged({**call, "edits": None}, COUNTS.repeat(2)) | {"edits": call["edits"]})


@pytest.mark.parametrize("method", ["race", "rejection", "traversal"])
def test_edited_trees(fast_backend, method):
    """Drafts on the path to a node are pending there, and no others."""
    call = {**tree_call_with_hits(VOCABULARY, requests=16, nodes=9), "method": method}
    call["draft"][::2] = call["target"][::2] + 0.3 * call["draft"][::2]
    if method == "race":
        call["draft"] = None
    edits = random_edits(16, 9, vocabulary=VOCABULARY, seed=3)
    call["edits"] = of_requests(edits)._replace(allowed=None)
    assert len(set(check("verify_tree", call).num_accepted.tolist())) > 1
    check("verify_tree", {**call, "edits": edits})
    check("verify_tree", {**call, "edits": of_requests(edits), "temperature": None, "sampling": SHARPER}, BEGINS[1])
    check("verify_tree", {**call, "edits": random_edits(16, 9, vocabulary=VOCABULARY, seed=5, bias_by_row=True)})
    if method != "race":
        check("verify_tree", {**call, "draft": None})
        check("verify_tree", {**call, "temperature": 0.0})
    index = torch.tensor([0, 4, -1, 3, 15, 2, 2, 1, 16, 5, 6, 7, 8, 9, -1, 10], dtype=torch.int32)
    check("verify_tree", {**call, "request_index": index})


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


def hard_edits(rows, vocabulary=VOCABULARY):
    """One place for each of 6 rows: numbers and entries out of range, values that are none, and counts at their end."""
    edits = random_edits(rows, vocabulary=vocabulary, seed=7)
    edits.repetition[0], edits.presence[1], edits.pending[2, 0] = -1.0, torch.inf, vocabulary
    edits.bias[0][edits.bias[2][3] + 4] = 3  # does not rise
    edits.bias[1][::7], edits.bias[1][1::7] = torch.nan, torch.inf
    edits.output_counts[4] = 2**31 - 1
    return edits


def test_edited_log_probabilities(fast_backend):
    rows = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    rows[5, 7], rows[4, 1030] = torch.nan, torch.inf
    tokens = torch.tensor([5, 1024, 2047, -1, VOCABULARY, 4097])
    index = torch.tensor([3, 0, -1, 5, 9, 3], dtype=torch.int32)
    for edits in (random_edits(6, vocabulary=VOCABULARY, seed=7), hard_edits(6)):
        likely = specdec_kernels.logprobs(rows, tokens, edits=edits, top=3).top_tokens[:, 2]
        for asked in (tokens, likely, edits.bias[0][edits.bias[2][:6].long() + 1].long()):
            call = {"rows": rows, "tokens": asked, "edits": edits, "top": 5}
            for more in ({}, {"sampling": SHARPER}, {"temperature": 0.0}, {"temperature": 0.3, "top": 0}):
                check("logprobs", call | more)
        of_entries = edits._replace(allowed=edits.allowed[index.long().clamp(0, 5)])
        check("logprobs", call | {"edits": of_entries, "request_index": index, "sampling": SHARPER})
    folded = {"rows": rows.view(3, 2, -1), "tokens": tokens.view(3, 2), "edits": edits._replace(
        **{name: x.unflatten(0, (3, 2)) for name, x in edits._asdict().items() if isinstance(x, torch.Tensor)}
    )}  # fmt: skip
    check("logprobs", folded | {"top": 2})


def test_edited_cuts(fast_backend):
    rows = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    for edits in (random_edits(6, vocabulary=VOCABULARY, seed=7), hard_edits(6)):
        for sampling in (SHARPER, Sampling(0.8, min_p=0.01), Sampling(top_p=0.6)):
            check("cutoff", {"rows": rows, "edits": edits, "sampling": sampling})


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


def test_edited_rows(fast_backend):
    rows = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    edits = random_edits(6, vocabulary=VOCABULARY, seed=7)
    call = {"target": rows, "seed": seeds(6), "position": 1, "edits": edits}
    index = torch.tensor([3, 0, -1, 5, 9, 3], dtype=torch.int32)
    for more in ({}, {"sampling": SHARPER}, {"temperature": 0.0}):
        check("race_sample", call | more)
        of_entries = edits._replace(allowed=edits.allowed[index.long().clamp(0, 5)])
        check("race_sample", call | more | {"request_index": index, "edits": of_entries})
        check("race_topk", {"draft" if name == "target" else name: x for name, x in call.items()} | more | {"k": 5})


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_numbers_and_entries_out_of_range(fast_backend, method):
    call, far = chains(method, requests=8), VOCABULARY + 9
    edits = of_requests(call["edits"])
    edits.repetition[0], edits.frequency[1], edits.pending[2, 1] = -1.0, torch.nan, far
    edits.bias[0][edits.bias[2][4]] = far  # out of range, at the begin of a span
    edits.bias[0][edits.bias[2][5] + 20] = 3  # does not rise
    edits.bias[2][-1] = 10**6
    verdict = check("verify_chain", {**call, "edits": edits})
    assert int((verdict.status & Status.PARAMETER > 0).sum()) >= 5


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
