"""Log-probabilities of tokens: one launch finds cuts and ``RowStats`` of rows (``_cuts``), the next reads rows again.

There each program counts, in one tile, the tokens that are at least as probable as the row's, and takes the most
probable ones; the last program of a row merges them.
"""

from typing import NamedTuple

import torch
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _launch, _laws, _math, _races, _rows


class Outputs(NamedTuple):
    """What a call writes."""

    logprob: tl.tensor  # float32 [rows]
    rank: tl.tensor  # int32 [rows]
    top_tokens: tl.tensor  # int64 [rows, most]
    top_logprobs: tl.tensor  # float32 [rows, most]
    most: int
    support_bits: tl.tensor  # int32 [rows, bit_words]: tokens that pass filters, or None
    support_count: tl.tensor  # int32 [rows]
    bit_words: int
    status: tl.tensor  # int32 [rows], or None


class Memory(NamedTuple):
    """Memory of a call."""

    counters: tl.tensor  # int32 [rows, 4]
    cuts: tl.tensor  # float32 [rows, CUT]
    row_stats: tl.tensor  # float32 [rows, 2]
    counts: tl.tensor  # int32 [rows, tiles], twice with ``support_bits``
    keys: tl.tensor  # uint64 [rows, tiles, most]


@_launch.kernel
def logprobs_kernel(
    target: _arguments.Rows, tokens: _arguments.Steps, index: _arguments.Index, temperature: _arguments.Number,
    edits: _edits.LogitEdits, outputs: Outputs, memory: Memory, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    vocab, most, counts, row_stats = target.vocab, tl.cast(outputs.most, tl.int32), memory.counts, memory.row_stats
    at = _arguments.locate_row(target, index, row)
    live = at.live
    inverse, greedy, flags = _arguments.load_temperature(temperature, at.entry, at.j, live)
    token = tl.load(_arguments.at(tokens, at.i, at.j)).to(tl.int64)
    requested = live & ((token != -1) | (most > 0))
    in_range = requested & (token >= 0) & (token < vocab)
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, live, vocab)
    law = _laws.Law(inverse, None, memory.cuts, row, edits.by_row, row_edits, edits)
    p_row = _laws.Row(_rows.start_of(target, at.i, at.j, ALIGNED), tl.where(requested, vocab, 0), law)
    record = memory.counters + 4 * row
    value = _laws.clean(_rows.value_at(p_row, token, in_range), law)
    start = tile * TILE
    x, ids = _laws.clean(_rows.load_tile(p_row, start, TILE), law), _rows.tile_tokens(start, TILE)
    at_least = tl.where(value > -_math.INFINITY, tl.sum(tl.sum((x >= value).to(tl.int32), axis=1), axis=0), 0)
    tl.store(counts + row * tiles + tile, at_least)
    if outputs.support_bits is not None:
        only = tl.load(row_stats + 2 * row).to(tl.int32, bitcast=True)
        alone = ((ids == only) & (ids < vocab) & requested).to(tl.int32)
        in_support = tl.where(greedy, alone, (x > -_math.INFINITY).to(tl.int32))
        bit = tl.arange(0, 32)
        shifted = tl.reshape(in_support, [TILE // 32, 32]) << bit[None, :]
        word = start // 32 + tl.arange(0, TILE // 32)
        words = outputs.bit_words
        tl.store(outputs.support_bits + row * words + word, tl.sum(shifted, axis=1), mask=word < words)
        number = tl.sum(tl.sum(in_support, axis=1), axis=0)
        tl.store(counts + (tl.num_programs(0) + row) * tiles + tile, number)
    keys = _rows.key_at(memory.keys) + row * tiles * most
    _races.store_best(keys + tile * most, x, ids, most)
    if _rows.is_last(record + _rows.DONE, tiles):
        top, log_sum = tl.load(row_stats + 2 * row), tl.load(row_stats + 2 * row + 1)
        argmax = top.to(tl.int32, bitcast=True)
        logprob = tl.where(value > -_math.INFINITY, _math.log_probability(value, top, log_sum), -_math.INFINITY)
        each = tl.arange(0, TILES)
        of_tiles = tl.load(counts + row * tiles + each, mask=each < tiles, other=0, cache_modifier=".cg")
        count = tl.sum(of_tiles, axis=0)
        if greedy:
            logprob = tl.where(in_range & (token == argmax), 0.0, -_math.INFINITY)
            count = tl.where(in_range & (token == argmax), 1, count)
        tl.store(outputs.logprob + row, logprob)
        tl.store(outputs.rank + row, count)
        if outputs.support_bits is not None:
            numbers = counts + (tl.num_programs(0) + row) * tiles + each
            tl.store(
                outputs.support_count + row,
                tl.sum(tl.load(numbers, mask=each < tiles, other=0, cache_modifier=".cg"), axis=0),
            )  # fmt: skip
        before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
        for n in range(0, most):
            before = _races.next_best(keys, tiles * most, before)
            there = before != _math.NO_CANDIDATE
            top_logprob = _math.log_probability(_math.key_score(before), top, log_sum)
            if greedy:
                there, top_logprob = there & (n == 0), top_logprob * 0.0
            tl.store(outputs.top_tokens + row * most + n, tl.where(there, _math.key_token(before), -1).to(tl.int64))
            tl.store(outputs.top_logprobs + row * most + n, tl.where(there, top_logprob, -_math.INFINITY))
        row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
        if outputs.status is not None:
            flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, live, vocab)
            flags = (flags | row_status) + tl.where((token != -1) & (in_range == 0), _math.TOKEN_RANGE, 0)
            tl.store(outputs.status + row, tl.where(requested, flags, tl.where(live | at.idle, 0, _math.PARAMETER)))
        _rows.clear_record(record)


def logprobs(call):
    """Log-probability and rank of a token of each row [A, R, V], and the most probable tokens."""
    rows, law, most, bits = call.rows, call.law, call.top_tokens.shape[-1], call.support_bits
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    index = _arguments.index_of(call.request_index, *_launch.numbers_of(law), edit=call.edits)
    tokens = _arguments.steps_or_none(call.tokens)
    with _launch.on_device(rows), _launch.whole_calls:
        keys = 2 * count * tiles * most
        cut_words = (_laws.CUT.value + 2) * count + _cuts.search_of(count, vocab, rows.device)
        counted = (1 if bits is None else 2) * tiles * count
        counters, scratch = _launch.workspace(rows, 4 * count, keys + counted + cut_words)
        counts, row_stats = scratch[keys:].view(torch.int32), scratch[keys + counted :]
        cuts = row_stats[2 * count :]
        target = _arguments.rows_of(rows)
        flags = _arguments.Steps(counters[_rows.FLAGS.value :], 4 * inner, 4)
        _cuts.launch_cuts(
            _cuts.Side(target, _arguments.law_of(law), None, cuts, row_stats), _cuts.NO_SIDE, index,
            _cuts.Stored(inner, 2, counters, 4, flags, 0), cuts[_laws.CUT.value * count :], outer, edits,
            requested=_arguments.NO_STEPS if most else tokens,
        )  # fmt: skip
        arguments = dict(
            target=target, tokens=tokens, index=index, temperature=_arguments.temperature_of(law), **edits,
            outputs=Outputs(call.logprob, call.rank, call.top_tokens, call.top_logprobs, most, bits, call.support_size,
            0 if bits is None else bits.shape[-1], call.status),
            memory=Memory(counters, cuts, row_stats, counts, scratch),
            ALIGNED=_launch.aligned(rows), TILE=tile, TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _launch.launch(logprobs_kernel, (count, tiles), warps, arguments)
