"""verify_chain by the layouts of engines: drafts and positions in the rows that they enter, int64 indices."""

import pytest
import torch

from specdec_kernels import verify_chain
from tests.support.cases import UNTOUCHED, chain_call, ragged, seeds, untouched_verdict

B, K, V = 6, 4, 67
COUNTS = torch.tensor([4, 0, 2, 4, 1, 3])
METHODS = ("rejection", "race", "block")


def padded(method="rejection", seed=1):
    call = chain_call(seed, requests=B, slots=K, vocabulary=V) | {"method": method}
    return call | {"draft": None} if method == "race" else call


def by_entry(call, index, entries=9):
    """The same call, whose numbers and draft rows lie by entry."""
    moved = dict(call)
    for name in ("draft", "temperature", "seed", "position"):
        if isinstance(call[name], torch.Tensor):
            moved[name] = torch.zeros(entries, *call[name].shape[1:], dtype=call[name].dtype)
            moved[name][index] = call[name]
    return moved | {"request_index": index}


def in_rows(call, counts, more=3):
    """A packed call with drafts and positions in rows; between and behind them are numbers that nobody may look at."""
    packed = ragged(call | {"draft": None}, counts)
    rows = packed["cu_drafts"] + torch.arange(B + 1, dtype=torch.int32)
    total = int(rows[-1]) + more
    tokens, positions = torch.full((total,), UNTOUCHED), torch.full((total,), 10**12)
    for b, (begin, end) in enumerate(zip(rows.tolist(), rows.tolist()[1:], strict=False)):
        tokens[begin + 1 : end] = call["draft_tokens"][b, : counts[b]]
        positions[begin] = call["position"][b] - 1
    target = torch.cat((packed["target"], torch.full((more, V), torch.nan)))
    made = call | {"draft_tokens": tokens, "target": target, "cu_rows": rows, "max_drafts": K}
    del made["position"]
    return made | {"input_positions": positions}


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestRows:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("method", METHODS)
    def test_packed(self, method, dtype):
        """What the same chains give, packed by drafts and by rows; numbers and draft rows by slot."""
        call, index = padded(method), torch.tensor([3, 0, 8, 5, 1, 4])
        expected = verify_chain(**ragged(call, COUNTS), max_drafts=K)
        slots = by_entry(call, index)
        rows = in_rows(slots | {"position": call["position"]}, COUNTS)
        rows["request_index"] = index.to(dtype)
        rows["input_positions"] = rows["input_positions"].to(dtype)
        rows["draft_tokens"] = rows["draft_tokens"].to(dtype)
        assert_same(verify_chain(**rows), expected)

    def test_packed_without_an_index(self):
        call = padded()
        packed = ragged(call, COUNTS)
        rows = in_rows(call, COUNTS, more=0) | {"draft": packed["draft"]}
        assert_same(verify_chain(**rows), verify_chain(**packed, max_drafts=K))

    @pytest.mark.parametrize("method", METHODS)
    def test_positions_of_rows(self, method):
        """Of any strides; an idle request and one that points outside read none."""
        call, index = padded(method), torch.tensor([3, 0, -1, 5, 99, 4])
        slots = by_entry(call, torch.where((index >= 0) & (index < 9), index, torch.arange(B)))
        expected = verify_chain(**slots | {"request_index": index.int()})
        positions = torch.full((K + 1, B), 10**12)
        positions[0] = call["position"] - 1
        del slots["position"]
        assert_same(verify_chain(**slots | {"request_index": index}, input_positions=positions.T), expected)
        assert expected.num_accepted.tolist()[2] == -1

    def test_bad_bounds(self):
        """They give token 0 and status 8, as those of drafts do, and nothing outside is read."""
        call = in_rows(padded(), COUNTS, more=0)
        call["draft"] = None
        good = verify_chain(**call)
        for at, value in ((0, -1), (1, 99), (3, 0), (2, int(call["cu_rows"][1])), (B, 10**6)):
            bounds = call["cu_rows"].clone()
            bounds[at] = value
            found = verify_chain(**call | {"cu_rows": bounds})
            ends, drafts = bounds.tolist(), int(COUNTS.sum())
            bad = [b for b in (at - 1, at) if 0 <= b < B and not 0 <= ends[b] < ends[b + 1] <= drafts + b + 1]
            assert bad
            for b in range(B):
                if b in bad:
                    assert (found.tokens[b, 0], found.num_accepted[b]) == (0, 0)
                    assert found.status[b] & 8
                elif b not in (at - 1, at):
                    assert torch.equal(found.tokens[b], good.tokens[b])

    def test_outputs_alone_are_written(self):
        call, out = in_rows(padded("race"), COUNTS), untouched_verdict(B, K + 1)
        assert_same(verify_chain(**call, out=out), verify_chain(**call))


CALL = padded()
ROWS = in_rows(CALL | {"draft": None}, COUNTS)


@pytest.mark.parametrize(
    "call, changes, error, message",
    [
        (ROWS, {"cu_drafts": ROWS["cu_rows"]}, ValueError, r"cu_drafts: expected None beside cu_rows; got int32 \[7\]"),
        (ROWS, {"cu_rows": ROWS["cu_rows"].long()}, TypeError, "cu_rows: expected a tensor of int32; got int64"),
        (ROWS, {"target": ROWS["target"][1:]}, ValueError, r"target: expected 23 rows \(D \+ B\); got"),
        (ROWS, {"draft_tokens": ROWS["draft_tokens"][:3], "target": ROWS["target"][:3], "input_positions": seeds(3)},
         ValueError, "target: expected a row of each of 6 requests at least; got"),
        (ROWS, {"position": 3}, ValueError, "position: expected None beside input_positions; got 3"),
        (ROWS, {"input_positions": seeds(5)}, ValueError, r"input_positions: expected shape \[23\]; got int64 \[5\]"),
        (ROWS, {"input_positions": None}, TypeError, "position: expected an int or an int64 tensor; got None"),
        (CALL, {"position": None, "input_positions": torch.zeros(B, K + 1)}, TypeError, "input_positions: expected a"),
        (CALL, {"position": None, "input_positions": torch.zeros(B, K).int()}, ValueError,
         r"input_positions: expected shape \[6, 5\]; got int32 \[6, 4\]"),
        (CALL, {"request_index": torch.zeros(B)}, TypeError, "request_index: expected a tensor of int32 or int64; got"),
        (CALL, {"request_index": seeds(5)}, ValueError, r"request_index: expected contiguous \[6\]; got int64 \[5\]"),
    ],
)  # fmt: skip
def test_bad_input(call, changes, error, message):
    with pytest.raises(error, match=f"^{message}"):
        verify_chain(**call | changes)
