"""Stores rows in an engine's cache: one launch, rows split over programs."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _rows

BLOCK = 4096  # elements of a program


class Cache(NamedTuple):
    """The cache of an engine."""

    at: _arguments.Steps  # [count slots, columns, V or more]
    count: int
    columns: int


@_launch.kernel
def store_rows_kernel(
    target: _arguments.Rows, cache_slots: _arguments.Steps, column: _arguments.Counter, cache: Cache,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    vocab, columns = target.vocab, cache.columns
    cache_slot = tl.load(_arguments.at(cache_slots, row, 0)).to(tl.int64)
    column_index = tl.cast(_arguments.number(column, row, 0, row >= 0), tl.int64)
    inside = (cache_slot >= 0) & (cache_slot < cache.count) & (column_index >= 0) & (column_index < columns)
    offset = tl.where(inside, _arguments.offset_at(cache.at, cache_slot, column_index), 0)
    start = tl.program_id(1) * BLOCK
    token = start + tl.arange(0, BLOCK)
    source, sink = _rows.start_of(target, row, 0, ALIGNED) + token, _rows.row_at(cache.at.data, offset, ALIGNED) + token
    if inside:
        if start + BLOCK <= vocab:  # without a mask: 16 bytes a lane
            tl.store(sink, tl.load(source))
        else:
            tl.store(sink, tl.load(source, mask=token < vocab, other=0.0), mask=token < vocab)


def store_rows(call):
    """``cache`` [slots, columns, V or more] from ``rows`` [N, 1, V], by ``slots`` [N] and ``column``."""
    rows, cache = call.rows, call.cache
    count, _, vocab = rows.shape
    if count == 0 or cache.numel() == 0:
        return
    with _launch.on_device(rows):
        arguments = dict(
            target=_arguments.rows_of(rows), cache_slots=_arguments.steps_or_none(call.slots),
            column=_arguments.counter_of(call.column), ALIGNED=_launch.aligned(rows, cache), BLOCK=BLOCK,
            cache=Cache(_arguments.steps_or_none(cache), *cache.shape[:2]),
        )  # fmt: skip
        _launch.launch(store_rows_kernel, (count, triton.cdiv(vocab, BLOCK)), 4, arguments)
