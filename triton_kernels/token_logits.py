"""The logits of listed tokens in rows, after edits: one launch, a program for the tokens of a row."""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _rows

BLOCK = 64  # tokens of a step


@_launch.kernel
def token_logits_kernel(
    target: _arguments.Rows, count: tl.int64, vocab_start: tl.int32, row_indices: _arguments.Steps,
    tokens: _arguments.Steps, values: tl.int32, logits, edits: _edits.LogitEdits, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    vocab, row_index = target.vocab, index
    if row_indices.data is not None:
        row_index = tl.load(_arguments.at(row_indices, index, 0)).to(tl.int64)
    live = (row_index >= 0) & (row_index < count)
    row_index = tl.where(live, row_index, 0)
    i, j = row_index // target.count, row_index % target.count
    row_edits, _ = _edits.load_row_edits(edits, i, j, i, j, 0, 0, live, vocab)
    law = _laws.Law(None, None, None, 0, edits.by_row, row_edits, edits)
    row = _rows.start_of(target, i, j, ALIGNED)
    for base in range(0, values, BLOCK):
        at = base + tl.arange(0, BLOCK)
        column = tl.load(_arguments.at(tokens, index, at), mask=at < values, other=-1).to(tl.int64)
        column = tl.where(live, column - vocab_start, -1)
        there = (at < values) & (column >= 0) & (column < vocab)
        column = tl.where(there, column, 0).to(tl.int32)
        x = _edits.edited(tl.load(row + column, mask=there, other=0.0).to(tl.float32), column, there, 0, vocab, law)
        tl.store(logits + index * values + at, tl.where(there, x, 0.0), mask=at < values)


def token_logits(call):
    """``logits`` float32 [n, m] of ``tokens`` [n, m] in the rows ``row_indices`` [n]."""
    rows, tokens, row_indices = call.rows, call.tokens, call.row_indices
    if tokens.numel() == 0:
        return
    with _launch.on_device(rows):
        arguments = dict(
            target=_arguments.rows_of(rows, max(rows.shape[1], 1)), count=rows.shape[0] * rows.shape[1],
            vocab_start=call.vocab_start, row_indices=_arguments.steps_or_none(row_indices),
            tokens=_arguments.steps_or_none(tokens), values=tokens.shape[1], logits=call.logits,
            **_edits.arguments(call), ALIGNED=_launch.aligned(rows), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(token_logits_kernel, (len(tokens),), 1, arguments)
