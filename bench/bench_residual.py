"""residual against the same formula in torch."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd


def torch_residual(target, draft):
    weights = (torch.softmax(target, -1) - torch.softmax(draft, -1)).clamp_min_(0)
    mass = weights.sum(-1, keepdim=True)
    return weights / mass, mass[..., 0]


def assert_right(call, target, draft):
    """Against float64, within the rounding of the difference: some float32 ulps of p + q."""
    target64, draft64 = target.double(), draft.double()
    expected, mass = torch_residual(target64, draft64)
    bound = 1e-5 * (torch.softmax(target64, -1) + torch.softmax(draft64, -1)) / mass[..., None] + 1e-4 * expected
    probs, found_mass = call(target, draft)
    assert ((probs - expected).abs() <= bound).all()
    torch.testing.assert_close(found_mass.double(), mass, rtol=1e-4, atol=0)


CONTENDERS = {OURS: sd.residual, "torch": torch_residual}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("kind", KINDS)
def bench_peers(measure, contender, kind, threads):
    target = logits(kind, (4, 1, VOCABULARY), SEED)
    inputs = list(zip(target, draft_near(target, 0.7, SEED + 1), strict=True))

    def check(call):
        for arguments in inputs:
            assert_right(call, *arguments)

    case = {"kind": kind, "V": VOCABULARY, "threads": threads}
    measure("residual", contender, case, CONTENDERS[contender], inputs, check, bytes=12 * VOCABULARY)
