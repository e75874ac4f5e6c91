"""coin against torch.rand, which asks no counters, and against the same coins in plain torch."""

import pytest
import torch
from harness import OURS, SEED

import specdec_kernels as sd


def plain_torch(seeds):
    with sd.backend("reference"):
        return sd.coin(seeds, position=1000)


CONTENDERS = {
    OURS: lambda seeds: sd.coin(seeds, position=1000),
    "torch.rand": lambda seeds: torch.rand(len(seeds)),
    "reference": plain_torch,
}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("count", [1, 256, 65_536])
def bench_peers(measure, contender, count, threads):
    inputs = [(torch.arange(SEED + i, SEED + i + count),) for i in range(8)]

    def check(call):
        for arguments in inputs:
            assert torch.equal(call(*arguments), plain_torch(*arguments))

    gate = check if contender == OURS else None
    measure("coin", contender, {"B": count, "threads": threads}, CONTENDERS[contender], inputs, gate, bytes=12 * count)
