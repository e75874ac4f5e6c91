"""mass_tiles: what the tiles of rows weigh."""

import pytest
import torch

from specdec_kernels.backends.reference import mass
from specdec_kernels.sharded._parts import mass_tiles
from tests.support.cases import DTYPES, adversarial_rows, poisoned
from tests.support.edits import random_edits
from tests.support.parts import edited, edits_of

CALLS = {
    "mass_tiles": (
        mass_tiles,
        {"rows": torch.randn(3, 33, generator=torch.Generator().manual_seed(3)), "temperature": torch.ones(3),
         "request_index": torch.tensor([0, -1, 2], dtype=torch.int32)},
    ),
    "mass_tiles, edited": (
        mass_tiles, {"rows": torch.ones(3, 33), "edits": edits_of(3, vocabulary=33, seed=1)._replace(bias=None)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [7, 1025, 2048])
def test_tiles_are_those_of_the_contract(parts_backend, size):
    rows = torch.stack(list(adversarial_rows(size).values()))
    tiles, status = mass_tiles(poisoned(rows), temperature=0.7)
    v = (rows * (1 / torch.tensor(0.7))).nan_to_num(
        nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf
    )
    for row, found in zip(v, tiles, strict=True):
        for place, tile in enumerate(row.split(1024)):
            top, units = tile.max(), (int(found[2, place]) << 32) | (int(found[1, place]) & 0xFFFFFFFF)
            assert found[0, place].view(torch.float32) == top
            assert units == (mass.units(tile.numpy(), top.numpy()) if top > -torch.inf else 0)
    assert torch.equal(status, ((rows.isnan() | rows.isposinf()).any(-1)).int())


def test_what_is_not_weighed(parts_backend):
    """Greedy rows, idle requests and those whose index is out of range."""
    index = torch.tensor([0, -1, 5, 1], dtype=torch.int32)
    tiles, status = mass_tiles(torch.zeros(4, 1500), temperature=torch.tensor([1.0, 0.0, 1.0]), request_index=index)
    assert status.tolist() == [0, 0, 8, 0]
    assert (tiles[1:, 0].contiguous().view(torch.float32) == -torch.inf).all()
    assert not tiles[1:, 1:].any()
    assert tiles[0, 2].tolist() == [256, 119]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edited_rows(parts_backend, dtype):
    """Whole rows and parts, whose masks and counts are views; entries by an index; a number out of range."""
    rows = torch.randn(4, 2, 2061, generator=torch.Generator().manual_seed(2)).to(dtype)
    edits = edits_of(4, 2, vocabulary=2061, seed=7)
    expected, _ = mass_tiles(edited(rows, edits))
    assert torch.equal(mass_tiles(rows, edits=edits)[0], expected)
    assert not torch.equal(mass_tiles(rows)[0], expected)
    index = torch.tensor([2, 0, -1, 9], dtype=torch.int32)
    own = edits._replace(repetition=torch.full((4, 2), 1.3), allowed=None)
    own.repetition[2, 1] = -1.0
    found, status = mass_tiles(rows, edits=own, request_index=index)
    moved = rows.clone()
    moved[[2, 0]] = rows[:2]
    again, met = mass_tiles(moved, edits=own)
    assert torch.equal(found[:2], again[[2, 0]])
    assert status.tolist() == [[0, 8], [0, 0], [0, 0], [8, 8]]
    assert met.tolist() == [[0, 0], [0, 0], [0, 8], [0, 0]]


def test_edits_of_a_part(parts_backend):
    rows = torch.randn(4, 2061, generator=torch.Generator().manual_seed(2))
    edits = random_edits(4, vocabulary=2061, seed=7)._replace(bias=None, pending=None)
    part = edits._replace(**{
        name: getattr(edits, name)[:, 32:] for name in ("allowed", "prompt_mask", "output_mask")
    }, output_counts=edits.output_counts[:, 1024:])  # fmt: skip
    assert torch.equal(mass_tiles(rows[:, 1024:], edits=part)[0], mass_tiles(rows, edits=edits)[0][..., 1:])
