"""The mass tiles of rows: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _rows


@_launch.kernel
def mass_tiles_kernel(
    target: _arguments.Rows, index: _arguments.Index, temperature: _arguments.Number, edits: _edits.LogitEdits, tiles,
    status, counters, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    vocab = target.vocab
    at = _arguments.locate_row(target, index, row)
    live = at.live
    inverse, greedy, flags = _arguments.load_temperature(temperature, at.entry, at.j, live)
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, live, vocab)
    law = _laws.Law(inverse, None, None, 0, edits.by_row, row_edits, edits)
    record = counters + 4 * row
    count = tl.cdiv(vocab, _math.MASS_TILE)
    items = tiles.to(tl.pointer_type(tl.float32), bitcast=True) + row * 3 * count
    first, last = _rows.tile_range(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    p_row = _laws.Row(_rows.start_of(target, at.i, at.j, ALIGNED), vocab, law)
    if live & (greedy == 0):
        if _rows.mass_tiles(p_row, first, last, items, TILE):
            tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")
    else:
        for tile in range(first * (TILE // _math.MASS_TILE), last * (TILE // _math.MASS_TILE)):
            _rows.store_item(items, count, tl.cast(tile, tl.int32), -_math.INFINITY, tl.zeros([], tl.int64))
    if _rows.is_last(record + _rows.DONE, tl.num_programs(1)):
        flags |= tl.load(record + _rows.FLAGS, cache_modifier=".cg")
        flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, live, vocab)
        tl.store(status + row, tl.where(live, flags, tl.where(at.idle, 0, _math.PARAMETER)))
        _rows.clear_record(record)


def mass_tiles(call):
    """Maxima and units of the tiles of each row [A, R, V]; ``tiles`` int32 [A R, 3 tiles]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count = outer * inner
    edits = _edits.arguments(call)
    tile, _, warps = _launch.tile_of(max(vocab, _math.MASS_TILE.value), edits is not _edits.OFF)
    index = _arguments.index_of(call.request_index, call.law.temperature, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, _ = _launch.workspace(rows, 4 * count, 0)
        arguments = dict(
            target=_arguments.rows_of(rows), index=index, temperature=_arguments.temperature_of(call.law), **edits,
            tiles=call.tiles, status=call.status, counters=counters, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(count, -(-vocab // tile), rows.device)
        _launch.launch(mass_tiles_kernel, (count, splits), warps, arguments)
