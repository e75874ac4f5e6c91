"""The law a rejected token is replaced from. The last program of a row knows the sum, and normalises."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Law, known_at
from specdec_kernels.triton_kernels._math import (
    draft_prob_of,
    drawn_mass,
    epsilon_of,
    inverse_temperature,
    rejected_weight,
    residual_weight,
)
from specdec_kernels.triton_kernels._pairs import launch_laws, law_tile
from specdec_kernels.triton_kernels._rows import DONE, Row, is_last, number, row_at, tile_tokens


@_launch.kernel
def residual_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    draft_prob, draft_prob_outer: tl.int64, draft_prob_inner: tl.int64, draft_prob_value: tl.float32,
    epsilon, epsilon_outer: tl.int64, epsilon_inner: tl.int64, epsilon_value: tl.float32,
    probs, mass, counters, figures, partials,
    TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    h = draft_prob_of(number(draft_prob, draft_prob_value, i * draft_prob_outer + j * draft_prob_inner))[0]
    share = epsilon_of(number(epsilon, epsilon_value, i * epsilon_outer + j * epsilon_inner))[0]
    target = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    draft = Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), draft_vocab)
    target_law = Law(inverse if TARGET == "logits" else None, greedy)
    draft_law = Law(inverse if DRAFT == "logits" else None, greedy)
    own = figures + 4 * row
    p_known, q_known = known_at(own, target_law, row >= 0), known_at(own + 2, draft_law, row >= 0)
    probs = row_at(probs, row * vocab, ALIGNED)
    tiles = tl.cdiv(vocab, TILE)
    sums = partials + 4 * tiles * row
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        p = law_tile(target, target_law, p_known, start, TILE)
        drafted = h * law_tile(draft, draft_law, q_known, start, TILE)
        weight = residual_weight(p, drafted)
        rejected = rejected_weight(p, drafted, share)
        tokens = tile_tokens(start, TILE)
        tl.store(probs + tokens, weight, mask=tokens < vocab)
        tl.store(sums + 2 * tile, tl.sum(tl.sum(weight, axis=1), axis=0))
        tl.store(sums + 2 * tile + 1, tl.sum(tl.sum(rejected, axis=1), axis=0))

    ticket = counters + 8 * row + DONE
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
                p = law_tile(target, target_law, p_known, start, TILE)
                tl.store(probs + tokens, p, mask=tokens < vocab)
        tl.store(mass + row, drawn_mass(weight, rejected, h, share))
        tl.store(ticket, 0)


def residual(target, draft, space, temperature, draft_prob, epsilon, probs, mass):
    """norm((p - a q)^+) [A, R, V] and the probability [A, R] that a token is drawn from it; p and 0 if it is empty."""
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
        shared["ALIGNED"] = _launch.aligned(target, draft, probs)
        _launch.launch(
            residual_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **shared,
            **_launch.number("draft_prob", draft_prob, "outer", "inner"),
            **_launch.number("epsilon", epsilon, "outer", "inner"),
            probs=probs, mass=mass,
        )  # fmt: skip
