"""The token that ends a verification: a race over the residual of one row, slice by slice."""

import torch

from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._laws import cuts_of
from specdec_kernels.status import Status


def last_tokens(shard, target, draft, walked, temperature, draft_temperature, numbers):
    """A function that waits for (token, status), int64 and int32 [B], of the rows where walks ended."""
    # ``numbers``: seed, position and nonce. The gather of 12 bytes a request is in flight when this returns.
    if draft is None:
        how = {"excluded": walked.excluded}
    else:
        how = {"draft": draft.side.rows, "draft_row": walked.draft_row, "subtracted": walked.subtracted}
        how["draft_temperature"] = draft_temperature
    cuts = cuts_of(shard, (target, walked.row), (draft, walked.draft_row))

    def draw(row, draft=None, **how):
        token, scores, status = parts.residual_race(
            target.side.rows, draft, row, vocab_start=shard.vocab_start, temperature=temperature, row_stats=walked.laws,
            cuts=cuts, edits=target.side.edits, **how, **numbers,
        )  # fmt: skip
        return shard.gather_later(torch.stack([token.int(), scores.view(torch.int32), status], dim=-1))

    every = draw(walked.row, **how)

    def drawn():
        token, status, empty = parts.first_arrivals(every())
        empty = torch.logical_and(empty, walked.draft_row >= 0)
        if bool(empty.any()):  # p and q equal to rounding, or all of p tried; rare, and alike on all ranks
            again, more, weightless = parts.first_arrivals(draw(torch.where(empty, walked.row, -1))())
            token = torch.where(empty, again, token)
            more = torch.where(weightless.bool(), more, more | Status.EMPTY_RESIDUAL)
            status = torch.where(empty, status & ~Status.NON_FINITE | more, status)
        return token, status

    return drawn
