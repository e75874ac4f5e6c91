"""Rows put where an engine keeps them: one launch, rows split over programs."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._rows import number, row_at

BLOCK = 4096  # elements of a program


@_launch.kernel
def store_rows_kernel(
    target, target_row: tl.int64, vocab: tl.int32, slots, slots_step: tl.int64,
    column, column_outer: tl.int64, column_value: tl.int64,
    cache, cache_slot: tl.int64, cache_column: tl.int64, count: tl.int64, columns: tl.int64,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row * slots_step).to(tl.int64)
    place = number(column, column_value, row * column_outer, row >= 0).to(tl.int64)
    inside = (slot >= 0) & (slot < count) & (place >= 0) & (place < columns)
    offset = tl.where(inside, slot * cache_slot + place * cache_column, 0)
    start = tl.program_id(1) * BLOCK
    token = start + tl.arange(0, BLOCK)
    source, sink = row_at(target, row * target_row, ALIGNED) + token, row_at(cache, offset, ALIGNED) + token
    if start + BLOCK <= vocab:  # without a mask by token: 16 bytes a lane
        tl.store(sink, tl.load(source, mask=inside, other=0.0), mask=inside)
    else:
        there = inside & (token < vocab)
        tl.store(sink, tl.load(source, mask=there, other=0.0), mask=there)


def store_rows(call):
    """``cache`` [slots, columns, V or more] from ``rows`` [N, 1, V], by ``slots`` [N] and ``column``."""
    rows, cache = call.rows, call.cache
    count, _, vocab = rows.shape
    if count == 0 or cache.numel() == 0:
        return
    with _launch.on_device(rows):
        column = _launch.number("column", call.column, "outer")
        arguments = dict(
            target=rows, target_row=rows.stride(0), vocab=vocab, slots=call.slots, slots_step=call.slots.stride(0),
            **column, cache=cache, cache_slot=cache.stride(0), cache_column=cache.stride(1), count=cache.shape[0],
            columns=cache.shape[1], ALIGNED=_launch.aligned(rows, cache), BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(store_rows_kernel, (count, triton.cdiv(vocab, BLOCK)), 4, arguments)
