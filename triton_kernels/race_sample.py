"""Samples by a race: one launch, rows split over programs; the last program of a row writes its token.

With filters that program also finds the row's cut, and races the tokens that pass (``_filtered_races``).
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _cuts,
    _edits,
    _filtered_races,
    _filters,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
)


@triton.jit
def finish_race(row, at, flags, vocab_start, edits, vocab, record, sampled):
    """Stores the token of a row, and sets its record back to zero."""
    best = tl.atomic_xchg(_rows.key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
    token, score, weighs = _races.decode_arrival(best, at.live, at.idle, 0, vocab_start)
    if sampled.scores is None:
        tl.store(sampled.tokens + row, tl.where(weighs | at.idle, token, 0))
    else:  # a shard of a row may have no weight
        tl.store(sampled.tokens + row, token)
        tl.store(sampled.scores + row, score)
        weighs = at.live
    if sampled.status is not None:
        flags |= _edits.request_status(edits, at.entry, at.j, at.live, vocab)
        flags |= tl.load(record + _rows.FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, _math.NON_FINITE)
        tl.store(sampled.status + row, tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER)))
    _rows.clear_record(record)


@_launch.kernel
def race_sample_kernel(
    target: _arguments.Rows, index: _arguments.Index, temperature: _arguments.Number, noise: _arguments.Noise,
    edits: _edits.LogitEdits, vocab_start: tl.int32, draft_map, sampled: _races.Sampled, counters,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = _arguments.locate_row(target, index, row)
    inverse, greedy, flags = _arguments.load_temperature(temperature, at.entry, at.j, at.live)
    noise = _arguments.load_noise(noise, at.entry, at.j, at.live, vocab_start)
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, target.vocab)
    law = _laws.Law(inverse if SPACE == "logits" else None, greedy, None, row, edits.by_row, row_edits, edits)
    columns = tl.where(at.live, target.vocab, 0)
    p_row = _laws.Row(_rows.start_of(target, at.i, at.j, ALIGNED), columns, law, draft_map)
    record = counters + 4 * row
    _filtered_races.race_slice(p_row, record, noise, tl.program_id(1), tl.num_programs(1), TILE)
    if _rows.is_last(record + _rows.DONE, tl.num_programs(1)):
        finish_race(row, at, flags | bad_bias, vocab_start, edits, target.vocab, record, sampled)


def most_registers(arguments):
    return _races.limit("race", arguments["target"].rows) if arguments["edits"].by_row is None else None


race_sample_kernel.most_registers = most_registers


@_launch.kernel
def filtered_race_kernel(
    target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, noise: _arguments.Noise,
    edits: _edits.LogitEdits,
    vocab_start: tl.int32, draft_map, sampled: _races.Sampled, counters, search: _cuts.Search, count: tl.int32,
    tiling: _cuts.Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    """Races filtered rows, one at a time. ``search.cuts`` is float32 [rows, CUT]."""
    scratch = search.scratch + search.row_words * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        at = _arguments.locate_row(target, index, row)
        inverse, greedy, flags = _arguments.load_temperature(law.temperature, at.entry, at.j, at.live)
        filter, bad_number = _filters.load_filter(law, at.entry, at.j, at.live, target.vocab, greedy)
        row_noise = _arguments.load_noise(noise, at.entry, at.j, at.live, vocab_start)
        row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, target.vocab)
        p_law = _laws.Law(inverse, greedy, None, row, edits.by_row, row_edits, edits)
        columns = tl.where(at.live, target.vocab, 0)
        p_row = _laws.Row(_rows.start_of(target, at.i, at.j, tiling.ALIGNED), columns, p_law, draft_map)
        record = counters + 4 * row
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            split, splits = tl.program_id(1), tl.num_programs(1)
            _filtered_races.begin_row(p_row, filter, record, scratch, row_noise, split, splits, tiling)
        if STAGE == "all":
            last = _rows.is_last(record + _rows.DONE, tl.num_programs(1))
        if last:
            _filtered_races.end_row(p_row, filter, record, scratch, search.cuts, row_noise, tiling)
            finish_race(row, at, flags | bad_number | bad_bias, vocab_start, edits, target.vocab, record, sampled)


filtered_race_kernel.most_registers = _cuts.most_registers


def race_sample(call):
    """argmin over tokens of arrival / p, for each row [A, R, V]; ``tokens`` int64 [A R]."""
    rows, law = call.rows, call.law
    vocab, count = rows.shape[2], rows.shape[0] * rows.shape[1]
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    filtered = _launch.is_filtered(law)
    with _launch.on_device(rows), _launch.whole_calls:
        words = _cuts.count_scratch_words(vocab, count, rows.device, [filtered])
        counters, scratch = _launch.workspace(rows, 4 * count, words)
        arguments = dict(
            target=_arguments.rows_of(rows), noise=_arguments.noise_numbers(call.noise),
            index=_arguments.index_of(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits),
            vocab_start=call.vocab_start, draft_map=call.draft_map, counters=counters,
            sampled=_races.Sampled(call.tokens, call.scores, call.status), **edits,
        )  # fmt: skip
        if not filtered:
            splits = _launch.splits_of(count, tiles, rows.device)
            arguments |= dict(
                temperature=_arguments.temperature_of(law), SPACE=law.space, ALIGNED=_launch.aligned(rows), TILE=tile
            )  # fmt: skip
            _launch.launch(race_sample_kernel, (count, splits), warps, arguments)
            return
        arguments |= dict(
            law=_arguments.law_of(law), tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(rows)), count=count,
            search=_cuts.Search(scratch, scratch[_laws.CUT.value * count :], _cuts.count_search_words(vocab)),
        )  # fmt: skip
        _cuts.launch_search(filtered_race_kernel, count, tiles, warps, rows.device, arguments)
