"""The race over the residual of a shard of a row: one launch, rows split over programs."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _pairs, _races, _rows


class Excluded(NamedTuple):
    """Tokens without weight, for requests without a draft row."""

    tokens: _arguments.Steps  # [B, count]
    count: int


@triton.jit
def any_foreign(row, first, last, TILE: tl.constexpr):
    """Whether a NaN or +inf is in the tiles [first, last) of a row: a cut may hide it from the race."""
    bad = first < 0
    for tile in range(first, last):
        x = _rows.load_tile(row, tl.cast(tile, tl.int32) * TILE, TILE)
        bad = bad | (_math.any_of(tl.max(((x < _math.INFINITY) == 0).to(tl.int32), axis=1)) > 0)
    return bad


@_launch.kernel
def residual_race_kernel(
    target: _arguments.Rows, draft: _arguments.Rows, pair: _pairs.Pair, excluded: Excluded, vocab_start: tl.int32,
    temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    raced: _races.Sampled, counters, edits: _edits.LogitEdits, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    vocab = target.vocab
    p_index, q_index = tl.load(pair.row + b), -1
    idle, live = p_index == -1, (p_index >= 0) & (p_index < pair.rows_of_target)
    if draft.rows is not None:
        q_index = tl.load(pair.draft_row + b)
        live = live & (q_index >= -1) & (q_index < pair.rows_of_draft)
    p_index = tl.where(live, p_index, 0)
    inverse, greedy, flags = _arguments.load_temperature(temperature, b, 0, live)
    noise = _arguments.load_noise(noise, b, 0, live, vocab_start)
    i, j = p_index // target.count, p_index % target.count
    row_edits, bad_bias = _edits.load_row_edits(edits, i, j, i, j, 0, 0, live, vocab)
    start = _rows.start_of(target, i, j, ALIGNED)
    uncut_row = _laws.Row(start, vocab, _laws.Law(inverse, greedy, None, 0, edits.by_row, row_edits, edits))
    cuts = None
    if pair.cuts is not None:
        cuts = pair.cuts + _laws.CUT_WORDS * b
    cut_row = _laws.Row(start, vocab, _laws.Law(inverse, None, cuts, 0, edits.by_row, row_edits, edits))
    record = counters + 4 * b
    first, last = _rows.tile_range(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    q_index = tl.where(live & (greedy == 0), q_index, -1)
    best, bad = tl.full([], 0, tl.uint64), vocab < 0
    key = _rows.key_at(record)
    if pair.cuts is not None:
        bad = any_foreign(uncut_row, first, last, TILE)
    if q_index < 0:
        out = None
        if excluded.tokens.data is not None:
            count = tl.where(greedy == 0, tl.cast(excluded.count, tl.int32), 0)
            out = _races.Excluded(_arguments.at(excluded.tokens, b, 0), count, vocab_start)
        if pair.cuts is None:
            best, bad = _races.race_tiles(
                uncut_row, first, last, key, noise, None, None, _math.STREAM_RESIDUAL, TILE, out
            )
        else:
            if greedy:
                best, _ = _races.race_tiles(uncut_row, first, last, key, noise, None, None, _math.STREAM_RESIDUAL, TILE)
            else:
                best, _ = _races.race_tiles(
                    cut_row, first, last, key, noise, None, None, _math.STREAM_RESIDUAL, TILE, out
                )
    if draft.rows is not None:  # noqa: SIM102  the outer `if` is constexpr
        if q_index >= 0:
            q_inverse, _, q_flags = _arguments.load_temperature(draft_temperature, b, 0, live)
            flags |= q_flags
            p_stats, q_stats = _pairs.load_pair_stats(pair, b)
            q_cuts = None
            if pair.cuts is not None:
                q_cuts = pair.cuts + _laws.CUT_WORDS * b + _laws.CUT_WORDS // 2
            q_start = _rows.start_of(draft, q_index // draft.count, q_index % draft.count, ALIGNED)
            p_row = _laws.Row(start, vocab, cut_row.law, None, p_stats)
            q_row = _laws.Row(q_start, vocab, _laws.Law(q_inverse, None, q_cuts, 0), None, q_stats)
            subtracted = _arguments.number(pair.subtracted, b, 0, live)
            best, bad_pair, _ = _races.residual_tiles(
                p_row, q_row, first, last, key, subtracted, noise, _math.STREAM_RESIDUAL, TILE
            )  # fmt: skip
            if pair.cuts is None:
                bad = bad_pair
    tl.atomic_max(_rows.key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")
    if _rows.is_last(record + _rows.DONE, tl.num_programs(1)):
        best = tl.atomic_xchg(_rows.key_at(record), best * 0, sem="relaxed")
        token, score, _ = _races.decode_arrival(best, live, idle, 0, vocab_start)
        tl.store(raced.tokens + b, token)
        tl.store(raced.scores + b, score)
        flags |= tl.load(record + _rows.FLAGS, cache_modifier=".cg")
        flags |= bad_bias | _edits.request_status(edits, i, j, live, vocab)
        tl.store(raced.status + b, tl.where(live, flags, tl.where(idle, 0, _math.PARAMETER)))
        _rows.clear_record(record)


def residual_race(call):
    """The first arrival in one row of each request; ``tokens`` int64 [B]."""
    target, draft, batch = call.target, call.draft, len(call.row)
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(target.shape[2], edits is not _edits.OFF)
    excluded = Excluded(_arguments.steps_or_none(call.excluded), 0 if call.excluded is None else call.excluded.shape[1])
    with _launch.on_device(target), _launch.whole_calls:
        counters, _ = _launch.workspace(target, 4 * batch, 0)
        arguments = dict(
            target=_arguments.rows_of(target), draft=_arguments.rows_of(draft), pair=_pairs.pair_of(call),
            excluded=excluded, vocab_start=call.vocab_start, temperature=_arguments.temperature_of(call.target_law),
            draft_temperature=_arguments.temperature_of(call.draft_law), noise=_arguments.noise_numbers(call.noise),
            raced=_races.Sampled(call.tokens, call.scores, call.status), counters=counters, **edits,
            ALIGNED=_launch.aligned(target, draft), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(batch, tiles, target.device)
        _launch.launch(residual_race_kernel, (batch, splits), warps, arguments)
