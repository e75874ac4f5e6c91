"""Races over slices of rows: on every rank what the unsharded ops give on the whole rows. And what slices may be."""

import inspect

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling, sharded
from specdec_kernels.sharded import VocabShard, race_finish, race_partial
from specdec_kernels.sharded._shard import hash_of
from tests.conftest import NATIVE, ON_GPU
from tests.support.cases import DTYPES, adversarial_rows, poisoned, seeds
from tests.support.ops import grouped
from tests.support.ranks import ROWS, PlayedShard, Stage, chain_call_with_hits, on_ranks

VOCABULARY = 5 * 1024 + 77
# The slices of 1, 2, 3 and 4 ranks, and of 5 of which two have no tokens.
BEGINS = ([0], [0, 4096], [0, 1024, 5120], [0, 1024, 2048, 4096], [0, 2048, 2048, 4096, 6144])


def assert_all_equal(results, expected):
    """Every rank has what is expected: a tensor, or a tuple of them."""
    alone = isinstance(expected, torch.Tensor)
    for found in results:
        for a, b in [(found, expected)] if alone else zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def check(op, call, begins=BEGINS[2], debug=False):
    """Assert that every rank has what the op gives on whole rows, with its status; returns that."""
    rows = next(call[name] for name in ROWS if name in call)
    asked = "status" in inspect.signature(getattr(sharded, op)).parameters

    def with_status(function):
        def called(**arguments):
            status = torch.empty(rows.shape[:-1], dtype=torch.int32)
            found = function(**arguments, **({"status": status} if asked else {}))
            return (*(found if isinstance(found, tuple) else (found,)), status) if asked else found

        return called

    expected = with_status(getattr(specdec_kernels, op))(**grouped(call))
    assert_all_equal(on_ranks(with_status(getattr(sharded, op)), begins, call, debug), expected)
    return expected


def test_slices_of_hard_rows_give_the_tokens_of_whole_rows(parts_backend):
    rows = torch.stack(list(adversarial_rows(2048 + 77).values()))
    call = {"target": poisoned(rows), "seed": seeds(len(rows)), "position": 3}
    call["temperature"] = torch.tensor([1.0, 0.0, 0.5])[torch.arange(len(rows)) % 3]
    check("race_sample", call, [0, 1024, 2048])


@pytest.mark.parametrize("begins", BEGINS, ids=len)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_ranks_gives_the_same(fast_backend, begins, dtype):
    rows = 3 * torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    call = {"target": rows.to(dtype), "seed": seeds(6), "position": 3}
    check("race_sample", call, begins)
    call = {"target": rows.softmax(-1).to(dtype), "seed": seeds(6), "position": 3, "space": "probs"}
    check("race_sample", call, begins)


@pytest.mark.parametrize("filters", [{}, {"top_k": 40, "top_p": 0.9}, {"top_p": 0.9, "top_p_after": ()}], ids=str)
def test_logits_that_are_divided_already(fast_backend, filters):
    """By every op that takes a Sampling, from both sides."""
    rows = 3 * torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(2))
    temperature = torch.tensor([0.3, 0.0, 2.0, 1.0])
    law = {"sampling": Sampling(temperature, **filters, divided=True)}
    noise = {"seed": seeds(4), "position": 3}
    calls = [("race_sample", {"target": rows} | noise | law)]
    chain = chain_call_with_hits(VOCABULARY, 4, 2)
    del chain["temperature"]
    calls.append(("verify_chain", chain | law | {"draft.sampling": Sampling(temperature, divided=True)}))
    calls.append(("logprobs", {"rows": rows, "tokens": torch.arange(4)} | law))
    if filters:
        calls.append(("cutoff", {"rows": rows} | law))
    for name, call in calls:
        check(name, call, [0, 1024, 4096])


def test_first_arrivals_of_slices_are_those_of_rows(parts_backend):
    """Also more than a slice has, where backends are fast."""
    rows = torch.stack(list(adversarial_rows(2 * 1024 + 30).values()))
    for k in (40, 2000) if parts_backend in (NATIVE, *ON_GPU) else (3,):
        call = {"draft": rows if k > 3 else rows[::2], "k": k, "position": 3}
        index = torch.arange(len(call["draft"]))
        call |= {"seed": index, "temperature": torch.tensor([1.0, 0.0])[index % 2]}
        for begins in ([0, 2048], [0, 1024]):
            check("race_topk", call, begins)


def test_winners_and_ties_on_a_boundary(parts_backend):
    """The winner is the last token of a slice, or the first; or both are as large."""
    rows = torch.full((4, 3072), -torch.inf)
    rows[0, 1023], rows[1, 1024] = 1.0, 1.0
    rows[2, [1023, 1024]] = 1.0
    rows[3, [2047, 2048]] = 1.0
    for temperature in (0.0, 1.0):
        call = {"target": rows, "seed": seeds(4), "position": 1, "temperature": temperature}
        tokens, _ = check("race_sample", call, [0, 1024, 2048])
        assert temperature or tokens.tolist() == [1023, 1024, 1023, 2047]


def test_a_fault_in_one_slice_is_known_to_all(parts_backend):
    """NaN and +inf in the slice of one rank; a row with weight in one slice only, and one without any."""
    rows = torch.zeros(5, 2048)
    rows[0, 1500], rows[1, 3] = torch.nan, torch.inf
    rows[2, :1024], rows[3] = -torch.inf, -torch.inf
    call = {"target": rows, "seed": seeds(5), "position": 1}
    assert check("race_sample", call, [0, 1024])[1].tolist() == [1, 1, 0, 1, 0]
    call["draft"] = call.pop("target")
    check("race_topk", {**call, "k": 2}, [0, 1024])


def test_slices_of_a_small_vocabulary(parts_backend):
    call = {"target": torch.randn(4, 259), "seed": seeds(4), "position": 1}
    check("race_sample", call, [0, 128, 256])


def test_requests_that_are_not_live(parts_backend):
    call = {
        "target": torch.randn(4, 2048), "seed": seeds(3), "position": 1,
        "request_index": torch.tensor([2, -1, 7, 0], dtype=torch.int32),
    }  # fmt: skip
    assert check("race_sample", call, [0, 1024])[0][1:3].tolist() == [-1, 0]
    call["draft"] = call.pop("target")
    check("race_topk", {**call, "k": 2}, [0, 1024])


def test_an_index_where_there_is_one_entry_or_none(fast_backend):
    rows = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    for number, expected in ((torch.tensor([5]), [0, 8, 0, 8]), (5, [0, 0, 0, 8])):
        for index, status in zip((0, 4, -1, -2), expected, strict=True):
            call = {"target": rows, "seed": number, "position": 2, "request_index": torch.tensor([index]).int()}
            assert check("race_sample", call, [0, 1024])[1].tolist() == [status]


def test_a_draft_on_a_boundary_is_compared_as_any(parts_backend):
    target = torch.full((1, 3, 2048), -torch.inf)
    target[0, [0, 1, 2], [1023, 1024, 5]] = 0.0
    call = {"draft_tokens": torch.tensor([[1023, 1024]]), "target": target, "method": "race", "seed": 1, "position": 1}
    for verdict in on_ranks(sharded.verify_chain, [0, 1024], call):
        assert verdict.tokens.tolist() == [[1023, 1024, 5]]
        assert verdict.num_accepted.tolist() == [2]


def test_bits_tell_of_rows_that_decided(fast_backend):
    """A NaN after the first rejection is not met."""
    target = torch.zeros(2, 3, 2048)
    target[0, 2, 1500] = torch.nan
    target[1, 0, 1500] = torch.nan
    call = {
        "draft_tokens": torch.full((2, 2), 2047), "target": target, "method": "race", "seed": seeds(2), "position": 1,
    }  # fmt: skip
    expected = check("verify_chain", call, [0, 1024])
    assert expected.status.tolist() == [0, 1]


# ---- shards and halves ----------------------------------------------------------------------------------------------


def test_what_travels_is_12_bytes_a_row(fast_backend):
    part = race_partial(torch.randn(3, 5, 1024), vocab_start=1024, seed=seeds(3)[:, None], position=torch.arange(5))
    packed = part.packed()
    assert packed.is_contiguous()
    assert (packed.dtype, packed.shape) == (torch.int32, (3, 5, 3))


def test_keys_order_as_scores_do():
    """-0 and 0 are one score; the lower token wins among equal ones."""
    scores = torch.tensor([[-torch.inf, -3e38, -1.0, -1e-40, 0.0, -0.0, 1e-40, 2.0, 3e38, 3.1e38]])
    tokens = torch.arange(10, 0, -1)[None]
    every = sharded.RowPartial(tokens, scores, torch.zeros(1, dtype=torch.int32)).packed().unsqueeze(1)
    found, _ = race_finish(every, 10)
    assert found.tolist() == [list(range(1, 11))]
    tokens, scores = torch.tensor([[4], [3], [2]]), torch.tensor([[-0.0], [0.0], [-1.0]])
    every = sharded.RowPartial(tokens, scores, tokens[:, 0].int() * 0).packed().unsqueeze(1)
    assert race_finish(every)[0].tolist() == [3]
    assert race_finish(every, 3)[0].tolist() == [[3, 4, 2]]


def test_batches_of_none():
    call = {"target": torch.empty(0, 2048), "seed": 1, "position": torch.empty(0, dtype=torch.int64)}
    assert [x.shape for x in on_ranks(sharded.race_sample, [0, 1024], call)] == [(0,), (0,)]
    call = {**call, "target": torch.empty(0, 3, 2048), "draft_tokens": torch.empty(0, 2, dtype=torch.int64)}
    for verdict in on_ranks(sharded.verify_chain, [0, 1024], {**call, "method": "race"}):
        assert [x.shape for x in verdict] == [(0, 3), (0,), (0,)]


@pytest.mark.parametrize("vocab_start", [-128, 1, 64, 1023, 1.0, None])
def test_where_a_slice_may_begin(vocab_start):
    with pytest.raises(ValueError, match=r"vocab_start: expected a multiple of 128 inside \[0, 4096\)"):
        VocabShard(4096, vocab_start)


CALLS = {
    "race_sample": {"seed": seeds(3), "position": 5}, "race_topk": {"k": 4, "seed": seeds(3), "position": 5},
    "logprobs": {"tokens": torch.tensor([0, 2049, -1]), "top": 3}, "cutoff": {"sampling": Sampling(top_k=3)},
}  # fmt: skip


@pytest.mark.parametrize(
    "begins", [[0, 1024, 1024], [0, 0, 1024], [0, 1024, 4096], [0, 2056], [0, 5000, 9999]], ids=str
)
@pytest.mark.parametrize("op", CALLS)
def test_a_rank_of_nothing(parts_backend, op, begins):
    """Wherever it stands: inside of the vocabulary, at its end, behind it."""
    rows = torch.randn(3, 2056, generator=torch.Generator().manual_seed(3))
    rows[2] = -torch.inf  # a row that no rank has a weight in
    name = {"race_sample": "target", "race_topk": "draft"}.get(op, "rows")
    call = CALLS[op] | {name: rows}
    for first, how in enumerate(({}, {"request_index": torch.tensor([2, -1, 0]).int()})):
        check(op, call | how, begins, debug=bool(first))


def all_refuse(ranks, call_of, message, vocab, begins, debug=False):
    """Every rank raises, and none waits for another: (op, arguments) of rank i are ``call_of(i)``."""
    stage, refused = Stage(ranks), []

    def act(rank):
        shard = PlayedShard(vocab, begins[rank], stage, rank, debug)
        op, call = call_of(rank)
        with pytest.raises(ValueError, match=message):
            op(**call, shard=shard)
        refused.append(rank)

    stage.run(act)
    assert sorted(refused) == [*range(ranks)]


def sample(rows, **noise):
    return sharded.race_sample, {"target": rows} | (noise or {"seed": 1, "position": 1})


SLICES = {  # the vocabulary, where slices begin, how many columns ranks have, what is said
    "columns behind the vocabulary": (4096, [0, 2048, 6144], [1024, 1024, 3072], "that are the vocabulary together"),
    "too many": (4096, [0, 2048, 4096], [2048, 1024, 0], "that are the vocabulary together"),
    "too few": (4096, [0, 2048, 2048], [1024, 1024, 3072], "that are the vocabulary together"),
    "a gap": (3072, [0, 2048], [1024, 1024], "where one should begin with token 1024"),
    "twice": (3072, [0, 0], [1024, 1024], "where one should begin with token 1024"),
    "not from 0": (3072, [1024, 2048], [1024, 1024], "where one should begin with token 0"),
}


@pytest.mark.parametrize("vocab, begins, columns, said", SLICES.values(), ids=SLICES)
def test_slices_that_are_no_vocabulary(vocab, begins, columns, said):
    all_refuse(len(begins), lambda rank: sample(torch.zeros(1, columns[rank])), f"shard: .*{said}", vocab, begins)


INSIDE = {
    "verify_chain": {"draft_tokens": torch.ones(1, 1).long()},
    "verify_tree": {"draft_tokens": torch.ones(1, 2).long(), "parents": torch.tensor([-1, 0])},
    "logprobs": {"tokens": torch.zeros(1, 2).long()},
}


@pytest.mark.parametrize("name", INSIDE)
def test_slices_that_begin_inside_of_a_tile(name):
    """All ranks raise, also that whose own slice begins with one."""

    def call_of(rank):
        rows = torch.zeros(1, 2, (1152, 896)[rank])
        rows = {"rows": rows} if name == "logprobs" else {"target": rows, "seed": 1, "position": 1}
        return getattr(sharded, name), INSIDE[name] | rows

    all_refuse(2, call_of, "expected slices that begin with multiples of 1,024 for .* 1152", 2048, [0, 1152])


def test_even_slices():
    assert VocabShard.bounds(5000, 3) == [0, 1024, 3072, 5000]
    assert VocabShard.bounds(128_256, 8)[:3] == [0, 15_360, 31_744]
    assert VocabShard.bounds(259, 3) == [0, 128, 256, 259]
    with pytest.raises(ValueError, match="vocab: expected 128 tokens for each rank but the last; got 259 for 4"):
        VocabShard.bounds(259, 4)


def test_slices_are_looked_at_again_when_they_change():
    stage = Stage(2)

    def act(rank):
        shard = PlayedShard(2048, 1024 * rank, stage, rank)
        sharded.race_sample(torch.zeros(1, 1024), shard=shard, seed=1, position=1)
        with pytest.raises(ValueError, match="where one should begin with token 896"):
            sharded.race_sample(torch.zeros(1, 896), shard=shard, seed=1, position=1)

    stage.run(act)


ROWS3, SEEDS3 = torch.zeros(3, 1024), {"seed": seeds(3), "position": 1}
UNALIKE = {  # the calls of the last rank, and of the others
    "sizes": (sample(torch.zeros(4, 1024), seed=seeds(4), position=1), sample(ROWS3, **SEEDS3),
              r"race_sample: .*; got rows \[4\] on rank 2 and \[3\] on rank 0"),
    "dimensions": (sample(ROWS3[0]), sample(ROWS3, **SEEDS3), r"race_sample: .*; got rows \[\] on rank 2 and \[3\] on"),
    "types": (sample(ROWS3.half(), **SEEDS3), sample(ROWS3, **SEEDS3), ""),
    "ops": ((sharded.race_topk, {"draft": ROWS3, "k": 1} | SEEDS3),
            (sharded.logprobs, {"rows": ROWS3, "tokens": seeds(3)}), ""),
}  # fmt: skip


@pytest.mark.parametrize("last, others, said", UNALIKE.values(), ids=UNALIKE)
def test_ranks_that_disagree_are_named(last, others, said):
    begins = [0, 1024, 2048]
    said = said or "expected all ranks to be called alike"
    all_refuse(3, lambda rank: last if rank == 2 else others, said, 3072, begins, debug=True)


def test_names_that_begin_alike_are_not_alike():
    """Of ops and of dtypes."""
    names = ["verify_chain", "verify_tree", "race_sample", "race_topk", "cutoff", "logprobs", *map(str, DTYPES)]
    assert len(set(map(hash_of, names))) == len(names)


def test_what_is_refused_is_named():
    call = {"target": torch.zeros(1, 2048), "seed": 1, "position": 1}
    shard = VocabShard(2048, 0)
    with pytest.raises(ValueError, match=r"draft_map: expected None in sharded\.race_sample"):
        sharded.race_sample(**call, shard=shard, draft_map=torch.arange(2048).int())
    wanted = r"shard: expected slices .* \[0, 2048\); got \[\(1024, 3072\)\], where one should begin with token 0"
    alone = VocabShard(2048, 1024)
    alone.ranks = 1
    with pytest.raises(ValueError, match=wanted):
        sharded.race_sample(**call, shard=alone)
