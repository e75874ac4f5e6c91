"""How well a draft law covers a target law: sums over pairs of tiles, added up by the last program of a row."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Law, known_at
from specdec_kernels.triton_kernels._math import entropy_term, harmonic_term, inverse_temperature
from specdec_kernels.triton_kernels._pairs import launch_laws, law_tile
from specdec_kernels.triton_kernels._rows import DONE, Row, is_last, number, row_at


@_launch.kernel
def overlap_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    accept, tv, kl, harmonic, counters, figures, partials,
    TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    target = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    draft = Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), draft_vocab)
    target_law = Law(inverse if TARGET == "logits" else None, greedy)
    draft_law = Law(inverse if DRAFT == "logits" else None, greedy)
    own = figures + 4 * row
    p_known, q_known = known_at(own, target_law, row >= 0), known_at(own + 2, draft_law, row >= 0)
    tiles = tl.cdiv(vocab, TILE)
    sums = partials + 4 * tiles * row
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        p = law_tile(target, target_law, p_known, start, TILE)
        q = law_tile(draft, draft_law, q_known, start, TILE)
        tl.store(sums + 4 * tile, tl.sum(tl.sum(tl.minimum(p, q), axis=1), axis=0))
        tl.store(sums + 4 * tile + 1, tl.sum(tl.sum(tl.abs(p - q), axis=1), axis=0))
        tl.store(sums + 4 * tile + 2, tl.sum(tl.sum(entropy_term(p, q), axis=1), axis=0))
        tl.store(sums + 4 * tile + 3, tl.sum(tl.sum(harmonic_term(p, q), axis=1), axis=0))

    ticket = counters + 8 * row + DONE
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


def overlap(target, draft, space, temperature, accept, tv, kl, harmonic):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q), each [A, R], of row pairs [A, R, V]."""
    outer, inner, vocab = target.shape
    rows = outer * inner
    if rows == 0:
        return
    tile, tiles, warps = _launch.tile_of(vocab)
    with _launch.on_device(target), _launch.whole_calls():
        counters, scratch = _launch.workspace(target, 8 * rows, (4 + 4 * tiles) * rows)
        shared = launch_laws(
            target, draft, space, temperature, counters, scratch, scratch[4 * rows :], rows, tile, tiles, warps
        )
        _launch.launch(
            overlap_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **shared,
            accept=accept, tv=tv, kl=kl, harmonic=harmonic,
        )  # fmt: skip
