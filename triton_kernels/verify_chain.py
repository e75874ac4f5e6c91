"""Verification of chains: one launch for the race, two for rejection, three for block.

The first, stage ``scan``, goes over rows: it races them where the winner alone decides (method race, temperature 0),
else it learns what probabilities need of them. A program takes its rows in order, and the last program of a row tells
the others if the walk ends there, so that rows behind it are not read. The second, ``emit``, walks all slots at once
and draws a token from the one row where that is needed. Where nothing has to be learned the second is enough. In block
a launch between them, ``walk``, decides how many drafts are accepted; all rows are learned for it.

int32 counters, zero before and after a call. Of row r, from 4 r: the best key (two words), programs done, status. Of
request b, from 4 rows + 8 b: the best key, programs done, status, where the walk ends (block: how many are accepted),
and what block takes off the law after them: T of walk.h as the bits of a float, whether it is anything.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch, _verdict
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._filters import Filter, filter_of
from specdec_kernels.triton_kernels._kept import begin_kept, finish_kept
from specdec_kernels.triton_kernels._laws import CUT, Known, Law, epsilon_at, known_at, probabilities, unlike
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NO_TOKEN,
    NOBODY,
    NON_FINITE,
    PARAMETER,
    STREAM_RACE,
    TOKEN_RANGE,
    accept_coin,
    accepts,
    any_of,
    draft_prob_of,
    epsilon_of,
    inverse_temperature,
    key_of,
    key_token,
    later,
)
from specdec_kernels.triton_kernels._races import draw_part, drawn, race_tiles
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Rows,
    bounds_of,
    clear,
    divisor,
    entered,
    entry_of,
    is_last,
    key_at,
    learn_pair,
    mass_items_of,
    noise_at,
    number,
    probability_at,
    row_at,
    row_of,
    share_of,
    value_at,
)
from specdec_kernels.triton_kernels._traversal import KEPT, MORE_WARPS, traverse
from specdec_kernels.triton_kernels._verdict import (
    ADDED,
    VerdictWriter,
    clear_nodes,
    clear_places,
    put_count,
    put_node,
    put_token,
)

CHUNK = tl.constexpr(32)  # slots handled at once
# Of a request's record: where the walk ends, and what block has to say of that place.
END, SUBTRACTED, TRIED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


class Chain(NamedTuple):
    """Where the draft tokens of a request are, how many, and their shares; and which request that is, for its edits.

    ``first_row`` and ``first_draft`` count the target's rows and draft tokens before its own where they are packed.
    ``given`` is the token after slot ``given_at``, which has no row then, and ``bad_given`` its status. All are None if
    no tokens are given.
    """

    slots: tl.tensor
    tokens: tl.tensor
    tokens_slot: tl.tensor
    share_at: tl.tensor
    share_slot: tl.tensor
    request: tl.tensor
    entry: tl.tensor
    live: tl.tensor
    first_row: tl.tensor
    first_draft: tl.tensor
    given_at: tl.tensor
    given: tl.tensor
    bad_given: tl.tensor


@triton.jit
def from_end(slot):
    """Its own inverse: counts slots down, so that the first slot is a maximum, and 0 is beyond all."""
    return -slot + NO_TOKEN


@triton.jit
def token_at(chain, slot):
    """The draft token of a slot or a block of slots; -1 behind the last."""
    return tl.load(chain.tokens + slot * chain.tokens_slot, mask=slot < chain.slots, other=-1).to(tl.int64)


@triton.jit
def place_of(chain, edits, slot, columns):
    """(the ``Place`` of a slot's row, the status of its bias)."""
    row, there = chain.first_row + slot, chain.live
    if chain.given_at is not None:
        there = there & (slot != chain.given_at)
    return place_at(edits, chain.entry, 0, chain.request, row, slot, chain.first_draft, there, columns)


@triton.jit
def given_to(b, bonus, bonus_request, cu_drafts, slots, readable, vocab):
    """(the slot that has a token in the place of a row, that token, its status). A token out of range is token 0.

    The slot is that behind all drafts of a request. One that is cut off before has a row there.
    """
    whole = readable
    if cu_drafts is not None:
        whole = readable & (tl.load(cu_drafts + b + 1) - tl.load(cu_drafts + b) == slots)
    token = tl.load(bonus + b * bonus_request).to(tl.int64)
    good = (token >= 0) & (token < vocab)
    return tl.where(whole, slots, NO_TOKEN), tl.where(good, token, 0), tl.where(good, 0, PARAMETER)


@triton.jit
def rows_of(chain):
    """How many rows of the target a request has, as far as its slots go."""
    if chain.given_at is None:
        return chain.slots + 1
    else:
        return chain.slots + tl.where(chain.given_at == chain.slots, 0, 1)


@triton.jit
def share_at(chain, draft_prob, draft_prob_value, slot):
    """(h of the draft's law at a slot or a block of slots, status)."""
    if draft_prob is None:
        return draft_prob_of(tl.where(slot >= 0, draft_prob_value, 1.0))
    else:
        at = draft_prob + chain.share_at + slot * chain.share_slot
        return draft_prob_of(tl.load(at, mask=slot < chain.slots, other=1.0))


@triton.jit
def slot_accepts(
    slot, token, in_range, target, target_law, draft, draft_law, draft_map, p_known, q_known, h, epsilon, noise
):  # fmt: skip
    """(accepted, a bad probability met) at a slot or a block of slots, whose rows ``target`` and ``draft`` are."""
    x = value_at(target, token, in_range, target_law)
    p, bad = tl.where(in_range, probabilities(x, token, target_law, p_known), 0.0), in_range & unlike(x, target_law)
    epsilon = epsilon_at(epsilon, x, in_range, target_law)
    q = 1.0
    if draft is not None:
        q, bad_draft = probability_at(draft, token, in_range, draft_law, q_known, draft_map)
        bad |= bad_draft
    return in_range & accepts(accept_coin(later(noise, slot), slot), p, h * q, epsilon), bad


@triton.jit
def race_slot(target, law, noise, slot, token, alone, record, request, split, splits, TILE: tl.constexpr):
    """A program's part of the race of a row; the last one says whether the walk ends there.

    Unless the row is all that programs of it have: then nobody asks.
    """
    first, last = share_of(tl.cdiv(target.columns, TILE), split, splits)
    best, bad = race_tiles(
        target, law, first, last, key_at(record), later(noise, slot), None, None, STREAM_RACE, TILE
    )  # fmt: skip
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if alone == 0:  # noqa: SIM102  `and` would take a ticket
        if is_last(record + DONE, splits):  # noqa: SIM102  `and` would load early
            if key_token(tl.load(key_at(record), cache_modifier=".cg")) != token:
                tl.atomic_max(request + END, from_end(slot), sem="relaxed")


@triton.jit
def learn_slot(
    target, target_law, draft, draft_law, draft_map, h, epsilon, noise, slot, token, record, request, own, items, split,
    splits, DECIDES: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program's part of what is to be learned of a slot's rows.

    The last one says whether the walk ends there, if a slot DECIDES for itself.
    """
    last, p_known, q_known = learn_pair(
        target, target_law, None, draft, draft_law, draft_map, record, items, own, split, splits, TILE, TILES
    )
    if DECIDES and last:
        in_range = (token >= 0) & (token < target.columns)
        accepted, _ = slot_accepts(
            slot, token, in_range, target, target_law, draft, draft_law, draft_map, p_known, q_known, h, epsilon, noise
        )
        if accepted == 0:
            tl.atomic_max(request + END, from_end(slot), sem="relaxed")


@triton.jit
def finish_race(chain, readable, flags, vocab, records, figures, request, verdict, width):
    """The verdict of a request whose rows were all raced, and its counters back to zero.

    Or whose rows' argmax was found together with their cuts: then it is in ``figures``, else None.
    """
    n = chain.slots
    for base in range(0, width, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        held = slot <= tl.where(readable, chain.slots, -1)
        record = records + 4 * slot
        if figures is None:
            keys = tl.load(key_at(record), mask=held, other=NOBODY, cache_modifier=".cg")
        else:
            top = tl.load(figures + 4 * slot, mask=held, other=0.0, cache_modifier=".cg").to(tl.int32, bitcast=True)
            keys = key_of(tl.where(top >= 0, 0.0, -INFINITY), top)
        row_status = tl.load(record + FLAGS, mask=held, other=0, cache_modifier=".cg")
        token, winner, unknown = token_at(chain, slot), key_token(keys), keys == NOBODY
        if chain.given_at is not None:
            winner, unknown = tl.where(slot == chain.given_at, chain.given, winner), unknown & (slot != chain.given_at)
        bad = (row_status & NON_FINITE != 0) | unknown
        n = tl.minimum(n, tl.min(tl.where(held & (winner != token), slot, NO_TOKEN), axis=0))
        reached = held & (slot <= n)
        flags |= any_of(reached & bad) * NON_FINITE | any_of(reached & (row_status & PARAMETER != 0)) * PARAMETER
        flags |= any_of(reached & ((token < -1) | (token >= vocab))) * TOKEN_RANGE
        there, behind = (slot < width) & (slot <= n), (slot < width) & (slot > n)
        put_token(verdict, slot, slot, winner, there)
        flags |= tl.max(put_node(verdict, slot, slot, there), axis=0)
        clear_places(verdict, slot, behind)
        clear_nodes(verdict, slot, behind)
    if chain.given_at is not None:
        flags |= tl.where(n == chain.given_at, chain.bad_given, 0)
    clear(records, tl.where(readable, 4 * (chain.slots + 1), 0))
    put_count(verdict, n)
    tl.store(verdict.status, flags)
    for word in tl.static_range(2, 5):
        tl.store(request + word, 0)


@triton.jit
def walk(
    chain, edits, target, target_law, draft, draft_law, draft_map, draft_prob, draft_prob_value, epsilon, noise,
    records, figures, MET: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """(accepted drafts n, the token refused at slot n or -1, h there, status) from what is known of all slots.

    Slots whose rows are edited are looked at one by one, for each row has lists of its own.
    """
    SLOTS: tl.constexpr = CHUNK if edits.by_row is None else 1
    n = chain.slots
    refused = tl.full([], -1, tl.int64)
    share = 1.0
    flags = 0
    base = chain.slots * 0
    while base < tl.minimum(chain.slots, n + 1):
        slot = base + tl.arange(0, SLOTS)
        here = slot < chain.slots
        token = token_at(chain, slot)
        in_range = (token >= 0) & (token < target.columns)
        own = figures + 4 * slot
        h = tl.full([SLOTS], 1.0, tl.float32)
        bad_h = tl.zeros([SLOTS], tl.int32)
        drafted, q_known = None, None
        place, bad_bias = place_of(chain, edits, base, target.columns)
        flags |= bad_bias
        p_law = Law(target_law.inverse, None, target_law.cuts, target_law.row + slot, *place, *edits)
        q_law = draft_law
        if draft is not None:
            h, bad_h = share_at(chain, draft_prob, draft_prob_value, slot)
            drafted, q_known = row_of(draft, slot, ALIGNED), known_at(own + 2, draft_law, here)
            q_law = Law(draft_law.inverse, draft_law.greedy, draft_law.cuts, draft_law.row + slot)
        accepted, bad = slot_accepts(
            slot, token, in_range, row_of(target, slot, ALIGNED), p_law, drafted, q_law, draft_map,
            known_at(own, target_law, here), q_known, h, epsilon, noise,
        )  # fmt: skip
        n = tl.minimum(n, tl.min(tl.where(here & (accepted == 0), slot, NO_TOKEN), axis=0))
        reached = here & (slot <= n)
        if MET:  # what an earlier launch met, where a draft or its law was used
            row_status = tl.load(records + 4 * slot + FLAGS, mask=here, other=0) != 0
            bad |= row_status & ((token != -1) | (h < 1.0))
        flags |= any_of(reached & bad) * NON_FINITE
        flags |= any_of(reached & (token != -1) & (in_range == 0)) * TOKEN_RANGE
        flags |= tl.max(tl.where(reached, bad_h, 0), axis=0)
        refused += tl.sum(tl.where(here & (slot == n), token + 1, 0), axis=0)
        share += tl.sum(tl.where(here & (slot == n), h - 1.0, 0.0), axis=0)
        base += SLOTS
    return n, refused, share, flags


@triton.jit
def count_passing(
    chain, readable, n, target, target_law, draft, draft_law, draft_map, noise, passed, form, ALIGNED: tl.constexpr
):
    """Writes how many drafts pass their own test: n, and those behind the refused one, before the first -1."""
    end = chain.slots
    for base in range(0, chain.slots, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        ends = (slot >= n) & (slot < end) & (token_at(chain, slot) == -1)
        end = tl.minimum(end, tl.min(tl.where(ends, slot, NO_TOKEN), axis=0))
    count = tl.maximum(n, 0)
    for base in range(0, end, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        token = token_at(chain, slot)
        there = readable & (slot > n) & (slot < end) & (token >= 0) & (token < draft.columns)
        p, _ = probability_at(row_of(target, slot, ALIGNED), token, there, target_law, Known(0.0, 0.0), None)
        q, _ = probability_at(row_of(draft, slot, ALIGNED), token, there, draft_law, Known(0.0, 0.0), draft_map)
        passes = there & accepts(accept_coin(later(noise, slot), slot), p, q, 0.0)
        count += tl.sum(passes.to(tl.int32), axis=0)
    before = tl.load(passed, mask=form & ADDED != 0, other=0)
    tl.store(passed, before + count)


@triton.jit
def finish_draw(chain, readable, n, last_token, flags, records, request, verdict, width):
    """The verdict of a request whose last token was drawn, or given, and its counters back to zero."""
    if chain.given_at is not None:
        last_token = tl.where(n == chain.given_at, chain.given, last_token)
        flags |= tl.where(n == chain.given_at, chain.bad_given, 0)
    for base in range(0, width, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        there, behind = (slot < width) & (slot <= n), (slot < width) & (slot > n)
        put_token(verdict, slot, slot, tl.where(slot == n, last_token, token_at(chain, slot)), there)
        flags |= tl.max(put_node(verdict, slot, slot, there), axis=0)
        clear_places(verdict, slot, behind)
        clear_nodes(verdict, slot, behind)
    clear(records, tl.where(readable, 4 * (chain.slots + 1), 0))
    put_count(verdict, n)
    tl.store(verdict.status, flags)
    for word in tl.static_range(2, 7):
        tl.store(request + word, 0)


@_launch.kernel
def verify_chain_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_slot: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    cu_drafts, tokens_by_row: tl.int32, draft_map, request_index, entries: tl.int64, total_drafts: tl.int64,
    max_drafts: tl.int32,
    rows: tl.int64, vocab: tl.int32, draft_vocab: tl.int32,
    target_temperature, target_temperature_request: tl.int64, target_temperature_value: tl.float32,
    draft_temperature, draft_temperature_request: tl.int64, draft_temperature_value: tl.float32,
    draft_prob, draft_prob_request: tl.int64, draft_prob_slot: tl.int64, draft_prob_value: tl.float32,
    epsilon, epsilon_request: tl.int64, epsilon_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    input_positions, input_request: tl.int64, input_row: tl.int64, input_nonces, input_nonce: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, bonus, bonus_request: tl.int64, num_accepted,
    num_passed, status, form: tl.int32, counters, figures, items, kept, target_cuts, draft_cuts, edits,
    STAGE: tl.constexpr, METHOD: tl.constexpr, TARGET: tl.constexpr, DRAFT: tl.constexpr, OWN_LAW: tl.constexpr,
    LEARNS: tl.constexpr, SCANS: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    entry, live, idle = entry_of(b, request_index, entries)
    readable, slots, draft_at, row, flags, first_token = bounds_of(
        b, cu_drafts, total_drafts, max_drafts, tokens_by_row
    )
    RAGGED: tl.constexpr = cu_drafts is not None
    if request_index is not None:
        readable = readable & live
        slots = tl.where(live, slots, tl.where(idle, -1, 0))
        flags |= tl.where(live, 0, PARAMETER)
    noise = noise_at(
        seed, seed_value, entry * seed_request, position, position_value, entry * position_request, nonce, nonce_value,
        entry * nonce_request, live,
    )  # fmt: skip
    noise = entered(
        noise, input_positions, row * input_row if RAGGED else b * input_request, readable & live, input_nonces,
        b * input_nonce,
    )  # fmt: skip
    inverse, greedy, bad_temperature = inverse_temperature(
        divisor(target_temperature, target_temperature_value, entry * target_temperature_request, live)
    )
    share, bad_epsilon = epsilon_of(number(epsilon, epsilon_value, entry * epsilon_request, live))
    flags |= bad_temperature | bad_epsilon
    draft_inverse, draft_greedy = inverse, None
    if OWN_LAW:
        draft_inverse, draft_greedy, bad_temperature = inverse_temperature(
            divisor(draft_temperature, draft_temperature_value, entry * draft_temperature_request, live)
        )
        flags |= bad_temperature
    if request_index is not None:
        flags = tl.where(idle, 0, flags)
    target_first = row if bonus is None else row - b  # `row` is where its records are, which have room for one more
    given = None, None, None
    if bonus is not None:
        given = given_to(b, bonus, bonus_request, cu_drafts, slots, readable, vocab)
    chain = Chain(
        slots, draft_tokens + (first_token * draft_tokens_slot if RAGGED else b * draft_tokens_request),
        draft_tokens_slot,
        entry * draft_prob_request + (draft_at * draft_prob_slot if RAGGED else 0), draft_prob_slot, b,
        entry, live, target_first if RAGGED else 0, first_token if RAGGED else 0, *given,
    )  # fmt: skip
    target_law = Law(inverse if TARGET == "logits" else None, None, target_cuts, row)
    target_rows = Rows(
        row_at(target, target_first * target_row if RAGGED else b * target_request, ALIGNED), target_row, vocab
    )  # fmt: skip
    draft_law, draft_rows = None, None
    if draft is not None:
        PACKED: tl.constexpr = RAGGED and request_index is None
        draft_law = Law(draft_inverse if DRAFT == "logits" else None, draft_greedy, draft_cuts, row)
        draft_rows = Rows(
            row_at(draft, draft_at * draft_row if PACKED else entry * draft_request, ALIGNED), draft_row, draft_vocab
        )  # fmt: skip
    records, request = counters + 4 * row, counters + 4 * rows + 8 * b
    figures += 4 * row
    FILTERED: tl.constexpr = target_cuts is not None or draft_cuts is not None
    if FILTERED:
        asks = tl.full([], 1, tl.int1)
        if STAGE == "emit":  # one program answers for a request at temperature 0, and sets this back
            asks = (greedy == 0) | (tl.program_id(1) == 0)
        flags |= tl.load(request + FLAGS, mask=asks, other=0) & PARAMETER
    verdict = VerdictWriter(
        tokens + (b * tokens_request if index is None else 0), tokens_slot,
        None if path is None else path + b * path_request, None if index is None else index + b * index_request,
        index_node, flat, num_accepted + b, status + b, form,
    )  # fmt: skip

    if STAGE == "scan":
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        split, splits = tl.program_id(2), tl.num_programs(2)
        if METHOD == "race":
            racing = b >= 0
        else:
            racing = greedy
        slot = chunk
        rows_read = tl.where(racing, rows_of(chain), slots if LEARNS else 0)
        walking = readable & (slot < rows_read)
        while walking:
            record = records + 4 * slot
            token = token_at(chain, slot)
            target_slot = row_of(target_rows, slot, ALIGNED)
            place, bad_bias = place_of(chain, edits, slot, vocab)
            if racing:
                if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                    if bad_bias != 0:
                        tl.atomic_or(record + FLAGS, bad_bias, sem="relaxed")
                race_slot(
                    target_slot, Law(target_law.inverse, greedy, target_cuts, row + slot, *place, *edits), noise, slot,
                    token, chunks > max_drafts, record, request, split, splits, TILE,
                )  # fmt: skip
            elif LEARNS:
                h, draft_slot, q_law = 1.0, None, None
                if draft is not None:
                    h, _ = share_at(chain, draft_prob, draft_prob_value, slot)
                    draft_slot = row_of(draft_rows, slot, ALIGNED)
                    q_law = Law(draft_law.inverse, draft_law.greedy, draft_cuts, row + slot)
                walking = (token != -1) | (h < 1.0)
                if walking:
                    learn_slot(
                        target_slot, Law(target_law.inverse, None, target_cuts, row + slot, *place, *edits), draft_slot,
                        q_law, draft_map, h, share, noise, slot, token, record, request, figures + 4 * slot,
                        items + 2 * mass_items_of(vocab) * (row + slot), split, splits, METHOD == "rejection", TILE,
                        TILES,
                    )  # fmt: skip
                walking = walking & (token != -1)
            slot += chunks
            walking = walking & (slot < rows_read)
            if walking:
                walking = slot <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
        if racing:  # noqa: SIM102  `and` would take a ticket
            if is_last(request + DONE, splits * chunks):
                flags |= request_status(edits, entry, 0, live, vocab)
                finish_race(chain, readable, flags, vocab, records, None, request, verdict, max_drafts + 1)
    elif STAGE == "walk":
        if greedy:
            return
        tree = (None, 0, chain.tokens - chain.tokens_slot, chain.tokens_slot)
        n, _, subtracted, tried, reported = traverse(
            tree, tl.where(readable, slots + 1, 0), slots, target_rows, target_law, draft_rows, draft_law, draft_map,
            edits, entry, b, chain.first_row, chain.first_draft, records, figures, kept + KEPT * row, noise, 4, False,
            ALIGNED, TILE, chain.given_at,
        )  # fmt: skip
        tl.store(request + END, n)
        tl.store(request + SUBTRACTED, subtracted.to(tl.int32, bitcast=True))
        tl.store(request + TRIED, tried.to(tl.int32))
        tl.store(verdict.status, reported)
    else:
        split, splits = tl.program_id(1), tl.num_programs(1)
        if greedy == 0:
            if METHOD == "block":
                n, reported = tl.minimum(tl.load(request + END), slots), tl.load(verdict.status)
                h = tl.load(request + SUBTRACTED).to(tl.float32, bitcast=True)
                from_residual = tl.load(request + TRIED) != 0
                refused = tl.where(from_residual, token_at(chain, n), -1)
            else:
                n, refused, h, reported = walk(
                    chain, edits, target_rows, target_law, draft_rows, draft_law, draft_map, draft_prob,
                    draft_prob_value, share, noise, records, figures, LEARNS or FILTERED, ALIGNED,
                )  # fmt: skip
                from_residual = (refused != -1) | (h < 1.0)
            draft_n, q_law, excluded = None, None, None
            if draft is None:
                excluded = tl.where(refused < vocab, refused, -1)
            else:
                draft_n = row_of(draft_rows, n, ALIGNED)
                q_law = Law(draft_law.inverse, draft_law.greedy, draft_cuts, row + n)
            place, bad_bias = place_of(chain, edits, n, vocab)
            p_law = Law(target_law.inverse, None, target_cuts, row + n, *place, *edits)
            if FILTERED:
                reported |= tl.load(records + 4 * n + FLAGS, mask=readable, other=0) & NON_FINITE
            target_n = row_of(target_rows, n, ALIGNED)
            first_noise, noise, draws = noise, later(noise, n), readable
            if bonus is not None:
                draws = readable & (n != chain.given_at)
            if draw_part(
                target_n, p_law, draft_n, q_law, draft_map, h, from_residual, draws, excluded, None,
                figures + 4 * n, request, noise, split, splits, TILE,
            ):  # fmt: skip
                token, drawn_flags = drawn(target_n, p_law, draft_n, q_law, from_residual, draws, request, noise, TILE)
                reported |= bad_bias | request_status(edits, entry, 0, live, vocab)
                flags |= reported | drawn_flags
                if num_passed is not None:
                    count_passing(
                        chain, readable, n, target_rows, target_law, draft_rows, draft_law, draft_map, first_noise,
                        num_passed + b, form, ALIGNED,
                    )  # fmt: skip
                finish_draw(chain, readable, n, token, flags, records, request, verdict, max_drafts + 1)
        elif not SCANS:  # noqa: SIM102  the launch for cuts has found each argmax
            if split == 0:
                flags |= request_status(edits, entry, 0, live, vocab)
                finish_race(chain, readable, flags, vocab, records, figures, request, verdict, max_drafts + 1)


verify_chain_kernel.most_registers = _edits.most_registers


@_launch.kernel
def filtered_chain_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_slot: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64,
    cu_drafts, tokens_by_row: tl.int32, request_index, entries: tl.int64, total_drafts: tl.int64, max_drafts: tl.int32,
    rows: tl.int64, vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    top_k, top_k_request: tl.int64, top_k_value: tl.int64, top_p, top_p_request: tl.int64, top_p_value: tl.float32,
    min_p, min_p_request: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    epsilon, epsilon_request: tl.int64, epsilon_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    input_positions, input_request: tl.int64, input_row: tl.int64, input_nonces, input_nonce: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, bonus, bonus_request: tl.int64, num_accepted,
    status, form: tl.int32, counters, cuts, scratch, scratch_row: tl.int64, edits,
    ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Races of rows with filters. The programs of a group go from row to row together only if there is one of them:
    the group has memory for one row."""
    b = tl.program_id(0).to(tl.int64)
    entry, live, idle = entry_of(b, request_index, entries)
    readable, slots, _, first_row, flags, first_token = bounds_of(b, cu_drafts, total_drafts, max_drafts, tokens_by_row)
    RAGGED: tl.constexpr = cu_drafts is not None
    if request_index is not None:
        readable = readable & live
        slots = tl.where(live, slots, tl.where(idle, -1, 0))
        flags |= tl.where(live, 0, PARAMETER)
    noise = noise_at(
        seed, seed_value, entry * seed_request, position, position_value, entry * position_request, nonce, nonce_value,
        entry * nonce_request, live,
    )  # fmt: skip
    noise = entered(
        noise, input_positions, first_row * input_row if RAGGED else b * input_request, readable & live, input_nonces,
        b * input_nonce,
    )  # fmt: skip
    inverse, greedy, bad_temperature = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_request, live)
    )
    k, share, log_min_p, bad_filter = filter_of(
        number(top_k, top_k_value, entry * top_k_request, live),
        number(top_p, top_p_value, entry * top_p_request, live),
        number(min_p, min_p_value, entry * min_p_request, live), vocab, greedy,
    )  # fmt: skip
    filter = Filter(k, share, log_min_p)
    _, bad_epsilon = epsilon_of(number(epsilon, epsilon_value, entry * epsilon_request, live))
    flags |= bad_temperature | bad_epsilon | tl.where(live, bad_filter, 0)
    if request_index is not None:
        flags = tl.where(idle, 0, flags)
    target_first = first_row if bonus is None else first_row - b  # records have room for one row more
    given = None, None, None
    if bonus is not None:
        given = given_to(b, bonus, bonus_request, cu_drafts, slots, readable, vocab)
    chain = Chain(
        slots, draft_tokens + (first_token * draft_tokens_slot if RAGGED else b * draft_tokens_request),
        draft_tokens_slot,
        0, 0, b, entry, live, target_first if RAGGED else 0, first_token if RAGGED else 0, *given,
    )  # fmt: skip
    target_rows = Rows(
        row_at(target, target_first * target_row if RAGGED else b * target_request, ALIGNED), target_row, vocab
    )  # fmt: skip
    records, request = counters + 4 * first_row, counters + 4 * rows + 8 * b
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch += scratch_row * (b * chunks + chunk)
    slot = chunk
    walking = readable & (slot < rows_of(chain))
    while walking:
        record, row = records + 4 * slot, row_of(target_rows, slot, ALIGNED)
        place, bad_bias = place_of(chain, edits, slot, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + FLAGS, bad_bias, sem="relaxed")
        begin_kept(
            row, inverse, greedy, filter, rules, first_row + slot, place, edits, None, record, scratch,
            later(noise, slot), split, splits, CELL, TILE,
        )  # fmt: skip
        if is_last(record + DONE, splits):
            finish_kept(
                row, inverse, greedy, filter, rules, first_row + slot, place, edits, None, 0, record, scratch, cuts,
                later(noise, slot), CELL, TILE, TILES,
            )  # fmt: skip
            best = tl.atomic_max(key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            if key_token(best) != token_at(chain, slot):
                tl.atomic_max(request + END, from_end(slot), sem="relaxed")
        slot += chunks
        walking = slot < rows_of(chain)
        if walking:
            walking = slot <= from_end(tl.atomic_max(request + END, 0, sem="relaxed"))
    if is_last(request + DONE, splits * chunks):
        flags |= request_status(edits, entry, 0, live, vocab)
        verdict = VerdictWriter(
            tokens + (b * tokens_request if index is None else 0), tokens_slot,
            None if path is None else path + b * path_request, None if index is None else index + b * index_request,
            index_node, flat, num_accepted + b, status + b, form,
        )  # fmt: skip
        finish_race(chain, readable, flags, vocab, records, None, request, verdict, max_drafts + 1)


filtered_chain_kernel.most_registers = _cuts.most_registers


def packed_drafts(call, requests):
    """Drafts of all requests, where they are packed."""
    return call.draft_tokens.shape[0] - requests * call.tokens_by_row


def drafts_of(call, requests, ragged):
    """Arguments for drafts, positions of the tokens that enter rows, nonces of requests, and tokens that are given."""
    tokens, given, nonces, bonus = call.draft_tokens, call.input_positions, call.input_nonces, call.bonus
    return {
        "draft_tokens": tokens, "draft_tokens_request": 0 if ragged else tokens.stride(0),
        "draft_tokens_slot": tokens.stride(-1), "cu_drafts": call.cu_drafts, "tokens_by_row": int(call.tokens_by_row),
        "total_drafts": packed_drafts(call, requests),
        "input_positions": given, "input_request": 0 if given is None or given.ndim == 1 else given.stride(0),
        "input_row": 0 if given is None else given.stride(-1),
        "input_nonces": nonces, "input_nonce": 0 if nonces is None else nonces.stride(0),
        "bonus": bonus, "bonus_request": 0 if bonus is None else bonus.stride(0),
    }  # fmt: skip


def filtered_race(call, requests, width, rows):
    """All rows are raced under filters: one launch."""
    target, law, ragged = call.target, call.target_law, call.cu_drafts is not None
    vocab, device = target.shape[-1], target.device
    edits = _edits.arguments(call, call.draft_tokens, ragged=ragged)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    chunks = max(1, min(width, _cuts.groups_of(requests * width, device) // requests))
    splits = _launch.splits_of(requests * width, tiles, device) if chunks == width else 1
    words = _cuts.search_words_of(vocab)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(
            target, 4 * rows + 8 * requests, CUT.value * rows + words * requests * chunks
        )  # fmt: skip
        arguments = {
            **drafts_of(call, requests, ragged), "max_drafts": width - 1, "rows": rows, "vocab": vocab,
            "counters": counters, "cuts": scratch, "scratch": scratch[CUT.value * rows :], "scratch_row": words,
            "rules": law.rules, "ALIGNED": _launch.aligned(target), "CELL": _cuts.cell_of(tile, tiles), "TILE": tile,
            "TILES": _launch.power_of_2(tiles),
            **_launch.rows("target", target, ragged), **edits, **_verdict.arguments(call),
            **_launch.index(
                call.request_index, *_launch.numbers_of(law), call.epsilon, *call.noise, edit=call.edits
            ),
            **_launch.divisor("temperature", law, "request"),
            **_launch.filters(law, "request"), **_launch.number("epsilon", call.epsilon, "request"),
            **_launch.noise(call.noise, "request"),
        }  # fmt: skip
        _launch.launch(filtered_chain_kernel, (requests, chunks, splits), warps, arguments)


def verify_chain(call):
    """The verdict of each request, as ``specdec_kernels.verify_chain`` has it."""
    requests, width = _verdict.shape_of(call)
    if requests == 0:
        return
    target, ragged = call.target, call.cu_drafts is not None
    vocab = target.shape[-1]
    rows = packed_drafts(call, requests) + requests if ragged else requests * width
    edits = _edits.arguments(call, call.draft_tokens, ragged=ragged)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # Where all requests are greedy the race is the whole of rejection.
    race = call.method == "race" or _launch.is_greedy(call.target_law)
    if race and _launch.is_filtered(call.target_law) and _launch.TICKETS_ORDER_STORES:
        return filtered_race(call, requests, width, rows)
    block = call.method == "block" and not race
    draft, packed = None if race else call.draft, ragged and call.request_index is None
    own_law = call.draft is not None and call.draft.numel() > 0 and _launch.is_own(call.draft_law, call.target_law)
    scanned = _launch.scanned_sides(call, draft)
    learns = not race and _launch.learns(call, draft, own_law, scanned)
    words = _cuts.words_of(vocab, rows, target.device, scanned)
    # Requests at temperature 0 race, unless the launch that finds cuts does all that one would do before the last.
    scans = race or learns or (isinstance(call.target_law.temperature, torch.Tensor) and not scanned[0])
    index = _launch.index(
        call.request_index, None if packed else call.draft, *_launch.numbers_of(call.target_law),
        *_launch.numbers_of(call.draft_law), call.draft_prob, call.epsilon, *call.noise, edit=call.edits,
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        figures = (4 * (learns or words > 0) + _launch.mass_items_of(vocab) * learns) * rows
        kept = figures + words
        counters, scratch = _launch.workspace(target, 4 * rows + 8 * requests, kept + KEPT.value * rows * block)
        cuts = _cuts.NO_CUTS if not words else _cuts.launch_pair(
            call, draft, scanned, index, edits, scratch, counters, 4, counters[4 * rows + FLAGS.value :], (8, 0),
            scratch[figures:], requests, width,
        )  # fmt: skip
        arguments = {
            **drafts_of(call, requests, ragged), "max_drafts": width - 1, "rows": rows, "vocab": vocab,
            "draft_map": None if race else call.draft_map, "draft_vocab": vocab if draft is None else draft.shape[-1],
            "counters": counters, "figures": scratch, "items": scratch[4 * rows :] if learns else scratch,
            "kept": scratch[kept:] if block else None, "METHOD": "race" if race else call.method,
            "TARGET": call.target_law.space, "DRAFT": None if draft is None else call.draft_law.space,
            "OWN_LAW": own_law, "LEARNS": learns, "SCANS": scans, "ALIGNED": _launch.aligned(target, draft),
            "TILE": tile, "TILES": _launch.power_of_2(tiles), "num_passed": call.num_passed,
            **_launch.rows("target", target, ragged), **_launch.rows("draft", draft, packed),
            **index, **cuts, **edits, **_verdict.arguments(call),
            **_launch.divisor("target_temperature", call.target_law, "request"),
            **_launch.divisor("draft_temperature", call.draft_law if own_law else None, "request"),
            **_launch.number("draft_prob", call.draft_prob, "request", "slot"),
            **_launch.number("epsilon", call.epsilon, "request"), **_launch.noise(call.noise, "request"),
        }  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        if scans:
            chunks = _launch.chunks_of(requests, splits, width, target.device)
            _launch.launch(verify_chain_kernel, (requests, chunks, splits), warps, arguments | {"STAGE": "scan"})
        if block:
            _launch.launch(verify_chain_kernel, (requests,), MORE_WARPS * warps, arguments | {"STAGE": "walk"})
        if not race:
            _launch.launch(verify_chain_kernel, (requests, splits), warps, arguments | {"STAGE": "emit"})
