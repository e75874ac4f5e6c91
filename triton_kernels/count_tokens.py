"""Counts of tokens: one launch, a program for each request.

A token may repeat. So a program first sets the counts of unseen tokens to 0, then counts with atomics, then clamps
counts that overflowed. It is one warp, so its stores are visible behind a barrier.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _math, _rows

BLOCK = 128  # tokens of a step


@triton.jit
def tokens_at(tokens, tokens_node, first, taken, vocab, BLOCK: tl.constexpr):
    """(tokens, whether they count) of a block from column ``first`` on."""
    index = first + tl.arange(0, BLOCK)
    token = tl.load(tokens + index.to(tl.int64) * tokens_node, mask=index < taken, other=-1).to(tl.int64)
    there = (token >= 0) & (token < vocab)
    return tl.where(there, token, 0), there


@_launch.kernel
def count_tokens_kernel(
    tokens: _arguments.Steps, columns: tl.int32, num: _arguments.Counter, bits: _arguments.Steps,
    counts: _arguments.Steps, vocab: tl.int64, status, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    wanted = tl.cast(_arguments.number(num, b, 0, b >= 0), tl.int64)
    taken = tl.minimum(tl.maximum(wanted, 0), columns.to(tl.int64)).to(tl.int32)
    drafted, tokens_node, seen_bits = _arguments.at(tokens, b, 0), tokens.inner, _arguments.at(bits, b, 0)
    if counts.data is not None:
        request_counts = _arguments.at(counts, b, 0)
        for first in range(0, taken, BLOCK):
            token, there = tokens_at(drafted, tokens_node, first, taken, vocab, BLOCK)
            seen = (tl.load(seen_bits + token // 32, mask=there, other=0) >> (token % 32).to(tl.int32)) & 1
            tl.store(request_counts + token, tl.zeros([BLOCK], tl.int32), mask=there & (seen == 0))
            one = tl.full([BLOCK], 1, tl.int32)
            tl.atomic_max(request_counts + token, one, mask=there & (seen == 1), sem="relaxed")
        _rows.barrier()
    for first in range(0, taken, BLOCK):
        token, there = tokens_at(drafted, tokens_node, first, taken, vocab, BLOCK)
        bit = tl.full([BLOCK], 1, tl.int32) << (token % 32).to(tl.int32)
        tl.atomic_or(seen_bits + token // 32, bit, mask=there, sem="relaxed")
        if counts.data is not None:
            tl.atomic_add(request_counts + token, tl.full([BLOCK], 1, tl.int32), mask=there, sem="relaxed")
    if counts.data is not None:
        _rows.barrier()
        for first in range(0, taken, BLOCK):
            token, there = tokens_at(drafted, tokens_node, first, taken, vocab, BLOCK)
            over = tl.load(request_counts + token, mask=there, other=0, cache_modifier=".cg") < 0
            tl.store(request_counts + token, tl.full([BLOCK], _edits.MOST, tl.int32), mask=there & over)
    tl.store(status + b, tl.where(wanted == taken, 0, _math.PARAMETER))


def count_tokens(call):
    """Adds each request's first ``num`` tokens to bits ``mask`` int32 [B, W] and ``counts`` int32 [B, V]."""
    requests, columns = call.tokens.shape
    counts = call.counts
    with _launch.on_device(call.tokens):
        arguments = dict(
            tokens=_arguments.nodes_of(call.tokens), columns=columns, num=_arguments.counter_of(call.num),
            bits=_arguments.steps_or_none(call.mask), counts=_arguments.steps_or_none(counts),
            vocab=32 * call.mask.shape[1] if counts is None else counts.shape[1], status=call.status, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(count_tokens_kernel, (requests,), 1, arguments)
