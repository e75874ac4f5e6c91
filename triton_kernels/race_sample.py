"""Sampling by a race: one launch, rows split over programs, the last program of a row writes its token.

With filters that program also finds the row's cut, and races what is kept (``_kept``).
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._filters import Filter, filter_of
from specdec_kernels.triton_kernels._kept import begin_kept, finish_kept, race_part_of_row
from specdec_kernels.triton_kernels._laws import CUT, Law
from specdec_kernels.triton_kernels._math import NON_FINITE, PARAMETER, inverse_temperature
from specdec_kernels.triton_kernels._races import arrival_of
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    entry_of,
    is_last,
    key_at,
    noise_at,
    number,
    row_at,
)


@triton.jit
def finish_race(
    best, row, live, idle, flags, vocab_start, edits, entry, j, vocab, record, tokens, scores, status
):  # fmt: skip
    """Stores the token of a row, and sets its record back to zero."""
    token, score, weighs = arrival_of(best, live, idle, 0, vocab_start)
    if scores is None:
        tl.store(tokens + row, tl.where(weighs | idle, token, 0))
    else:  # a part of a row, which need not have weight
        tl.store(tokens + row, token)
        tl.store(scores + row, score)
        weighs = live
    if status is not None:
        flags |= request_status(edits, entry, j, live, vocab)
        flags |= tl.load(record + FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, NON_FINITE)
        tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
    barrier()  # all warps have read
    tl.store(record + FLAGS, 0)
    tl.store(record + DONE, 0)


@_launch.kernel
def race_sample_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    vocab_start: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, edits,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    noise = noise_at(
        seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
        entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner, live,
        vocab_start,
    )  # fmt: skip
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse if SPACE == "logits" else None, greedy, None, row, *place, *edits)
    record = counters + 4 * row
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), tl.where(live, vocab, 0))
    race_part_of_row(own, law, draft_map, record, noise, tl.program_id(1), tl.num_programs(1), TILE)
    if is_last(record + DONE, tl.num_programs(1)):
        best = tl.atomic_xchg(key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
        finish_race(
            best, row, live, idle, flags | bad_bias, vocab_start, edits, entry, j, vocab, record, tokens, scores, status
        )  # fmt: skip


@_launch.kernel
def filtered_race_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, rows: tl.int32, inner: tl.int32, vocab: tl.int32,
    vocab_start: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    top_k, top_k_outer: tl.int64, top_k_inner: tl.int64, top_k_value: tl.int64,
    top_p, top_p_outer: tl.int64, top_p_inner: tl.int64, top_p_value: tl.float32,
    min_p, min_p_outer: tl.int64, min_p_inner: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, cuts, scratch, scratch_row: tl.int64, edits,
    STAGE: tl.constexpr, ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program has memory for one row at a time. ``cuts`` has CUT words a row, for rows that no list holds."""
    scratch += scratch_row * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        i, j = row // inner, row % inner
        entry, live, idle = entry_of(i, request_index, entries)
        inverse, greedy, flags = inverse_temperature(
            divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
        )
        k, share, log_min_p, bad_number = filter_of(
            number(top_k, top_k_value, entry * top_k_outer + j * top_k_inner, live),
            number(top_p, top_p_value, entry * top_p_outer + j * top_p_inner, live),
            number(min_p, min_p_value, entry * min_p_outer + j * min_p_inner, live), vocab, greedy,
        )  # fmt: skip
        filter = Filter(k, share, log_min_p)
        noise = noise_at(
            seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
            entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner,
            live, vocab_start,
        )  # fmt: skip
        place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
        own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), tl.where(live, vocab, 0))
        record = counters + 4 * row
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            begin_kept(
                own, inverse, greedy, filter, rules, row, place, edits, draft_map, record, scratch, noise,
                tl.program_id(1), tl.num_programs(1), CELL, TILE,
            )  # fmt: skip
        if STAGE == "all":
            last = is_last(record + DONE, tl.num_programs(1))
        if last:
            finish_kept(
                own, inverse, greedy, filter, rules, row, place, edits, draft_map, vocab_start, record, scratch, cuts,
                noise, CELL, TILE, TILES,
            )  # fmt: skip
            best = tl.atomic_xchg(key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            finish_race(
                best, row, live, idle, flags | bad_number | bad_bias, vocab_start, edits, entry, j, vocab, record,
                tokens, scores, status,
            )  # fmt: skip


filtered_race_kernel.most_registers = _cuts.most_registers


def race_sample(call):
    """argmin over tokens of arrival / p, for each row [A, R, V]; ``tokens`` int64 [A R]."""
    rows, law = call.rows, call.law
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    filtered = _launch.is_filtered(law)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(rows, 4 * count, _cuts.words_of(vocab, count, rows.device, [filtered]))
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1),
            inner=inner, vocab=vocab, vocab_start=call.vocab_start, draft_map=call.draft_map,
            **_launch.index(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits),
            **_launch.divisor("temperature", law, "outer", "inner"),
            **_launch.noise(call.noise, "outer", "inner"), tokens=call.tokens, status=call.status,
            scores=call.scores, counters=counters, **edits, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        if not filtered:
            splits = _launch.splits_of(count, tiles, rows.device)
            _launch.launch(race_sample_kernel, (count, splits), warps, arguments | {"SPACE": law.space})
            return
        arguments |= dict(
            **_launch.filters(law, "outer", "inner"), rules=law.rules, rows=count, cuts=scratch,
            scratch=scratch[CUT.value * count :], scratch_row=_cuts.search_words_of(vocab),
            CELL=_cuts.cell_of(tile, tiles), TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _cuts.launch_search(filtered_race_kernel, count, tiles, warps, rows.device, arguments)
