"""Sampling by a race: one launch, rows split over programs, the last program of a row writes its token."""

import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._math import (
    NON_FINITE,
    PARAMETER,
    STREAM_RACE,
    inverse_temperature,
)
from specdec_kernels.triton_kernels._races import arrival_of, race_mapped, race_tiles
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    entry_of,
    is_last,
    key_at,
    noise_at,
    number,
    row_at,
    share_of,
)


@_launch.kernel
def race_sample_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    first_token: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, cuts, edits,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        number(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    noise = noise_at(
        seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
        entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner, live,
        first_token,
    )  # fmt: skip
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse if SPACE == "logits" else None, greedy, cuts, row, *place, *edits)
    record = counters + 4 * row
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    if draft_map is None:
        best, bad = race_tiles(own, law, first, last, key_at(record), noise, None, None, STREAM_RACE, TILE)
    else:
        best, bad = race_mapped(own, law, draft_map, first, last, noise, STREAM_RACE, TILE)
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if status is not None:  # noqa: SIM102  one is known when it is compiled
        if bad:
            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        best = tl.atomic_xchg(key_at(record), best * 0, sem="relaxed")
        token, score, weighs = arrival_of(best, live, idle, 0, first_token)
        if scores is None:
            tl.store(tokens + row, tl.where(weighs | idle, token, 0))
        else:  # a part of a row, which need not have weight
            tl.store(tokens + row, token)
            tl.store(scores + row, score)
            weighs = live
        if status is not None:
            flags |= bad_bias | request_status(edits, entry, j, live, vocab)
            flags |= tl.load(record + FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, NON_FINITE)
            tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
            barrier()  # all warps have read
            tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def race_sample(call):
    """argmin over tokens of arrival / p, for each row [A, R, V]; ``tokens`` int64 [A R]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    words = _cuts.words_of_rows(vocab, count, rows.device, call.law)
    index = _launch.index(call.request_index, *_launch.numbers_of(call.law), *call.noise, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(rows, 4 * count, words)
        cuts = _cuts.launch_rows(rows, call.law, index, call.draft_map, counters, scratch, edits)
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1),
            inner=inner, vocab=vocab, first_token=call.first_token,
            draft_map=call.draft_map, **index,
            **_launch.number("temperature", call.law.temperature, "outer", "inner"),
            **_launch.noise(call.noise, "outer", "inner"), tokens=call.tokens, status=call.status,
            scores=call.scores, counters=counters,
            cuts=cuts, **edits, SPACE=call.law.space, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(count, tiles, rows.device)
        _launch.launch(race_sample_kernel, (count, splits), warps, arguments)
