"""count_tokens: bits and counts of what was emitted, kept in place."""

from collections import Counter

import pytest
import torch

from specdec_kernels import LogitEdits, count_tokens
from tests.support.cases import UNTOUCHED
from tests.support.edits import bits_of


def test_rule_by_hand(backend):
    """Token 3 comes twice and token 1 once: bits 3 and 1 of the mask, 8 + 2 = 10. -1 is no token."""
    edits = LogitEdits(output_mask=torch.zeros(1, 1, dtype=INT), output_counts=torch.zeros(1, 4, dtype=INT))
    count_tokens(edits, torch.tensor([[3, 1, 3, -1]]))
    assert edits.output_mask.tolist() == [[10]]
    assert edits.output_counts.tolist() == [[0, 1, 0, 2]]
    count_tokens(edits, torch.tensor([[1, 2, 2, 2]]), num=2)  # the first two: 1 and 2
    assert edits.output_mask.tolist() == [[14]]
    assert edits.output_counts.tolist() == [[0, 2, 1, 2]]


pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.interpreted]

V = 70
INT = torch.int32


def empty(requests, vocabulary=V, words=3):
    """A record of no tokens; what counts hold there does not matter."""
    return LogitEdits(
        prompt_mask=torch.zeros(requests, words, dtype=INT),
        output_mask=torch.zeros(requests, words, dtype=INT),
        output_counts=torch.full((requests, vocabulary), UNTOUCHED, dtype=INT),
    )


def call(**changes):
    tokens = torch.tensor([[3, 1, 3], [69, -1, 5]])
    return {"edits": empty(2), "tokens": tokens, "num": torch.tensor([3, 2])} | changes


CALLS = {
    "count_tokens": (count_tokens, call()),
    "count_tokens prompt": (count_tokens, call(num=2, prompt=True)),
    "count_tokens status": (count_tokens, call(status=torch.full((2,), UNTOUCHED, dtype=INT))),
}


def sets_of(mask):
    """The tokens of each row of a mask."""
    return [{32 * w + i for w, word in enumerate(row) for i in range(32) if word >> i & 1} for row in mask.tolist()]


def assert_record(edits, texts):
    for seen, counts, text in zip(sets_of(edits.output_mask), edits.output_counts, texts, strict=True):
        wanted = Counter(text)
        assert seen == set(wanted)
        assert {token: counts[token].item() for token in seen} == wanted
        assert all(counts[token] == UNTOUCHED for token in range(len(counts)) if token not in seen)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("slots", [0, 1, 5, 300])
def test_counts_what_came(dtype, slots):
    """Over several rounds, each token as often as it stands; no tensor is contiguous."""
    generator = torch.Generator().manual_seed(slots)
    edits, texts = empty(3), [[], [], []]
    wide = {name: torch.full((3, 90), UNTOUCHED, dtype=INT) for name in ("prompt_mask", "output_mask", "output_counts")}
    room = LogitEdits(
        **{name: x[:, : getattr(edits, name).shape[1]].copy_(getattr(edits, name)) for name, x in wide.items()}
    )
    for _ in range(3):
        tokens = torch.randint(-1, V, (slots, 6), generator=generator).to(dtype).t()[::2]
        num = torch.randint(0, slots + 1, (3,), generator=generator)
        assert count_tokens(room, tokens, num) is None
        for text, row, n in zip(texts, tokens.tolist(), num.tolist(), strict=True):
            text += [token for token in row[:n] if token >= 0]
        assert_record(room, texts)
    assert (room.prompt_mask == 0).all()
    for x, used in ((wide["output_mask"], 3), (wide["output_counts"], V)):
        assert (x[:, used:] == UNTOUCHED).all()


def test_prompts():
    edits = empty(2)
    count_tokens(edits, torch.tensor([[3, 31, 32], [69, -1, 3]]), prompt=True)
    assert sets_of(edits.prompt_mask) == [{3, 31, 32}, {69, 3}]
    assert_record(edits, [[], []])


def test_ids_out_of_range():
    """They are left out: what is beyond the counts, though the mask has bits for it, and beyond the mask."""
    for token in (V, 95, 96, 2**31, 2**40, -1, -2, -(2**63)):
        edits = empty(2)
        count_tokens(edits, torch.tensor([[3, token], [3, 4]]))
        assert_record(edits, [[3], [3, 4]])
        count_tokens(edits, torch.tensor([[token], [7]]), prompt=True)
        assert sets_of(edits.prompt_mask)[0] == ({token} if token in (V, 95) else set())


def test_num_out_of_range():
    edits, status = empty(4), torch.full((4,), UNTOUCHED, dtype=INT)
    num = torch.tensor([-1, 3, 2, 2**62])
    count_tokens(edits, torch.tensor([[3, 4]] * 4), num, status=status)
    assert status.tolist() == [8, 8, 0, 8]
    assert_record(edits, [[], [3, 4], [3, 4], [3, 4]])


def test_counts_end():
    most = 2**31 - 1
    edits = empty(1)
    edits.output_mask.copy_(bits_of([[1, 2, 3, 4]], 96))
    edits.output_counts[0, 1:5] = torch.tensor([most, most - 1, -5, 0])
    count_tokens(edits, torch.tensor([[1, 2, 3, 4, 1, 2, 3, 1, 2]]))
    assert edits.output_counts[0, 1:5].tolist() == [most, most, 3, 2]  # a bit counts as one at least


def test_masks_without_counts():
    edits = LogitEdits(output_mask=torch.zeros(1, 2, dtype=INT))
    count_tokens(edits, torch.tensor([[63, 0, 64, 63]]))
    assert sets_of(edits.output_mask) == [{0, 63}]


def test_no_requests():
    count_tokens(empty(0), torch.empty(0, 3, dtype=torch.int64))


REFUSED = {
    "count_tokens": (count_tokens, call(), [
        ({"edits": None}, TypeError, "edits: expected a LogitEdits; got None"),
        ({"edits": LogitEdits(), "prompt": True}, TypeError, "edits.prompt_mask: expected a tensor of int32; got None"),
        ({"edits": empty(2, words=2)}, ValueError, "edits.output_mask: expected a bit for each of 70 counts"),
        (
            {"edits": empty(2)._replace(output_counts=torch.zeros(3 * V, dtype=INT).as_strided((2, V), (V - 1, 1)))},
            ValueError,
            "edits.output_counts: expected rows that share no memory",
        ),
        ({"tokens": torch.zeros(2, dtype=torch.int64)}, ValueError, "tokens: expected 2 dimensions"),
        ({"num": 4}, ValueError, "num: expected 0 to 3, the number of tokens; got 4"),
        ({"prompt": 1}, TypeError, "prompt: expected a bool; got 1"),
    ]),
}  # fmt: skip
