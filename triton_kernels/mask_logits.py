"""Rows without what cuts drop: one launch, rows split over programs."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import LARGEST, inverse_temperature
from specdec_kernels.triton_kernels._rows import number, row_at

BLOCK = 2048  # elements of a program


@_launch.kernel
def mask_logits_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    value, last, last_step: tl.int64, out, out_outer: tl.int64, out_inner: tl.int64,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    inverse, _, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner, i >= 0)
    )
    least, behind = tl.load(value + row), tl.load(last + row * last_step)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < vocab
    raw = tl.load(row_at(target, i * target_outer + j * target_inner, ALIGNED) + column, mask=there, other=0.0)
    v = raw.to(tl.float32) * inverse
    v = tl.where(v > LARGEST, LARGEST, v)
    dropped = (v < least) | ((v == least) & (column > behind))  # a NaN stays
    nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(raw.dtype)
    tl.store(row_at(out, i * out_outer + j * out_inner, ALIGNED) + column, tl.where(dropped, nothing, raw), mask=there)


def mask_logits(call):
    """``out`` like ``rows`` [A, R, V], from ``value`` float32 and ``last`` int64 [A R]."""
    rows, out = call.rows, call.out
    outer, inner, vocab = rows.shape
    if outer * inner == 0:
        return
    with _launch.on_device(rows):
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), inner=inner, vocab=vocab,
            **_launch.number("temperature", call.temperature, "outer", "inner"), value=call.value, last=call.last,
            last_step=call.last.stride(0), out=out, out_outer=out.stride(0), out_inner=out.stride(1),
            ALIGNED=_launch.aligned(rows, out), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(mask_logits_kernel, (outer * inner, triton.cdiv(vocab, BLOCK)), 4, arguments)
