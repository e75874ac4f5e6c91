"""One row of each request among all rows of the target, or of the draft: parts of rows, edited and cut."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.backends.reference.tile_laws import probabilities


def requests_of(call, idle):
    """The ``Requests`` of pairs of rows, of which those ``idle`` are not read."""
    index = torch.where(idle, -1, torch.arange(len(idle), device=idle.device))
    outside = ~has(call.target, call.row)
    if call.draft is not None:
        outside |= ~has(call.draft, call.draft_row) & (call.draft_row != -1)
    return requests.Requests(index, len(idle), len(idle), idle.device, outside=outside)


def has(rows, place):
    return (place >= 0) & (place < rows.shape[0] * rows.shape[1])


def target_rows(call, who):
    """(the target's rows of the live requests, edited; whether their edits are bad)."""
    inner, place = call.target.shape[1], call.row[who.live].long()
    every = requests.Requests(None, len(call.target), len(call.target), who.live.device, inner=(inner,))
    edits = Edits(call, every, call.target)
    return edits.rows(call.target).flatten(0, 1)[place], edits.bad.flatten()[place]


def draft_rows(call, who):
    """The draft's rows of the live requests; any row for those that have none."""
    return call.draft.flatten(0, 1)[call.draft_row[who.live].long().clamp(min=0)]


def kept(call, who, rows, side):
    """Which of the rows' tokens the cuts of the target's side, 0, or of the draft's, 1, keep."""
    if call.cuts is None:
        return torch.ones_like(rows, dtype=torch.bool)
    value, last, factor = call.cuts[who.live, 3 * side : 3 * side + 3].unsqueeze(-1).unbind(1)
    value, columns = value.contiguous().view(torch.float32), torch.arange(rows.shape[-1], device=rows.device)
    v = rows.float() * factor.contiguous().view(torch.float32)
    v = v.nan_to_num(nan=-torch.inf, posinf=laws.LARGEST, neginf=-torch.inf)
    return (v > value) | ((v == value) & (columns <= last)) | (value == -torch.inf)


def weights(call, who, rows, law, side):
    """Probabilities of parts of rows of which ``known`` is known; 0 where a cut drops a token."""
    known = call.known[who.live, 2 * side : 2 * side + 2]
    p = probabilities(laws.scaled(rows, law.temperature), known)
    return torch.where(kept(call, who, rows, side), p, 0.0)
