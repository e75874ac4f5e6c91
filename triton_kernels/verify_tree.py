"""Verification of trees: one launch for the race, two for rejection, three for traversal.

The first, stage ``scan``, goes over the rows of all nodes, split over programs. A row decides for itself which child
the walk goes to, if it ever comes there: the last program of a row compares its winner with the children, or tries them
one by one. Decisions that join up from the root move the front of the walk; programs take rows in order, ask for the
front before each, and pass over what does not hang on it. Nobody waits: where programs are many all rows are read at
once, where rows are many few off the path are read. The last program of a request follows the decisions
(``_tree_walk``). The second, ``emit``, draws a token from the row at the path's end, where rejection needs one; rows of
leaves are left to it. In traversal no row decides for itself: the first launch learns the rows that have children, and
one between them, ``walk``, follows the rule. Rows with filters have a first launch of their own (``_filtered_trees``).
"""

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _edits, _filtered_trees, _launch, _verdict
from specdec_kernels.triton_kernels._children import try_children
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import CUT, Known, Law, known_at
from specdec_kernels.triton_kernels._math import NON_FINITE, PARAMETER, STREAM_RACE, inverse_temperature, later
from specdec_kernels.triton_kernels._paths import BY_BUCKET, SHARES, walk_paths
from specdec_kernels.triton_kernels._paths import KEPT as PATH_KEPT
from specdec_kernels.triton_kernels._races import draw_part, drawn, race_tiles
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Rows,
    barrier,
    divisor,
    entered,
    entry_of,
    is_last,
    key_at,
    learn_pair,
    mass_items_of,
    noise_at,
    row_at,
    row_of,
    share_of,
)
from specdec_kernels.triton_kernels._traversal import KEPT, MORE_WARPS, traverse
from specdec_kernels.triton_kernels._tree_walk import (
    FRONT,
    NODE,
    NODE_SUBTRACTED,
    ROW,
    SUBTRACTED,
    TRIED,
    decide,
    decide_winner,
    finish,
    finish_path,
    finish_walk,
)
from specdec_kernels.triton_kernels._trees import next_child, next_node, status_of
from specdec_kernels.triton_kernels._verdict import VerdictWriter, put_token


@triton.jit
def race_node(
    tree, node, below, nodes, target, law, noise, records, request, split, splits, TILE: tl.constexpr
):  # fmt: skip
    """A program's part of the race of a row; the last one decides."""
    record = records + node * ROW
    first, last = share_of(tl.cdiv(target.columns, TILE), split, splits)
    best, bad = race_tiles(target, law, first, last, key_at(record), noise, None, None, STREAM_RACE, TILE)
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if is_last(record + DONE, splits):
        best = tl.load(key_at(record), cache_modifier=".cg")
        decide_winner(tree, node, below, nodes, target.columns, best, records, request)


@triton.jit
def try_node(
    tree, node, below, nodes, target, target_law, draft, draft_law, draft_map, noise, records, request, own, items,
    split, splits, REPLACEMENT: tl.constexpr, LEARNS: tl.constexpr, LEARNED: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """A program's part of what is to be learned of a node's rows; the last one tries the children.

    LEARNED: an earlier launch has learned something.
    """
    record = records + node * ROW
    p_known, q_known = Known(0.0, 0.0), Known(0.0, 0.0)
    decides = node >= 0
    if LEARNS:
        decides, p_known, q_known = learn_pair(
            target, target_law, None, draft, draft_law, draft_map, record, items, own, split, splits, TILE, TILES
        )
        if decides:  # the walk may have gone elsewhere since
            front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
            decides = next_node(tree, node, nodes, front, nodes)[0] == node
    elif LEARNED:
        p_known = known_at(own, target_law, node >= 0)
        if draft is not None:
            q_known = known_at(own + 2, draft_law, node >= 0)
    if decides:
        child, subtracted, reported = try_children(
            tree, node, below, target, target_law, draft, draft_law, draft_map, p_known, q_known, noise, REPLACEMENT,
            TILE,
        )  # fmt: skip
        tl.store(record + SUBTRACTED, subtracted.to(tl.int32, bitcast=True))
        if reported != 0:
            tl.atomic_or(record + FLAGS, reported, sem="relaxed")
        decide(records, request, node, child, nodes)


@_launch.kernel
def verify_tree_kernel(
    draft_tokens, draft_tokens_request: tl.int64, draft_tokens_node: tl.int64,
    parents, parents_request: tl.int64, parents_node: tl.int64,
    target, target_request: tl.int64, target_row: tl.int64, draft, draft_request: tl.int64, draft_row: tl.int64,
    draft_map, request_index, entries: tl.int64, nodes: tl.int32, max_depth: tl.int32,
    vocab: tl.int32, draft_vocab: tl.int32,
    target_temperature, target_temperature_request: tl.int64, target_temperature_value: tl.float32,
    draft_temperature, draft_temperature_request: tl.int64, draft_temperature_value: tl.float32,
    seed, seed_request: tl.int64, seed_value: tl.int64, position, position_request: tl.int64, position_value: tl.int64,
    nonce, nonce_request: tl.int64, nonce_value: tl.int64, input_positions, input_request: tl.int64,
    leaves, leaves_request: tl.int64, leaves_node: tl.int64, chains: tl.int32,
    tokens, tokens_request: tl.int64, tokens_slot: tl.int64, path, path_request: tl.int64,
    index, index_request: tl.int64, index_node: tl.int64, flat: tl.int64, num_accepted, status,
    form: tl.int32, counters, figures, items, kept, target_cuts, draft_cuts, edits,
    STAGE: tl.constexpr, METHOD: tl.constexpr, REPLACEMENT: tl.constexpr, TARGET: tl.constexpr, DRAFT: tl.constexpr,
    OWN_LAW: tl.constexpr, LEARNS: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    entry, live, idle = entry_of(b, request_index, entries)
    noise = noise_at(
        seed, seed_value, entry * seed_request, position, position_value, entry * position_request, nonce, nonce_value,
        entry * nonce_request, live,
    )  # fmt: skip
    noise = entered(noise, input_positions, b * input_request, live)
    inverse, greedy, flags = inverse_temperature(
        divisor(target_temperature, target_temperature_value, entry * target_temperature_request, live)
    )
    draft_inverse, draft_greedy = inverse, None
    if OWN_LAW:
        draft_inverse, draft_greedy, bad_temperature = inverse_temperature(
            divisor(draft_temperature, draft_temperature_value, entry * draft_temperature_request, live)
        )
        flags |= bad_temperature
    tree = (
        parents + b * parents_request, parents_node, draft_tokens + b * draft_tokens_request, draft_tokens_node
    )  # fmt: skip
    row = nodes * b
    target_law = Law(inverse if TARGET == "logits" else None, None, target_cuts, row)
    target_rows = Rows(row_at(target, b * target_request, ALIGNED), target_row, vocab)
    draft_law, draft_rows = None, None
    if draft is not None:
        draft_law = Law(draft_inverse if DRAFT == "logits" else None, draft_greedy, draft_cuts, row)
        draft_rows = Rows(row_at(draft, entry * draft_request, ALIGNED), draft_row, draft_vocab)
    records = counters + nodes * ROW * b
    request = counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    figures += 4 * nodes * b
    FILTERED: tl.constexpr = target_cuts is not None or draft_cuts is not None
    if FILTERED:
        flags |= tl.load(request + FLAGS) & PARAMETER
    verdict = VerdictWriter(
        tokens + (b * tokens_request if index is None else 0), tokens_slot,
        None if path is None else path + b * path_request, None if index is None else index + b * index_request,
        index_node, flat, num_accepted + b, status + b, form,
    )  # fmt: skip

    if STAGE == "scan":
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        split, splits = tl.program_id(2), tl.num_programs(2)
        if METHOD == "race":
            racing = b >= 0
        else:
            racing = greedy
        end = tl.where(live, nodes, 0)
        if LEARNS == 0:  # nothing to be split where probabilities are tried
            end = tl.where(racing | (split == 0), end, 0)
        node, depth = next_node(tree, chunk, chunks, 0, end)
        while node < end:
            below = tl.where(depth < max_depth, nodes, 0)  # where children end
            target_node = row_of(target_rows, node, ALIGNED)
            place, bad_bias = place_at(edits, entry, 0, b, node, node, 0, live, vocab)
            if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                if bad_bias != 0:
                    tl.atomic_or(records + node * ROW + FLAGS, bad_bias, sem="relaxed")
            if racing:
                race_node(
                    tree, node, below, nodes, target_node,
                    Law(target_law.inverse, greedy, target_cuts, row + node, *place, *edits), later(noise, depth),
                    records, request, split, splits, TILE,
                )  # fmt: skip
            elif METHOD != "race":  # noqa: SIM102  `and` would look for children in a race, too
                if next_child(tree, node, node, below) < below:
                    p_law = Law(target_law.inverse, None, target_cuts, row + node, *place, *edits)
                    draft_node, q_law = None, None
                    if draft is not None:
                        draft_node = row_of(draft_rows, node, ALIGNED)
                        q_law = Law(draft_law.inverse, draft_law.greedy, draft_cuts, row + node)
                    own, own_items = figures + 4 * node, items + 2 * mass_items_of(vocab) * (nodes * b + node)
                    if METHOD == "rejection":
                        try_node(
                            tree, node, below, nodes, target_node, p_law, draft_node, q_law, draft_map,
                            later(noise, depth), records, request, own, own_items, split, splits, REPLACEMENT, LEARNS,
                            FILTERED, TILE, TILES,
                        )  # fmt: skip
                    elif LEARNS:
                        learn_pair(
                            target_node, p_law, None, draft_node, q_law, draft_map, records + node * ROW, own_items,
                            own, split, splits, TILE, TILES,
                        )  # fmt: skip
            front = tl.atomic_max(request + FRONT, 0, sem="relaxed")
            node, depth = next_node(tree, node + chunks, chunks, front, end)
        if (METHOD != "traversal") or racing:  # noqa: SIM102  `and` would take a ticket
            if is_last(request + DONE, splits * chunks):
                flags |= request_status(edits, entry, 0, live, vocab)
                finish_walk(
                    tree, nodes, flags, live, idle, records, request, vocab, racing, verdict, max_depth
                )  # fmt: skip
    elif STAGE == "walk":
        if greedy:  # the other launch did it all
            return
        if leaves is None:
            node, depth, subtracted, tried, reported = traverse(
                tree, tl.where(live, nodes, 0), max_depth, target_rows, target_law, draft_rows, draft_law, draft_map,
                edits, entry, b, 0, 0, records, figures, kept + KEPT * row, noise, ROW, REPLACEMENT, ALIGNED, TILE,
            )  # fmt: skip
        else:
            node, depth, subtracted, tried, reported = walk_paths(
                tree, (leaves + b * leaves_request, leaves_node, chains), tl.where(live, nodes, 0), max_depth,
                target_rows, target_law, draft_rows, draft_law, draft_map, edits, entry, b, records, figures,
                kept + PATH_KEPT * row, noise, ROW, ALIGNED, TILE,
            )  # fmt: skip
        flags |= reported | status_of(tree[0], tree[1], nodes) | request_status(edits, entry, 0, live, vocab)
        tl.store(request + NODE, node)
        tl.store(request + NODE_SUBTRACTED, subtracted.to(tl.int32, bitcast=True))
        tl.store(request + TRIED, tried.to(tl.int32))
        flags |= finish_path(tree, node, tl.where(live, depth, -1), verdict)
        depth = tl.where(idle, -1, depth)
        finish(nodes, depth, flags, live, idle, records, request, depth, verdict, max_depth)
    else:
        if greedy:  # the other launch did it all
            return
        split, splits = tl.program_id(1), tl.num_programs(1)
        node, tried = tl.load(request + NODE), tl.load(request + TRIED) != 0
        depth = tl.load(request + FRONT)
        target_node = row_of(target_rows, node, ALIGNED)
        draft_node, q_law, children = None, None, None
        if draft is None:
            children = (tree, node, tl.where(tried, nodes, 0))
        else:
            draft_node = row_of(draft_rows, node, ALIGNED)
            q_law = Law(draft_law.inverse, draft_law.greedy, draft_cuts, row + node)
        place, bad_bias = place_at(edits, entry, 0, b, node, node, 0, live, vocab)
        p_law = Law(target_law.inverse, None, target_cuts, row + node, *place, *edits)
        subtracted = tl.load(request + NODE_SUBTRACTED).to(tl.float32, bitcast=True)
        noise = later(noise, depth)
        shares, by_bucket = None, 0.0
        if leaves is not None:
            own = kept + PATH_KEPT * (row + node)
            shares, by_bucket = own + SHARES, tl.load(own + BY_BUCKET)
        if draw_part(
            target_node, p_law, draft_node, q_law, draft_map, subtracted, tried, live, None, children,
            figures + 4 * node, request, noise, split, splits, TILE, shares, by_bucket,
        ):  # fmt: skip
            token, reported = drawn(target_node, p_law, draft_node, q_law, tried, live, request, noise, TILE)
            flags = tl.load(verdict.status) | reported | bad_bias
            barrier()  # all warps have read
            put_token(verdict, depth, node, token, live)
            tl.store(verdict.status, flags)
            for word in tl.static_range(2, 8):
                tl.store(request + word, 0)


def most_registers(arguments):
    """A limit where children are tried against a draft law: four programs of 128 threads then fit a multiprocessor."""
    tries = arguments["STAGE"] == "scan" and arguments["draft"] is not None
    return _edits.most_registers(arguments) or (128 if tries else None)


verify_tree_kernel.most_registers = most_registers


def verify_tree(call):
    """The verdict of each request, as ``specdec_kernels.verify_tree`` has it."""
    target = call.target
    (requests, width), (_, nodes, vocab) = _verdict.shape_of(call), target.shape
    if requests == 0:
        return
    rows = requests * nodes
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # Where all requests are greedy the race is the whole of rejection.
    race = call.method == "race" or _launch.is_greedy(call.target_law)
    if race and _launch.is_filtered(call.target_law) and _launch.TICKETS_ORDER_STORES:
        return _filtered_trees.race(call, requests, width)
    paths = call.method == "paths" and not race
    traversal = paths or (call.method == "traversal" and not race)
    draft = None if race else call.draft
    own_law = call.draft is not None and _launch.is_own(call.draft_law, call.target_law)
    scanned = [False, False] if race else _filtered_trees.scanned_sides(call, draft, own_law)
    together = any(scanned)  # one launch finds cuts and decides
    if not together:
        scanned = _launch.scanned_sides(call, draft, both=False)
    learns = not race and _launch.learns(call, draft, own_law, scanned)
    index = _launch.index(
        call.request_index, call.draft, *_launch.numbers_of(call.target_law), *_launch.numbers_of(call.draft_law),
        *call.noise, edit=call.edits,
    )  # fmt: skip
    if together:
        search = _filtered_trees.search_of(call, requests, width, edits, index, sum(scanned))
        words = CUT.value * rows * sum(scanned) + search.words
    else:
        words = _cuts.words_of(vocab, rows, target.device, scanned)
    with _launch.on_device(target), _launch.whole_calls:
        figures = (4 * (learns or words > 0) + _launch.mass_items_of(vocab) * learns) * rows
        kept = figures + words
        counters, scratch = _launch.workspace(
            target, 6 * rows + 8 * requests, kept + (PATH_KEPT if paths else KEPT).value * rows * traversal
        )  # fmt: skip
        if together:
            cuts = _filtered_trees.cut(call, draft, scanned, search, counters, scratch[: 4 * rows], scratch[figures:])
        else:
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, counters, 6, counters[6 * rows + FLAGS.value :], (8, 0),
                scratch[figures:], requests, nodes,
            )  # fmt: skip
        arguments = dict(
            draft_map=None if race else call.draft_map, nodes=nodes, max_depth=width - 1,
            vocab=vocab, draft_vocab=vocab if draft is None else draft.shape[-1],
            counters=counters, figures=scratch, items=scratch[4 * rows :], kept=scratch[kept:] if traversal else None,
            METHOD="race" if race else "traversal" if paths else call.method,
            REPLACEMENT=call.replacement and draft is not None,
            TARGET=call.target_law.space, DRAFT=None if draft is None else call.draft_law.space, OWN_LAW=own_law,
            LEARNS=learns, ALIGNED=_launch.aligned(target, draft), TILE=tile, TILES=_launch.power_of_2(tiles),
            leaves=call.leaves if paths else None, leaves_request=call.leaves.stride(0) if paths else 0,
            leaves_node=call.leaves.stride(1) if paths else 0, chains=call.leaves.shape[1] if paths else 0,
        ) | {
            **_launch.nodes("draft_tokens", call.draft_tokens), **_launch.nodes("parents", call.parents),
            **_launch.rows("target", target), **_launch.rows("draft", draft),
            **index, **cuts, **edits, **_verdict.arguments(call),
            **_launch.divisor("target_temperature", call.target_law, "request"),
            **_launch.divisor("draft_temperature", call.draft_law if own_law else None, "request"),
            **_launch.noise(call.noise, "request"), **_filtered_trees.inputs_of(call),
        }  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        split = race or learns or isinstance(call.target_law.temperature, torch.Tensor)
        scan_splits = splits if split else 1
        chunks = _launch.chunks_of(requests, scan_splits, nodes, target.device)
        if not together and (split or not traversal):
            _launch.launch(verify_tree_kernel, (requests, chunks, scan_splits), warps, arguments | {"STAGE": "scan"})
        if traversal:
            _launch.launch(verify_tree_kernel, (requests,), MORE_WARPS * warps, arguments | {"STAGE": "walk"})
        if not race:
            _launch.launch(verify_tree_kernel, (requests, splits), warps, arguments | {"STAGE": "emit"})
