"""Uniforms of the noise contract: one launch, a block of uniforms a program."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math

BLOCK = 256  # uniforms of a program


@_launch.kernel
def uniform_kernel(
    noise: _arguments.Noise, index: _arguments.Counter, noise_stream: tl.int64, count: tl.int64, inner: tl.int64,
    uniforms,
    BLOCK: tl.constexpr,
):  # fmt: skip
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = flat < count
    i, j = flat // inner, flat % inner
    row_noise = _arguments.load_noise(noise, i, j, live)
    at = _arguments.number(index, i, j, live) + tl.zeros([BLOCK], tl.int64)
    word, _, _, _ = _math.random_words(row_noise, at.to(tl.uint32), noise_stream.to(tl.uint32))
    tl.store(uniforms + flat, _math.uniform_of(word), mask=live)


def uniform(call):
    """``uniforms`` float32 [A, R] in [0, 1)."""
    noise, index, stream, uniforms = call
    with _launch.on_device(uniforms):
        arguments = dict(
            noise=_arguments.noise_numbers(noise), index=_arguments.counter_of(index),
            noise_stream=stream, count=uniforms.numel(), inner=uniforms.shape[1], uniforms=uniforms, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(uniform_kernel, (triton.cdiv(uniforms.numel(), BLOCK),), 4, arguments)
