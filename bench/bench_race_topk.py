"""race_topk against torch.topk and softmax + multinomial without replacement."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, logits

import specdec_kernels as sd

CONTENDERS = {
    OURS: lambda row, k, position: sd.race_topk(row, k, seed=SEED, position=position),
    "torch.topk": lambda row, k, position: torch.topk(row, k),
    "softmax+multinomial": lambda row, k, position: torch.multinomial(torch.softmax(row, -1), k),
}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def bench_peers(measure, contender, kind, k, threads):
    rows = logits(kind, (8, 1, VOCABULARY), SEED)
    inputs = [(rows[i % 8], k, 1000 + i) for i in range(64)]

    def check(call):
        for arguments in inputs[:8]:
            with sd.backend("reference"):
                expected = call(*arguments)
            assert torch.equal(call(*arguments), expected)

    case = {"kind": kind, "k": k, "V": VOCABULARY, "threads": threads}
    gate = check if contender == OURS else None
    measure("race_topk", contender, case, CONTENDERS[contender], inputs, gate, bytes=4 * VOCABULARY)
