"""overlap (four figures in one pass) against the same formulas in torch."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd


def torch_overlap(target, draft):
    log_p, log_q = torch.log_softmax(target, -1), torch.log_softmax(draft, -1)
    p, q = log_p.exp(), log_q.exp()
    return (
        torch.minimum(p, q).sum(-1),
        0.5 * (p - q).abs().sum(-1),
        (p * (log_p - log_q)).sum(-1),
        (p * q / (p + q)).sum(-1),
    )


CONTENDERS = {OURS: sd.overlap, "torch": torch_overlap}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("kind", KINDS)
def bench_peers(measure, contender, kind, threads):
    target = logits(kind, (4, 1, VOCABULARY), SEED)
    inputs = list(zip(target, draft_near(target, 0.7, SEED + 1), strict=True))

    def check(call):
        for arguments in inputs:
            for found, expected in zip(call(*arguments), torch_overlap(*(x.double() for x in arguments)), strict=True):
                torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)

    case = {"kind": kind, "V": VOCABULARY, "threads": threads}
    measure("overlap", contender, case, CONTENDERS[contender], inputs, check, bytes=8 * VOCABULARY)


def with_gradients(overlap):
    """What a step of training asks for: acceptance and KL, and their gradients in both sides."""

    def step(target, draft):
        leaves = [rows.detach().requires_grad_() for rows in (target, draft)]
        accept, _, kl, _ = overlap(*leaves)
        (accept - kl).sum().backward()
        return [leaf.grad for leaf in leaves]

    return step


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("kind", KINDS)
def bench_gradients(measure, contender, kind, threads):
    target = logits(kind, (4, 1, VOCABULARY), SEED)
    inputs = list(zip(target, draft_near(target, 0.7, SEED + 1), strict=True))

    def check(call):
        for arguments in inputs:
            exact = with_gradients(torch_overlap)(*(x.double() for x in arguments))
            for found, expected in zip(call(*arguments), exact, strict=True):
                torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-7)

    case = {"kind": kind, "V": VOCABULARY, "threads": threads, "gradients": True}
    # Of torch's own, in float32, some are off by 2e-7.
    of_ours = check if contender == OURS else None
    measure("overlap", contender, case, with_gradients(CONTENDERS[contender]), inputs, of_ours)
