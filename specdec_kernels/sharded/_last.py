"""The token that ends a verification: a race over what is left of a row, slice by slice."""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.sampling import Sampling
from specdec_kernels.sharded._laws import at_any
from specdec_kernels.sharded._races import RowPartial, first_arrivals
from specdec_kernels.sharded._requests import only
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
    """(token, status), int64 and int32 [B], from the laws of both rows: one gather of 12 bytes a request."""
    own, how = only(last.races, last.place, -1), {}
    known = [at_any(target.known, own)] * 2
    rows, row = _rows(shard, target, own)
    without = rows, row
    if draft is None:
        tried = torch.where(last.left.unsqueeze(-1) & (last.tried >= 0) & (last.tried < shard.vocab), last.tried, -1)
        if tried.shape[-1] == 1:
            how["excluded"] = tried[:, 0].int()
        else:
            without = _without(shard, target, rows, own, tried)
    else:
        beside = torch.where(last.left, last.draft_place, -1)
        known[1] = at_any(draft.known, beside)
        drafts, how["draft_row"] = _rows(shard, draft, beside)
        how |= {"taken": last.taken, "draft_sampling": Sampling(last.draft_temperature)}

    def draw(rows, row, draft=None, **how):
        token, scores, status = ops.residual_race(
            rows, draft, row, first_token=shard.first_token, temperature=last.temperature,
            known=torch.cat(known, dim=-1), **how, **last.numbers,
        )  # fmt: skip
        return first_arrivals(shard.gather(RowPartial(token.unsqueeze(-1), scores.unsqueeze(-1), status).packed()))

    token, status, empty = draw(*without, None if draft is None else drafts, **how)
    empty = empty & last.left
    if bool(empty.any()):  # p and q equal to rounding, or all of p tried; rare, and the same on all ranks
        again, more, _ = draw(rows, torch.where(empty, row, -1))
        token = torch.where(empty, again, token)
        status = torch.where(empty, status & ~Status.NON_FINITE | more | Status.EMPTY_RESIDUAL, status)
    return token, status


def _rows(shard, laws, places):
    """(rows, int32 [B] where ``places`` stand in these, -1 for -1): a copy where filters drop tokens."""
    rows, row = laws.rows_of(places, shard.first_token)
    return rows, torch.where(places < 0, -1, row).int()


def _own(places):
    return torch.where(places < 0, -1, torch.arange(len(places), device=places.device)).int()


def _without(shard, laws, rows, places, tried):
    """The same without the tokens ``tried``: always a copy."""
    rows = laws.piece(places) if laws.kept is None else rows.clone()
    column = tried - shard.first_token
    column = torch.where((column >= 0) & (column < rows.shape[-1]), column, rows.shape[-1])
    rows = torch.nn.functional.pad(rows, (0, 1)).scatter(1, column, -torch.inf)[:, :-1]
    return rows, _own(places)
