"""The first arrival in a part of a row, over what a draft left of its law."""

import torch

from specdec_kernels.backends.reference import laws, noise, requests
from specdec_kernels.backends.reference.tile_laws import probabilities
from specdec_kernels.ops._laws import filters_of
from specdec_kernels.status import Status


def residual_race(call):
    """argmin over the part's tokens of arrival / weight; at temperature 0 the argmax."""
    batch, columns = len(call.row), call.target.shape[-1]
    index = torch.where(call.row == -1, -1, torch.arange(batch, device=call.row.device))
    outside = (call.row < 0) | (call.row >= call.target.shape[0] * call.target.shape[1])
    if call.draft is not None:
        outside |= (call.draft_row < -1) | (call.draft_row >= call.draft.shape[0] * call.draft.shape[1])
    who = requests.Requests(index, batch, batch, call.row.device, outside=outside)
    law, bad = laws.decoded(call.target_law, who)
    rows = call.target.flatten(0, 1)[call.row[who.live].long()]
    arrivals = noise.arrivals(who.noise(call.noise), noise.RESIDUAL, call.first_token + columns)
    arrivals = arrivals[..., call.first_token :]
    logs = laws.log_weights(rows, law)
    if call.excluded is not None:
        tokens = torch.arange(columns, device=rows.device) + call.first_token
        logs = torch.where(tokens == call.excluded[who.live].unsqueeze(-1), -torch.inf, logs)
    logs = torch.where((law.temperature > 0).unsqueeze(-1), logs, laws.log_weights(rows, law))
    if call.draft is not None:
        place = call.draft_row[who.live].long()
        q_law, q_bad = laws.decoded(call.draft_law, who)
        drafts = call.draft.flatten(0, 1)[place.clamp(min=0)]
        known, taken = call.known[who.live], who.numbers(call.taken, torch.float32).double()
        p = weights(rows, law, known[:, :2])
        left = laws.residual_weights(p, weights(drafts, q_law, known[:, 2:]), taken).log()
        over_p = (place < 0) | (law.temperature == 0)
        logs, bad = torch.where(over_p.unsqueeze(-1), logs, left), bad | (q_bad & ~over_p)
    best, columns = laws.scores(logs, arrivals, law.temperature).max(dim=-1)
    who.write(call.tokens, torch.where(best == -torch.inf, -1, columns + call.first_token), idle=-1)
    who.write(call.scores, best, idle=torch.inf, outside=torch.inf)
    status = laws.non_finite(rows, "logits").any(dim=-1).int() * Status.NON_FINITE
    who.write(call.status, status | bad.int() * Status.PARAMETER, outside=Status.PARAMETER)


def weights(rows, law, known):
    """Probabilities of a part of a row of which ``known`` is known."""
    p = probabilities(laws.scaled(rows, law.temperature), known)
    return torch.where(laws.kept(rows, law), p, 0.0) if filters_of(law) else p
