"""Coins of the noise contract: one launch, a block of coins a program."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math

BLOCK = 256  # coins of a program


@_launch.kernel
def coin_kernel(
    noise: _arguments.Noise, index: _arguments.Counter, noise_stream: tl.int64, count: tl.int64, inner: tl.int64, coins,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = place < count
    i, j = place // inner, place % inner
    own_noise = _arguments.noise_of(noise, i, j, live)
    at = _arguments.number(index, i, j, live) + tl.zeros([BLOCK], tl.int64)
    word, _, _, _ = _math.words(own_noise, at.to(tl.uint32), noise_stream.to(tl.uint32))
    tl.store(coins + place, _math.coin_of(word), mask=live)


def coin(call):
    """A coin for each place of ``coins`` float32 [A, R]."""
    noise, index, stream, coins = call
    with _launch.on_device(coins):
        arguments = dict(
            noise=_arguments.noise_numbers(noise), index=_arguments.counter_of(index),
            noise_stream=stream, count=coins.numel(), inner=coins.shape[1], coins=coins, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(coin_kernel, (triton.cdiv(coins.numel(), BLOCK),), 4, arguments)
