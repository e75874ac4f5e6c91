"""Pairs of rows as laws, for residual and overlap: what one launch learns of each row, and tiles of probabilities."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NOBODY,
    clean_probability,
    inverse_temperature,
    key_token,
    probability,
    scaled,
)
from specdec_kernels.triton_kernels._rows import (
    LOGITS,
    PROBS,
    argmax_tile,
    clean,
    finish_lse,
    is_last,
    key_at,
    load_tile,
    lse_tiles,
    number,
    row_at,
    tile_tokens,
)


@triton.jit
def argmax_tiles(row, vocab, first, last, KIND: tl.constexpr, TILE: tl.constexpr):
    """The key of the most probable token in the tiles [first, last) of a row."""
    best = tl.full([], 0, tl.uint64)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, start, vocab, -INFINITY if KIND == LOGITS else 0.0, TILE)
        best = argmax_tile(clean(x, 1.0, KIND), start, best, KIND)
    return best


@triton.jit
def greedy_figure(key):
    """The token of an argmax, -1 for none, as the bits of a float."""
    token = tl.where(tl.load(key, cache_modifier=".cg") == NOBODY, -1, key_token(tl.load(key, cache_modifier=".cg")))
    return token.to(tl.float32, bitcast=True)


@_launch.kernel
def laws_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    counters, figures, partials,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Four figures a row pair: largest and log of the sum of target and draft, or the argmax of each at T = 0."""
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    KIND: tl.constexpr = LOGITS if SPACE == "logits" else PROBS
    target = row_at(target, i * target_outer + j * target_inner, ALIGNED)
    draft = row_at(draft, i * draft_outer + j * draft_inner, ALIGNED)
    record, own = counters + 8 * row, figures + 4 * row
    tiles, draft_tiles = tl.cdiv(vocab, TILE), tl.cdiv(draft_vocab, TILE)
    sums = partials + 4 * tiles * row
    first, last = split * tiles // splits, (split + 1) * tiles // splits
    draft_first, draft_last = split * draft_tiles // splits, (split + 1) * draft_tiles // splits
    if greedy:
        tl.atomic_max(key_at(record), argmax_tiles(target, vocab, first, last, KIND, TILE), sem="relaxed")
        tl.atomic_max(
            key_at(record + 2), argmax_tiles(draft, draft_vocab, draft_first, draft_last, KIND, TILE), sem="relaxed"
        )
    elif SPACE == "logits":
        lse_tiles(target, vocab, first, last, inverse, sums, TILE)
        lse_tiles(draft, draft_vocab, draft_first, draft_last, inverse, sums + 2 * tiles, TILE)
    if is_last(record + 4, splits):
        if greedy:
            tl.store(own, greedy_figure(key_at(record)))
            tl.store(own + 2, greedy_figure(key_at(record + 2)))
            tl.debug_barrier()  # all warps have read
            for word in tl.static_range(4):
                tl.store(record + word, 0)
        elif SPACE == "logits":
            top, log_sum, _weightless = finish_lse(sums, tiles, TILES)
            draft_top, draft_log_sum, _weightless = finish_lse(sums + 2 * tiles, draft_tiles, TILES)
            tl.store(own, top)
            tl.store(own + 1, log_sum)
            tl.store(own + 2, draft_top)
            tl.store(own + 3, draft_log_sum)
        tl.store(record + 4, 0)


@triton.jit
def law_tile(row, start, vocab, figures, inverse, greedy, SPACE: tl.constexpr, TILE: tl.constexpr):
    """Probabilities of a tile."""
    x = load_tile(row, start, vocab, -INFINITY if SPACE == "logits" else 0.0, TILE)
    if SPACE == "logits":
        p = probability(scaled(x, inverse), tl.load(figures), tl.load(figures + 1))
    else:
        p = clean_probability(x)
    top = tl.load(figures, mask=greedy, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(greedy, (tile_tokens(start, TILE) == top).to(tl.float32), p)


def launch_laws(target, draft, law, counters, figures, partials, rows, tile, tiles, warps):
    """The launch of ``laws_kernel`` where it is needed; returns the arguments that the next kernel shares with it."""
    arguments = dict(
        target=target, target_outer=target.stride(0), target_inner=target.stride(1),
        draft=draft, draft_outer=draft.stride(0), draft_inner=draft.stride(1),
        inner=target.shape[1], vocab=target.shape[-1], draft_vocab=draft.shape[-1],
        **_launch.number("temperature", law.temperature, "outer", "inner"),
        counters=counters, figures=figures, partials=partials, SPACE=law.space, TILE=tile,
        TILES=triton.next_power_of_2(tiles), ALIGNED=_launch.aligned(target, draft),
    )  # fmt: skip
    if law.space == "logits" or _launch.may_be_greedy(law):
        _launch.launch(laws_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **arguments)
    return arguments
