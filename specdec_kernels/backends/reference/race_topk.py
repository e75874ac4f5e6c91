"""The first k arrivals of a race: k draws without replacement, in order."""

import torch

from specdec_kernels.backends.reference.race_sample import race, tokens_of
from specdec_kernels.calls import typed


def race_topk(call: "typed.RaceTopk"):
    """The k smallest arrivals / q in order, lower tokens first on ties; -1 once no weight is left."""
    active, scores, status = race(call)
    k = call.tokens.shape[-1]
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    order = torch.where(scores > -torch.inf, order, -1)[..., :k]
    nothing = torch.tensor([0] + [-1] * (k - 1), device=order.device, dtype=torch.int64)
    active.write(call.tokens, tokens_of(order, call), idle=-1, outside=nothing)
    if call.scores is not None:
        unread = torch.tensor([torch.inf] + [-torch.inf] * (k - 1), device=order.device, dtype=torch.float32)
        active.write(call.scores, scores[..., :k], idle=unread, outside=unread)
    active.report(call.status, status)
