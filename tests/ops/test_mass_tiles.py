"""mass_tiles: what the tiles of rows weigh."""

import pytest
import torch

from specdec_kernels.backends.reference import mass
from specdec_kernels.ops import mass_tiles
from tests.support.cases import DTYPES, adversarial_rows, poisoned

CALLS = {
    "mass_tiles": (
        mass_tiles,
        {"rows": torch.randn(3, 33, generator=torch.Generator().manual_seed(3)), "temperature": torch.ones(3),
         "request_index": torch.tensor([0, -1, 2], dtype=torch.int32)},
    ),
}  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize("size", [7, 1025, 2048])
def test_tiles_are_those_of_the_contract(backend, size):
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiles_do_not_depend_on_where_a_row_is_cut(fast_backend, dtype):
    rows = 4 * torch.randn(3, 2, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole, _ = mass_tiles(rows)
    parts = [mass_tiles(part)[0] for part in rows.split([1024, 3072, 904], dim=-1)]
    assert torch.equal(torch.cat(parts, dim=-1), whole)


@pytest.mark.interpreted
def test_what_is_not_weighed(backend):
    """Greedy rows, idle requests and those whose index is out of range."""
    index = torch.tensor([0, -1, 5, 1], dtype=torch.int32)
    tiles, status = mass_tiles(torch.zeros(4, 1500), temperature=torch.tensor([1.0, 0.0, 1.0]), request_index=index)
    assert status.tolist() == [0, 0, 8, 0]
    assert (tiles[1:, 0].contiguous().view(torch.float32) == -torch.inf).all()
    assert not tiles[1:, 1:].any()
    assert tiles[0, 2].tolist() == [256, 119]
