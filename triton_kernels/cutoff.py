"""Where sampling filters cut rows, and what they keep: programs share a row, and the last of them finds its cut."""

import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._cuts import cut_row, scan_row
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._filters import BEFORE_TEMPERATURE, Filter, filter_of, rules_of
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._math import INFINITY, NON_FINITE, PARAMETER, inverse_temperature
from specdec_kernels.triton_kernels._rows import DONE, FLAGS, Row, barrier, divisor, entry_of, is_last, number, row_at


@_launch.kernel
def cutoff_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, count_rows: tl.int32, inner: tl.int32, vocab: tl.int32,
    request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    top_k, top_k_outer: tl.int64, top_k_inner: tl.int64, top_k_value: tl.int64,
    top_p, top_p_outer: tl.int64, top_p_inner: tl.int64, top_p_value: tl.float32,
    min_p, min_p_outer: tl.int64, min_p_inner: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    value, last_token, count, mass, max, status, counters, scratch, scratch_row: tl.int64, edits,
    STAGE: tl.constexpr, ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    scratch += scratch_row * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), count_rows, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        i, j = row // inner, row % inner
        entry, live, idle = entry_of(i, request_index, entries)
        inverse, greedy, flags = inverse_temperature(
            divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
        )
        k, share, log_min_p, bad_number = filter_of(
            number(top_k, top_k_value, entry * top_k_outer + j * top_k_inner, live),
            number(top_p, top_p_value, entry * top_p_outer + j * top_p_inner, live),
            number(min_p, min_p_value, entry * min_p_outer + j * min_p_inner, live), vocab, greedy,
        )  # fmt: skip
        filter = Filter(k, share, log_min_p)
        own_rules = rules_of(rules, greedy)
        order = tl.where(rules & BEFORE_TEMPERATURE != 0, 1.0, inverse)
        own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), tl.where(live, vocab, 0))
        place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
        law = Law(order, None, None, row, *place, *edits)
        record = counters + 4 * row
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            scan_row(
                own, law, filter, own_rules, record, scratch, tl.program_id(1), tl.num_programs(1), NON_FINITE, CELL,
                TILE,
            )  # fmt: skip
        if STAGE == "all":
            last = is_last(record + DONE, tl.num_programs(1))
        if last:
            found, found_last, found_count, found_mass, top, _listed = cut_row(
                own, law, filter, own_rules, scratch, True, CELL, TILE, TILES
            )
            tl.store(value + row, found)
            tl.store(last_token + row, found_last)
            tl.store(count + row, found_count)
            tl.store(mass + row, found_mass)
            tl.store(max + row, top)
            row_status = tl.load(record + FLAGS, cache_modifier=".cg")
            if status is not None:
                flags |= bad_bias | request_status(edits, entry, j, live, vocab)
                flags |= bad_number | row_status | tl.where(top > -INFINITY, 0, NON_FINITE)
                tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
            barrier()  # all warps have read
            tl.store(record + DONE, 0)
            tl.store(record + FLAGS, 0)


cutoff_kernel.most_registers = _cuts.most_registers


def cutoff(call):
    """Value, id, count, mass and maximum of what filters keep of each row [A, R, V]."""
    rows, law = call.rows, call.law
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(rows, 4 * count, _cuts.search_of(count, vocab, rows.device))
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), count_rows=count,
            inner=inner, vocab=vocab,
            **_launch.index(call.request_index, *_launch.numbers_of(law), edit=call.edits),
            **edits,
            **_launch.divisor("temperature", law, "outer", "inner"),
            **_launch.filters(law, "outer", "inner"), rules=law.rules,
            value=call.value, last_token=call.last, count=call.count, mass=call.mass, max=call.max, status=call.status,
            counters=counters, scratch=scratch, scratch_row=_cuts.search_words_of(vocab), ALIGNED=_launch.aligned(rows),
            CELL=_cuts.cell_of(tile, tiles), TILE=tile, TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _cuts.launch_search(cutoff_kernel, count, tiles, warps, rows.device, arguments)
