"""How well a draft law covers a target law: sums over pairs of tiles, added up by the last program of a row."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import launch_laws, law_tile
from specdec_kernels.triton_kernels._math import INFINITY, SMALLEST, inverse_temperature, log
from specdec_kernels.triton_kernels._rows import is_last, number, row_at


@_launch.kernel
def overlap_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    accept, tv, kl, harmonic, counters, figures, partials,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    target = row_at(target, i * target_outer + j * target_inner, ALIGNED)
    draft = row_at(draft, i * draft_outer + j * draft_inner, ALIGNED)
    own = figures + 4 * row
    tiles = tl.cdiv(vocab, TILE)
    sums = partials + 4 * tiles * row
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        p = law_tile(target, start, vocab, own, inverse, greedy, SPACE, TILE)
        q = law_tile(draft, start, draft_vocab, own + 2, inverse, greedy, SPACE, TILE)
        ratio = tl.where(q > 0.0, p * (log(tl.maximum(p, SMALLEST)) - log(tl.maximum(q, SMALLEST))), INFINITY)
        both = p * q / tl.maximum(p + q, SMALLEST)
        tl.store(sums + 4 * tile, tl.sum(tl.sum(tl.minimum(p, q), axis=1), axis=0))
        tl.store(sums + 4 * tile + 1, tl.sum(tl.sum(tl.abs(p - q), axis=1), axis=0))
        tl.store(sums + 4 * tile + 2, tl.sum(tl.sum(tl.where(p > 0.0, ratio, 0.0), axis=1), axis=0))
        tl.store(sums + 4 * tile + 3, tl.sum(tl.sum(both, axis=1), axis=0))

    ticket = counters + 8 * row + 4
    if is_last(ticket, splits):
        index = tl.arange(0, TILES)
        here = index < tiles
        tl.store(accept + row, tl.sum(tl.load(sums + 4 * index, mask=here, other=0.0, cache_modifier=".cg"), axis=0))
        twice = tl.sum(tl.load(sums + 4 * index + 1, mask=here, other=0.0, cache_modifier=".cg"), axis=0)
        tl.store(tv + row, 0.5 * twice)
        tl.store(kl + row, tl.sum(tl.load(sums + 4 * index + 2, mask=here, other=0.0, cache_modifier=".cg"), axis=0))
        both = tl.sum(tl.load(sums + 4 * index + 3, mask=here, other=0.0, cache_modifier=".cg"), axis=0)
        tl.store(harmonic + row, both)
        tl.store(ticket, 0)


def overlap(call):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q), each [rows], of row pairs [A, R, V]."""
    target, draft = call.target, call.draft
    outer, inner, vocab = target.shape
    rows = outer * inner
    if rows == 0:
        return
    tile, tiles, warps = _launch.tile_of(vocab)
    with _launch.on_device(target), _launch.whole_calls():
        counters, scratch = _launch.workspace(target, 8 * rows, (4 + 4 * tiles) * rows)
        shared = launch_laws(
            target, draft, call.target_law, counters, scratch, scratch[4 * rows :], rows, tile, tiles, warps
        )
        _launch.launch(
            overlap_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **shared,
            accept=call.accept, tv=call.tv, kl=call.kl, harmonic=call.harmonic,
        )  # fmt: skip
