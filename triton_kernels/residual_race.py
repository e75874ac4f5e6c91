"""The race over what a draft left of a part of a row: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Known, Law
from specdec_kernels.triton_kernels._math import NON_FINITE, PARAMETER, STREAM_RESIDUAL, inverse_temperature
from specdec_kernels.triton_kernels._races import arrival_of, race_tiles, residual_tiles
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    is_last,
    key_at,
    noise_at,
    number,
    row_at,
    share_of,
)


@_launch.kernel
def residual_race_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, target_rows: tl.int64,
    vocab: tl.int32, first_token: tl.int32,
    draft, draft_outer: tl.int64, draft_inner: tl.int64, of_draft: tl.int32, draft_rows: tl.int64,
    row, draft_row, excluded,
    known, known_row: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_value: tl.float32,
    taken, taken_outer: tl.int64, taken_value: tl.float32,
    seed, seed_outer: tl.int64, seed_value: tl.int64, position, position_outer: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    place, beside = tl.load(row + b), -1
    idle, live = place == -1, (place >= 0) & (place < target_rows)
    if draft is not None:
        beside = tl.load(draft_row + b)
        live = live & (beside >= -1) & (beside < draft_rows)
    place = tl.where(live, place, 0)
    inverse, greedy, flags = inverse_temperature(number(temperature, temperature_value, b * temperature_outer, live))
    noise = noise_at(
        seed, seed_value, b * seed_outer, position, position_value, b * position_outer, nonce, nonce_value,
        b * nonce_outer, live, first_token,
    )  # fmt: skip
    law = Law(inverse, greedy)
    record = counters + 4 * b
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    own = Row(row_at(target, place // inner * target_outer + place % inner * target_inner, ALIGNED), vocab)
    out = -1
    if excluded is not None:
        out = tl.load(excluded + b)
        out = tl.where((out >= 0) & (greedy == 0), out - first_token, -1)
    beside = tl.where(live & (greedy == 0), beside, -1)
    best, bad = tl.full([], 0, tl.uint64), vocab < 0
    if beside < 0:
        best, bad = race_tiles(own, law, first, last, key_at(record), noise, out, None, STREAM_RESIDUAL, TILE)
    if draft is not None:  # noqa: SIM102  one is known when it is compiled
        if beside >= 0:
            q_inverse, _, q_flags = inverse_temperature(
                number(draft_temperature, draft_temperature_value, b * draft_temperature_outer, live)
            )
            flags |= q_flags
            what = known + b * known_row
            p_known, q_known = Known(tl.load(what), tl.load(what + 1)), Known(tl.load(what + 2), tl.load(what + 3))
            other = Row(
                row_at(draft, beside // of_draft * draft_outer + beside % of_draft * draft_inner, ALIGNED), vocab
            )
            best, bad, _ = residual_tiles(
                own, Law(inverse, None), other, Law(q_inverse, None), None, p_known, q_known, first, last,
                key_at(record), number(taken, taken_value, b * taken_outer, live), noise, STREAM_RESIDUAL, TILE,
            )  # fmt: skip
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        best = tl.atomic_xchg(key_at(record), best * 0, sem="relaxed")
        token, score, _ = arrival_of(best, live, idle, 0, first_token)
        tl.store(tokens + b, token)
        tl.store(scores + b, score)
        flags |= tl.load(record + FLAGS, cache_modifier=".cg")
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
    tile, tiles, warps = _launch.tile_of(vocab)
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
            target_rows=target.shape[0] * inner, vocab=vocab, first_token=call.first_token, **rows_of_draft,
            row=call.row, draft_row=call.draft_row, excluded=call.excluded,
            known=call.known, known_row=call.known.stride(0),
            **_launch.number("temperature", call.target_law.temperature, "outer"),
            **_launch.number("draft_temperature", call.draft_law.temperature, "outer"),
            **_launch.number("taken", call.taken, "outer"), **_launch.noise(call.noise, "outer"),
            tokens=call.tokens, status=call.status, scores=call.scores, counters=counters,
            ALIGNED=_launch.aligned(target, draft), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(batch, tiles, target.device)
        _launch.launch(residual_race_kernel, (batch, splits), warps, arguments)
