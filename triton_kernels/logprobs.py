"""Log-probabilities of tokens: one launch finds the laws of rows (``_cuts``), the next looks at the tokens in them.

In the second each program counts, in a tile, the tokens that are at least as probable, and takes the most probable
ones; the last program of a row merges them.
"""

import torch
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import CUT, Law, clean
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NOBODY,
    PARAMETER,
    TOKEN_RANGE,
    inverse_temperature,
    key_score,
    key_token,
    log_probability,
)
from specdec_kernels.triton_kernels._races import next_best, store_best
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    entry_of,
    is_last,
    key_at,
    load_tile,
    row_at,
    tile_tokens,
    value_at,
)


@_launch.kernel
def logprobs_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    tokens, tokens_outer: tl.int64, tokens_inner: tl.int64, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    logprob, rank, top_tokens, top_logprobs, most: tl.int32, kept_bits, kept_count, words: tl.int32,
    status, counters, cuts, known, counts, scratch, edits,
    ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    token = tl.load(tokens + i * tokens_outer + j * tokens_inner).to(tl.int64)
    asked = live & ((token != -1) | (most > 0))
    in_range = asked & (token >= 0) & (token < vocab)
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse, None, cuts, row, *place, *edits)
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), tl.where(asked, vocab, 0))
    record = counters + 4 * row
    mine = clean(value_at(own, token, in_range, law), law)
    start = tile * TILE
    x, ids = clean(load_tile(own, law, start, TILE), law), tile_tokens(start, TILE)
    at_least = tl.where(mine > -INFINITY, tl.sum(tl.sum((x >= mine).to(tl.int32), axis=1), axis=0), 0)
    tl.store(counts + row * tiles + tile, at_least)
    if kept_bits is not None:
        only = tl.load(known + 2 * row).to(tl.int32, bitcast=True)
        alone = ((ids == only) & (ids < vocab) & asked).to(tl.int32)
        is_kept = tl.where(greedy, alone, (x > -INFINITY).to(tl.int32))
        bit = tl.arange(0, 32)
        in_words = tl.reshape(is_kept, [TILE // 32, 32]) << bit[None, :]
        word = start // 32 + tl.arange(0, TILE // 32)
        tl.store(kept_bits + row * words + word, tl.sum(in_words, axis=1), mask=word < words)
        number = tl.sum(tl.sum(is_kept, axis=1), axis=0)
        tl.store(counts + (tl.num_programs(0) + row) * tiles + tile, number)
    keys = key_at(scratch) + row * tiles * most
    store_best(keys + tile * most, x, ids, most)
    if is_last(record + DONE, tiles):
        top, log_sum = tl.load(known + 2 * row), tl.load(known + 2 * row + 1)
        argmax = top.to(tl.int32, bitcast=True)
        own_logprob = tl.where(mine > -INFINITY, log_probability(mine, top, log_sum), -INFINITY)
        index = tl.arange(0, TILES)
        found = tl.load(counts + row * tiles + index, mask=index < tiles, other=0, cache_modifier=".cg")
        count = tl.sum(found, axis=0)
        if greedy:
            own_logprob = tl.where(in_range & (token == argmax), 0.0, -INFINITY)
            count = tl.where(in_range & (token == argmax), 1, count)
        tl.store(logprob + row, own_logprob)
        tl.store(rank + row, count)
        if kept_bits is not None:
            numbers = counts + (tl.num_programs(0) + row) * tiles + index
            tl.store(
                kept_count + row, tl.sum(tl.load(numbers, mask=index < tiles, other=0, cache_modifier=".cg"), axis=0)
            )
        before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
        for n in range(0, most):
            before = next_best(keys, tiles * most, before)
            there = before != NOBODY
            value = log_probability(key_score(before), top, log_sum)
            if greedy:
                there, value = there & (n == 0), value * 0.0
            tl.store(top_tokens + row * most + n, tl.where(there, key_token(before), -1).to(tl.int64))
            tl.store(top_logprobs + row * most + n, tl.where(there, value, -INFINITY))
        row_status = tl.load(record + FLAGS, cache_modifier=".cg")
        if status is not None:
            flags |= bad_bias | request_status(edits, entry, j, live, vocab)
            flags = (flags | row_status) + tl.where((token != -1) & (in_range == 0), TOKEN_RANGE, 0)
            tl.store(status + row, tl.where(asked, flags, tl.where(live | idle, 0, PARAMETER)))
        barrier()  # all warps have read
        tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def logprobs(call):
    """Log-probability and rank of a token of each row [A, R, V], and the most probable tokens."""
    rows, law, most = call.rows, call.law, call.top_tokens.shape[-1]
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    index = _launch.index(call.request_index, *_launch.numbers_of(law), edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        keys = 2 * count * tiles * most
        words = (CUT.value + 2) * count + _cuts.search_of(count, vocab, rows.device)
        counted = (1 if call.kept_bits is None else 2) * tiles * count
        counters, scratch = _launch.workspace(rows, 4 * count, keys + counted + words)
        counts, known = scratch[keys:].view(torch.int32), scratch[keys + counted :]
        cuts = known[2 * count :]
        places = _cuts.Places(2, counters, 4, counters[FLAGS.value :], 4 * inner, 4)
        _cuts.launch_cuts(
            (rows, law, known, cuts), None, (inner, 0), index, places, cuts[CUT.value * count :], outer, inner, edits,
            tokens=None if most else call.tokens,
        )  # fmt: skip
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), inner=inner, vocab=vocab,
            tokens=call.tokens, tokens_outer=call.tokens.stride(0), tokens_inner=call.tokens.stride(1), **index,
            **_launch.divisor("temperature", law, "outer", "inner"),
            logprob=call.logprob, rank=call.rank, top_tokens=call.top_tokens, top_logprobs=call.top_logprobs,
            most=most, kept_bits=call.kept_bits, kept_count=call.kept_count,
            words=0 if call.kept_bits is None else call.kept_bits.shape[-1],
            status=call.status, counters=counters, cuts=cuts, known=known, counts=counts, scratch=scratch,
            **edits, ALIGNED=_launch.aligned(rows), TILE=tile, TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _launch.launch(logprobs_kernel, (count, tiles), warps, arguments)
