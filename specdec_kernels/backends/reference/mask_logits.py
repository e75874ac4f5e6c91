"""Rows without the tokens that cuts drop."""

import torch

from specdec_kernels.backends.reference import laws
from specdec_kernels.calls import typed


def mask_logits(call: "typed.MaskLogits"):
    """Tokens behind the cut get -inf; NaN stays."""
    shape = call.rows.shape[:2]
    temperature = call.temperature
    if not isinstance(temperature, torch.Tensor):
        temperature = torch.tensor(temperature, device=call.rows.device, dtype=torch.float32)
    inverse = laws.inverse_of(temperature.float().expand(shape)).unsqueeze(-1)
    v = (call.rows.float() * inverse).clamp(max=laws.LARGEST)
    value, last = call.value.view(*shape, 1), call.last.view(*shape, 1)
    token = torch.arange(v.shape[-1], device=v.device, dtype=torch.int64)
    dropped = (v < value) | ((v == value) & (token > last))
    call.out.copy_(torch.where(dropped, -torch.inf, call.rows))
