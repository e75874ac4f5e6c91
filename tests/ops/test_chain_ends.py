"""chain_ends: what ends chains of which a walk accepted some drafts."""

import pytest
import torch

import specdec_kernels
from specdec_kernels.ops import chain_ends

BATCH, SLOTS = 3, 2
ROWS, DRAFTS = BATCH * (SLOTS + 1), BATCH * SLOTS
INTS = torch.int32


def ints(*x):
    return torch.tensor(x, dtype=INTS)


CALL = {
    "draft_tokens": torch.tensor([[5, 9], [3, 4], [7, 70]]), "num_accepted": ints(1, 2, 0), "walked": ints(0, 0, 0),
    "vocab": 64, "met": torch.zeros(ROWS, dtype=INTS), "known": torch.arange(2.0 * ROWS).view(ROWS, 2),
}  # fmt: skip
DRAFT = {"draft_met": torch.zeros(DRAFTS, dtype=INTS), "draft_known": 100 + torch.arange(2.0 * DRAFTS).view(DRAFTS, 2)}
CALLS = {
    "chain_ends": (
        chain_ends,
        CALL | DRAFT | {
            "draft_places": torch.arange(DRAFTS), "read": torch.ones(BATCH, SLOTS + 1, dtype=torch.bool),
            "winners": torch.arange(ROWS), "temperature": torch.ones(BATCH), "draft_prob": torch.ones(BATCH, SLOTS),
            "request_index": ints(0, 1, 2),
        },
    )
}  # fmt: skip


def lists(ends, *names):
    return [getattr(ends, name).tolist() for name in names]


@pytest.mark.interpreted
def test_a_refused_draft_a_bonus_and_a_token_out_of_range(backend):
    ends = chain_ends(**CALL, **DRAFT)
    assert ends.tokens.tolist() == [[5, 0, -1], [3, 4, 0], [0, -1, -1]]
    assert lists(ends, "row", "draft_row", "tried", "slot") == [[1, 5, 6], [1, -1, 4], [9, -1, 7], [1, 2, 0]]
    assert ends.taken.tolist() == [1.0] * 3
    assert ends.laws.tolist() == [[2, 3, 102, 103], [10, 11, 10, 11], [12, 13, 108, 109]]
    ends = chain_ends(**CALL | {"num_accepted": ints(0, 0, 1)})  # without draft laws; 70 is no token of 64
    assert lists(ends, "draft_row", "tried") == [[0, 2, 5], [5, 3, -1]]
    assert ends.laws[:, 2:].tolist() == ends.laws[:, :2].tolist()


@pytest.mark.interpreted
def test_status_is_that_of_the_rows_that_decided(backend):
    """Rows up to the last, the last draft's if something is left of it; of the walk what its short rows may tell."""
    met, draft_met = torch.tensor([1] * ROWS, dtype=INTS), torch.tensor([2] * DRAFTS, dtype=INTS)
    met[2] = 1024  # behind the last
    draft_met[1], draft_met[2:4], draft_met[5] = 16, 32, 1024
    call = CALL | DRAFT | {"met": met, "draft_met": draft_met, "walked": ints(1, 2 | 4, 8)}
    assert chain_ends(**call).status.tolist() == [1 | 2 | 16, 1 | 32 | 4, 1 | 2 | 8]
    ended = call | {"draft_tokens": torch.tensor([[5, -1], [3, 4], [-1, 70]])}
    ends = chain_ends(**ended)
    assert ends.status.tolist() == [1 | 2, 1 | 32 | 4, 1 | 8]  # nothing was drafted, so no draft law was asked
    assert lists(ends, "row", "draft_row", "tried") == [[1, 5, 6], [-1, -1, -1], [-1, -1, -1]]
    share = torch.tensor([[1.0, 0.25], [1.0, 1.0], [torch.nan, 1.0]])
    ends = chain_ends(**ended, draft_prob=share)  # a slot that could have been drafted
    assert ends.status.tolist() == [1 | 2 | 16, 1 | 32 | 4, 1 | 8]
    assert lists(ends, "draft_row", "tried", "taken") == [[1, -1, -1], [-1, -1, -1], [0.25, 1.0, 1.0]]
    read = torch.tensor([[False, False, True], [True, False, False], [False, True, False]])
    ends = chain_ends(**call, read=read)
    assert ends.status.tolist() == [1 | 16 | 1024, 1 | 32 | 4, 1 | 2 | 8 | 1024]


@pytest.mark.interpreted
def test_argmax_and_requests_that_are_not_live(backend):
    """A request of temperature 0 has its last token, and asks for no draft law; idle ones read nothing."""
    index, accepted = ints(2, -1, 7), ints(1, -1, 0)
    temperature, met = torch.tensor([1.0, 1.0, 0.0]), torch.full((ROWS,), 1, dtype=INTS)
    met[:2] = 4
    call = CALL | DRAFT | {"draft_met": torch.full((DRAFTS,), 2, dtype=INTS), "walked": ints(0, 0, 8), "met": met}
    call |= {"request_index": index, "num_accepted": accepted, "temperature": temperature}
    ends = chain_ends(**call, winners=40 + torch.arange(ROWS))
    assert ends.tokens.tolist() == [[5, 41, -1], [-1, -1, -1], [0, -1, -1]]
    assert lists(ends, "status", "row", "draft_row", "tried") == [[4, 0, 8], [-1] * 3, [-1] * 3, [-1] * 3]
    assert lists(ends, "slot", "taken") == [[0, 0, 0], [1.0] * 3]
    assert not ends.laws.any()
    for temperature in (torch.nan, -1.0, 1e-39):
        ends = chain_ends(**CALL, winners=40 + torch.arange(ROWS), temperature=torch.full((BATCH,), temperature))
        assert ends.tokens.tolist() == [[5, 41, -1], [3, 4, 45], [46, -1, -1]]


@pytest.mark.interpreted
def test_packed_chains(backend):
    """Requests of other lengths, one cut off, one of none, and bounds that lie."""
    drafts = torch.arange(10, 17)
    call = {
        "draft_tokens": drafts, "cu_drafts": ints(0, 3, 3, 7, 9), "max_drafts": 2, "num_accepted": ints(2, 0, 1, 0),
        "walked": ints(8, 0, 0, 8), "vocab": 16, "met": torch.arange(11, dtype=INTS),
        "known": torch.arange(22.0).view(11, 2), "draft_met": torch.zeros(7, dtype=INTS),
        "draft_known": torch.arange(40.0).view(20, 2), "draft_places": 19 - torch.arange(7),
        "draft_prob": torch.linspace(0.1, 0.7, 7).expand(4, 7),
    }  # fmt: skip
    ends = chain_ends(**call)
    assert ends.tokens.tolist() == [[10, 11, 0], [0, -1, -1], [13, 0, -1], [0, -1, -1]]
    assert lists(ends, "row", "draft_row", "tried", "slot") == [[2, 4, 6, -1], [-1, -1, 15, -1], [-1, -1, 14, -1],
                                                                [2, 0, 1, 0]]  # fmt: skip
    assert ends.status.tolist() == [0 | 1 | 2 | 8, 4, 5 | 6, 8]
    torch.testing.assert_close(ends.taken, torch.tensor([1.0, 1.0, 0.5, 1.0]))
    assert ends.laws[2].tolist() == [12, 13, 30, 31]


@pytest.mark.interpreted
@pytest.mark.parametrize("batch, slots", [(1, 0), (0, 3), (300, 5), (2, 70)])
def test_sizes(backend, batch, slots):
    """More requests than a block, more slots than a chunk: the same as the reference."""
    batch = min(batch, 20) if backend == "triton" else batch  # a program each, which the interpreter takes in turn
    draw = torch.Generator().manual_seed(batch + slots)
    rows, drafts = batch * (slots + 1), batch * slots

    def some(high, *shape, dtype=INTS):
        return torch.randint(0, high, shape, dtype=dtype, generator=draw)

    call = {
        "draft_tokens": some(9, batch, 2 * slots, dtype=torch.int64)[:, ::2] - 1,
        "num_accepted": some(slots + 1, batch),
        "walked": some(16, batch), "vocab": 7, "met": some(16, rows), "known": torch.randn(rows, 2, generator=draw),
        "draft_met": some(16, drafts), "draft_known": torch.randn(drafts, 2, generator=draw),
        "read": some(2, batch, slots + 1).bool(), "winners": some(7, rows, dtype=torch.int64),
        "temperature": some(2, batch).float(), "draft_prob": some(5, batch, slots) / 4,
        "request_index": some(batch + 2, batch) - 1,
    }  # fmt: skip
    found = chain_ends(**call)
    with specdec_kernels.backend("reference"):
        for x, expected in zip(found, chain_ends(**call), strict=True):
            assert torch.equal(x, expected)


def test_bad_arguments():
    for message, change in {
        "draft_tokens: expected 2 dimensions": {"draft_tokens": torch.zeros(3, dtype=torch.int64)},
        "max_drafts: expected an int with cu_drafts, else None; got 2": {"max_drafts": 2},
        "vocab: expected an int of 1 or more": {"vocab": 0},
        "num_accepted: expected shape": {"num_accepted": ints(1, 2)},
        "met: expected 9 contiguous items": {"met": torch.zeros(8, dtype=INTS)},
        "known: expected shape": {"known": torch.zeros(8, 2)},
        "draft_known: expected it with draft_met": {"draft_met": torch.zeros(DRAFTS, dtype=INTS)},
        "draft_met: expected 6 contiguous items": DRAFT | {"draft_met": torch.zeros(5, dtype=INTS)},
        "read: expected shape": {"read": torch.zeros(3, 2, dtype=torch.bool)},
        "temperature: expected a number at least 0": {"temperature": -1.0},
    }.items():
        with pytest.raises(ValueError, match=message):
            chain_ends(**CALL | change)
    with pytest.raises(TypeError, match="met: expected a tensor of int32"):
        chain_ends(**CALL | {"met": torch.zeros(ROWS)})
