"""Rows whose dropped tokens become -inf: one launch, rows split over programs."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows

BLOCK = 2048  # elements of a program


@_launch.kernel
def mask_logits_kernel(
    target: _arguments.Rows, temperature: _arguments.Number, value, last: _arguments.Steps, out: _arguments.Steps,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // target.count, row % target.count
    inverse, _, _ = _math.inverse_temperature(_arguments.number(temperature, i, j, i >= 0))
    least, behind = tl.load(value + row), tl.load(_arguments.at(last, row, 0))
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < target.vocab
    raw = tl.load(_rows.start_of(target, i, j, ALIGNED) + column, mask=there, other=0.0)
    v = raw.to(tl.float32) * inverse
    v = tl.where(v > _math.LARGEST, _math.LARGEST, v)
    dropped = (v < least) | ((v == least) & (column > behind))  # not a NaN
    nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(raw.dtype)
    to = _rows.row_at(out.data, _arguments.offset_at(out, i, j), ALIGNED) + column
    tl.store(to, tl.where(dropped, nothing, raw), mask=there)


def mask_logits(call):
    """``out`` like ``rows`` [A, R, V], from ``value`` float32 and ``last`` int64 [A R]."""
    rows, out = call.rows, call.out
    outer, inner, vocab = rows.shape
    with _launch.on_device(rows):
        arguments = dict(
            target=_arguments.rows_of(rows), temperature=_arguments.number_of(call.temperature), value=call.value,
            last=_arguments.steps_or_none(call.last), out=_arguments.steps_or_none(out),
            ALIGNED=_launch.aligned(rows, out), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(mask_logits_kernel, (outer * inner, triton.cdiv(vocab, BLOCK)), 4, arguments)
