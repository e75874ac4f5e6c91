"""How well a draft law covers a target law."""

import torch

from specdec_kernels.backends.reference import laws


def overlap(target, draft, space, temperature, accept, tv, kl, harmonic):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q) of each pair of rows."""
    temperature, _ = laws.temperatures(temperature, target.shape[:-1], target.device)
    p = laws.law(target, temperature, space)
    q = laws.widened(laws.law(draft, temperature, space), target.shape[-1])
    accept.copy_(torch.minimum(p, q).sum(dim=-1))
    tv.copy_((p - q).abs().sum(dim=-1) / 2)
    kl.copy_(torch.where(p > 0, p * (p / q).log(), 0.0).sum(dim=-1))
    harmonic.copy_(torch.where(p * q > 0, p * q / (p + q), 0.0).sum(dim=-1))
