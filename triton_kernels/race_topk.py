"""The first k arrivals of a race: one launch. A program finds those of one tile, the last of a row merges them."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Law, clean, greedy_scores
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NOBODY,
    STREAM_RACE,
    group_words,
    inverse_temperature,
    key_token,
)
from specdec_kernels.triton_kernels._races import tile_scores
from specdec_kernels.triton_kernels._rows import (
    Row,
    best_of_tile,
    is_last,
    key_at,
    load_tile,
    noise_at,
    number,
    row_at,
    tile_tokens,
)

CHUNK = tl.constexpr(1024)  # keys merged at once


@_launch.kernel
def race_topk_kernel(
    draft, draft_outer: tl.int64, draft_inner: tl.int64, inner: tl.int32, vocab: tl.int32, k: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, counters, scratch,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    noise = noise_at(
        seed, seed_value, i * seed_outer + j * seed_inner, position, position_value,
        i * position_outer + j * position_inner, nonce, nonce_value, i * nonce_outer + j * nonce_inner,
    )  # fmt: skip
    law = Law(inverse if SPACE == "logits" else None, greedy)

    start = tile * TILE
    ids = tile_tokens(start, TILE)
    row_of_draft = Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), vocab)
    x = clean(load_tile(row_of_draft, law, start, TILE), law)
    a, b = group_words(noise, start // 64, STREAM_RACE, x.shape[0])
    keys = key_at(scratch) + row * tiles * k
    scores = greedy_scores(x, law)
    if greedy == 0:
        scores = tile_scores(x, a, b, start, noise, law, STREAM_RACE)
    for n in range(0, k):
        best = best_of_tile(scores, start, tl.full([], 0, tl.uint64))
        tl.store(keys + tile * k + n, best)
        scores = tl.where(ids == key_token(best), -INFINITY, scores)

    if is_last(counters + row, tiles):
        before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)  # keys differ, so the next is the largest below
        for n in range(0, k):
            best = tl.full([], 0, tl.uint64)
            for base in range(0, tiles * k, CHUNK):
                index = base + tl.arange(0, CHUNK)
                found = tl.load(keys + index, mask=index < tiles * k, other=NOBODY, cache_modifier=".cg")
                best = tl.maximum(best, tl.max(tl.where(found < before, found, NOBODY), axis=0))
            tl.store(tokens + row * k + n, tl.where(best == NOBODY, -1, key_token(best)).to(tl.int64))
            before = best
        tl.store(counters + row, 0)


def race_topk(draft, space, temperature, seed, position, nonce, tokens):
    """The k smallest arrivals / q in order, for each row of ``draft`` [A, R, V]; ``tokens`` int64 [A, R, k]."""
    outer, inner, vocab = draft.shape
    rows, k = outer * inner, tokens.shape[-1]
    if rows * k == 0:
        return
    tile, tiles, warps = _launch.tile_of(vocab)
    with _launch.on_device(draft):
        counters, scratch = _launch.workspace(draft, rows, 2 * rows * tiles * k)
        _launch.launch(
            race_topk_kernel, (rows, tiles), warps,
            draft=draft, draft_outer=draft.stride(0), draft_inner=draft.stride(1), inner=inner, vocab=vocab, k=k,
            **_launch.number("temperature", temperature, "outer", "inner"),
            **_launch.number("seed", seed, "outer", "inner"),
            **_launch.number("position", position, "outer", "inner"),
            **_launch.number("nonce", nonce, "outer", "inner"),
            tokens=tokens, counters=counters, scratch=scratch,
            SPACE=space, ALIGNED=_launch.aligned(draft), TILE=tile,
        )  # fmt: skip
