"""Chains verified by rejection, or as blocks.

First round: every rank weighs the tiles of its columns, and the owner of a draft's token tells its logits. From these
all ranks have the same p and q of every draft. A block also needs sums over the pairs of rows: one round more. Then all
ranks walk. Last round: the race over what is left of the last row.
"""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Verdict
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.sharded._constants import only
from specdec_kernels.sharded._filters import SMALLEST
from specdec_kernels.sharded._last import Last, last_tokens
from specdec_kernels.sharded._laws import Laws, Side, argmax_of, laws_of, left_in_slices
from specdec_kernels.sharded._layout import alone, short, two
from specdec_kernels.sharded._race_chains import race_chains
from specdec_kernels.sharded._races import race_finish
from specdec_kernels.sharded._requests import both
from specdec_kernels.sharded._weights import (
    ACCEPT_STREAM,
    LEAF_COINS,
    child_weight,
    residual_weight,
    taken_after,
    units_of,
)
from specdec_kernels.status import Status


class Found(NamedTuple):
    """What all ranks know after the first round."""

    target: Laws  # of all target rows
    p: torch.Tensor  # float32 [rows]: of the draft that a row decides
    met: torch.Tensor  # int32 [rows]: status
    winners: torch.Tensor | None  # int64 [rows]: the argmax, of requests with temperature 0
    draft: Laws | None = None  # of all draft rows
    q: torch.Tensor | None = None  # float32, like the draft tokens
    q_met: torch.Tensor | None = None  # int32, one for each draft


def rejection(
    chains, requests, shard, draft_tokens, target, edits, draft, law, draft_law, draft_prob, epsilon, method
):  # fmt: skip
    """The verdict. The laws are Samplings, whose numbers may be those of entries; ``edits`` are those of the slice."""
    if not isinstance(law.temperature, torch.Tensor) and law.temperature < SMALLEST:  # the argmax decides
        return race_chains(chains, requests, shard, draft_tokens, target, edits, {"temperature": 0.0}, 1.0, 0.0)
    greedy = requests.greedy(law.temperature)
    found = _first_round(chains, requests, shard, draft_tokens, target, edits, draft, law, draft_law, greedy)
    if method == "block":
        block = Block(chains, requests, shard, draft_tokens, found, greedy)
        walked = block.walked(requests, shard, draft_tokens, greedy)
        return _verdict(chains, requests, shard, law, draft_law, found, walked, greedy, 1.0, block)
    q = _spared(found, chains, draft_tokens, epsilon)
    rows = two if greedy.any_may_be else alone
    walked = ops.verify_chain(
        short(draft_tokens, shard.vocab), rows(found.p), None if q is None else chains.for_walk(requests, rows(q)),
        method="rejection", space="probs", temperature=greedy.temperature(),
        draft_prob=chains.slot_numbers(requests, draft_prob), epsilon=requests.of_requests(epsilon),
        request_index=requests.index, cu_drafts=chains.cu_drafts, max_drafts=chains.max_drafts,
        **requests.noise_of_requests(),
    )  # fmt: skip
    return _verdict(chains, requests, shard, law, draft_law, found, walked, greedy, draft_prob)


def _spared(found, chains, draft_tokens, epsilon):
    """q of the walk. Over-acceptance spares no token that filters drop or edits forbid, so it has none there."""
    plain = inputs.real(epsilon) == 0
    some = [found.target.keeps()] if found.target.kept is not None else []
    if found.target.side.edits is not None:
        some.append(found.target.logits > -torch.inf)
    if plain or not some:
        return found.q
    q = torch.ones(draft_tokens.shape, device=found.p.device) if found.q is None else found.q
    return torch.where(chains.at_drafts(both(*some).view(chains.request.shape)), q, 0.0)


def _verdict(chains, requests, shard, law, draft_law, found, walked, greedy, draft_prob, block=None):
    """The verdict of a walk: with its last tokens, from what is left or, where nothing was tried, from the row."""
    width, ragged, draft = walked.tokens.shape[-1], chains.cu_drafts is not None, found.draft
    ends = ops.chain_ends(
        chains.draft_tokens, walked.num_accepted, walked.status, vocab=shard.vocab, met=found.met,
        known=found.target.known, draft_met=found.q_met, draft_known=None if draft is None else draft.known,
        draft_places=None if draft is None else draft.side.places, read=None if block is None else block.read(width),
        winners=found.winners, temperature=greedy.temperature(), draft_prob=chains.slot_numbers(requests, draft_prob),
        request_index=requests.index, cu_drafts=chains.cu_drafts, max_drafts=width - 1 if ragged else None,
    )  # fmt: skip
    numbers = requests.noise_of_requests()
    numbers["position"] = ends.slot + numbers["position"]
    drawn = last_tokens(shard, found.target, draft, Last(
        ends.row, ends.draft_row, ends.taken if block is None else block.taken_at(ends.slot), ends.tried.unsqueeze(-1),
        requests.of_requests(law.temperature), requests.of_requests(draft_law.temperature), numbers, ends.laws,
    ))  # fmt: skip
    place = ends.slot.unsqueeze(-1)
    token, status = drawn()
    token = token.unsqueeze(-1)
    if both(requests.those_live, chains.sound, greedy.others()) is not None:
        races = ends.row >= 0
        token = torch.where(races.unsqueeze(-1), token, ends.tokens.gather(1, place))
        status = only(races, status, 0)
    return Verdict(ends.tokens.scatter_(1, place, token), walked.num_accepted, ends.status | status)


def _first_round(chains, requests, shard, draft_tokens, target, edits, draft, law, draft_law, greedy):
    """One pass over the slice, one gather: normalisers, and p and q of every draft."""
    index = requests.row_index()
    sides = [Side(target, requests.of_rows(law), index, None, chains.tokens.flatten(), edits)]
    if draft is not None:
        q_law = requests.of_draft_rows(chains, draft, draft_law)
        sides.append(Side(draft, q_law, None, requests.draft_places(chains, draft), draft_tokens.flatten()))
    also = [argmax_of(target, shard, greedy.row_index(), edits).packed()] if greedy.any_may_be else []
    laws, also = laws_of(shard, sides, *also)
    p = laws[0].probs.view(chains.request.shape)
    met, winners = laws[0].met.view(chains.request.shape), None
    if greedy.any_may_be:
        winners, argmax_met = (x.view(chains.request.shape) for x in race_finish(also[0]))
        met = torch.where(greedy.of_rows(), met & ~Status.NON_FINITE | argmax_met, met)
        p = torch.where(greedy.of_rows(), (winners == chains.tokens).float(), p)
    if draft is None:
        return Found(laws[0], p, met, winners)
    q_met = sides[1].at(laws[1].met)
    return Found(laws[0], p, met, winners, laws[1], laws[1].probs.view(draft_tokens.shape), q_met)


def _leaf_coins(requests, step):
    """float32 [B, slots]: by which the draft before each slot is accepted as the last; the first slot needs none."""
    noise = requests.noise_of_requests()
    seed, position, nonce = (x.unsqueeze(-1) if isinstance(x, torch.Tensor) else x for x in noise.values())
    coins = ops.coin(seed, position=position + step - 1, nonce=nonce, stream=ACCEPT_STREAM, index=LEAF_COINS + step - 1)
    return torch.where(step > 0, coins, 0.0)


class Block:
    """The weights of a chain's drafts, and the sums that its walk asks for, on rows of five tokens.

    0 is the draft, 1 stands for all others at temperature 0, and the last three weigh together, in whole numbers, what
    all others weigh in (p - T q)^+.
    """

    def __init__(self, chains, requests, shard, draft_tokens, found, greedy):
        self.chains, self.certain = chains, found.draft is None
        slots = int(chains.slots.max()) if len(chains.slots) else 0
        step = torch.arange(slots, device=found.p.device)
        own = chains.first.unsqueeze(-1) + step

        def by_slot(of_rows):
            return of_rows.flatten()[own.clamp(max=max(of_rows.numel() - 1, 0))]

        drafts = by_slot(chains.tokens)
        alive = both(chains.sound, requests.live(), greedy.others())
        drafted = ((drafts != -1) & (step < chains.slots.unsqueeze(-1)) & alive.unsqueeze(-1)).cumprod(-1).bool()
        inside = drafted & (drafts >= 0) & (drafts < shard.vocab)
        p = torch.where(inside, by_slot(found.p), 0.0)
        q = torch.ones_like(p) if self.certain else torch.where(inside, by_slot(chains.at_rows(found.q, 0.0)), 0.0)
        weights = [torch.ones_like(p[:, 0])] if slots else []
        for j in range(slots - 1):
            weights.append(child_weight(weights[-1], p[:, j], q[:, j]) * inside[:, j])
        weight = torch.stack(weights, dim=1) if slots else p
        # The sums of a draft's own rows are due if its coin is below the weight before. The walk reads these rows for
        # the draft behind it, too, if that is one of the vocabulary.
        reached = drafted & (weight >= SMALLEST)
        due = reached & (_leaf_coins(requests, step) < weight) & (not self.certain)
        self.visited = reached & inside | due
        self.taken = torch.where(reached, taken_after(0.0, 1.0, weight), 1.0)

        self.p = torch.zeros(*found.p.shape, 5, device=p.device)
        self.p[..., 0] = found.p
        self.p[..., 1] = (found.p == 0) & greedy.of_rows()
        self.q = None if self.certain else torch.zeros(*found.q.shape, 5, device=p.device)
        if self.certain:
            return
        self.q[..., 0] = found.q
        some = (due & (weight < 1)).nonzero()
        request, j = some.unbind(-1)
        taken, places = self.taken[request, j], own[request, j]
        draft_of = torch.arange(draft_tokens.numel(), device=p.device).view(draft_tokens.shape)
        q_places = found.draft.side.every_place()[by_slot(chains.at_rows(draft_of, 0))[request, j]]
        left = left_in_slices(shard, found.target, found.draft, places, q_places, taken)[:, 0]
        others = left - units_of(residual_weight(p[request, j], taken * q[request, j]))
        high = others >> 20
        parts = [(high >> 1).float() * 2.0**-22, (high - (high >> 1)).float() * 2.0**-22]
        parts.append((others & 0xFFFFF).float() * 2.0**-42)
        self.p.view(-1, 5)[places, 2:] = torch.stack(parts, dim=-1)
        self.p.view(-1, 5)[places, 0] = p[request, j]

    def walked(self, requests, shard, draft_tokens, greedy):
        chains = self.chains
        return ops.verify_chain(
            short(draft_tokens, shard.vocab), self.p, None if self.certain else chains.for_walk(requests, self.q),
            method="block", space="probs", temperature=greedy.temperature(), request_index=requests.index,
            cu_drafts=chains.cu_drafts, max_drafts=chains.max_drafts, **requests.noise_of_requests(),
        )  # fmt: skip

    def read(self, width):
        """bool [B, width]: whose rows decided the output, beside those of the last token."""
        return torch.nn.functional.pad(self.visited, (0, max(width - self.visited.shape[1], 0)))[:, :width].contiguous()

    def taken_at(self, slot):
        """The multiple of q that is taken from p after a slot's draft was refused."""
        taken = torch.nn.functional.pad(self.taken, (0, 1), value=1.0)
        return taken.gather(1, slot.clamp(max=taken.shape[1] - 1).unsqueeze(-1)).squeeze(-1)
