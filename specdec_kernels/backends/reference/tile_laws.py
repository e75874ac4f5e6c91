"""Normalisers from tiles."""

import numpy as np
import torch

from specdec_kernels._constants import UNIT
from specdec_kernels.backends.reference import laws, mass


def tile_laws(call):
    """Log-sum-exps by the mass contract, and probabilities in float64 from these."""
    count = len(call.raw)
    tops, low, high = call.tiles.cpu().view(count, 3, -1).unbind(1)
    tops = tops.contiguous().view(torch.float32).numpy()
    units = (high.long() << 32) | (low.long() & 0xFFFFFFFF)
    for row, top in enumerate(tops.max(axis=-1, initial=-np.inf)):
        if top == -np.inf:
            call.known[row, 0], call.known[row, 1] = 0.0, torch.inf
            continue
        some = tops[row] > -np.inf
        q, n = mass.exponential(tops[row][some], top)
        each = zip(units[row].numpy()[some].tolist(), q.tolist(), n.tolist(), strict=True)
        whole = sum(u * (q >> 9) >> 10 + min(n, 63) for u, q, n in each)
        call.known[row, 0] = float(top)
        call.known[row, 1] = float(mass.log(np.float32(whole) * np.float32(UNIT)))
    temperature = torch.as_tensor(call.temperature, dtype=torch.float32, device=call.raw.device).expand(1, count)[0]
    call.probs.copy_(probabilities(laws.scaled(call.raw, temperature), call.known))


def probabilities(v, known):
    """exp(v - log-sum-exp), float64."""
    p = (v.double() - known[..., :1].double() - known[..., 1:].double()).exp()
    return torch.where(p < laws.SMALLEST, 0.0, p)
