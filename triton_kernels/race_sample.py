"""Sampling by a race: one launch, rows split over programs, the last program of a row writes its token."""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._math import STREAM_RACE, inverse_temperature, key_token
from specdec_kernels.triton_kernels._races import race_tiles
from specdec_kernels.triton_kernels._rows import DONE, Row, is_last, key_at, noise_at, number, row_at, share_of


@_launch.kernel
def race_sample_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, dense: tl.int32, vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, counters,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    noise = noise_at(
        seed, seed_value, i * seed_outer + j * seed_inner, position, position_value,
        i * position_outer + j * position_inner, nonce, nonce_value, i * nonce_outer + j * nonce_inner,
    )  # fmt: skip
    record = counters + 4 * row
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    best, _ = race_tiles(
        Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab),
        Law(inverse if SPACE == "logits" else None, greedy), first, last, key_at(record), dense, noise, None, None,
        STREAM_RACE, TILE,
    )  # fmt: skip
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        tl.store(tokens + row, key_token(tl.atomic_xchg(key_at(record), best * 0)))
        tl.store(record + DONE, 0)


def race_sample(target, space, temperature, seed, position, nonce, tokens):
    """argmin over tokens of arrival / p, for each row of ``target`` [A, R, V]; ``tokens`` int64 [A, R]."""
    outer, inner, vocab = target.shape
    rows = outer * inner
    if rows == 0:
        return
    tile, tiles, warps = _launch.tile_of(vocab)
    with _launch.on_device(target):
        counters, _ = _launch.workspace(target, 4 * rows, 0)
        _launch.launch(
            race_sample_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps,
            target=target, target_outer=target.stride(0), target_inner=target.stride(1),
            inner=inner, dense=_launch.is_dense(rows * tiles, target.device), vocab=vocab,
            **_launch.number("temperature", temperature, "outer", "inner"),
            **_launch.number("seed", seed, "outer", "inner"),
            **_launch.number("position", position, "outer", "inner"),
            **_launch.number("nonce", nonce, "outer", "inner"),
            tokens=tokens, counters=counters,
            SPACE=space, ALIGNED=_launch.aligned(target), TILE=tile,
        )  # fmt: skip
