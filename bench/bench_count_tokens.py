"""count_tokens of a verdict, against the same in torch's own operations."""

import pytest
import torch
from harness import OURS, SEED

import specdec_kernels as sd

V = 128_256


def by_torch(edits, tokens):
    """Without bits: a scatter into the counts alone."""
    there = tokens >= 0
    edits.output_counts.scatter_add_(1, torch.where(there, tokens, 0), there.int())


CONTENDERS = {OURS: sd.count_tokens, "torch": by_torch}


def record(batch):
    words = torch.zeros(batch, V // 32, dtype=torch.int32)
    return sd.Edits(output_mask=words, output_counts=torch.zeros(batch, V, dtype=torch.int32))


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("batch", [1, 64])
def bench_peers(measure, contender, batch, threads):
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(-1, V, (batch, 6), generator=generator)

    def check(call):
        found, expected = record(batch), record(batch)
        call(found, tokens)
        by_torch(expected, tokens)
        assert torch.equal(found.output_counts, expected.output_counts)

    gate = check if contender == OURS else None
    inputs, case = [(record(batch), tokens)], {"B": batch, "threads": threads}
    measure("count_tokens", contender, case, CONTENDERS[contender], inputs, gate, bytes=24 * tokens.numel())
