"""The logits of some tokens in rows, after edits: one launch, a program for the tokens of a row."""

import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import edited, place_at
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._rows import row_at

BLOCK = 64  # tokens of a program at once


@_launch.kernel
def token_logits_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, count: tl.int64, vocab_start: tl.int32,
    vocab: tl.int32, places, places_step: tl.int64, tokens, tokens_row: tl.int64, tokens_step: tl.int64,
    values: tl.int32, logits, edits, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    place = index
    if places is not None:
        place = tl.load(places + index * places_step).to(tl.int64)
    live = (place >= 0) & (place < count)
    place = tl.where(live, place, 0)
    i, j = place // inner, place % inner
    own, _ = place_at(edits, i, j, i, j, 0, 0, live, vocab)
    law = Law(None, None, None, 0, *own, *edits)
    row = row_at(target, i * target_outer + j * target_inner, ALIGNED)
    for base in range(0, values, BLOCK):
        at = base + tl.arange(0, BLOCK)
        column = tl.load(tokens + index * tokens_row + at * tokens_step, mask=at < values, other=-1).to(tl.int64)
        column = column - vocab_start
        there = live & (at < values) & (column >= 0) & (column < vocab)
        column = tl.where(there, column, 0).to(tl.int32)
        x = edited(tl.load(row + column, mask=there, other=0.0).to(tl.float32), column, there, 0, vocab, law)
        tl.store(logits + index * values + at, tl.where(there, x, 0.0), mask=at < values)


def token_logits(call):
    """Of ``tokens`` [n, m] in the rows at ``places`` [n]; ``logits`` float32 [n, m]."""
    rows, tokens, places = call.rows, call.tokens, call.places
    if tokens.numel() == 0:
        return
    with _launch.on_device(rows):
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), inner=max(rows.shape[1], 1),
            count=rows.shape[0] * rows.shape[1], vocab_start=call.vocab_start, vocab=rows.shape[2], places=places,
            places_step=0 if places is None else places.stride(0), tokens=tokens, tokens_row=tokens.stride(0),
            tokens_step=tokens.stride(1), values=tokens.shape[1], logits=call.logits, **_edits.arguments(call),
            ALIGNED=_launch.aligned(rows), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(token_logits_kernel, (len(tokens),), 1, arguments)
