"""tile_laws: normalisers of rows from their tiles, and probabilities."""

import torch

from specdec_kernels.sharded._parts import mass_tiles, tile_laws

TILES, RAW = mass_tiles(torch.arange(66.0).view(2, 33))[0], torch.tensor([[1.0, 2.0, 3.0], [40.0, 65.0, -1.0]])
CALLS = {"tile_laws": (tile_laws, {"tiles": TILES, "raw": RAW, "temperature": torch.ones(2)})}


def test_laws_are_those_of_whole_rows(parts_backend):
    """Tiles of parts in any order, temperatures of rows, a row without weight."""
    rows = 3 * torch.randn(2, 3, 3072, generator=torch.Generator().manual_seed(1))
    rows[0, 1] = -torch.inf
    temperature = torch.tensor([[1.0, 1.0, 0.5], [2.0, 1.0, 1.0]])
    parts = [mass_tiles(part, temperature=temperature)[0] for part in rows.split([1024, 2048], dim=-1)]
    row_stats, probs = tile_laws(torch.cat(parts[::-1], dim=-1), rows[..., :4].contiguous(), temperature=temperature)
    exact = rows.double() / temperature.unsqueeze(-1)
    law = exact.softmax(-1).nan_to_num(nan=0.0)
    torch.testing.assert_close(probs.double(), law[..., :4], rtol=1e-5, atol=1e-30)
    lse = exact.logsumexp(-1)
    some = lse > -torch.inf
    torch.testing.assert_close(row_stats.double().sum(-1)[some], lse[some], rtol=1e-6, atol=1e-6)
    assert row_stats[0, 1].tolist() == [0.0, torch.inf]
