"""Chains verified by rejection.

First round: every rank weighs the tiles of its columns, and the owner of a draft's token tells its logits. From these
all ranks have the same p and q of every draft, and walk. Second round: the race over what is left of the last row.
"""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Verdict
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.sampling import Sampling
from specdec_kernels.sharded._layout import short, two
from specdec_kernels.sharded._race_chains import OF_WALKS, race_chains
from specdec_kernels.sharded._races import RowPartial, nobody_in, race_finish, race_partial
from specdec_kernels.sharded._requests import any_bits
from specdec_kernels.status import Status

SMALLEST = torch.finfo(torch.float32).tiny  # a smaller temperature is 0
NO_MAXIMUM = torch.tensor(-torch.inf).view(torch.int32).item()


def tiles_of(rows, temperature, shard, request_index=None):
    """[int32 [rows, 3, tiles], status [rows]] of a slice, with as many tiles on every rank."""
    found, status = ops.mass_tiles(rows, temperature=temperature, request_index=request_index)
    found = found.flatten(0, -3)
    tiles = found.new_zeros(*found.shape[:-1], shard.most_tiles)
    tiles[:, 0] = NO_MAXIMUM
    tiles[..., : found.shape[-1]] = found
    return [tiles, status.flatten()]


def logits_of(rows, place, tokens, shard):
    """The bits of one logit of each row of ``place``: 0 where the slice has not its token."""
    rows = inputs.rows3("rows", rows)
    column = tokens.long() - shard.first_token
    mine = (column >= 0) & (column < rows.shape[-1])
    outer, inner = place // rows.shape[1], place % rows.shape[1]
    logit = rows[outer, inner, torch.where(mine, column, 0)].float().view(torch.int32)
    return torch.where(mine, logit, 0)


def sent(parts, shard):
    """What all ranks have, each part as [ranks, ...]: one collective."""
    words = [part.contiguous().view(torch.int32).flatten() for part in parts]
    every = shard.gather(torch.cat(words)).split([len(x) for x in words], dim=-1)
    return [
        x.contiguous().view(part.dtype).view(-1, *part.shape) for x, part in zip(every, parts, strict=True)
    ]  # fmt: skip


def together(tiles, status, logits):
    """The tiles of whole rows, their status, and the logits of their owners."""
    return tiles.permute(1, 2, 0, 3).flatten(-2), any_of(status), any_of(logits).view(torch.float32)


def any_of(bits):
    """The bits of all ranks."""
    found = bits[0]
    for other in bits[1:]:
        found = found | other
    return found


class Found(NamedTuple):
    """What all ranks know after the first round, of target rows [rows] and of drafts."""

    p_lse: torch.Tensor  # float32 [n, 2], of all target rows
    p: torch.Tensor  # float32 [rows]: of the draft that a row decides
    met: torch.Tensor  # int32 [rows]: status
    winners: torch.Tensor | None  # int64 [rows]: the argmax, of requests with temperature 0
    q_lse: torch.Tensor | None = None  # float32 [drafts, 2], of the drafts' rows
    q: torch.Tensor | None = None  # float32 [drafts]
    q_met: torch.Tensor | None = None  # int32 [rows], 0 where a row has no draft


def rejection(chains, requests, shard, draft_tokens, target, draft, law, draft_law, draft_prob, epsilon):
    """The verdict. The laws are temperatures: a number, or one for each entry."""
    if not isinstance(law, torch.Tensor) and law < SMALLEST:  # the argmax decides, whatever was drafted
        return race_chains(chains, requests, shard, draft_tokens, target, {"temperature": 0.0}, 1.0, 0.0)
    greedy = requests.greedy(law)
    found = _first_round(chains, requests, shard, draft_tokens, target, draft, law, draft_law, greedy)
    walked = ops.verify_chain(
        short(draft_tokens, shard.vocab), two(found.p), None if draft is None else two(found.q), method="rejection",
        space="probs", temperature=greedy.temperature(), draft_prob=chains.slot_numbers(requests, draft_prob),
        epsilon=requests.of_requests(epsilon), request_index=requests.index, cu_drafts=chains.cu_drafts,
        max_drafts=chains.max_drafts, **requests.noise_of_requests(),
    )  # fmt: skip
    last = walked.num_accepted.long()
    live = chains.sound & requests.live()
    races = (last >= 0) & live & ~greedy.requests
    token, status, left = _last_token(
        chains, requests, shard, draft_tokens, target, draft, law, draft_law, draft_prob, found, last, races
    )
    if greedy.any_may_be:
        token = torch.where(greedy.requests, _at(found.winners.flatten(), chains.first + last.clamp(min=0)), token)
    token = torch.where(live, token, 0)

    width = walked.tokens.shape[-1]
    step, last = torch.arange(width, device=token.device), last.unsqueeze(-1)
    accepted = chains.by_request(chains.at_rows(draft_tokens, -1), width).long()
    emitted = torch.where(step < last, accepted, torch.where(step == last, token.unsqueeze(-1), -1))
    looked = (step <= last) & live.unsqueeze(-1)
    bits = walked.status & OF_WALKS | any_bits(chains.by_request(found.met, width), looked)
    bits = bits | torch.where(races, status, 0)
    if draft is not None:
        looked = looked & ((step < last) | left.unsqueeze(-1)) & ~greedy.requests.unsqueeze(-1)
        bits = bits | any_bits(chains.by_request(found.q_met, width), looked)
    return Verdict(emitted, walked.num_accepted, bits)


def _first_round(chains, requests, shard, draft_tokens, target, draft, law, draft_law, greedy):
    """One pass over the slice, one gather: normalisers, and p and q of every draft."""
    tokens, at = draft_tokens.flatten(), requests.of_rows(law)
    letter = tiles_of(target, at, shard, requests.row_index())
    letter.append(logits_of(target, chains.draft_places, tokens, shard))
    if draft is not None:
        places, q_at = requests.draft_places(chains, draft), requests.of_draft_rows(chains, draft, draft_law)
        letter += [*tiles_of(draft, q_at, shard), logits_of(draft, places, tokens, shard)]
    if greedy.any_may_be:
        letter.append(_argmax(target, shard, greedy.row_index()).packed().flatten(0, -2))
    every = sent(letter, shard)

    tiles, met, logits = together(*every[:3])
    logits = chains.at_rows(logits.view(draft_tokens.shape), 0.0)
    at = at.expand(chains.request.shape).flatten() if isinstance(at, torch.Tensor) else at
    p_lse, p = ops.tile_laws(tiles, logits.view(-1, 1), temperature=at)
    met = met | (p_lse[:, 1].isposinf() & ~greedy.of_rows().flatten()).int() * Status.NON_FINITE
    p, met, winners = p.view(chains.request.shape), met.view(chains.request.shape), None
    if greedy.any_may_be:
        winners, argmax_met = (x.view(chains.request.shape) for x in race_finish(every[-1]))
        met = met | torch.where(greedy.of_rows(), argmax_met, 0)
        p = torch.where(greedy.of_rows(), (winners == chains.at_rows(draft_tokens, -1)).float(), p)
    if draft is None:
        return Found(p_lse, p, met, winners)
    tiles, q_met, logits = together(*every[3:6])
    q_at = q_at.expand(draft.shape[:-1]).flatten()[places] if isinstance(q_at, torch.Tensor) else q_at
    q_lse, q = ops.tile_laws(tiles[places], logits.unsqueeze(-1), temperature=q_at)
    q_met = q_met[places] | q_lse[:, 1].isposinf().int() * Status.NON_FINITE
    q_met = chains.at_rows(q_met.view(draft_tokens.shape), 0)
    return Found(p_lse, p, met, winners, q_lse, q.view(draft_tokens.shape), q_met)


def _last_token(
    chains, requests, shard, draft_tokens, target, draft, law, draft_law, draft_prob, found, last, races
):  # fmt: skip
    """(token, status, whether it is from a residual) of each request that ``races``: from row ``last`` of it."""
    slot = last.clamp(min=0)
    own, tried = chains.first + slot, chains.draft_at(draft_tokens, slot, -1)
    if draft is None:
        left = races & (tried != -1)
        excluded = torch.where(left & (tried >= 0) & (tried < shard.vocab), tried, -1).int()
        q_known, how = found.p_lse.new_zeros(len(own), 2), {"excluded": excluded}
    else:
        places, taken = requests.draft_places(chains, draft), chains.share_at(requests, draft_prob, slot)
        draft_of = torch.arange(len(places), device=places.device).view(draft_tokens.shape)
        draft_of = chains.draft_at(draft_of, slot, -1)
        left = races & (draft_of >= 0) & ((tried != -1) | (taken < 1))
        q_known, q_row = _at(found.q_lse, draft_of), torch.where(left, _at(places, draft_of), -1).int()
        how = {"draft_row": q_row, "taken": taken, "draft_sampling": Sampling(requests.of_requests(draft_law))}
    numbers = requests.noise_of_requests()
    numbers["position"] = slot + numbers["position"]
    numbers["known"] = torch.cat([_at(found.p_lse, own), q_known], dim=-1)

    def draw(among, draft=None, **how):
        token, scores, status = ops.residual_race(
            target, draft, torch.where(among, own, -1).int(), first_token=shard.first_token,
            temperature=requests.of_requests(law), **how, **numbers,
        )  # fmt: skip
        return shard.gather(RowPartial(token.unsqueeze(-1), scores.unsqueeze(-1), status).packed())

    drawn = draw(races, draft, **how)
    (token, status), empty = race_finish(drawn), nobody_in(drawn) & left
    if bool(empty.any()):  # p and q equal to rounding; rare, and the same on all ranks
        again, more = race_finish(draw(empty))
        token = torch.where(empty, again, token)
        status = torch.where(empty, status & ~Status.NON_FINITE | more | Status.EMPTY_RESIDUAL, status)
    return token, status, left


def _at(values, place):
    """``values`` at some places; at those outside any will do."""
    return values[place.clamp(0, len(values) - 1)] if len(values) else values.new_zeros(len(place), *values.shape[1:])


def _argmax(target, shard, index):
    """The argmax of the slice of those rows that have temperature 0."""
    seed = torch.zeros(target.shape[:-1], dtype=torch.int64, device=target.device)
    return race_partial(
        target, first_token=shard.first_token, seed=seed, position=0, temperature=0.0, request_index=index
    )
