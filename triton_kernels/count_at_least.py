"""How many values of rows are at least a number: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _rows


@_launch.kernel
def count_at_least_kernel(
    target: _arguments.Rows, index: _arguments.Index, temperature: _arguments.Number, edits: _edits.LogitEdits, least,
    counts, counters, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    vocab = target.vocab
    at = _arguments.locate_row(target, index, row)
    inverse, _, _ = _arguments.load_temperature(temperature, at.entry, at.j, at.live)
    bar = tl.load(least + row)
    live = at.live & (bar > -_math.INFINITY)
    row_edits, _ = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, live, vocab)
    law = _laws.Law(inverse, None, None, 0, edits.by_row, row_edits, edits)
    p_row = _laws.Row(_rows.start_of(target, at.i, at.j, ALIGNED), vocab, law)
    first, last = _rows.tile_range(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    count = tl.zeros([], tl.int32)
    for tile in range(first, last):
        x = _laws.clean(_rows.load_tile(p_row, tl.cast(tile, tl.int32) * TILE, TILE), law)
        count += tl.sum(tl.sum((x >= bar).to(tl.int32), axis=1), axis=0)
    record = counters + 4 * row
    tl.atomic_add(record, count, sem="relaxed")
    if _rows.is_last(record + _rows.DONE, tl.num_programs(1)):
        tl.store(counts + row, tl.atomic_xchg(record, 0, sem="relaxed"))
        tl.store(record + _rows.DONE, 0)


def count_at_least(call):
    """Counts the values of each row [A, R, V] with x >= ``least`` [A R]; ``counts`` int32 [A R]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count = outer * inner
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    index = _arguments.index_of(call.request_index, call.law.temperature, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, _ = _launch.workspace(rows, 4 * count, 0)
        arguments = dict(
            target=_arguments.rows_of(rows), index=index, temperature=_arguments.temperature_of(call.law), **edits,
            least=call.least, counts=call.counts, counters=counters, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(count, tiles, rows.device)
        _launch.launch(count_at_least_kernel, (count, splits), warps, arguments)
