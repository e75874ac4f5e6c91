"""The first k arrivals of a race: one launch. Each program finds those of one tile; the last of a row merges them.

With filters a row's last program finds the row's cut, and races the tokens that pass (``_filtered_races``).
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _cuts,
    _edits,
    _filtered_races,
    _filters,
    _launch,
    _laws,
    _math,
    _races,
    _rows,
)


@triton.jit
def store_tile(row, tile, noise, record, keys, k, TILE: tl.constexpr):
    """Stores the k best keys of a tile of a row at ``keys[tile]``."""
    start = tl.cast(tile, tl.int32) * TILE
    raw = _rows.load_tile(row, start, TILE)
    x = _laws.clean(raw, row.law)
    scored = _laws.greedy_scores(x, row.law)
    if row.map is None:
        ids = _rows.tile_tokens(start, TILE)
        groups = start // _math.GROUP + tl.arange(0, TILE // _math.GROUP)
        if row.law.greedy == 0:
            scored = _races.group_scores(x, groups, noise, row.law, _math.STREAM_RACE)
    else:
        ids = _races.map_tokens(row, start, TILE)
        if row.law.greedy == 0:
            scored = _races.mapped_scores(x, ids, noise, row.law, _math.STREAM_RACE)
    _races.store_best(keys + tile * k, scored, ids, k)
    if _math.any_of(_laws.unclean_groups(raw, _rows.group_tops(raw), row.law)) > 0:
        tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")


@triton.jit
def store_list(row, order, cut, workspace, noise, keys, k):
    """Stores the k best keys of the listed tokens that pass a cut."""
    scored, ids = _filtered_races.score_list(row, order, cut, workspace, noise)
    _rows.barrier()  # all warps have read the list, which many keys overwrite
    _races.store_best(keys, scored, ids, k)


@triton.jit
def finish_topk(keys, count, row, k, at, flags, vocab_start, edits, vocab, record, sampled):
    """Stores the k best of ``count`` keys, and sets the row's record back to zero."""
    before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
    weighs = at.live
    for n in range(0, k):
        best = _races.next_best(keys, count, before)
        token, score, arrived = _races.decode_arrival(best, at.live, at.idle, n, vocab_start)
        tl.store(sampled.tokens + row * k + n, token)
        if sampled.scores is not None:  # a shard of a row may have no weight
            tl.store(sampled.scores + row * k + n, score)
        else:
            weighs = weighs & ((n > 0) | arrived)
        before = best
    if sampled.status is not None:
        flags |= _edits.request_status(edits, at.entry, at.j, at.live, vocab)
        flags |= tl.load(record + _rows.FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, _math.NON_FINITE)
        tl.store(sampled.status + row, tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER)))
    _rows.clear_record(record)


@_launch.kernel
def race_topk_kernel(
    draft: _arguments.Rows, index: _arguments.Index, temperature: _arguments.Number, noise: _arguments.Noise,
    edits: _edits.LogitEdits, k: tl.int32, vocab_start: tl.int32, draft_map, sampled: _races.Sampled, counters, scratch,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    at = _arguments.locate_row(draft, index, row)
    inverse, greedy, flags = _arguments.load_temperature(temperature, at.entry, at.j, at.live)
    noise = _arguments.load_noise(noise, at.entry, at.j, at.live, vocab_start)
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, draft.vocab)
    law = _laws.Law(inverse if SPACE == "logits" else None, greedy, None, row, edits.by_row, row_edits, edits)
    record, keys = counters + 4 * row, _rows.key_at(scratch) + row * tiles * k
    q_row = _laws.Row(_rows.start_of(draft, at.i, at.j, ALIGNED), draft.vocab, law, draft_map)
    store_tile(q_row, tile, noise, record, keys, k, TILE)
    if _rows.is_last(record + _rows.DONE, tiles):
        finish_topk(keys, tiles * k, row, k, at, flags | bad_bias, vocab_start, edits, draft.vocab, record, sampled)


@_launch.kernel
def filtered_topk_kernel(
    draft: _arguments.Rows, index: _arguments.Index, law: _arguments.Law, noise: _arguments.Noise,
    edits: _edits.LogitEdits,
    k: tl.int32, vocab_start: tl.int32, draft_map, sampled: _races.Sampled, counters, search: _cuts.Search,
    count: tl.int32, tiling: _cuts.Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    """Races filtered rows, one at a time: memory is for a cut, then for keys. ``search.cuts``: float32 [rows, CUT]."""
    TILE: tl.constexpr = tiling.TILE
    scratch = search.scratch + search.row_words * tl.program_id(0).to(tl.int64)
    split, splits, tiles = tl.program_id(1), tl.num_programs(1), tl.cdiv(draft.vocab, TILE)
    for each in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        at = _arguments.locate_row(draft, index, row)
        inverse, greedy, flags = _arguments.load_temperature(law.temperature, at.entry, at.j, at.live)
        filter, bad_number = _filters.load_filter(law, at.entry, at.j, at.live, draft.vocab, greedy)
        row_noise = _arguments.load_noise(noise, at.entry, at.j, at.live, vocab_start)
        row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, draft.vocab)
        cuts_off = _cuts.is_on(filter) & (greedy == 0)
        order = _filters.order_of(filter, inverse)
        start, columns = _rows.start_of(draft, at.i, at.j, tiling.ALIGNED), tl.where(at.live, draft.vocab, 0)
        q_law = _laws.Law(inverse, greedy, None, row, edits.by_row, row_edits, edits)
        q_row = _laws.Row(start, columns, q_law, draft_map)
        ordered = _laws.Row(start, columns, _laws.Law(order, None, None, row, edits.by_row, row_edits, edits))
        record, keys = counters + 4 * row, _rows.key_at(scratch)
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            if cuts_off:
                _cuts.scan_row(ordered, filter, record, scratch, split, splits, _math.NON_FINITE, tiling)
            else:
                begin, end = _rows.tile_range(tiles, split, splits)
                for tile in range(begin, end):
                    store_tile(q_row, tile, row_noise, record, keys, k, TILE)
        if STAGE == "all":
            last = _rows.is_last(record + _rows.DONE, splits)
        if last:
            stored = tiles
            if cuts_off:
                cut = _filtered_races.search_row(ordered, filter, scratch, search.cuts, tiling)
                if cut.listed > 0:
                    store_list(q_row, order, cut, _cuts.workspace_of(q_row, scratch, tiling), row_noise, keys, k)
                elif cut.listed == 0:
                    support_law = _laws.Law(inverse, greedy, search.cuts, row, edits.by_row, row_edits, edits)
                    support_row = _laws.Row(start, columns, support_law, draft_map)
                    for tile in range(0, tiles):
                        store_tile(support_row, tile, row_noise, record, keys, k, TILE)
                stored = tl.where(cut.listed == 0, tiles, tl.where(cut.listed > 0, 1, 0))
                _rows.barrier()  # the keys are stored
            flags |= bad_number | bad_bias
            finish_topk(keys, stored * k, row, k, at, flags, vocab_start, edits, draft.vocab, record, sampled)


filtered_topk_kernel.most_registers = _cuts.most_registers


def race_topk(call):
    """The k smallest arrivals / q in order, for each row [A, R, V]; ``tokens`` int64 [A R, k]."""
    rows, law = call.rows, call.law
    vocab, count, k = rows.shape[2], rows.shape[0] * rows.shape[1], call.tokens.shape[-1]
    if count * k == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    filtered, keys = _launch.is_filtered(law), 2 * tiles * k  # words of a row
    search = -(-max(_cuts.count_search_words(vocab), keys) // 2) * 2
    groups = _cuts.groups_of(count, rows.device)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(
            rows, 4 * count, search * groups + _laws.CUT.value * count if filtered else keys * count
        )
        arguments = dict(
            draft=_arguments.rows_of(rows), noise=_arguments.noise_numbers(call.noise), k=k,
            index=_arguments.index_of(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits),
            vocab_start=call.vocab_start, draft_map=call.draft_map, counters=counters,
            sampled=_races.Sampled(call.tokens, call.scores, call.status), **edits,
        )  # fmt: skip
        if not filtered:
            arguments |= dict(
                temperature=_arguments.temperature_of(law), scratch=scratch, SPACE=law.space,
                ALIGNED=_launch.aligned(rows), TILE=tile,
            )  # fmt: skip
            _launch.launch(race_topk_kernel, (count, tiles), warps, arguments)
            return
        arguments |= dict(
            law=_arguments.law_of(law), tiling=_cuts.tiling_of(tile, tiles, _launch.aligned(rows)), count=count,
            search=_cuts.Search(scratch[search * groups :], scratch, search),
        )  # fmt: skip
        _cuts.launch_search(filtered_topk_kernel, count, tiles, warps, rows.device, arguments)
