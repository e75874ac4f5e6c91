"""Chains verified by rejection, or as blocks.

First round: every rank weighs the tiles of its columns, and the owner of a draft's token tells its logits. From these
all ranks have the same p and q of every draft. A block also needs sums over the pairs of rows: one round more. Then all
ranks walk. Last round: the race over what is left of the last row.
"""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Verdict
from specdec_kernels.sampling import Sampling
from specdec_kernels.sharded._filters import SMALLEST, may_filter
from specdec_kernels.sharded._last import Last, last_tokens
from specdec_kernels.sharded._laws import Laws, Side, argmax_of, laws_of
from specdec_kernels.sharded._layout import short, two
from specdec_kernels.sharded._race_chains import OF_WALKS, race_chains
from specdec_kernels.sharded._races import race_finish
from specdec_kernels.sharded._requests import any_bits
from specdec_kernels.status import Status


class Found(NamedTuple):
    """What all ranks know after the first round."""

    target: Laws  # of all target rows
    p: torch.Tensor  # float32 [rows]: of the draft that a row decides
    met: torch.Tensor  # int32 [rows]: status
    winners: torch.Tensor | None  # int64 [rows]: the argmax, of requests with temperature 0
    draft: Laws | None = None  # of all draft rows
    q: torch.Tensor | None = None  # float32, like the draft tokens
    q_met: torch.Tensor | None = None  # int32 [rows], 0 where a row has no draft


def rejection(chains, requests, shard, draft_tokens, target, draft, law, draft_law, draft_prob, epsilon):
    """The verdict. The laws are Samplings, whose numbers may be those of entries."""
    if not isinstance(law.temperature, torch.Tensor) and law.temperature < SMALLEST:  # the argmax decides
        return race_chains(chains, requests, shard, draft_tokens, target, {"temperature": 0.0}, 1.0, 0.0)
    greedy = requests.greedy(law.temperature)
    found = _first_round(chains, requests, shard, draft_tokens, target, draft, law, draft_law, greedy)
    q = _spared(found, chains, draft_tokens, epsilon)
    walked = ops.verify_chain(
        short(draft_tokens, shard.vocab), two(found.p), None if q is None else two(q), method="rejection",
        space="probs", temperature=greedy.temperature(), draft_prob=chains.slot_numbers(requests, draft_prob),
        epsilon=requests.of_requests(epsilon), request_index=requests.index, cu_drafts=chains.cu_drafts,
        max_drafts=chains.max_drafts, **requests.noise_of_requests(),
    )  # fmt: skip
    slot = walked.num_accepted.long().clamp(min=0)
    tried = chains.draft_at(draft_tokens, slot, -1)
    left, taken = tried != -1, 1.0
    if draft is not None:
        taken = chains.share_at(requests, draft_prob, slot)
        left = chains.draft_at(torch.ones_like(draft_tokens), slot, 0).bool() & (left | (taken < 1))
    return _verdict(chains, requests, shard, draft_tokens, law, draft_law, found, walked, greedy, left, taken)


def _spared(found, chains, draft_tokens, epsilon):
    """q of the walk. Over-acceptance spares no token that the target's filters drop, so it has none there."""
    kept, plain = found.target.kept, isinstance(epsilon, (int, float)) and epsilon == 0
    if kept is None or plain:
        return found.q
    side = found.target.side
    keeps = kept.keeps(side.places, side.tokens.unsqueeze(-1), found.target.logits.unsqueeze(-1)).view(draft_tokens.shape)
    return torch.where(keeps, torch.ones_like(keeps, dtype=torch.float32) if found.q is None else found.q, 0.0)


def _verdict(chains, requests, shard, draft_tokens, law, draft_law, found, walked, greedy, left, taken):
    """The verdict of a walk: with its last tokens, from what is left or, where nothing was tried, from the row."""
    last, live = walked.num_accepted.long(), requests.live()
    races = (last >= 0) & live & chains.sound & ~greedy.requests
    left = left & races
    slot = last.clamp(min=0)
    numbers = requests.noise_of_requests()
    numbers["position"] = slot + numbers["position"]
    tried, q_place = chains.draft_at(draft_tokens, slot, -1), None
    if found.draft is not None:
        places = found.draft.side.places
        draft_of = chains.draft_at(torch.arange(len(places), device=places.device).view(draft_tokens.shape), slot, -1)
        q_place = _at(places, draft_of)
    token, status = last_tokens(shard, found.target, found.draft, Last(
        races, left, chains.first + slot, q_place, taken, tried.unsqueeze(-1),
        requests.of_requests(law.temperature), requests.of_requests(draft_law.temperature), numbers,
    ))  # fmt: skip
    if greedy.any_may_be:
        token = torch.where(greedy.requests, _at(found.winners.flatten(), chains.first + slot), token)
    token = torch.where(live & chains.sound, token, 0)

    width = walked.tokens.shape[-1]
    step, last = torch.arange(width, device=token.device), last.unsqueeze(-1)
    accepted = chains.by_request(chains.at_rows(draft_tokens, -1), width).long()
    emitted = torch.where(step < last, accepted, torch.where(step == last, token.unsqueeze(-1), -1))
    looked = (step <= last) & (live & chains.sound).unsqueeze(-1)
    bits = walked.status & OF_WALKS | any_bits(chains.by_request(found.met, width), looked)
    bits = bits | torch.where(races, status, 0)
    if found.draft is not None:
        looked = looked & ((step < last) | left.unsqueeze(-1)) & ~greedy.requests.unsqueeze(-1)
        bits = bits | any_bits(chains.by_request(found.q_met, width), looked)
    return Verdict(emitted, walked.num_accepted, bits.int())


def _first_round(chains, requests, shard, draft_tokens, target, draft, law, draft_law, greedy):
    """One pass over the slice, one gather: normalisers, and p and q of every draft."""
    tokens, index = draft_tokens.flatten(), requests.row_index()
    sides = [Side(target, requests.of_rows(law), index, chains.draft_places, tokens)]
    if draft is not None:
        q_law = requests.of_draft_rows(chains, draft, draft_law)
        sides.append(Side(draft, q_law, None, requests.draft_places(chains, draft), tokens))
    also = [argmax_of(target, shard, greedy.row_index()).packed()] if greedy.any_may_be else []
    laws, also = laws_of(shard, sides, *also)
    p = chains.at_rows(laws[0].probs.view(draft_tokens.shape), 0.0)
    met, winners = laws[0].met.view(chains.request.shape), None
    if greedy.any_may_be:
        winners, argmax_met = (x.view(chains.request.shape) for x in race_finish(also[0]))
        met = torch.where(greedy.of_rows(), met & ~Status.NON_FINITE | argmax_met, met)
        p = torch.where(greedy.of_rows(), (winners == chains.at_rows(draft_tokens, -1)).float(), p)
    if draft is None:
        return Found(laws[0], p, met, winners)
    q_met = chains.at_rows(laws[1].met[sides[1].places].view(draft_tokens.shape), 0)
    return Found(laws[0], p, met, winners, laws[1], laws[1].probs.view(draft_tokens.shape), q_met)


def _at(values, place):
    """``values`` at some places; at those outside any will do."""
    return values[place.clamp(0, len(values) - 1)] if len(values) else values.new_zeros(len(place), *values.shape[1:])
