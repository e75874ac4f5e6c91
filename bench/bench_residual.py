"""residual against the same formula in torch."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd


def torch_residual(target, draft):
    weights = (torch.softmax(target, -1) - torch.softmax(draft, -1)).clamp_min_(0)
    mass = weights.sum(-1, keepdim=True)
    return weights / mass, mass[..., 0]


CONTENDERS = {OURS: sd.residual, "torch": torch_residual}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("contender", CONTENDERS)
def bench_peers(measure, contender, kind, threads):
    target = logits(kind, (4, 1, VOCABULARY), SEED)
    inputs = list(zip(target, draft_near(target, 0.7, SEED + 1), strict=True))

    def check(call):
        for arguments in inputs:
            expected, mass = torch_residual(*(x.double() for x in arguments))
            found = call(*arguments)
            torch.testing.assert_close(found[0].double(), expected, rtol=2e-4, atol=1e-9)
            torch.testing.assert_close(found[1].double(), mass, rtol=1e-4, atol=0)

    case = {"kind": kind, "V": VOCABULARY, "threads": threads}
    measure("residual", contender, case, CONTENDERS[contender], inputs, check, bytes=12 * VOCABULARY)
