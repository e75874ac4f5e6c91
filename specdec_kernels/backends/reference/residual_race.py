"""The first arrival in a part of a row, over what a draft left of its law."""

import torch

from specdec_kernels.backends.reference import laws, noise, parts
from specdec_kernels.status import Status


def residual_race(call):
    """argmin over the part's tokens of arrival / weight; at temperature 0 the argmax."""
    columns = call.target.shape[-1]
    who = parts.requests_of(call, call.row == -1)
    law, bad = laws.decoded(call.target_law, who)
    rows, bad_edits = parts.target_rows(call, who)
    arrivals = noise.arrivals(who.noise(call.noise), noise.RESIDUAL, call.vocab_start + columns)
    arrivals = arrivals[..., call.vocab_start :]
    greedy = (law.temperature == 0).unsqueeze(-1)
    whole = laws.log_weights(rows, law)
    logs = torch.where(parts.kept(call, who, rows, 0), whole, -torch.inf)
    if call.excluded is not None:
        tokens = torch.arange(columns, device=rows.device) + call.vocab_start
        out = (tokens.unsqueeze(-1) == call.excluded[who.live].unsqueeze(-2)).any(dim=-1)
        logs = torch.where(out, -torch.inf, logs)
    logs = torch.where(greedy, whole, logs)
    if call.draft is not None:
        q_law, q_bad = laws.decoded(call.draft_law, who)
        subtracted = who.numbers(call.subtracted, torch.float32).double()
        p = parts.weights(call, who, rows, law, 0)
        q = parts.weights(call, who, parts.draft_rows(call, who), q_law, 1)
        over_p = (call.draft_row[who.live] < 0) | greedy.squeeze(-1)
        logs = torch.where(over_p.unsqueeze(-1), logs, laws.residual_weights(p, q, subtracted).log())
        bad = bad | (q_bad & ~over_p)
    best, columns = laws.scores(logs, arrivals, law.temperature).max(dim=-1)
    who.write(call.tokens, torch.where(best == -torch.inf, -1, columns + call.vocab_start), idle=-1)
    who.write(call.scores, best, idle=torch.inf, outside=torch.inf)
    status = laws.non_finite(rows, "logits").any(dim=-1).int() * Status.NON_FINITE
    who.write(call.status, status | (bad | bad_edits).int() * Status.PARAMETER, outside=Status.PARAMETER)
