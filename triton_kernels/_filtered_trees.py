"""Trees whose rows have filters: the first launch of ``verify_tree`` then finds what filters keep, too."""

import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch, _verdict
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._filters import Filter, filter_of
from specdec_kernels.triton_kernels._kept import begin_kept, finish_kept
from specdec_kernels.triton_kernels._laws import CUT
from specdec_kernels.triton_kernels._math import inverse_temperature, later
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Rows,
    entry_of,
    is_last,
    key_at,
    noise_at,
    number,
    row_at,
    row_of,
)
from specdec_kernels.triton_kernels._tree_walk import FRONT, ROW, decide_winner, finish_walk
from specdec_kernels.triton_kernels._trees import next_node
from specdec_kernels.triton_kernels._verdict import verdict_at


@_launch.kernel
def filtered_tree_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    parents, parents_request: tl.int64, parents_node: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64,
    request_index, entries: tl.int64, nodes: tl.int32, max_depth: tl.int32, vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    top_k, top_k_request: tl.int64, top_k_value: tl.int64, top_p, top_p_request: tl.int64, top_p_value: tl.float32,
    min_p, min_p_request: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, num_accepted, num_rejected, status,
    form: tl.int32, counters, cuts, scratch, scratch_row: tl.int64, edits,
    ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Races of rows with filters. The programs of a group go from row to row together only if there is one of them:
    the group has memory for one row."""
    b = tl.program_id(0).to(tl.int64)
    entry, live, idle = entry_of(b, request_index, entries)
    noise = noise_at(
        seed, seed_value, entry * seed_request, position, position_value, entry * position_request, nonce, nonce_value,
        entry * nonce_request, live,
    )  # fmt: skip
    inverse, greedy, flags = inverse_temperature(
        number(temperature, temperature_value, entry * temperature_request, live)
    )
    k, share, log_min_p, bad_filter = filter_of(
        number(top_k, top_k_value, entry * top_k_request, live),
        number(top_p, top_p_value, entry * top_p_request, live),
        number(min_p, min_p_value, entry * min_p_request, live), vocab, greedy,
    )  # fmt: skip
    filter = Filter(k, share, log_min_p)
    flags |= tl.where(live, bad_filter, 0)
    tree = (
        parents + b * parents_request, parents_node, draft_tokens + b * draft_tokens_request, draft_tokens_node
    )  # fmt: skip
    rows = Rows(row_at(target, b * target_request, ALIGNED), target_row, vocab)
    records = counters + nodes * ROW * b
    request = counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch += scratch_row * (b * chunks + chunk)
    end = tl.where(live, nodes, 0)
    node, depth = next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # where children end
        record, row, n = records + node * ROW, row_of(rows, node, ALIGNED), nodes * b + node
        place, bad_bias = place_at(edits, entry, 0, b, node, node, 0, live, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + FLAGS, bad_bias, sem="relaxed")
        begin_kept(
            row, inverse, greedy, filter, rules, n, place, edits, None, record, scratch, later(noise, depth), split,
            splits, CELL, TILE,
        )  # fmt: skip
        if is_last(record + DONE, splits):
            finish_kept(
                row, inverse, greedy, filter, rules, n, place, edits, None, 0, record, scratch, cuts,
                later(noise, depth), CELL, TILE, TILES,
            )  # fmt: skip
            best = tl.atomic_max(key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            decide_winner(tree, node, below, nodes, vocab, best, records, request)
        front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
        node, depth = next_node(tree, node + chunks, chunks, front, end)
    if is_last(request + DONE, splits * chunks):
        flags |= request_status(edits, entry, 0, live, vocab)
        verdict = verdict_at(
            b, tokens, tokens_request, tokens_slot, path, path_request, index, index_request, index_node, flat,
            num_accepted, num_rejected, status, form,
        )  # fmt: skip
        finish_walk(tree, nodes, flags, live, idle, records, request, vocab, b >= 0, verdict, max_depth)


filtered_tree_kernel.most_registers = _cuts.most_registers


def race(call, requests, width):
    """All rows are raced under filters: one launch."""
    target, law, nodes = call.target, call.target_law, call.target.shape[1]
    vocab, device, rows = target.shape[-1], target.device, requests * nodes
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    chunks = max(1, min(nodes, _cuts.groups_of(rows, device) // requests))
    splits = _launch.splits_of(rows, tiles, device) if chunks == nodes else 1
    words = _cuts.search_words_of(vocab)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(
            target, 6 * rows + 8 * requests, CUT.value * rows + words * requests * chunks
        )  # fmt: skip
        arguments = dict(
            nodes=nodes, max_depth=width - 1, vocab=vocab, counters=counters, cuts=scratch,
            scratch=scratch[CUT.value * rows :], scratch_row=words, rules=law.rules, ALIGNED=_launch.aligned(target),
            CELL=_cuts.cell_of(tile, tiles), TILE=tile, TILES=_launch.power_of_2(tiles),
        ) | {
            **_launch.nodes("draft_tokens", call.draft_tokens), **_launch.nodes("parents", call.parents),
            **_launch.rows("target", target), **edits, **_verdict.arguments(call),
            **_launch.index(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits),
            **_launch.number("temperature", law.temperature, "request"),
            **_launch.number("top_k", law.top_k, "request"), **_launch.number("top_p", law.top_p, "request"),
            **_launch.number("min_p", law.min_p, "request"), **_launch.noise(call.noise, "request"),
        }  # fmt: skip
        _launch.launch(filtered_tree_kernel, (requests, chunks, splits), warps, arguments)
