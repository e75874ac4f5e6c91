"""Where sampling filters cut rows: one launch learns the maxima and masses of all, the next finds each row's cut.

In the second one program does all of a row. Where few cells are open it looks at a list of at most 2,048 tokens; else
it goes over the row once for each bit of a key. int32 counters, zero before and after a call: the status of each row.
"""

import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._filters import (
    AFTER_MIN_P,
    AFTER_TOP_K,
    BEFORE_TEMPERATURE,
    LISTED,
    LOWEST,
    Filter,
    Tokens,
    cell_tiles,
    cut_of,
    filter_of,
    measured,
)
from specdec_kernels.triton_kernels._laws import Law
from specdec_kernels.triton_kernels._math import GROUP, INFINITY, MASS_TILE, NON_FINITE, PARAMETER, inverse_temperature
from specdec_kernels.triton_kernels._rows import (
    Row,
    barrier,
    entry_of,
    mass_items_of,
    mass_of,
    mass_tiles,
    number,
    row_at,
    share_of,
)

LOOKED_AT = tl.constexpr(1024)  # tokens at once where a cut is looked for


@_launch.kernel
def cutoff_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, vocab: tl.int32,
    request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    top_k, top_k_outer: tl.int64, top_k_inner: tl.int64, top_k_value: tl.int64,
    top_p, top_p_outer: tl.int64, top_p_inner: tl.int64, top_p_value: tl.float32,
    min_p, min_p_outer: tl.int64, min_p_inner: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    value, last, count, mass, max, status, counters, scratch,
    STAGE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        number(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    k, share, log_min_p, bad_number = filter_of(
        number(top_k, top_k_value, entry * top_k_outer + j * top_k_inner, live),
        number(top_p, top_p_value, entry * top_p_outer + j * top_p_inner, live),
        number(min_p, min_p_value, entry * min_p_outer + j * min_p_inner, live), vocab, greedy,
    )  # fmt: skip
    law = Law(tl.where(rules & BEFORE_TEMPERATURE != 0, 1.0, inverse), None)
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    filtered = (k > 0) | (share >= 0) | (log_min_p > -INFINITY)
    after = ((k > 0) & (rules & AFTER_TOP_K != 0)) | ((log_min_p > -INFINITY) & (rules & AFTER_MIN_P != 0))
    weighed = (filtered == 0) | ((share >= 0) & (after == 0))
    tiles = tl.cdiv(vocab, TILE)
    cells = scratch + row * (tiles * (TILE // GROUP) + mass_items_of(vocab) + 2 * LISTED)
    items = cells + tiles * (TILE // GROUP)
    if STAGE == "scan":
        first, end = share_of(tiles, tl.program_id(1), tl.num_programs(1))
        end = tl.where(live, end, first)
        bad = cell_tiles(own, law, first, end, cells, TILE)
        if weighed:
            mass_tiles(own, law, first, end, items, TILE)
        if bad:
            tl.atomic_or(counters + row, NON_FINITE, sem="relaxed")
    else:
        ITEMS: tl.constexpr = TILES * (TILE // MASS_TILE if TILE > MASS_TILE else 1)
        CELLS: tl.constexpr = TILES * (TILE // GROUP)
        PART: tl.constexpr = min(LOOKED_AT, TILE)
        at = tl.arange(0, CELLS)
        top = tl.max(tl.load(cells + at, mask=(at < tiles * (TILE // GROUP)) & live, other=-INFINITY), axis=0)
        found, found_last = tl.full([], -INFINITY, tl.float32), tl.full([], -1, tl.int32)
        found_count, found_mass = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
        if top > -INFINITY:
            whole = tl.full([], 0, tl.int64)
            if weighed:
                whole, _ = mass_of(items, tl.cdiv(vocab, MASS_TILE), ITEMS)
            values = items + mass_items_of(vocab)
            ids = (values + LISTED).to(tl.pointer_type(tl.int32), bitcast=True)
            if filtered:
                found, found_last, found_count, found_mass = cut_of(
                    own, law, Filter(k, share, log_min_p), rules, cells, top, whole, values, ids, PART, CELLS
                )
            else:
                found_count, _ = measured(Tokens(own, law, cells, top, values, 0), tl.full([], LOWEST, tl.uint32), PART)
                found_mass = whole
        tl.store(value + row, found)
        tl.store(last + row, found_last)
        tl.store(count + row, found_count)
        tl.store(mass + row, found_mass)
        tl.store(max + row, top)
        met = tl.load(counters + row)
        if status is not None:
            flags |= bad_number | met | tl.where(top > -INFINITY, 0, NON_FINITE)
            tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
        barrier()  # all warps have read
        tl.store(counters + row, met * 0)


def cutoff(call):
    """Value, id, count, mass and maximum of what filters keep of each row [A, R, V]."""
    rows, law = call.rows, call.law
    outer, inner, vocab = rows.shape
    count = outer * inner
    if count == 0:
        return
    tile, tiles, warps = _launch.tile_of(vocab)
    words = tiles * tile // 64 + _launch.mass_items_of(vocab) // 2 + 2 * LISTED.value
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(rows, count, count * words)
        arguments = dict(
            target=rows, target_outer=rows.stride(0), target_inner=rows.stride(1), inner=inner, vocab=vocab,
            **_launch.index(call.request_index, law.temperature, law.top_k, law.top_p, law.min_p),
            **_launch.number("temperature", law.temperature, "outer", "inner"),
            **_launch.number("top_k", law.top_k, "outer", "inner"),
            **_launch.number("top_p", law.top_p, "outer", "inner"),
            **_launch.number("min_p", law.min_p, "outer", "inner"), rules=law.rules,
            value=call.value, last=call.last, count=call.count, mass=call.mass, max=call.max, status=call.status,
            counters=counters, scratch=scratch, ALIGNED=_launch.aligned(rows), TILE=tile,
            TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        splits = _launch.splits_of(count, tiles, rows.device)
        _launch.launch(cutoff_kernel, (count, splits), warps, arguments | {"STAGE": "scan"})
        _launch.launch(cutoff_kernel, (count,), warps, arguments | {"STAGE": "cut"})
