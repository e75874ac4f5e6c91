"""What the tiles of rows weigh: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._math import INFINITY, MASS_TILE, NON_FINITE, PARAMETER, inverse_temperature
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    entry_of,
    is_last,
    row_at,
    share_of,
    store_item,
)
from specdec_kernels.triton_kernels._rows import (
    mass_tiles as weigh_tiles,
)


@_launch.kernel
def mass_tiles_kernel(
    rows, rows_outer: tl.int64, rows_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    tiles, status, counters, edits, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse, None, None, 0, *place, *edits)
    record = counters + 4 * row
    count = tl.cdiv(vocab, MASS_TILE)
    items = tiles.to(tl.pointer_type(tl.float32), bitcast=True) + row * 3 * count
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    own = Row(row_at(rows, i * rows_outer + j * rows_inner, ALIGNED), vocab)
    if live & (greedy == 0):
        if weigh_tiles(own, law, first, last, items, TILE):
            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    else:
        for tile in range(first * (TILE // MASS_TILE), last * (TILE // MASS_TILE)):
            store_item(items, count, tl.cast(tile, tl.int32), -INFINITY, tl.zeros([], tl.int64))
    if is_last(record + DONE, tl.num_programs(1)):
        flags |= tl.load(record + FLAGS, cache_modifier=".cg")
        flags |= bad_bias | request_status(edits, entry, j, live, vocab)
        tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
        barrier()  # all warps have read
        tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def mass_tiles(call):
    """Maxima and units of the tiles of each row [A, R, V]; ``tiles`` int32 [A R, 3 tiles]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, _, warps = _launch.tile_of(max(vocab, MASS_TILE.value), edits is not _edits.OFF)
    index = _launch.index(call.request_index, call.law.temperature, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, _ = _launch.workspace(rows, 4 * count, 0)
        arguments = dict(
            rows=rows, rows_outer=rows.stride(0), rows_inner=rows.stride(1), inner=inner, vocab=vocab, **index,
            **_launch.divisor("temperature", call.law, "outer", "inner"), tiles=call.tiles,
            status=call.status, counters=counters, **edits, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(count, -(-vocab // tile), rows.device)
        _launch.launch(mass_tiles_kernel, (count, splits), warps, arguments)
