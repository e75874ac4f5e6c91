"""Counting tokens: one launch, a program for each request.

A token may come more than once. So a program first makes sense of the counts in memory, then counts, then ends the
counts that went too far. It is one warp, so that what it wrote is there when it goes on.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._edits import MOST
from specdec_kernels.triton_kernels._math import PARAMETER
from specdec_kernels.triton_kernels._rows import barrier, number

BLOCK = 128  # tokens at once


@triton.jit
def tokens_at(tokens, tokens_node, first, taken, vocab, BLOCK: tl.constexpr):
    """(tokens, whether they count) of a block, from its first slot on."""
    slot = first + tl.arange(0, BLOCK)
    token = tl.load(tokens + slot.to(tl.int64) * tokens_node, mask=slot < taken, other=-1).to(tl.int64)
    there = (token >= 0) & (token < vocab)
    return tl.where(there, token, 0), there


@_launch.kernel
def count_tokens_kernel(
    tokens, tokens_request: tl.int64, tokens_node: tl.int64, slots: tl.int32,
    num, num_request: tl.int64, num_value: tl.int64,
    bits, bits_request: tl.int64, counts, counts_request: tl.int64, vocab: tl.int64, status, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    wanted = number(num, num_value, b * num_request, b >= 0).to(tl.int64)
    taken = tl.minimum(tl.maximum(wanted, 0), slots.to(tl.int64)).to(tl.int32)
    tokens += b * tokens_request
    bits += b * bits_request
    if counts is not None:
        counts += b * counts_request
        for first in range(0, taken, BLOCK):
            token, there = tokens_at(tokens, tokens_node, first, taken, vocab, BLOCK)
            seen = (tl.load(bits + token // 32, mask=there, other=0) >> (token % 32).to(tl.int32)) & 1
            tl.store(counts + token, tl.zeros([BLOCK], tl.int32), mask=there & (seen == 0))
            tl.atomic_max(counts + token, tl.full([BLOCK], 1, tl.int32), mask=there & (seen == 1), sem="relaxed")
        barrier()
    for first in range(0, taken, BLOCK):
        token, there = tokens_at(tokens, tokens_node, first, taken, vocab, BLOCK)
        bit = tl.full([BLOCK], 1, tl.int32) << (token % 32).to(tl.int32)
        tl.atomic_or(bits + token // 32, bit, mask=there, sem="relaxed")
        if counts is not None:
            tl.atomic_add(counts + token, tl.full([BLOCK], 1, tl.int32), mask=there, sem="relaxed")
    if counts is not None:
        barrier()
        for first in range(0, taken, BLOCK):
            token, there = tokens_at(tokens, tokens_node, first, taken, vocab, BLOCK)
            over = tl.load(counts + token, mask=there, other=0, cache_modifier=".cg") < 0
            tl.store(counts + token, tl.full([BLOCK], MOST, tl.int32), mask=there & over)
    tl.store(status + b, tl.where(wanted == taken, 0, PARAMETER))


def count_tokens(call):
    """Bits of ``mask`` int32 [B, W] and counts int32 [B, V] of each request's first ``num`` tokens."""
    requests, slots = call.tokens.shape
    if requests == 0:
        return
    counts = call.counts
    with _launch.on_device(call.tokens):
        arguments = dict(
            **_launch.nodes("tokens", call.tokens), slots=slots, **_launch.number("num", call.num, "request"),
            bits=call.mask, bits_request=call.mask.stride(0), counts=counts,
            counts_request=0 if counts is None else counts.stride(0),
            vocab=32 * call.mask.shape[1] if counts is None else counts.shape[1], status=call.status, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(count_tokens_kernel, (requests,), 1, arguments)
