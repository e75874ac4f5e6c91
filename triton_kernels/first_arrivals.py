"""Winners of rows from the winners of their shards: one launch, a block of rows a program."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _math

BLOCK = 128  # rows of a program


@_launch.kernel
def first_arrivals_kernel(packed, shards: tl.int32, count: tl.int64, tokens, status, empty, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = row < count
    best, first = tl.full([BLOCK], float("-inf"), tl.float32), tl.full([BLOCK], _math.NO_TOKEN, tl.int32)
    bits = tl.full([BLOCK], 0, tl.int32)
    for shard in range(0, shards):
        candidate = packed + 3 * (shard * count + row)
        token = tl.load(candidate, mask=there, other=0)
        score = tl.load(candidate + 1, mask=there, other=0).to(tl.float32, bitcast=True)
        better = (score > best) | ((score == best) & (score > float("-inf")) & (token < first))
        best, first = tl.where(better, score, best), tl.where(better, token, first)
        bits |= tl.load(candidate + 2, mask=there, other=0)
    no_token = first == _math.NO_TOKEN
    tl.store(tokens + row, tl.where(no_token, 0, first).to(tl.int64), mask=there)
    tl.store(status + row, bits | tl.where(no_token, _math.NON_FINITE, 0), mask=there)
    tl.store(empty + row, no_token.to(tl.int32), mask=there)


def first_arrivals(call):
    """``tokens`` int64 [n], ``status`` and ``empty`` int32 [n], from ``packed`` int32 [parts, 3 n]."""
    rows = len(call.tokens)
    with _launch.on_device(call.packed):
        arguments = dict(
            packed=call.packed, shards=len(call.packed), count=rows, tokens=call.tokens, status=call.status,
            empty=call.empty, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(first_arrivals_kernel, (triton.cdiv(rows, BLOCK),), 4, arguments)
