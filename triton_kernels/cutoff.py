"""The cuts of sampling filters: programs share a row, and the last of them finds its cut."""

from typing import NamedTuple

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _filters, _launch, _laws, _math, _rows


class Outputs(NamedTuple):
    """What a call writes, [rows] each."""

    value: tl.tensor
    last: tl.tensor
    count: tl.tensor
    mass: tl.tensor
    max: tl.tensor
    status: tl.tensor


@_launch.kernel
def cutoff_kernel(
    target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, edits: _edits.LogitEdits, outputs: Outputs,
    counters,
    search: _cuts.Search, count: tl.int32, tiling: _cuts.Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    scratch = search.scratch + search.row_words * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        at = _arguments.locate_row(target, index, row)
        inverse, greedy, flags = _arguments.load_temperature(law.temperature, at.entry, at.j, at.live)
        filter, bad_number = _filters.load_filter(law, at.entry, at.j, at.live, target.vocab, greedy)
        order = _filters.order_of(filter, inverse)
        filter = _filters.without_ties(filter, greedy)
        row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, target.vocab)
        start, columns = _rows.start_of(target, at.i, at.j, tiling.ALIGNED), tl.where(at.live, target.vocab, 0)
        ordered = _laws.Row(start, columns, _laws.Law(order, None, None, row, edits.by_row, row_edits, edits))
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
            tl.store(outputs.value + row, cut.value)
            tl.store(outputs.last + row, cut.token)
            tl.store(outputs.count + row, cut.count)
            tl.store(outputs.mass + row, cut.mass)
            tl.store(outputs.max + row, cut.top)
            row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
            if outputs.status is not None:
                flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, at.live, target.vocab)
                flags |= bad_number | row_status | tl.where(cut.top > -_math.INFINITY, 0, _math.NON_FINITE)
                tl.store(outputs.status + row, tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER)))
            _rows.clear_record(record)


cutoff_kernel.most_registers = _cuts.most_registers


def cutoff(call):
    """The cut of each row [A, R, V]: value and id; count, mass and maximum of the tokens that pass."""
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
            outputs=Outputs(call.value, call.last, call.count, call.mass, call.max, call.status), **edits,
            search=_cuts.Search(None, scratch, _cuts.count_search_words(vocab)),
            tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(rows)),
        )  # fmt: skip
        _cuts.launch_search(cutoff_kernel, count, tiles, warps, rows.device, arguments)
