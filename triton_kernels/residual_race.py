"""The race over what a draft left of a part of a row: one launch, rows split over programs."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import CUT_WORDS, Known, Law
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NON_FINITE,
    PARAMETER,
    STREAM_RESIDUAL,
    any_of,
    inverse_temperature,
)
from specdec_kernels.triton_kernels._races import arrival_of, race_tiles, residual_tiles
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    is_last,
    key_at,
    load_tile,
    noise_at,
    number,
    row_at,
    share_of,
)


@triton.jit
def any_foreign(row, law, first, last, TILE: tl.constexpr):
    """Whether a NaN or +inf is in the tiles [first, last) of a row: a cut may hide it from the race."""
    bad = first < 0
    for tile in range(first, last):
        x = load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE)
        bad = bad | (any_of(tl.max(((x < INFINITY) == 0).to(tl.int32), axis=1)) > 0)
    return bad


@_launch.kernel
def residual_race_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, target_rows: tl.int64,
    vocab: tl.int32, vocab_start: tl.int32,
    draft, draft_outer: tl.int64, draft_inner: tl.int64, of_draft: tl.int32, draft_rows: tl.int64,
    row, draft_row, excluded, excluded_row: tl.int64, excluded_count: tl.int32, cuts,
    known, known_row: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_value: tl.float32,
    subtracted, subtracted_outer: tl.int64, subtracted_value: tl.float32,
    seed, seed_outer: tl.int64, seed_value: tl.int64, position, position_outer: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, edits, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    place, beside = tl.load(row + b), -1
    idle, live = place == -1, (place >= 0) & (place < target_rows)
    if draft is not None:
        beside = tl.load(draft_row + b)
        live = live & (beside >= -1) & (beside < draft_rows)
    place = tl.where(live, place, 0)
    inverse, greedy, flags = inverse_temperature(divisor(temperature, temperature_value, b * temperature_outer, live))
    noise = noise_at(
        seed, seed_value, b * seed_outer, position, position_value, b * position_outer, nonce, nonce_value,
        b * nonce_outer, live, vocab_start,
    )  # fmt: skip
    i, j = place // inner, place % inner
    edited, bad_bias = place_at(edits, i, j, i, j, 0, 0, live, vocab)
    uncut = Law(inverse, greedy, None, 0, *edited, *edits)
    record = counters + 4 * b
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    beside = tl.where(live & (greedy == 0), beside, -1)
    best, bad = tl.full([], 0, tl.uint64), vocab < 0
    key = key_at(record)
    if cuts is not None:
        bad = any_foreign(own, uncut, first, last, TILE)
    if beside < 0:
        out = None
        if excluded is not None:
            out = excluded + b * excluded_row, tl.where(greedy == 0, excluded_count, 0), vocab_start
        if cuts is None:
            best, bad = race_tiles(own, uncut, first, last, key, noise, None, None, STREAM_RESIDUAL, TILE, out)
        else:
            if greedy:
                best, _ = race_tiles(own, uncut, first, last, key, noise, None, None, STREAM_RESIDUAL, TILE)
            else:
                law = Law(inverse, None, cuts + CUT_WORDS * b, 0, *edited, *edits)
                best, _ = race_tiles(own, law, first, last, key, noise, None, None, STREAM_RESIDUAL, TILE, out)
    if draft is not None:  # noqa: SIM102  one is known when it is compiled
        if beside >= 0:
            q_inverse, _, q_flags = inverse_temperature(
                divisor(draft_temperature, draft_temperature_value, b * draft_temperature_outer, live)
            )
            flags |= q_flags
            what = known + b * known_row
            p_known, q_known = Known(tl.load(what), tl.load(what + 1)), Known(tl.load(what + 2), tl.load(what + 3))
            other = Row(
                row_at(draft, beside // of_draft * draft_outer + beside % of_draft * draft_inner, ALIGNED), vocab
            )
            share = number(subtracted, subtracted_value, b * subtracted_outer, live)
            if cuts is None:
                best, bad, _ = residual_tiles(
                    own, Law(inverse, None, None, 0, *edited, *edits), other, Law(q_inverse, None), None, p_known,
                    q_known, first, last, key, share, noise, STREAM_RESIDUAL, TILE,
                )  # fmt: skip
            else:
                best, _, _ = residual_tiles(
                    own, Law(inverse, None, cuts + CUT_WORDS * b, 0, *edited, *edits), other,
                    Law(q_inverse, None, cuts + CUT_WORDS * b + CUT_WORDS // 2, 0), None, p_known, q_known, first, last,
                    key, share, noise, STREAM_RESIDUAL, TILE,
                )  # fmt: skip
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        best = tl.atomic_xchg(key_at(record), best * 0, sem="relaxed")
        token, score, _ = arrival_of(best, live, idle, 0, vocab_start)
        tl.store(tokens + b, token)
        tl.store(scores + b, score)
        flags |= tl.load(record + FLAGS, cache_modifier=".cg")
        flags |= bad_bias | request_status(edits, i, j, live, vocab)
        tl.store(status + b, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
        barrier()  # all warps have read
        tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def residual_race(call):
    """The first arrival in one row of each request; ``tokens`` int64 [B]."""
    target, draft, batch = call.target, call.draft, len(call.row)
    if batch == 0:
        return
    inner, vocab = target.shape[1:]
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    out = {"excluded": call.excluded, "excluded_row": 0, "excluded_count": 0}
    if call.excluded is not None:
        out |= {"excluded_row": call.excluded.stride(0), "excluded_count": call.excluded.shape[1]}
    rows_of_draft = {"draft": draft, "draft_outer": 0, "draft_inner": 0, "of_draft": 1, "draft_rows": 0}
    if draft is not None:
        rows_of_draft = dict(
            draft=draft, draft_outer=draft.stride(0), draft_inner=draft.stride(1), of_draft=draft.shape[1],
            draft_rows=draft.shape[0] * draft.shape[1],
        )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        counters, _ = _launch.workspace(target, 4 * batch, 0)
        arguments = dict(
            target=target, target_outer=target.stride(0), target_inner=target.stride(1), inner=inner,
            target_rows=target.shape[0] * inner, vocab=vocab, vocab_start=call.vocab_start, **rows_of_draft,
            row=call.row, draft_row=call.draft_row, **out, cuts=_launch.floats(call.cuts),
            known=call.known, known_row=call.known.stride(0),
            **_launch.divisor("temperature", call.target_law, "outer"),
            **_launch.divisor("draft_temperature", call.draft_law, "outer"),
            **_launch.number("subtracted", call.subtracted, "outer"), **_launch.noise(call.noise, "outer"),
            tokens=call.tokens, status=call.status, scores=call.scores, counters=counters,
            **edits, ALIGNED=_launch.aligned(target, draft), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(batch, tiles, target.device)
        _launch.launch(residual_race_kernel, (batch, splits), warps, arguments)
