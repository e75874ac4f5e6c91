"""Verification of chains: one launch for the race, two for rejection.

The first launch, ``scan``, goes over rows: it races them where the winner alone decides (method race, temperature 0),
else it leaves their log-sum-exp. A program takes its rows in order, and the last program of a row tells the others if
the walk ends there, so that rows behind it are not read. The second, ``emit``, walks all slots at once and races over
the one row in which a token is drawn. From probabilities the second is enough.

int32 counters, zero before and after a call. Of row r, from 4 r: the best key (two words), programs done, status. Of
request b, from 4 rows + 8 b: the best key, programs done, where the walk ends, status.
"""

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import (
    EMPTY_RESIDUAL,
    NO_TOKEN,
    NOBODY,
    NON_FINITE,
    PARAMETER,
    STREAM_RACE,
    STREAM_RESIDUAL,
    TOKEN_RANGE,
    accept_coin,
    accepts,
    any_of,
    draft_prob_of,
    epsilon_of,
    inverse_temperature,
    key_token,
    later,
)
from specdec_kernels.triton_kernels._rows import (
    LOGITS,
    PROBS,
    finish_lse,
    is_last,
    key_at,
    laws_at,
    lse_tiles,
    noise_at,
    number,
    race_row,
    race_tiles,
    residual_tiles,
    row_at,
)

CHUNK = tl.constexpr(32)  # slots handled at once
DRAFTED = tl.constexpr(1 << 16)  # beside the public bits: some token of the draft row has weight


@triton.jit
def from_end(slot):
    """Its own inverse: counts slots down, so that the first slot is a maximum, and 0 is beyond all."""
    return -slot + NO_TOKEN


@triton.jit
def request_of(
    b, cu_drafts, total_drafts, max_drafts, draft_tokens_request, draft_tokens_slot, draft_prob_request,
    draft_prob_slot, target_request, target_row, draft_request, draft_row,
):  # fmt: skip
    """(readable, slots, row, offsets of draft token, draft_prob, target row and draft row of slot 0, status)."""
    if cu_drafts is None:
        return (
            b >= 0, max_drafts + 0, b * (max_drafts + 1), b * draft_tokens_request, b * draft_prob_request,
            b * target_request, b * draft_request, 0,
        )  # fmt: skip
    else:
        begin, end = tl.load(cu_drafts + b).to(tl.int64), tl.load(cu_drafts + b + 1).to(tl.int64)
        readable = (begin >= 0) & (end >= begin) & (end <= total_drafts)
        begin = tl.where(readable, begin, 0)
        drafts = tl.where(readable, end - begin, 0)
        return (
            readable, tl.minimum(drafts, max_drafts).to(tl.int32), begin + b, begin * draft_tokens_slot,
            begin * draft_prob_slot, (begin + b) * target_row, begin * draft_row,
            tl.where(readable & (drafts <= max_drafts), 0, PARAMETER),
        )  # fmt: skip


@triton.jit
def slot_accepts(
    slot, token, in_range, target, draft, p_top, p_log_sum, q_top, q_log_sum, h, epsilon, inverse, noise, draft_vocab,
    SPACE: tl.constexpr, HAS_DRAFT: tl.constexpr,
):  # fmt: skip
    """(accepted, a bad probability met) at a slot or a block of slots, whose rows ``target`` and ``draft`` point to."""
    p, q, bad = laws_at(
        token, in_range, target, draft, p_top, p_log_sum, q_top, q_log_sum, inverse, draft_vocab, SPACE, HAS_DRAFT
    )
    coin = accept_coin(later(noise, slot), slot)
    return in_range & accepts(coin, p, h * q, epsilon), bad


@triton.jit
def finish_race(
    slots, readable, flags, row, rows_done, draft_tokens, draft_tokens_slot, vocab, counters, tokens, num_accepted,
    status, width,
):  # fmt: skip
    """The verdict of a request whose rows were all raced, and its counters back to zero."""
    n = slots
    for base in range(0, width, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        held = slot <= tl.where(readable, slots, -1)
        records = counters + 4 * (row + slot)
        keys = tl.load(key_at(records), mask=held, other=NOBODY, cache_modifier=".cg")
        bad = (tl.load(records + 3, mask=held, other=0, cache_modifier=".cg") != 0) | (keys == NOBODY)
        token = tl.load(draft_tokens + slot * draft_tokens_slot, mask=slot < slots, other=-1).to(tl.int64)
        winner = key_token(keys)
        n = tl.minimum(n, tl.min(tl.where(held & (winner != token), slot, NO_TOKEN), axis=0))
        reached = held & (slot <= n)
        flags |= any_of(reached & bad) * NON_FINITE
        flags |= any_of(reached & ((token < -1) | (token >= vocab))) * TOKEN_RANGE
        tl.store(tokens + slot, tl.where(slot <= n, winner, -1).to(tl.int64), mask=slot < width)
        tl.debug_barrier()  # all warps have read
        tl.store(key_at(records), tl.zeros_like(keys), mask=held)
        tl.store(records + 2, tl.zeros_like(slot), mask=held)
        tl.store(records + 3, tl.zeros_like(slot), mask=held)
    tl.store(num_accepted, n)
    tl.store(status, flags)
    tl.store(rows_done, 0)
    tl.store(rows_done + 1, 0)


@_launch.kernel
def scan_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_slot: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    cu_drafts, total_drafts: tl.int64, max_drafts: tl.int32, rows: tl.int64, dense: tl.int32,
    vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    draft_prob, draft_prob_request: tl.int64, draft_prob_slot: tl.int64, draft_prob_value: tl.float32,
    epsilon, epsilon_request: tl.int64, epsilon_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, num_accepted, status, counters, figures, partials,
    METHOD: tl.constexpr, SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    readable, slots, row, token_at, prob_at, target_at, draft_at, flags = request_of(
        b, cu_drafts, total_drafts, max_drafts, draft_tokens_request, draft_tokens_slot, draft_prob_request,
        draft_prob_slot, target_request, target_row, draft_request, draft_row,
    )  # fmt: skip
    noise = noise_at(
        seed, seed_value, b * seed_request, position, position_value, b * position_request, nonce, nonce_value,
        b * nonce_request,
    )  # fmt: skip
    inverse, greedy, bad_temperature = inverse_temperature(
        number(temperature, temperature_value, b * temperature_request)
    )
    share, bad_epsilon = epsilon_of(number(epsilon, epsilon_value, b * epsilon_request))
    if METHOD == "race":
        racing = b >= 0
    else:
        racing = greedy
    HAS_DRAFT: tl.constexpr = draft is not None
    request = counters + 4 * rows + 8 * b
    tiles = tl.cdiv(vocab, TILE)
    first, last = split * tiles // splits, (split + 1) * tiles // splits

    slot = chunk
    rows_read = tl.where(racing, slots + 1, slots if SPACE == "logits" else 0)
    walking = readable & (slot < rows_read)
    while walking:
        record = counters + 4 * (row + slot)
        token = tl.load(draft_tokens + token_at + slot * draft_tokens_slot, mask=slot < slots, other=-1).to(tl.int64)
        if racing:
            best, bad = race_tiles(
                row_at(target, target_at + slot * target_row, ALIGNED), vocab, first, last,
                key_at(record), inverse, greedy, dense,
                later(noise, slot), None, None, STREAM_RACE, LOGITS if SPACE == "logits" else PROBS, TILE,
            )  # fmt: skip
            tl.atomic_max(key_at(record), best, sem="relaxed")
            if bad:
                tl.atomic_or(record + 3, 1, sem="relaxed")
            if is_last(record + 2, splits):  # noqa: SIM102  `and` would load early
                if key_token(tl.load(key_at(record), cache_modifier=".cg")) != token:
                    tl.atomic_max(request + 3, from_end(slot), sem="relaxed")
        elif METHOD == "rejection" and SPACE == "logits":
            h = 1.0
            if HAS_DRAFT:
                h = draft_prob_of(number(draft_prob, draft_prob_value, prob_at + slot * draft_prob_slot))[0]
            walking = (token != -1) | (h < 1.0)
            if walking:
                sums = partials + 4 * tiles * (row + slot)
                bad = lse_tiles(
                    row_at(target, target_at + slot * target_row, ALIGNED), vocab, first, last, inverse, sums, TILE
                )  # fmt: skip
                if HAS_DRAFT:
                    draft_tiles = tl.cdiv(draft_vocab, TILE)
                    bad |= lse_tiles(
                        row_at(draft, draft_at + slot * draft_row, ALIGNED), draft_vocab, split * draft_tiles // splits,
                        (split + 1) * draft_tiles // splits, inverse, sums + 2 * tiles, TILE,
                    )  # fmt: skip
                if bad:
                    tl.atomic_or(record + 3, 1, sem="relaxed")
                if is_last(record + 2, splits):
                    own = figures + 4 * (row + slot)
                    p_top, p_log_sum, weightless = finish_lse(sums, tiles, TILES)
                    q_top, q_log_sum = 0.0, 0.0
                    tl.store(own, p_top)
                    tl.store(own + 1, p_log_sum)
                    if HAS_DRAFT:
                        q_top, q_log_sum, draft_weightless = finish_lse(sums + 2 * tiles, draft_tiles, TILES)
                        tl.store(own + 2, q_top)
                        tl.store(own + 3, q_log_sum)
                        weightless |= draft_weightless
                    if weightless:
                        tl.atomic_or(record + 3, 1, sem="relaxed")
                    accepted = slot_accepts(
                        slot, token, (token >= 0) & (token < vocab),
                        row_at(target, target_at + slot * target_row, ALIGNED),
                        row_at(draft, draft_at + slot * draft_row, ALIGNED) if HAS_DRAFT else None,
                        p_top, p_log_sum, q_top, q_log_sum, h, share, inverse, noise, draft_vocab,
                        SPACE, HAS_DRAFT,
                    )[0]  # fmt: skip
                    if accepted == 0:
                        tl.atomic_max(request + 3, from_end(slot), sem="relaxed")
            walking = walking & (token != -1)
        slot += chunks
        walking = walking & (slot < rows_read)
        if walking:
            walking = slot <= from_end(tl.atomic_max(request + 3, 0, sem="relaxed"))

    if racing:  # noqa: SIM102  `and` would take a ticket
        if is_last(request + 2, splits * chunks):
            finish_race(
                slots, readable, flags | bad_temperature | bad_epsilon, row, request + 2, draft_tokens + token_at,
                draft_tokens_slot, vocab, counters, tokens + b * tokens_request, num_accepted + b, status + b,
                max_drafts + 1,
            )  # fmt: skip


@_launch.kernel
def emit_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_slot: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    cu_drafts, total_drafts: tl.int64, max_drafts: tl.int32, rows: tl.int64, dense: tl.int32,
    vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    draft_prob, draft_prob_request: tl.int64, draft_prob_slot: tl.int64, draft_prob_value: tl.float32,
    epsilon, epsilon_request: tl.int64, epsilon_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, num_accepted, status, counters, figures,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    inverse, greedy, flags = inverse_temperature(number(temperature, temperature_value, b * temperature_request))
    if greedy:  # the other launch did it all
        return
    readable, slots, row, token_at, prob_at, target_at, draft_at, bad_request = request_of(
        b, cu_drafts, total_drafts, max_drafts, draft_tokens_request, draft_tokens_slot, draft_prob_request,
        draft_prob_slot, target_request, target_row, draft_request, draft_row,
    )  # fmt: skip
    noise = noise_at(
        seed, seed_value, b * seed_request, position, position_value, b * position_request, nonce, nonce_value,
        b * nonce_request,
    )  # fmt: skip
    share, bad_epsilon = epsilon_of(number(epsilon, epsilon_value, b * epsilon_request))
    flags |= bad_request | bad_epsilon
    HAS_DRAFT: tl.constexpr = draft is not None
    KIND: tl.constexpr = LOGITS if SPACE == "logits" else PROBS
    draft_tokens += token_at

    n = slots
    refused = -1 + 0 * b  # the draft token at slot n, -1 for none
    share_n = 1.0
    for base in range(0, slots, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        here = slot < slots
        token = tl.load(draft_tokens + slot * draft_tokens_slot, mask=here, other=-1).to(tl.int64)
        in_range = (token >= 0) & (token < vocab)
        h = tl.full([CHUNK], 1.0, tl.float32)
        bad_h = tl.zeros([CHUNK], tl.int32)
        p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
        if HAS_DRAFT:
            if draft_prob is None:
                h, bad_h = draft_prob_of(h * draft_prob_value)
            else:
                h, bad_h = draft_prob_of(
                    tl.load(draft_prob + prob_at + slot * draft_prob_slot, mask=here, other=1.0)
                )  # fmt: skip
        if SPACE == "logits":
            own = figures + 4 * (row + slot)
            p_top = tl.load(own, mask=here, other=0.0)
            p_log_sum = tl.load(own + 1, mask=here, other=0.0)
            if HAS_DRAFT:
                q_top = tl.load(own + 2, mask=here, other=0.0)
                q_log_sum = tl.load(own + 3, mask=here, other=0.0)
            bad_row = tl.load(counters + 4 * (row + slot) + 3, mask=here, other=0) != 0
        accepted, bad = slot_accepts(
            slot, token, in_range, target + target_at + slot * target_row,
            draft + draft_at + slot * draft_row if HAS_DRAFT else None,
            p_top, p_log_sum, q_top, q_log_sum, h, share, inverse, noise, draft_vocab, SPACE, HAS_DRAFT,
        )  # fmt: skip
        n = tl.minimum(n, tl.min(tl.where(here & (accepted == 0), slot, NO_TOKEN), axis=0))
        reached = here & (slot <= n)
        if SPACE == "logits":  # what the other launch met, where a draft or its law was used
            bad = bad_row & ((token != -1) | (h < 1.0))
        flags |= any_of(reached & bad) * NON_FINITE
        flags |= any_of(reached & (token != -1) & (in_range == 0)) * TOKEN_RANGE
        flags |= tl.max(tl.where(reached, bad_h, 0), axis=0)
        refused += tl.sum(tl.where(here & (slot == n), token + 1, 0), axis=0)
        share_n += tl.sum(tl.where(here & (slot == n), h - 1.0, 0.0), axis=0)

    from_residual = (refused != -1) | (share_n < 1.0)
    tiles = tl.cdiv(vocab, TILE)
    first, last = split * tiles // splits, (split + 1) * tiles // splits
    last = tl.where(readable, last, first)
    request = counters + 4 * rows + 8 * b
    noise_n = later(noise, n)
    row_n = row_at(target, target_at + n * target_row, ALIGNED)
    excluded = None if HAS_DRAFT else tl.where(refused < vocab, refused, -1)
    if HAS_DRAFT and from_residual:
        p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
        if SPACE == "logits":
            own = figures + 4 * (row + n)
            p_top, p_log_sum, q_top, q_log_sum = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
        best, bad, drafted = residual_tiles(
            row_n, row_at(draft, draft_at + n * draft_row, ALIGNED), p_top, p_log_sum, q_top, q_log_sum,
            vocab, draft_vocab, first, last, key_at(request), inverse, share_n, dense, noise_n,
            STREAM_RESIDUAL, KIND, TILE,
        )  # fmt: skip
        if drafted:
            tl.atomic_or(request + 4, DRAFTED, sem="relaxed")
    else:
        best, bad = race_tiles(
            row_n, vocab, first, last, key_at(request), inverse, False, dense, noise_n, excluded, None,
            STREAM_RESIDUAL, KIND, TILE,
        )  # fmt: skip
    tl.atomic_max(key_at(request), best, sem="relaxed")
    if bad:
        tl.atomic_or(request + 4, NON_FINITE, sem="relaxed")

    if is_last(request + 2, splits):
        best = tl.atomic_xchg(key_at(request), best * 0)
        met = tl.load(request + 4, cache_modifier=".cg")
        flags |= met & NON_FINITE
        if HAS_DRAFT and SPACE == "probs":
            flags |= tl.where(from_residual & (met & DRAFTED == 0), NON_FINITE, 0)
        if (best == NOBODY) & from_residual:
            flags |= EMPTY_RESIDUAL
            best, bad = race_row(row_n, vocab, inverse, noise_n, STREAM_RESIDUAL, KIND, TILE)
            flags |= tl.where(bad, NON_FINITE, 0)
        flags |= tl.where((best == NOBODY) & readable, NON_FINITE, 0)
        for base in range(0, max_drafts + 1, CHUNK):
            slot = base + tl.arange(0, CHUNK)
            token = tl.load(draft_tokens + slot * draft_tokens_slot, mask=slot < n, other=-1).to(tl.int64)
            token = tl.where(slot == n, key_token(best).to(tl.int64), token)
            tl.store(tokens + b * tokens_request + slot, token, mask=slot <= max_drafts)
            records = counters + 4 * (row + slot)
            held = slot <= tl.where(readable, slots, -1)
            tl.store(records + 2, tl.zeros_like(slot), mask=held)
            tl.store(records + 3, tl.zeros_like(slot), mask=held)
        tl.store(num_accepted + b, n)
        tl.store(status + b, flags)
        tl.store(key_at(request), best * 0)
        for i in tl.static_range(2, 5):
            tl.store(request + i, 0)


def verify_chain(
    draft_tokens, target, draft, cu_drafts, method, space, temperature, draft_prob, epsilon, seed, position, nonce,
    tokens, num_accepted, status,
):  # fmt: skip
    """The verdict of each request, as ``specdec_kernels.verify_chain`` has it."""
    requests, width = tokens.shape
    if requests == 0:
        return
    ragged = cu_drafts is not None
    vocab = target.shape[-1]
    rows = target.shape[0] if ragged else requests * width
    tile, tiles, warps = _launch.tile_of(vocab)
    # Where all requests are greedy the race's kernel is the whole of rejection.
    number = not isinstance(temperature, torch.Tensor)
    race = method == "race" or (number and not temperature >= 2.0**-126)
    scans = race or space == "logits" or not number
    lse = not race and space == "logits"
    with _launch.on_device(target), _launch.whole_calls():
        counters, scratch = _launch.workspace(target, 4 * rows + 8 * requests, (4 + 4 * tiles) * rows if lse else 0)
        arguments = dict(
            draft_tokens=draft_tokens, draft_tokens_request=0 if ragged else draft_tokens.stride(0),
            draft_tokens_slot=draft_tokens.stride(-1),
            **_launch.rows("target", target, ragged), **_launch.rows("draft", None if race else draft, ragged),
            cu_drafts=cu_drafts, total_drafts=draft_tokens.shape[0], max_drafts=width - 1, rows=rows, vocab=vocab,
            dense=_launch.is_dense(rows * tiles, target.device),
            draft_vocab=vocab if race or draft is None else draft.shape[-1],
            **_launch.number("temperature", temperature, "request"),
            **_launch.number("draft_prob", draft_prob, *(("slot",) if ragged else ("request", "slot"))),
            **_launch.number("epsilon", epsilon, "request"),
            **_launch.number("seed", seed, "request"),
            **_launch.number("position", position, "request"),
            **_launch.number("nonce", nonce, "request"),
            tokens=tokens, tokens_request=tokens.stride(0), num_accepted=num_accepted, status=status,
            counters=counters, figures=scratch, SPACE=space, TILE=tile,
            ALIGNED=_launch.aligned(target, None if race else draft),
        )  # fmt: skip
        arguments.setdefault("draft_prob_request", 0)
        splits = _launch.splits_of(requests, tiles, target.device)
        if scans:
            chunks = _launch.chunks_of(requests, splits, width, target.device)
            _launch.launch(
                scan_kernel, (requests, chunks, splits), warps, **arguments, partials=scratch[4 * rows :],
                METHOD="race" if race else "rejection", TILES=triton.next_power_of_2(tiles),
            )  # fmt: skip
        if not race:
            _launch.launch(emit_kernel, (requests, splits), warps, **arguments)
