"""How well a draft law covers a target law."""

import torch

from specdec_kernels.backends.reference.residual import pair
from specdec_kernels.status import Status


def overlap(call):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q) of each pair of rows."""
    who, p, q, status = pair(call)
    who.write(call.accept, torch.minimum(p, q).sum(dim=-1))
    who.write(call.tv, (p - q).abs().sum(dim=-1) / 2)
    who.write(call.kl, torch.where(p > 0, p * (p / q).log(), 0.0).sum(dim=-1))
    who.write(call.harmonic, torch.where(p * q > 0, p * q / (p + q), 0.0).sum(dim=-1))
    if call.status is not None:
        who.write(call.status, status, outside=Status.PARAMETER)
