"""SGLang's own PyTorch sampler beside the preset that has its rules."""

from typing import Optional

import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from tests.engines.unpacked import made

PATH, NAME = "sglang/srt/layers/sampler.py", "top_k_top_p_min_p_sampling_from_probs_torch"


def test_filters(table):
    """On rows without ties it keeps what ``Sampling.sglang`` keeps, with the same law."""
    sampler = made(PATH, NAME, {"torch": torch, "Optional": Optional})
    generator = torch.Generator().manual_seed(3)
    for top_k, top_p, min_p in ((50, 1.0, 0.0), (200, 0.9, 0.0), (1000, 0.8, 0.0), (40, 1.0, 0.05), (1000, 0.3, 0.0)):
        logits = 4 * torch.randn(64, 1000, generator=generator, dtype=torch.float64).float()
        weights, order = sampler(
            logits.softmax(-1), torch.full((64,), top_k), torch.full((64,), top_p), torch.full((64,), min_p),
            min_p > 0, None, torch.zeros(64), return_filtered_probs=True,
        )[1:3]  # fmt: skip
        theirs = torch.zeros_like(logits).scatter(-1, order, weights)
        theirs /= theirs.sum(-1, keepdim=True)
        sampling = Sampling.sglang(1.0, top_k, top_p, min_p)
        ours = specdec.residual(logits, logits, sampling=sampling, draft_sampling=sampling, draft_prob=0.0).probs
        same = ((ours > 0) == (theirs > 0)).all(-1).sum().item()
        filters = {"top-k": top_k, "top-p": top_p, "min-p": min_p, "rows that keep the same": f"{same} of 64"}
        table("SGLang: its PyTorch sampler beside Sampling.sglang", filters)
        assert same >= 63  # a sum of float32 may fall on the other side of top_p
        agree = ((ours > 0) == (theirs > 0)).all(-1)
        torch.testing.assert_close(ours[agree], theirs[agree], rtol=1e-4, atol=1e-6)
