"""Trees whose rows have filters: the first launch of ``verify_tree`` then finds what filters keep, too.

On AMD GPUs a ticket does not order the stores of all waves. There cuts have launches of their own (``_cuts``).
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _launch, _verdict
from specdec_kernels.triton_kernels._children import try_children
from specdec_kernels.triton_kernels._cuts import Side, cut_one
from specdec_kernels.triton_kernels._edits import Edits, place_at, request_status
from specdec_kernels.triton_kernels._filters import Filter, filter_of
from specdec_kernels.triton_kernels._kept import begin_kept, finish_kept
from specdec_kernels.triton_kernels._laws import CUT, Known, Law, known_at
from specdec_kernels.triton_kernels._math import NOBODY, inverse_temperature, key_of, later
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Rows,
    divisor,
    entered,
    entry_of,
    is_last,
    key_at,
    noise_at,
    number,
    row_at,
    row_of,
)
from specdec_kernels.triton_kernels._tree_walk import FRONT, PAIR, ROW, SUBTRACTED, decide, decide_winner, finish_walk
from specdec_kernels.triton_kernels._trees import next_child, next_node
from specdec_kernels.triton_kernels._verdict import VerdictWriter


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
    nonce, nonce_request: tl.int64, nonce_value: tl.int64, input_positions, input_request: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, num_accepted, status,
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
    noise = entered(noise, input_positions, b * input_request, live)
    inverse, greedy, flags = inverse_temperature(
        divisor(temperature, temperature_value, entry * temperature_request, live)
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
        verdict = VerdictWriter(
            tokens + (b * tokens_request if index is None else 0), tokens_slot,
            None if path is None else path + b * path_request, None if index is None else index + b * index_request,
            index_node, flat, num_accepted + b, status + b, form,
        )  # fmt: skip
        finish_walk(tree, nodes, flags, live, idle, records, request, vocab, b >= 0, verdict, max_depth)


filtered_tree_kernel.most_registers = _cuts.most_registers


@triton.jit
def numbers_at(
    temperature, temperature_value, temperature_at, top_k, top_k_value, top_k_at, top_p, top_p_value, top_p_at, min_p,
    min_p_value, min_p_at, columns, live,
):  # fmt: skip
    """(1 / T, whether it is 0, the filter's three numbers, status bits) of a request.

    They are loaded where they are needed: registers are few where cuts are found.
    """
    inverse, greedy, bad = inverse_temperature(divisor(temperature, temperature_value, temperature_at, live))
    k, share, log_min_p, bad_filter = filter_of(
        number(top_k, top_k_value, top_k_at, live), number(top_p, top_p_value, top_p_at, live),
        number(min_p, min_p_value, min_p_at, live), columns, greedy,
    )  # fmt: skip
    return inverse, greedy, k, share, log_min_p, bad, bad_filter


@triton.jit
def try_cut_node(
    tree, node, below, nodes, target, target_law, draft, draft_law, draft_map, noise, records, request, own,
    REPLACEMENT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Tries the children of a node whose rows are known, unless the walk has gone elsewhere."""
    record = records + node * ROW
    front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
    if next_node(tree, node, nodes, front, nodes)[0] == node:
        q_known = Known(0.0, 0.0)
        if draft is not None:
            q_known = known_at(own + 2, draft_law, node >= 0)
        child, subtracted, reported = try_children(
            tree, node, below, target, target_law, draft, draft_law, draft_map, known_at(own, target_law, node >= 0),
            q_known, noise, REPLACEMENT, TILE,
        )  # fmt: skip
        tl.store(record + SUBTRACTED, subtracted.to(tl.int32, bitcast=True))
        if reported != 0:
            tl.atomic_or(record + FLAGS, reported, sem="relaxed")
        decide(records, request, node, child, nodes)


@_launch.kernel
def cut_tree_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    parents, parents_request: tl.int64, parents_node: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, vocab: tl.int32,
    temperature, temperature_request: tl.int64, temperature_value: tl.float32,
    top_k, top_k_request: tl.int64, top_k_value: tl.int64, top_p, top_p_request: tl.int64, top_p_value: tl.float32,
    min_p, min_p_request: tl.int64, min_p_value: tl.float32, rules: tl.int32, cuts, known,
    draft, draft_request: tl.int64, draft_row: tl.int64, draft_vocab: tl.int32,
    draft_temperature, draft_temperature_request: tl.int64, draft_temperature_value: tl.float32,
    draft_top_k, draft_top_k_request: tl.int64, draft_top_k_value: tl.int64,
    draft_top_p, draft_top_p_request: tl.int64, draft_top_p_value: tl.float32,
    draft_min_p, draft_min_p_request: tl.int64, draft_min_p_value: tl.float32, draft_rules: tl.int32, draft_cuts,
    draft_known, draft_map, request_index, entries: tl.int64, nodes: tl.int32, max_depth: tl.int32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64, input_positions, input_request: tl.int64,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, num_accepted, status,
    form: tl.int32, counters, scratch, scratch_row: tl.int64, edits,
    METHOD: tl.constexpr, REPLACEMENT: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, CELL: tl.constexpr,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The cuts of a target's rows, and of a draft's that children are tried with. In rejection, who stores the second
    of a node tries the children; a request at temperature 0 goes to the child that is the argmax."""
    b = tl.program_id(0).to(tl.int64)
    entry, live, idle = entry_of(b, request_index, entries)
    noise = noise_at(
        seed, seed_value, entry * seed_request, position, position_value, entry * position_request, nonce, nonce_value,
        entry * nonce_request, live,
    )  # fmt: skip
    noise = entered(noise, input_positions, b * input_request, live)
    found = numbers_at(
        temperature, temperature_value, entry * temperature_request, top_k, top_k_value, entry * top_k_request,
        top_p, top_p_value, entry * top_p_request, min_p, min_p_value, entry * min_p_request, vocab, live,
    )  # fmt: skip
    greedy, flags, bad = found[1], found[5], found[6]
    if DRAFT == "logits":
        found = numbers_at(
            draft_temperature, draft_temperature_value, entry * draft_temperature_request,
            draft_top_k, draft_top_k_value, entry * draft_top_k_request,
            draft_top_p, draft_top_p_value, entry * draft_top_p_request,
            draft_min_p, draft_min_p_value, entry * draft_min_p_request, draft_vocab, live,
        )  # fmt: skip
        flags |= found[5]
        bad |= found[6]
    rows = Rows(row_at(target, b * target_request, ALIGNED), target_row, vocab)
    records = counters + nodes * ROW * b
    request = counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    flags |= tl.where(live, bad, 0)
    if METHOD == "traversal":  # noqa: SIM102  the next launch says so
        if live & (bad != 0):
            tl.atomic_or(request + FLAGS, bad, sem="relaxed")
    tree = (
        parents + b * parents_request, parents_node, draft_tokens + b * draft_tokens_request, draft_tokens_node
    )  # fmt: skip
    decides = greedy | (METHOD == "rejection")  # rows do; in traversal a walk of its own
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch += scratch_row * (b * chunks + chunk)
    # One program takes its rows one after the other. Where several share them, the draft's has a place of its own.
    draft_scratch = scratch + tl.where(splits > 1, scratch_row * chunks * tl.num_programs(0), 0)
    end = tl.where(live, nodes, 0)
    node, depth = next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # where children end
        record, n = records + node * ROW, nodes * b + node
        place, bad_bias = place_at(edits, entry, 0, b, node, node, 0, live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
            if bad_bias != 0:
                tl.atomic_or(record + FLAGS, bad_bias, sem="relaxed")
        tries = (greedy == 0) & (next_child(tree, node, node, below) < below)
        at = node.to(tl.int64)
        own = numbers_at(
            temperature, temperature_value, entry * temperature_request, top_k, top_k_value, entry * top_k_request,
            top_p, top_p_value, entry * top_p_request, min_p, min_p_value, entry * min_p_request, vocab, live,
        )  # fmt: skip
        done = cut_one(
            Side(target, target_request, target_row, vocab, None, own[0], greedy, rules, cuts, known),
            Filter(own[2], own[3], own[4]), 0, b, at, live, entry, request_index, nodes, None, 0, 0, 0, 4, counters,
            ROW, request + FLAGS, scratch, edits, split, splits, "all", False, ALIGNED, CELL, TILE, TILES,
        ).to(tl.int32)  # fmt: skip
        parts = 1
        if DRAFT == "logits":
            parts = tl.where(tries, 2, 1)
            if tries:
                drafts = numbers_at(
                    draft_temperature, draft_temperature_value, entry * draft_temperature_request,
                    draft_top_k, draft_top_k_value, entry * draft_top_k_request,
                    draft_top_p, draft_top_p_value, entry * draft_top_p_request,
                    draft_min_p, draft_min_p_value, entry * draft_min_p_request, draft_vocab, live,
                )  # fmt: skip
                draft_side = Side(
                    draft, draft_request, draft_row, draft_vocab, draft_map, drafts[0], drafts[1], draft_rules,
                    draft_cuts, draft_known,
                )  # fmt: skip
                done += cut_one(
                    draft_side, Filter(drafts[2], drafts[3], drafts[4]), 0, b, at, live, entry, request_index, nodes,
                    None, 0, 0, 0, 4, counters, ROW, request + FLAGS, draft_scratch, Edits(), split, splits, "all",
                    True, ALIGNED, CELL, TILE, TILES,
                ).to(tl.int32)  # fmt: skip
        if (done > 0) & decides & (tries | greedy):  # noqa: SIM102  `and` would take a ticket
            if is_last(record + PAIR, parts, done):
                if greedy:
                    token = tl.load(known + 4 * n, cache_modifier=".cg").to(tl.int32, bitcast=True)
                    best = tl.where(token >= 0, key_of(token * 0.0, token), NOBODY)
                    tl.store(key_at(record), best)
                    decide_winner(tree, node, below, nodes, vocab, best, records, request)
                elif METHOD == "rejection":
                    draft_node, q_law = None, None
                    if draft is not None:
                        draft_node = row_of(
                            Rows(row_at(draft, entry * draft_request, ALIGNED), draft_row, draft_vocab), node, ALIGNED
                        )
                        if DRAFT == "logits":
                            cold = inverse_temperature(
                                divisor(
                                    draft_temperature, draft_temperature_value, entry * draft_temperature_request, live
                                )
                            )
                            q_law = Law(cold[0], cold[1], draft_cuts, n)
                        else:
                            q_law = Law(None, None)
                    heat = inverse_temperature(
                        divisor(temperature, temperature_value, entry * temperature_request, live)
                    )
                    try_cut_node(
                        tree, node, below, nodes, row_of(rows, node, ALIGNED),
                        Law(heat[0], None, cuts, n, *place, *edits), draft_node, q_law, draft_map, later(noise, depth),
                        records, request, known + 4 * n, REPLACEMENT, TILE,
                    )  # fmt: skip
        front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
        node, depth = next_node(tree, node + chunks, chunks, front, end)
    if decides:  # noqa: SIM102  `and` would take a ticket
        if is_last(request + DONE, splits * chunks):
            flags |= request_status(edits, entry, 0, live, vocab)
            verdict = VerdictWriter(
                tokens + (b * tokens_request if index is None else 0), tokens_slot,
                None if path is None else path + b * path_request, None if index is None else index + b * index_request,
                index_node, flat, num_accepted + b, status + b, form,
            )  # fmt: skip
            finish_walk(tree, nodes, flags, live, idle, records, request, vocab, greedy, verdict, max_depth)


cut_tree_kernel.most_registers = _cuts.most_registers


class Search(NamedTuple):
    """How the rows of trees are looked through. ``words`` are float32 words of memory that the launch needs."""

    grid: tuple
    warps: int
    words: int
    arguments: dict


def search_of(call, requests, width, edits, index, sides=1):
    """Programs in groups. A group has memory for one row; for one of each side if several programs share a row."""
    target, law = call.target, call.target_law
    vocab, nodes = target.shape[-1], target.shape[1]
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    rows, words = sides * requests * nodes, _cuts.search_words_of(vocab)
    groups = _cuts.groups_of(rows, target.device)
    chunks = max(1, min(nodes, groups // requests))
    splits = _launch.splits_of(rows, tiles, target.device) if groups == rows else 1
    arguments = dict(
        nodes=nodes, max_depth=width - 1, vocab=vocab, rules=law.rules, scratch_row=words,
        CELL=_cuts.cell_of(tile, tiles), TILE=tile, TILES=_launch.power_of_2(tiles), **_launch.rows("target", target),
        **_launch.nodes("draft_tokens", call.draft_tokens), **_launch.nodes("parents", call.parents), **numbers(law),
        **_launch.noise(call.noise, "request"), **inputs_of(call), **edits, **index, **_verdict.arguments(call),
    )  # fmt: skip
    return Search(
        (requests, chunks, splits), warps, words * requests * chunks * (1 if splits == 1 else sides), arguments
    )


def inputs_of(call):
    """Arguments for the positions of nodes."""
    given = call.input_positions
    return {"input_positions": given, "input_request": 0 if given is None else given.stride(0)}


def numbers(law, own=""):
    """The numbers of a law of logits, for arguments whose names begin with ``own``; else such that drop nothing."""
    law = law if law is not None and law.space == "logits" else None
    return _launch.divisor(own + "temperature", law, "request") | _launch.filters(law, "request", own=own)


def race(call, requests, width):
    """All rows are raced under filters: one launch."""
    target, law, rows = call.target, call.target_law, requests * call.target.shape[1]
    index = _launch.index(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits)
    search = search_of(call, requests, width, _edits.arguments(call, call.draft_tokens, call.parents), index)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, CUT.value * rows + search.words)
        memory = dict(counters=counters, cuts=scratch, scratch=scratch[CUT.value * rows :])
        arguments = search.arguments | memory | {"ALIGNED": _launch.aligned(target)}
        _launch.launch(filtered_tree_kernel, search.grid, search.warps, arguments)


def scanned_sides(call, draft, own_law):
    """Which sides one launch looks through, and decides from; none if it can not."""
    scanned = _launch.scanned_sides(call, draft)
    needs_more = not scanned[0] or _launch.learns(call, draft, own_law, scanned)
    return [False, False] if needs_more or not _launch.TICKETS_ORDER_STORES else scanned


def cut(call, draft, scanned, search, counters, known, scratch):
    """Launches the kernel for sides that are ``scanned_sides``, and returns what the last launch needs of it.

    ``known`` has four words a row; ``scratch`` CUT words a row of each side, and what the search needs.
    """
    rows, law = len(known) // 4, call.draft_law
    places = scratch, scratch[CUT.value * rows :]
    arguments = search.arguments | dict(
        cuts=places[0], known=known, draft_cuts=places[1] if scanned[1] else None, draft_known=known[2:],
        draft_vocab=0 if draft is None else draft.shape[-1], draft_map=None if draft is None else call.draft_map,
        draft_rules=0 if draft is None else law.rules, **_launch.rows("draft", draft),
        **numbers(law if scanned[1] else None, "draft_"), counters=counters,
        scratch=scratch[CUT.value * rows * sum(scanned) :],
        METHOD="traversal" if call.method == "paths" else call.method,  # rows are learned alike
        REPLACEMENT=call.replacement and draft is not None, DRAFT=None if draft is None else law.space,
        ALIGNED=_launch.aligned(call.target, draft),
    )  # fmt: skip
    _launch.launch(cut_tree_kernel, search.grid, search.warps, arguments)
    filtered = _launch.is_filtered(call.target_law), scanned[1] and _launch.is_filtered(law)
    return {name: place if on else None for name, place, on in zip(_cuts.NO_CUTS, places, filtered, strict=True)}
