"""What a draft left of its law in parts of rows, and what the draft has there."""

import torch

from specdec_kernels._constants import UNIT
from specdec_kernels.backends.reference import laws, parts
from specdec_kernels.status import Status


def residual_sums(call):
    """Probabilities as ``tile_laws`` rounds them; their weights as whole numbers, to the nearest."""
    who = parts.requests_of(call, (call.row == -1) | (call.draft_row == -1))
    law, bad = laws.decoded(call.target_law, who)
    q_law, q_bad = laws.decoded(call.draft_law, who)
    rows, bad_edits = parts.target_rows(call, who)
    p = parts.weights(call, who, rows, law, 0).float()
    q = parts.weights(call, who, parts.draft_rows(call, who), q_law, 1).float()
    residual_mass = p - who.numbers(call.subtracted, torch.float32).unsqueeze(-1) * q
    residual_mass = torch.where(residual_mass >= laws.SMALLEST, residual_mass, 0.0)
    sums = [(weights.clamp(max=1).double() / UNIT).round().long().sum(dim=-1) for weights in (residual_mass, q)]
    who.write(call.sums, torch.stack(sums, dim=-1))
    who.write(call.status, (bad | q_bad | bad_edits).int() * Status.PARAMETER, outside=Status.PARAMETER)
