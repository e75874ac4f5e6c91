"""store_rows: rows put where an engine keeps them by slot and column."""

import pytest
import torch

from specdec_kernels.ops import store_rows
from tests.support.cases import DTYPES, poisoned


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """cache[slots[n], column[n]] = rows[n]: row 0 to slot 1, column 0; row 1 is padding; row 2 to slot 0, column 1."""
    rows = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    cache = torch.zeros(2, 2, 4)
    store_rows(rows, cache, slots=torch.tensor([1, -1, 0]), column=torch.tensor([0, 0, 1]))
    assert cache.tolist() == [[[0, 0, 0, 0], [9, 10, 11, 12]], [[1, 2, 3, 4], [0, 0, 0, 0]]]


ROWS = torch.randn(4, 33, generator=torch.Generator().manual_seed(0))
SLOTS = torch.tensor([2, -1, 0, 5])
CALLS = {
    "store_rows": (
        store_rows,
        {"rows": ROWS, "cache": torch.zeros(6, 2, 40), "slots": SLOTS, "column": torch.tensor([1, 0, 0, 1])},
    )
}


def bits(x):
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def expected(rows, cache, slots, columns):
    """Row by row, as the docstring says."""
    wanted = cache.clone()
    for row, slot, column in zip(rows, slots, columns, strict=True):
        if 0 <= slot < cache.shape[0] and 0 <= column < cache.shape[1]:
            wanted[slot, column, : rows.shape[1]] = row
    return wanted


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 4100])
@pytest.mark.parametrize("more", [0, 5], ids=["of one width", "into wider rows"])
def test_rows_go_where_they_belong(backend, dtype, size, more):
    """Bit by bit, NaN and infinities too; slots and columns out of range go nowhere, and all else stays."""
    rows = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    rows[0, 0], rows[1, 0], rows[2, 0] = torch.nan, torch.inf, -torch.inf
    rows = poisoned(rows.to(dtype))
    slots, columns = torch.tensor([3, -1, 0, 4, 1, 2, -(2**40)]), torch.tensor([1, 1, 0, 0, 2, -1, 0])
    for places, column in (
        (slots, columns), (slots.clamp(min=-1).int(), columns.int()), (slots, 1), (slots, torch.tensor(2)),
        (torch.stack([slots, slots], 1)[:, 1], torch.stack([columns, columns], 1)[:, 0]),
    ):  # fmt: skip
        kept = torch.full((4, 2, size + more), 77.0, dtype=dtype)
        listed = column.tolist() if isinstance(column, torch.Tensor) else column
        wanted = expected(rows, kept, places.tolist(), listed if isinstance(listed, list) else [listed] * 7)
        assert store_rows(rows, kept, slots=places, column=column) is kept
        assert torch.equal(bits(kept), bits(wanted))


@pytest.mark.interpreted
def test_places_that_lie_apart(backend):
    """A cache that is a view, and a row that starts off a vector; a second call is recognised."""
    whole = torch.full((9, 5, 4200), 9.0)
    own = whole[1:8, ::2, 3:4103]
    rows = torch.randn(3, 4110)[:, 5:4105]
    slots, column = torch.tensor([6, 0, -1]), torch.tensor([2, 1, 0])
    wanted = whole.clone()
    wanted[7, 4, 3:4103], wanted[1, 2, 3:4103] = rows[0], rows[1]
    for _ in range(2):
        whole.fill_(9.0)
        assert store_rows(rows, own, slots=slots, column=column) is own
        assert torch.equal(whole, wanted)


@pytest.mark.usefixtures("backend")
def test_nothing_to_store():
    kept = torch.full((2, 1, 8), 3.0)
    store_rows(torch.zeros(0, 8), kept, slots=torch.zeros(0, dtype=torch.int64))
    assert (kept == 3).all()
    none = torch.zeros(0, 1, 8)
    assert store_rows(torch.zeros(2, 8), none, slots=torch.zeros(2, dtype=torch.int64)) is none


KEPT = torch.zeros(6, 2, 40)
REFUSED = {
    "store_rows": (store_rows, {"rows": ROWS, "cache": KEPT, "slots": SLOTS}, [
        ({"rows": ROWS[0]}, ValueError, "rows: expected"),
        ({"cache": KEPT[0]}, ValueError, "cache: expected"),
        ({"cache": KEPT[..., :32]}, ValueError, "cache: expected 33 tokens or more, as rows has"),
        ({"cache": KEPT.transpose(1, 2)}, ValueError, "cache: expected unit stride"),
        ({"column": 0.5}, TypeError, "column: expected an int"),
        ({"column": SLOTS[:3]}, ValueError, "column: expected"),
        ({"rows": KEPT[0, 0, :33].expand(4, 33)}, ValueError, "cache: expected memory of its own"),
    ]),
}  # fmt: skip
