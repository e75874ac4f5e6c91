"""The token that ends a verification: a race over what is left of a row, slice by slice."""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.sharded._constants import only
from specdec_kernels.sharded._laws import at_any, cuts_of
from specdec_kernels.status import Status


class Last(NamedTuple):
    """What the last token of each request [B] is drawn from.

    Attributes
    ----------
    row : Tensor
        int: among all rows of the target; -1: nothing is drawn.
    draft_row : Tensor
        int: among those of the draft. -1: from p; else from (p - taken q)^+. Without draft laws 0 or more says that
        something was tried.
    taken : float or Tensor
    tried : Tensor
        int [B, n]: without draft laws the tokens that p is without; those outside of the vocabulary are none.
    temperature, draft_temperature : float or Tensor
    numbers : dict
        seed, position and nonce.
    laws : Tensor, optional
        float32 [B, 4]: what is known of both rows.
    """

    row: torch.Tensor
    draft_row: torch.Tensor
    taken: float | torch.Tensor
    tried: torch.Tensor
    temperature: float | torch.Tensor
    draft_temperature: float | torch.Tensor
    numbers: dict
    laws: torch.Tensor | None = None


def last_tokens(shard, target, draft, last):
    """A function that waits for (token, status), int64 and int32 [B], from the laws of both rows.

    One gather of 12 bytes a request, which is under way when this returns.
    """
    laws, how = last.laws, {}
    if draft is None:
        tried = (last.draft_row >= 0).unsqueeze(-1) & (last.tried >= 0) & (last.tried < shard.vocab)
        how["excluded"] = only(tried, last.tried, -1).int()
    else:
        how = {"draft": draft.side.rows, "draft_row": last.draft_row.int()}
        how |= {"taken": last.taken, "draft_temperature": last.draft_temperature}
    if laws is None:
        known = target.known if draft is None else draft.known
        laws = torch.cat([at_any(target.known, last.row), at_any(known, last.draft_row)], dim=-1)
    cuts = cuts_of(shard, (target, last.row), (draft, last.draft_row))

    def draw(row, draft=None, **how):
        token, scores, status = ops.residual_race(
            target.side.rows, draft, row, first_token=shard.first_token, temperature=last.temperature, known=laws,
            cuts=cuts, edits=target.side.edits, **how, **last.numbers,
        )  # fmt: skip
        return shard.gather_later(torch.stack([token.int(), scores.view(torch.int32), status], dim=-1))

    row = last.row.int()
    every = draw(row, **how)

    def drawn():
        token, status, empty = ops.first_arrivals(every())
        empty = torch.logical_and(empty, last.draft_row >= 0)
        if bool(empty.any()):  # p and q equal to rounding, or all of p tried; rare, and the same on all ranks
            again, more, _ = ops.first_arrivals(draw(torch.where(empty, row, -1))())
            token = torch.where(empty, again, token)
            status = torch.where(empty, status & ~Status.NON_FINITE | more | Status.EMPTY_RESIDUAL, status)
        return token, status

    return drawn
