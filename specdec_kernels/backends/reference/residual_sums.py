"""What a draft left of its law in parts of rows, and what the draft has there."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.tile_laws import probabilities
from specdec_kernels.status import Status

UNIT = 2.0**42


def residual_sums(call):
    """Probabilities as ``tile_laws`` rounds them; their weights as whole numbers, to the nearest."""
    pairs, device = len(call.row), call.row.device
    idle = (call.row == -1) | (call.draft_row == -1)
    outside = torch.zeros_like(idle)
    for rows, place in ((call.target, call.row), (call.draft, call.draft_row)):
        outside |= (place < 0) | (place >= rows.shape[0] * rows.shape[1])
    index = torch.where(idle, -1, torch.arange(pairs, device=device))
    who = requests.Requests(index, pairs, pairs, device, outside=outside)

    def law_at(rows, place, law, known):
        law, bad = laws.decoded(law, who)
        v = laws.scaled(rows.flatten(0, 1)[place[who.live].long()], law.temperature)
        return probabilities(v, known[who.live]).float(), bad

    p, p_bad = law_at(call.target, call.row, call.target_law, call.known[:, :2])
    q, q_bad = law_at(call.draft, call.draft_row, call.draft_law, call.known[:, 2:])
    left = p - who.numbers(call.taken, torch.float32).unsqueeze(-1) * q
    left = torch.where(left >= laws.SMALLEST, left, 0.0)
    sums = [(weights.clamp(max=1).double() * UNIT).round().long().sum(dim=-1) for weights in (left, q)]
    who.write(call.sums, torch.stack(sums, dim=-1))
    who.write(call.status, (p_bad | q_bad).int() * Status.PARAMETER, outside=Status.PARAMETER)
