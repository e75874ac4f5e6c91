"""Winners of rows from what their parts found: one launch, a block of rows a program."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _math

BLOCK = 128  # rows of a program


@_launch.kernel
def first_arrivals_kernel(packed, parts: tl.int32, count: tl.int64, tokens, status, empty, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = row < count
    best, first = tl.full([BLOCK], float("-inf"), tl.float32), tl.full([BLOCK], _math.NO_TOKEN, tl.int32)
    bits = tl.full([BLOCK], 0, tl.int32)
    for part in range(0, parts):
        words = packed + 3 * (part * count + row)
        token = tl.load(words, mask=there, other=0)
        score = tl.load(words + 1, mask=there, other=0).to(tl.float32, bitcast=True)
        better = (score > best) | ((score == best) & (score > float("-inf")) & (token < first))
        best, first = tl.where(better, score, best), tl.where(better, token, first)
        bits |= tl.load(words + 2, mask=there, other=0)
    nobody = first == _math.NO_TOKEN
    tl.store(tokens + row, tl.where(nobody, 0, first).to(tl.int64), mask=there)
    tl.store(status + row, bits | tl.where(nobody, _math.NON_FINITE, 0), mask=there)
    tl.store(empty + row, nobody.to(tl.int32), mask=there)


def first_arrivals(call):
    """``tokens`` int64 [n], ``status`` and ``empty`` int32 [n], from ``packed`` int32 [parts, 3 n]."""
    rows = len(call.tokens)
    with _launch.on_device(call.packed):
        arguments = dict(
            packed=call.packed, parts=len(call.packed), count=rows, tokens=call.tokens, status=call.status,
            empty=call.empty, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(first_arrivals_kernel, (triton.cdiv(rows, BLOCK),), 4, arguments)
