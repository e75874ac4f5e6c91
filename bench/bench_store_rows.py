"""store_rows of draft logits by slot, against the same in torch's own operations."""

import pytest
import torch
from harness import OURS, SEED

import specdec_kernels as sd

V, COLUMNS = 128_256, 4


def by_torch(rows, cache, slots, column):
    """Rows of padding add 0 to slot 0, as integers, so that it does not matter who writes first."""
    bits = {2: torch.int16, 4: torch.int32}[rows.element_size()]
    there, at = cache.view(bits)[..., : rows.shape[-1]], (slots.clamp(min=0).long(), column.expand(len(slots)))
    there.index_put_(at, (rows.view(bits) - there[at]) * (slots >= 0)[:, None], accumulate=True)


CONTENDERS = {OURS: lambda rows, cache, slots, column: sd.store_rows(rows, cache, slots=slots, column=column),
              "torch": by_torch}  # fmt: skip


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("batch", [1, 64])
def bench_peers(measure, contender, batch, threads):
    generator = torch.Generator().manual_seed(SEED)
    rows = torch.randn(batch, V, generator=generator).bfloat16()
    slots, column = torch.randperm(batch, generator=generator), torch.tensor(1)
    slots[1::8] = -1

    def check(call):
        found, expected = torch.zeros(2, batch, COLUMNS, V, dtype=torch.bfloat16)
        call(rows, found, slots, column)
        by_torch(rows, expected, slots, column)
        assert torch.equal(found, expected)

    gate = check if contender == OURS else None
    inputs = [(rows, torch.zeros(batch, COLUMNS, V, dtype=torch.bfloat16), slots, column)]
    measure("store_rows", contender, {"B": batch, "threads": threads}, CONTENDERS[contender], inputs, gate,
            bytes=2 * rows.nbytes)  # fmt: skip
