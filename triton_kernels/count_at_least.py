"""How many tokens of rows are at least as large as a number: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at
from specdec_kernels.triton_kernels._laws import Law, clean
from specdec_kernels.triton_kernels._math import INFINITY, inverse_temperature
from specdec_kernels.triton_kernels._rows import (
    DONE,
    Row,
    divisor,
    entry_of,
    is_last,
    load_tile,
    row_at,
    share_of,
)


@_launch.kernel
def count_at_least_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    least, counts, counters, edits, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    entry, live, _ = entry_of(i, request_index, entries)
    inverse, _, _ = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    bar = tl.load(least + row)
    live = live & (bar > -INFINITY)
    place, _ = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse, None, None, 0, *place, *edits)
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    mine = tl.zeros([], tl.int32)
    for tile in range(first, last):
        x = clean(load_tile(own, law, tl.cast(tile, tl.int32) * TILE, TILE), law)
        mine += tl.sum(tl.sum((x >= bar).to(tl.int32), axis=1), axis=0)
    record = counters + 4 * row
    tl.atomic_add(record, mine, sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        tl.store(counts + row, tl.atomic_xchg(record, 0, sem="relaxed"))
        tl.store(record + DONE, 0)


def count_at_least(call):
    """The tokens of each row [A, R, V] with x >= ``least`` [A R]; ``counts`` int32 [A R]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    index = _launch.index(call.request_index, call.law.temperature, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, _ = _launch.workspace(rows, 4 * count, 0)
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), inner=inner, vocab=vocab, **index,
            **_launch.divisor("temperature", call.law, "outer", "inner"), least=call.least,
            counts=call.counts, counters=counters, **edits, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(count, tiles, rows.device)
        _launch.launch(count_at_least_kernel, (count, splits), warps, arguments)
