"""The first k arrivals of a race: one launch. Each program finds those of one tile; the last of a row merges them.

With filters a row's last program finds the row's cut, and races what is kept (``_kept``).
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._cuts import is_on, room_of, scan_row
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._filters import Filter, filter_of
from specdec_kernels.triton_kernels._kept import cut_kept, order_of, score_list
from specdec_kernels.triton_kernels._laws import CUT, Law, clean, greedy_scores, unclean_groups
from specdec_kernels.triton_kernels._math import (
    NON_FINITE,
    PARAMETER,
    STREAM_RACE,
    any_of,
    group_words,
    inverse_temperature,
)
from specdec_kernels.triton_kernels._races import (
    arrival_of,
    map_tokens,
    mapped_scores,
    next_best,
    store_best,
    tile_scores,
)
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    entry_of,
    group_tops,
    is_last,
    key_at,
    load_tile,
    noise_at,
    number,
    row_at,
    share_of,
    tile_tokens,
)


@triton.jit
def store_tile(row, law, draft_map, tile, noise, record, keys, k, TILE: tl.constexpr):
    """Stores the k best keys of a tile of a row, in their place among those of all tiles."""
    start = tl.cast(tile, tl.int32) * TILE
    raw = load_tile(row, law, start, TILE)
    x = clean(raw, law)
    scored = greedy_scores(x, law)
    if draft_map is None:
        ids = tile_tokens(start, TILE)
        a, b = group_words(noise, start // 64, STREAM_RACE, x.shape[0])
        if law.greedy == 0:
            scored = tile_scores(x, a, b, start, noise, law, STREAM_RACE)
    else:
        ids = map_tokens(draft_map, row.columns, start, TILE)
        if law.greedy == 0:
            scored = mapped_scores(x, ids, noise, law, STREAM_RACE)
    store_best(keys + tile * k, scored, ids, k)
    if any_of(unclean_groups(raw, group_tops(raw), law)) > 0:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")


@triton.jit
def store_list(order_law, law, room, listed, value, last, draft_map, vocab_start, noise, keys, k):
    """Stores the k best keys of those that a cut keeps, all of them listed."""
    scored, ids = score_list(order_law, law, room, listed, value, last, draft_map, vocab_start, noise)
    barrier()  # all warps have read the list, whose place many keys take
    store_best(keys, scored, ids, k)


@triton.jit
def finish_topk(
    keys, count, row, k, live, idle, flags, vocab_start, edits, entry, j, vocab, record, tokens, scores, status
):  # fmt: skip
    """Stores the k best of ``count`` keys, and sets the row's record back to zero."""
    before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
    weighs = live
    for n in range(0, k):
        best = next_best(keys, count, before)
        token, score, found = arrival_of(best, live, idle, n, vocab_start)
        tl.store(tokens + row * k + n, token)
        if scores is not None:  # a part of a row, which need not have weight
            tl.store(scores + row * k + n, score)
        else:
            weighs = weighs & ((n > 0) | found)
        before = best
    if status is not None:
        flags |= request_status(edits, entry, j, live, vocab)
        flags |= tl.load(record + FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, NON_FINITE)
        tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
    barrier()  # all warps have read
    tl.store(record + FLAGS, 0)
    tl.store(record + DONE, 0)


@_launch.kernel
def race_topk_kernel(
    draft, draft_outer: tl.int64, draft_inner: tl.int64, inner: tl.int32, vocab: tl.int32, k: tl.int32,
    vocab_start: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, edits, scratch,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    noise = noise_at(
        seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
        entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner, live,
        vocab_start,
    )  # fmt: skip
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse if SPACE == "logits" else None, greedy, None, row, *place, *edits)
    record, keys = counters + 4 * row, key_at(scratch) + row * tiles * k
    own = Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), vocab)
    store_tile(own, law, draft_map, tile, noise, record, keys, k, TILE)
    if is_last(record + DONE, tiles):
        finish_topk(
            keys, tiles * k, row, k, live, idle, flags | bad_bias, vocab_start, edits, entry, j, vocab, record, tokens,
            scores, status,
        )  # fmt: skip


@_launch.kernel
def filtered_topk_kernel(
    draft, draft_outer: tl.int64, draft_inner: tl.int64, rows: tl.int32, inner: tl.int32, vocab: tl.int32, k: tl.int32,
    vocab_start: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    top_k, top_k_outer: tl.int64, top_k_inner: tl.int64, top_k_value: tl.int64,
    top_p, top_p_outer: tl.int64, top_p_inner: tl.int64, top_p_value: tl.float32,
    min_p, min_p_outer: tl.int64, min_p_inner: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, cuts, scratch, scratch_row: tl.int64, edits,
    STAGE: tl.constexpr, ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program has memory for one row at a time: for its cut, then for its keys.

    ``cuts`` has CUT words a row, for rows that no list holds.
    """
    scratch += scratch_row * tl.program_id(0).to(tl.int64)
    split, splits, tiles = tl.program_id(1), tl.num_programs(1), tl.cdiv(vocab, TILE)
    for each in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(each, tl.int64)
        i, j = row // inner, row % inner
        entry, live, idle = entry_of(i, request_index, entries)
        inverse, greedy, flags = inverse_temperature(
            divisor(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
        )
        most, share, log_min_p, bad_number = filter_of(
            number(top_k, top_k_value, entry * top_k_outer + j * top_k_inner, live),
            number(top_p, top_p_value, entry * top_p_outer + j * top_p_inner, live),
            number(min_p, min_p_value, entry * min_p_outer + j * min_p_inner, live), vocab, greedy,
        )  # fmt: skip
        filter = Filter(most, share, log_min_p)
        noise = noise_at(
            seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
            entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner,
            live, vocab_start,
        )  # fmt: skip
        place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
        cuts_off = is_on(filter) & (greedy == 0)
        law = Law(inverse, greedy, None, row, *place, *edits)
        order_law = Law(order_of(inverse, rules), None, None, row, *place, *edits)
        own = Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), tl.where(live, vocab, 0))
        record, keys = counters + 4 * row, key_at(scratch)
        last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            if cuts_off:
                scan_row(own, order_law, filter, rules, record, scratch, split, splits, NON_FINITE, CELL, TILE)
            else:
                begin, end = share_of(tiles, split, splits)
                for tile in range(begin, end):
                    store_tile(own, law, draft_map, tile, noise, record, keys, k, TILE)
        if STAGE == "all":
            last = is_last(record + DONE, splits)
        if last:
            found = tiles
            if cuts_off:
                value, token, listed = cut_kept(own, order_law, filter, rules, row, scratch, cuts, CELL, TILE, TILES)
                if listed > 0:
                    room = room_of(own, scratch, CELL, TILE)
                    store_list(order_law, law, room, listed, value, token, draft_map, vocab_start, noise, keys, k)
                elif listed == 0:
                    kept_law = Law(inverse, greedy, cuts, row, *place, *edits)
                    for tile in range(0, tiles):
                        store_tile(own, kept_law, draft_map, tile, noise, record, keys, k, TILE)
                found = tl.where(listed == 0, tiles, tl.where(listed > 0, 1, 0))
                barrier()  # the keys are stored
            finish_topk(
                keys, found * k, row, k, live, idle, flags | bad_number | bad_bias, vocab_start, edits, entry, j, vocab,
                record, tokens, scores, status,
            )  # fmt: skip


filtered_topk_kernel.most_registers = _cuts.most_registers


def race_topk(call):
    """The k smallest arrivals / q in order, for each row [A, R, V]; ``tokens`` int64 [A R, k]."""
    rows, law = call.rows, call.law
    outer, inner, vocab = rows.shape
    count, k = outer * inner, call.tokens.shape[-1]
    if count * k == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    filtered, keys = _launch.is_filtered(law), 2 * tiles * k  # words of a row
    search = -(-max(_cuts.search_words_of(vocab), keys) // 2) * 2
    groups = _cuts.groups_of(count, rows.device)
    with _launch.on_device(rows), _launch.whole_calls:
        counters, scratch = _launch.workspace(
            rows, 4 * count, search * groups + CUT.value * count if filtered else keys * count
        )
        arguments = dict(
            draft=rows, draft_outer=rows.stride(0), draft_inner=rows.stride(1), inner=inner, vocab=vocab, k=k,
            vocab_start=call.vocab_start, draft_map=call.draft_map,
            **_launch.index(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits),
            **_launch.divisor("temperature", law, "outer", "inner"),
            **_launch.noise(call.noise, "outer", "inner"), tokens=call.tokens, status=call.status,
            scores=call.scores, counters=counters, **edits, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        if not filtered:
            arguments |= {"scratch": scratch, "SPACE": law.space}
            _launch.launch(race_topk_kernel, (count, tiles), warps, arguments)
            return
        arguments |= dict(
            **_launch.filters(law, "outer", "inner"), rules=law.rules, rows=count,
            cuts=scratch[search * groups :], scratch=scratch, scratch_row=search,
            CELL=_cuts.cell_of(tile, tiles), TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        _cuts.launch_search(filtered_topk_kernel, count, tiles, warps, rows.device, arguments)
