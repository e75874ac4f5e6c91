"""The first k arrivals of a race: one launch. Each program finds those of one tile; the last of a row merges them."""

import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import Law, clean, greedy_scores, unclean_groups
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
    entry_of,
    group_tops,
    is_last,
    key_at,
    load_tile,
    noise_at,
    number,
    row_at,
    tile_tokens,
)


@_launch.kernel
def race_topk_kernel(
    draft, draft_outer: tl.int64, draft_inner: tl.int64, inner: tl.int32, vocab: tl.int32, k: tl.int32,
    first_token: tl.int32, draft_map, request_index, entries: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    seed, seed_outer: tl.int64, seed_inner: tl.int64, seed_value: tl.int64,
    position, position_outer: tl.int64, position_inner: tl.int64, position_value: tl.int64,
    nonce, nonce_outer: tl.int64, nonce_inner: tl.int64, nonce_value: tl.int64,
    tokens, status, scores, counters, cuts, edits, scratch,
    SPACE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    inverse, greedy, flags = inverse_temperature(
        number(temperature, temperature_value, entry * temperature_outer + j * temperature_inner, live)
    )
    noise = noise_at(
        seed, seed_value, entry * seed_outer + j * seed_inner, position, position_value,
        entry * position_outer + j * position_inner, nonce, nonce_value, entry * nonce_outer + j * nonce_inner, live,
        first_token,
    )  # fmt: skip
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    law = Law(inverse if SPACE == "logits" else None, greedy, cuts, row, *place, *edits)
    record = counters + 4 * row

    start = tile * TILE
    raw = load_tile(Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), vocab), law, start, TILE)
    x = clean(raw, law)
    scored = greedy_scores(x, law)
    if draft_map is None:
        ids = tile_tokens(start, TILE)
        a, b = group_words(noise, start // 64, STREAM_RACE, x.shape[0])
        if greedy == 0:
            scored = tile_scores(x, a, b, start, noise, law, STREAM_RACE)
    else:
        ids = map_tokens(draft_map, vocab, start, TILE)
        if greedy == 0:
            scored = mapped_scores(x, ids, noise, law, STREAM_RACE)
    keys = key_at(scratch) + row * tiles * k
    store_best(keys + tile * k, scored, ids, k)
    if status is not None:  # noqa: SIM102  one is known when it is compiled
        if any_of(unclean_groups(raw, group_tops(raw), law)) > 0:
            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")

    if is_last(record + DONE, tiles):
        before = tl.full([], -1, tl.int64).to(tl.uint64, bitcast=True)
        weighs = live
        for n in range(0, k):
            best = next_best(keys, tiles * k, before)
            token, score, found = arrival_of(best, live, idle, n, first_token)
            tl.store(tokens + row * k + n, token)
            if scores is not None:  # a part of a row, which need not have weight
                tl.store(scores + row * k + n, score)
            else:
                weighs = weighs & ((n > 0) | found)
            before = best
        if status is not None:
            flags |= bad_bias | request_status(edits, entry, j, live, vocab)
            flags |= tl.load(record + FLAGS, cache_modifier=".cg") | tl.where(weighs, 0, NON_FINITE)
            tl.store(status + row, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
            barrier()  # all warps have read
            tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def race_topk(call):
    """The k smallest arrivals / q in order, for each row [A, R, V]; ``tokens`` int64 [A R, k]."""
    rows = call.rows
    outer, inner, vocab = rows.shape
    count, k = outer * inner, call.tokens.shape[-1]
    if count * k == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    words = _cuts.words_of_rows(vocab, count, rows.device, call.law)
    index = _launch.index(call.request_index, *_launch.numbers_of(call.law), *call.noise, edit=call.edits)
    with _launch.on_device(rows), _launch.whole_calls:
        keys = 2 * count * tiles * k
        counters, scratch = _launch.workspace(rows, 4 * count, keys + words)
        cuts = _cuts.launch_rows(rows, call.law, index, call.draft_map, counters, scratch[keys:], edits)
        arguments = dict(
            draft=rows, draft_outer=rows.stride(0), draft_inner=rows.stride(1), inner=inner, vocab=vocab, k=k,
            first_token=call.first_token,
            draft_map=call.draft_map, **index,
            **_launch.number("temperature", call.law.temperature, "outer", "inner"),
            **_launch.noise(call.noise, "outer", "inner"), tokens=call.tokens, status=call.status,
            scores=call.scores, counters=counters,
            cuts=cuts, **edits, scratch=scratch, SPACE=call.law.space, ALIGNED=_launch.aligned(rows), TILE=tile,
        )  # fmt: skip
        _launch.launch(race_topk_kernel, (count, tiles), warps, arguments)
