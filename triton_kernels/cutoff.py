"""Where sampling filters cut rows, and what they keep: programs share a row, and the last of them finds its cut."""

from typing import NamedTuple

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _filters, _launch, _laws, _math, _rows


class Found(NamedTuple):
    """What a call writes: a number for each row."""

    value: tl.tensor
    last: tl.tensor
    count: tl.tensor
    mass: tl.tensor
    max: tl.tensor
    status: tl.tensor


@_launch.kernel
def cutoff_kernel(
    target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, edits: _edits.LogitEdits, found: Found,
    counters,
    search: _cuts.Search, count: tl.int32, tiling: _cuts.Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    scratch = search.scratch + search.words * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        at = _arguments.row_of(target, index, row)
        inverse, greedy, flags = _arguments.heat_of(law.temperature, at.entry, at.j, at.live)
        filter, bad_number = _filters.filter_of(law, at.entry, at.j, at.live, target.vocab, greedy)
        order = _filters.order_of(filter, inverse)
        filter = _filters.without_ties(filter, greedy)
        place, bad_bias = _edits.place_at(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, target.vocab)
        start, columns = _rows.start_of(target, at.i, at.j, tiling.ALIGNED), tl.where(at.live, target.vocab, 0)
        ordered = _laws.Row(start, columns, _laws.Law(order, None, None, row, edits.by_row, place, edits))
        record = counters + 4 * row
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            _cuts.scan_row(
                ordered, filter, record, scratch, tl.program_id(1), tl.num_programs(1), _math.NON_FINITE, tiling
            )
        if STAGE == "all":
            last = _rows.is_last(record + _rows.DONE, tl.num_programs(1))
        if last:
            cut = _cuts.cut_row(ordered, filter, scratch, True, tiling)
            tl.store(found.value + row, cut.value)
            tl.store(found.last + row, cut.token)
            tl.store(found.count + row, cut.count)
            tl.store(found.mass + row, cut.mass)
            tl.store(found.max + row, cut.top)
            row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
            if found.status is not None:
                flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, at.live, target.vocab)
                flags |= bad_number | row_status | tl.where(cut.top > -_math.INFINITY, 0, _math.NON_FINITE)
                tl.store(found.status + row, tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER)))
            _rows.clear_record(record)


cutoff_kernel.most_registers = _cuts.most_registers


def cutoff(call):
    """Value, id, count, mass and maximum of what filters keep of each row [A, R, V]."""
    rows, law = call.rows, call.law
    vocab, count = rows.shape[2], rows.shape[0] * rows.shape[1]
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(rows, 4 * count, _cuts.search_of(count, vocab, rows.device))
        arguments = dict(
            target=_arguments.rows_of(rows), law=_arguments.law_of(law), counters=counters, count=count,
            index=_arguments.index_of(call.request_index, *_launch.numbers_of(law), edit=call.edits),
            found=Found(call.value, call.last, call.count, call.mass, call.max, call.status), **edits,
            search=_cuts.Search(None, scratch, _cuts.search_words_of(vocab)),
            tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(rows)),
        )  # fmt: skip
        _cuts.launch_search(cutoff_kernel, count, tiles, warps, rows.device, arguments)
