"""The law a rejected token is replaced from. The last program of a row knows the sum, and normalises."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import launch_laws, law_tile
from specdec_kernels.triton_kernels._math import draft_prob_of, epsilon_of, inverse_temperature, residual_weight
from specdec_kernels.triton_kernels._rows import is_last, number, row_at, tile_tokens


@_launch.kernel
def residual_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    draft_prob, draft_prob_outer: tl.int64, draft_prob_inner: tl.int64, draft_prob_value: tl.float32,
    epsilon, epsilon_outer: tl.int64, epsilon_inner: tl.int64, epsilon_value: tl.float32,
    probs, mass, counters, figures, partials,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    h = draft_prob_of(number(draft_prob, draft_prob_value, i * draft_prob_outer + j * draft_prob_inner))[0]
    share = epsilon_of(number(epsilon, epsilon_value, i * epsilon_outer + j * epsilon_inner))[0]
    target = row_at(target, i * target_outer + j * target_inner, ALIGNED)
    draft = row_at(draft, i * draft_outer + j * draft_inner, ALIGNED)
    probs = row_at(probs, row * vocab, ALIGNED)
    own = figures + 4 * row
    tiles = tl.cdiv(vocab, TILE)
    sums = partials + 4 * tiles * row
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        p = law_tile(target, start, vocab, own, inverse, greedy, SPACE, TILE)
        drafted = h * law_tile(draft, start, draft_vocab, own + 2, inverse, greedy, SPACE, TILE)
        weight = residual_weight(p, drafted)
        rejected = tl.maximum((drafted - p) - share, 0.0)
        tokens = tile_tokens(start, TILE)
        tl.store(probs + tokens, weight, mask=tokens < vocab)
        tl.store(sums + 2 * tile, tl.sum(tl.sum(weight, axis=1), axis=0))
        tl.store(sums + 2 * tile + 1, tl.sum(tl.sum(rejected, axis=1), axis=0))

    ticket = counters + 8 * row + 4
    if is_last(ticket, splits):
        index = tl.arange(0, TILES)
        weight = tl.sum(tl.load(sums + 2 * index, mask=index < tiles, other=0.0, cache_modifier=".cg"), axis=0)
        rejected = tl.sum(tl.load(sums + 2 * index + 1, mask=index < tiles, other=0.0, cache_modifier=".cg"), axis=0)
        for tile in range(0, tiles):
            start = tl.cast(tile, tl.int32) * TILE
            tokens = tile_tokens(start, TILE)
            if weight > 0.0:
                p = tl.load(probs + tokens, mask=tokens < vocab, other=0.0, cache_modifier=".cg")
                tl.store(probs + tokens, tl.div_rn(p, weight), mask=tokens < vocab)
            else:
                p = law_tile(target, start, vocab, own, inverse, greedy, SPACE, TILE)
                tl.store(probs + tokens, p, mask=tokens < vocab)
        drawn = tl.where(share == 0.0, weight, (1.0 - h) + rejected)
        tl.store(mass + row, tl.where(weight > 0.0, drawn, 0.0))
        tl.store(ticket, 0)


def residual(call):
    """norm((p - a q)^+) [rows, V] and the probability [rows] that a token is drawn from it; p and 0 if it is empty."""
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
        shared["ALIGNED"] = _launch.aligned(target, draft, call.probs)
        _launch.launch(
            residual_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **shared,
            **_launch.number("draft_prob", call.draft_prob, "outer", "inner"),
            **_launch.number("epsilon", call.epsilon, "outer", "inner"),
            probs=call.probs, mass=call.mass,
        )  # fmt: skip
