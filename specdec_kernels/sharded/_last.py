"""The token that ends a verification: a race over what is left of a row, slice by slice."""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.sharded._constants import only
from specdec_kernels.sharded._laws import at_any, cuts_of
from specdec_kernels.sharded._races import first_arrivals
from specdec_kernels.status import Status


class Last(NamedTuple):
    """What the last token of each request [B] is drawn from.

    Attributes
    ----------
    races : Tensor
        bool, or None for all: who draws. The others' tokens mean nothing.
    left : Tensor
        bool: from (p - taken q)^+; else from p.
    place, draft_place : Tensor
        int64: of the rows among all. No ``draft_place`` without draft laws.
    taken : float or Tensor
    tried : Tensor
        int64 [B, n]: without draft laws the tokens that p is without; those outside of the vocabulary are none.
    temperature, draft_temperature : float or Tensor
    numbers : dict
        seed, position and nonce.
    """

    races: torch.Tensor | None
    left: torch.Tensor
    place: torch.Tensor
    draft_place: torch.Tensor | None
    taken: float | torch.Tensor
    tried: torch.Tensor
    temperature: float | torch.Tensor
    draft_temperature: float | torch.Tensor
    numbers: dict


def last_tokens(shard, target, draft, last):
    """A function that waits for (token, status), int64 and int32 [B], from the laws of both rows.

    One gather of 12 bytes a request, which is under way when this returns.
    """
    own, beside, how = only(last.races, last.place, -1), None, {}
    known = [at_any(target.known, own)] * 2
    if draft is None:
        tried = last.left.unsqueeze(-1) & (last.tried >= 0) & (last.tried < shard.vocab)
        how["excluded"] = only(tried, last.tried, -1).int()
    else:
        beside = only(last.left, last.draft_place, -1)
        known[1] = at_any(draft.known, beside)
        how = {"draft": draft.side.rows, "draft_row": beside.int()}
        how |= {"taken": last.taken, "draft_temperature": last.draft_temperature}
    cuts = cuts_of(shard, (target, own), (draft, beside))

    def draw(row, draft=None, **how):
        token, scores, status = ops.residual_race(
            target.side.rows, draft, row.int(), first_token=shard.first_token, temperature=last.temperature,
            known=torch.cat(known, dim=-1), cuts=cuts, edits=target.side.edits, **how, **last.numbers,
        )  # fmt: skip
        return shard.gather_later(torch.stack([token.int(), scores.view(torch.int32), status], dim=-1))

    every = draw(own, **how)

    def drawn():
        token, status, empty = first_arrivals(every())
        empty = empty & last.left
        if bool(empty.any()):  # p and q equal to rounding, or all of p tried; rare, and the same on all ranks
            again, more, _ = first_arrivals(draw(torch.where(empty, own, -1))())
            token = torch.where(empty, again, token)
            status = torch.where(empty, status & ~Status.NON_FINITE | more | Status.EMPTY_RESIDUAL, status)
        return token, status

    return drawn
