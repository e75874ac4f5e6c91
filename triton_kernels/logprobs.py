"""Log-probabilities of tokens: one launch finds the laws of rows (``_cuts``), the next looks at the tokens in them.

In the second each program counts, in a tile, the tokens that are at least as probable, and takes the most probable
ones; the last program of a row merges them.
"""

from typing import NamedTuple

import torch
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _launch, _laws, _math, _races, _rows


class Found(NamedTuple):
    """What a call writes, and how many of the most probable tokens, and words of bits, it has of a row."""

    logprob: tl.tensor
    rank: tl.tensor
    top_tokens: tl.tensor
    top_logprobs: tl.tensor
    most: int
    kept_bits: tl.tensor
    kept_count: tl.tensor
    words: int
    status: tl.tensor


class Memory(NamedTuple):
    """Counters; what the first launch found; numbers of tokens of each tile; the best keys of each."""

    counters: tl.tensor
    cuts: tl.tensor
    known: tl.tensor
    counts: tl.tensor
    keys: tl.tensor


@_launch.kernel
def logprobs_kernel(
    target: _arguments.Rows, tokens: _arguments.Steps, index: _arguments.Index, temperature: _arguments.Number,
    edits: _edits.LogitEdits, found: Found, memory: Memory, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    vocab, most, counts, known = target.vocab, tl.cast(found.most, tl.int32), memory.counts, memory.known
    at = _arguments.row_of(target, index, row)
    live = at.live
    inverse, greedy, flags = _arguments.heat_of(temperature, at.entry, at.j, live)
    token = tl.load(_arguments.at(tokens, at.i, at.j)).to(tl.int64)
    asked = live & ((token != -1) | (most > 0))
    in_range = asked & (token >= 0) & (token < vocab)
    place, bad_bias = _edits.place_at(edits, at.entry, at.j, at.i, at.j, 0, 0, live, vocab)
    law = _laws.Law(inverse, None, memory.cuts, row, edits.by_row, place, edits)
    own = _laws.Row(_rows.start_of(target, at.i, at.j, ALIGNED), tl.where(asked, vocab, 0), law)
    record = memory.counters + 4 * row
    mine = _laws.clean(_rows.value_at(own, token, in_range), law)
    start = tile * TILE
    x, ids = _laws.clean(_rows.load_tile(own, start, TILE), law), _rows.tile_tokens(start, TILE)
    at_least = tl.where(mine > -_math.INFINITY, tl.sum(tl.sum((x >= mine).to(tl.int32), axis=1), axis=0), 0)
    tl.store(counts + row * tiles + tile, at_least)
    if found.kept_bits is not None:
        only = tl.load(known + 2 * row).to(tl.int32, bitcast=True)
        alone = ((ids == only) & (ids < vocab) & asked).to(tl.int32)
        is_kept = tl.where(greedy, alone, (x > -_math.INFINITY).to(tl.int32))
        bit = tl.arange(0, 32)
        in_words = tl.reshape(is_kept, [TILE // 32, 32]) << bit[None, :]
        word = start // 32 + tl.arange(0, TILE // 32)
        tl.store(found.kept_bits + row * found.words + word, tl.sum(in_words, axis=1), mask=word < found.words)
        number = tl.sum(tl.sum(is_kept, axis=1), axis=0)
        tl.store(counts + (tl.num_programs(0) + row) * tiles + tile, number)
    keys = _rows.key_at(memory.keys) + row * tiles * most
    _races.store_best(keys + tile * most, x, ids, most)
    if _rows.is_last(record + _rows.DONE, tiles):
        top, log_sum = tl.load(known + 2 * row), tl.load(known + 2 * row + 1)
        argmax = top.to(tl.int32, bitcast=True)
        own_logprob = tl.where(mine > -_math.INFINITY, _math.log_probability(mine, top, log_sum), -_math.INFINITY)
        each = tl.arange(0, TILES)
        of_tiles = tl.load(counts + row * tiles + each, mask=each < tiles, other=0, cache_modifier=".cg")
        count = tl.sum(of_tiles, axis=0)
        if greedy:
            own_logprob = tl.where(in_range & (token == argmax), 0.0, -_math.INFINITY)
            count = tl.where(in_range & (token == argmax), 1, count)
        tl.store(found.logprob + row, own_logprob)
        tl.store(found.rank + row, count)
        if found.kept_bits is not None:
            numbers = counts + (tl.num_programs(0) + row) * tiles + each
            tl.store(
                found.kept_count + row,
                tl.sum(tl.load(numbers, mask=each < tiles, other=0, cache_modifier=".cg"), axis=0),
            )  # fmt: skip
        before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
        for n in range(0, most):
            before = _races.next_best(keys, tiles * most, before)
            there = before != _math.NOBODY
            value = _math.log_probability(_math.key_score(before), top, log_sum)
            if greedy:
                there, value = there & (n == 0), value * 0.0
            tl.store(found.top_tokens + row * most + n, tl.where(there, _math.key_token(before), -1).to(tl.int64))
            tl.store(found.top_logprobs + row * most + n, tl.where(there, value, -_math.INFINITY))
        row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
        if found.status is not None:
            flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, live, vocab)
            flags = (flags | row_status) + tl.where((token != -1) & (in_range == 0), _math.TOKEN_RANGE, 0)
            tl.store(found.status + row, tl.where(asked, flags, tl.where(live | at.idle, 0, _math.PARAMETER)))
        _rows.clear_record(record)


def logprobs(call):
    """Log-probability and rank of a token of each row [A, R, V], and the most probable tokens."""
    rows, law, most, bits = call.rows, call.law, call.top_tokens.shape[-1], call.kept_bits
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
        words = (_laws.CUT.value + 2) * count + _cuts.search_of(count, vocab, rows.device)
        counted = (1 if bits is None else 2) * tiles * count
        counters, scratch = _launch.workspace(rows, 4 * count, keys + counted + words)
        counts, known = scratch[keys:].view(torch.int32), scratch[keys + counted :]
        cuts = known[2 * count :]
        target = _arguments.rows_of(rows)
        flags = _arguments.Steps(counters[_rows.FLAGS.value :], 4 * inner, 4)
        _cuts.launch_cuts(
            _cuts.Side(target, _arguments.law_of(law), None, cuts, known), _cuts.NO_SIDE, index,
            _cuts.Stored(inner, 2, counters, 4, flags, 0), cuts[_laws.CUT.value * count :], outer, edits,
            asked=_arguments.NO_STEPS if most else tokens,
        )  # fmt: skip
        arguments = dict(
            target=target, tokens=tokens, index=index, temperature=_arguments.temperature_of(law), **edits,
            found=Found(call.logprob, call.rank, call.top_tokens, call.top_logprobs, most, bits, call.kept_count,
            0 if bits is None else bits.shape[-1], call.status), memory=Memory(counters, cuts, known, counts, scratch),
            ALIGNED=_launch.aligned(rows), TILE=tile, TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _launch.launch(logprobs_kernel, (count, tiles), warps, arguments)
