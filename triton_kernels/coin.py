"""Coins of the noise contract: one launch, a block of coins a program."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import coin_of, words
from specdec_kernels.triton_kernels._rows import noise_at, number

BLOCK = 256  # coins of a program


@_launch.kernel
def coin_kernel(
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    index, index_outer: tl.int64, index_inner: tl.int64, index_value: tl.int64,
    noise_stream: tl.int64, count: tl.int64, inner: tl.int64, coins, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = place < count
    i, j = place // inner, place % inner
    noise = noise_at(
        seed, seed_value, i * seed_outer + j * seed_inner, position, position_value,
        i * position_outer + j * position_inner, nonce, nonce_value, i * nonce_outer + j * nonce_inner, live,
    )  # fmt: skip
    at = number(index, index_value, i * index_outer + j * index_inner, live) + tl.zeros([BLOCK], tl.int64)
    word, _, _, _ = words(noise, at.to(tl.uint32), noise_stream.to(tl.uint32))
    tl.store(coins + place, coin_of(word), mask=live)


def coin(call):
    """A coin for each place of ``coins`` float32 [A, R]."""
    noise, index, stream, coins = call
    if coins.numel() == 0:
        return
    with _launch.on_device(coins):
        arguments = dict(
            **_launch.noise(noise, "outer", "inner"), **_launch.number("index", index, "outer", "inner"),
            noise_stream=stream, count=coins.numel(), inner=coins.shape[1], coins=coins, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(coin_kernel, (triton.cdiv(coins.numel(), BLOCK),), 4, arguments)
