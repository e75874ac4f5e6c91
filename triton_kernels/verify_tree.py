"""Verification of trees: one launch for the race, two for rejection, three for traversal.

The first, stage ``scan``, reads the rows of all nodes, split over programs. The last program of a row decides which
child a walk at that node goes to: it compares the row's winner with the children, or tries them one by one. Decisions
that connect to the root move the front of the walk. Programs take rows in order, load the front before each, and skip
nodes that are not below it. No program waits: if programs are many all rows are read at once, if rows are many few off
the path are read. The last program of a request follows the decisions (``_tree_walk``). The second launch, ``emit``,
samples a token from the row at the path's end, for rejection; only it reads rows of leaves. In traversal rows do not
decide: the first launch stores the ``RowStats`` of rows with children, and one between them, ``walk``, follows the
rule. Filters have another first launch (``_filtered_trees``).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _children,
    _cuts,
    _edits,
    _filtered_races,
    _filtered_trees,
    _launch,
    _laws,
    _math,
    _paths,
    _races,
    _rows,
    _traversal,
    _tree_walk,
    _trees,
    _verdict,
)


class Memory(NamedTuple):
    """Memory of a call with B N rows."""

    counters: tl.tensor  # int32 [6 B N + 8 B]
    pair_stats: tl.tensor  # float32 [B N, 4]
    items: tl.tensor  # float32 [B N, 2 mass_items_of(V)]
    node_state: tl.tensor  # float32 [B N, NODE_WORDS]: of the launch ``walk``
    target_cuts: tl.tensor  # float32 [B N, CUT], or None
    draft_cuts: tl.tensor  # float32 [B N, CUT], or None


class Plan(NamedTuple):
    """What is compiled in."""

    METHOD: tl.constexpr
    REPLACEMENT: tl.constexpr
    TARGET: tl.constexpr  # space of the target's rows
    DRAFT: tl.constexpr
    SEPARATE_LAW: tl.constexpr  # the draft has its own temperature
    NEEDS_STATS: tl.constexpr  # ``scan`` stores ``RowStats``
    FILTERED: tl.constexpr  # cuts are stored
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


@triton.jit
def race_node(walk, node, below, row, noise, split, splits, TILE: tl.constexpr):
    """Races one program's tiles of a row; the last program decides."""
    record = walk.records + node * _tree_walk.ROW
    _filtered_races.race_slice(row, record, noise, split, splits, TILE)
    if _rows.is_last(record + _rows.DONE, splits):
        best = tl.load(_rows.key_at(record), cache_modifier=".cg")
        _tree_walk.decide_winner(walk, node, below, best)


@triton.jit
def try_node(walk, node, below, p, q, noise, pair_stats, items, split, splits, plan):
    """Scans one program's tiles of a node's rows; the last program tries the children."""
    p_stats, q_stats = _laws.RowStats(0.0, 0.0), _laws.RowStats(0.0, 0.0)
    decides = node >= 0
    if plan.NEEDS_STATS:
        decides, p_stats, q_stats = _rows.scan_pair(
            p, None, q, walk.records + node * _tree_walk.ROW, items, pair_stats, split, splits, plan.TILE, plan.TILES
        )  # fmt: skip
        if decides:  # the walk may have gone elsewhere since
            at, _ = _trees.next_node(walk.tree, node, walk.nodes, _tree_walk.front_of(walk), walk.nodes)
            decides = at == node
    elif plan.FILTERED:
        p_stats = _laws.load_row_stats(pair_stats, p.law, node >= 0)
        if q.at is not None:
            q_stats = _laws.load_row_stats(pair_stats + 2, q.law, node >= 0)
    if decides:
        child, subtracted, reported = _children.try_children(
            walk.tree, node, below, _laws.Row(p.at, p.columns, p.law, None, p_stats),
            _laws.Row(q.at, q.columns, q.law, q.map, q_stats), noise, plan.REPLACEMENT, plan.TILE,
        )  # fmt: skip
        _tree_walk.store_children(walk, node, child, subtracted, reported)


@_launch.kernel
def verify_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    inputs: _arguments.Inputs, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan, STAGE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    ALIGNED: tl.constexpr = plan.ALIGNED
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    inverse, greedy, flags = _arguments.load_temperature(target_temperature, entry, 0, live)
    q_inverse, q_greedy = inverse, None
    if plan.SEPARATE_LAW:
        q_inverse, q_greedy, bad_temperature = _arguments.load_temperature(draft_temperature, entry, 0, live)
        flags |= bad_temperature
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    first_row = nodes * b
    p_start, p_inverse = _rows.start_of(target, b, 0, ALIGNED), inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, first_row)
    q_side = _rows.Side(None)
    if draft.rows is not None:
        q_side = _rows.Side(
            _rows.start_of(draft, entry, 0, ALIGNED), draft.inner, draft.vocab,
            q_inverse if plan.DRAFT == "logits" else None, q_greedy, memory.draft_cuts, first_row, draft_map,
        )  # fmt: skip
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, memory.counters, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    request, pair_stats = walk.request, memory.pair_stats + 4 * first_row
    if plan.FILTERED:
        flags |= tl.load(request + _rows.FLAGS) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)

    if STAGE == "scan":
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        split, splits = tl.program_id(2), tl.num_programs(2)
        if plan.METHOD == "race":
            racing = b >= 0
        else:
            racing = greedy
        end = tl.where(live, nodes, 0)
        if plan.NEEDS_STATS == 0:  # without ``RowStats`` one program tries children alone
            end = tl.where(racing | (split == 0), end, 0)
        node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
        while node < end:
            below = tl.where(depth < max_depth, nodes, 0)  # children have indices below this
            row = first_row + node
            start = _rows.side_row(p_side, node, ALIGNED)
            row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
            if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
                if bad_bias != 0:
                    tl.atomic_or(walk.records + node * _tree_walk.ROW + _rows.FLAGS, bad_bias, sem="relaxed")
            if racing:
                law = _laws.Law(p_inverse, greedy, memory.target_cuts, row, edits.by_row, row_edits, edits)
                p_row = _laws.Row(start, vocab, law)
                node_noise = _arguments.race_noise(request_noise, inputs, b, node, depth)
                race_node(walk, node, below, p_row, node_noise, split, splits, plan.TILE)
            elif plan.METHOD != "race":  # noqa: SIM102  `and` would look for children in a race, too
                if _trees.next_child(tree, node, node, below) < below:
                    law = _laws.Law(p_inverse, None, memory.target_cuts, row, edits.by_row, row_edits, edits)
                    p_row, q_row = _laws.Row(start, vocab, law), _laws.Row(None)
                    if draft.rows is not None:
                        q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row)
                        q_row = _laws.Row(_rows.side_row(q_side, node, ALIGNED), q_side.columns, q_law, q_side.map)
                    node_stats, items = pair_stats + 4 * node, memory.items + 2 * _rows.mass_items_of(vocab) * row
                    if plan.METHOD == "rejection":
                        try_node(
                            walk, node, below, p_row, q_row, _math.later(request_noise, depth), node_stats, items,
                            split, splits, plan,
                        )  # fmt: skip
                    elif plan.NEEDS_STATS:
                        _rows.scan_pair(
                            p_row, None, q_row, walk.records + node * _tree_walk.ROW, items, node_stats, split, splits,
                            plan.TILE, plan.TILES,
                        )  # fmt: skip
            node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
        if (plan.METHOD != "traversal") or racing:  # noqa: SIM102  `and` would always take a ticket
            if _rows.is_last(request + _rows.DONE, splits * chunks):
                flags |= _edits.request_status(edits, entry, 0, live, vocab)
                _tree_walk.finish_walk(walk, flags, racing, writer)
    elif STAGE == "walk":
        if greedy:  # ``scan`` wrote its verdict
            return
        end = tl.where(live, nodes, 0)
        if leaves.nodes.data is None:
            node_state = _rows.Memory(walk.records, pair_stats, memory.node_state + _traversal.NODE_WORDS * first_row)
            walked = _traversal.traverse(
                tree, end, max_depth, p_side, q_side, request_edits, node_state, request_noise, _tree_walk.ROW,
                plan.REPLACEMENT, ALIGNED, plan.TILE,
            )  # fmt: skip
        else:
            node_state = _rows.Memory(walk.records, pair_stats, memory.node_state + _paths.NODE_WORDS * first_row)
            chains = _paths.Leaves(
                _arguments.at(leaves.nodes, b, 0), leaves.nodes.inner, tl.cast(leaves.count, tl.int32)
            )  # fmt: skip
            walked = _paths.walk_paths(
                tree, chains, end, max_depth, p_side, q_side, request_edits, node_state, request_noise, _tree_walk.ROW,
                ALIGNED, plan.TILE,
            )  # fmt: skip
        flags |= walked.flags | _trees.check_parents(tree.parents, tree.parents_node, nodes)
        flags |= _edits.request_status(edits, entry, 0, live, vocab)
        tl.store(request + _tree_walk.NODE, walked.node)
        tl.store(request + _tree_walk.NODE_SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
        tl.store(request + _tree_walk.TRIED, walked.tried.to(tl.int32))
        flags |= _tree_walk.finish_path(tree, walked.node, tl.where(live, walked.depth, -1), writer)
        depth = tl.where(idle, -1, walked.depth)
        _tree_walk.finish(walk, depth, flags, depth, writer)
    else:
        if greedy:  # ``scan`` wrote its verdict
            return
        split, splits = tl.program_id(1), tl.num_programs(1)
        node, tried = tl.load(request + _tree_walk.NODE), tl.load(request + _tree_walk.TRIED) != 0
        depth = tl.load(request + _tree_walk.FRONT)
        q_row, children = _laws.Row(None), None
        if draft.rows is None:
            children = _trees.Children(tree, node, tl.where(tried, nodes, 0))
        else:
            q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, first_row + node)
            q_row = _laws.Row(_rows.side_row(q_side, node, ALIGNED), q_side.columns, q_law, q_side.map)
        row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
        law = _laws.Law(p_inverse, None, memory.target_cuts, first_row + node, edits.by_row, row_edits, edits)
        p_row = _laws.Row(_rows.side_row(p_side, node, ALIGNED), vocab, law)
        subtracted = tl.load(request + _tree_walk.NODE_SUBTRACTED).to(tl.float32, bitcast=True)
        request_noise = _math.later(request_noise, depth)
        bucket_scales, by_bucket = None, 0.0
        if leaves.nodes.data is not None:
            node_state = memory.node_state + _paths.NODE_WORDS * (first_row + node)
            bucket_scales, by_bucket = node_state + _paths.BUCKET_SCALES, tl.load(node_state + _paths.BY_BUCKET)
        if _races.sample_slice(
            p_row, q_row, pair_stats + 4 * node, subtracted, tried, live, None, children, request, request_noise, split,
            splits, plan.TILE, bucket_scales, by_bucket,
        ):  # fmt: skip
            token, reported, _ = _races.finish_sample(p_row, q_row, tried, live, request, request_noise, plan.TILE)
            flags = _verdict.load_status(writer) | reported | bad_bias
            _rows.barrier()  # all warps have read it
            _verdict.put_token(writer, depth, node, token, live)
            _verdict.put_status(writer, flags)
            for word in tl.static_range(2, 8):
                tl.store(request + word, 0)


verify_tree_kernel.most_registers = _races.most_registers


def verify_tree(call):
    """Writes the verdicts of ``specdec_kernels.verify_tree``."""
    target, law = call.target, call.target_law
    (requests, width), (_, nodes, vocab) = _verdict.shape_of(call), target.shape
    if requests == 0:
        return
    rows = requests * nodes
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # If all requests are greedy rejection is a race.
    race = call.method == "race" or _launch.is_greedy(law)
    if race and _launch.is_filtered(law) and _launch.TICKETS_ORDER_STORES:
        return _filtered_trees.race(call, requests, width)
    paths = call.method == "paths" and not race
    traversal = paths or (call.method == "traversal" and not race)
    draft = None if race else call.draft
    separate_law = call.draft is not None and _launch.has_separate_temperature(call.draft_law, law)
    scanned = [False, False] if race else _filtered_trees.scanned_sides(call, draft, separate_law)
    together = any(scanned)  # one launch cuts rows and decides
    if not together:
        scanned = _launch.scanned_sides(call, draft, both=False)
    needs_stats = not race and _launch.needs_stats(call, draft, separate_law, scanned)
    index = _arguments.index_of(
        call.request_index, call.draft, *_launch.numbers_of(law), *_launch.numbers_of(call.draft_law), *call.noise,
        edit=call.edits,
    )  # fmt: skip
    shared = _filtered_trees.shared_of(call, width, edits, index)
    search = _filtered_trees.search_of(call, requests, edits, sum(scanned)) if together else None
    cut_words = _laws.CUT.value * rows * sum(scanned) + search.scratch_words if together else _cuts.count_scratch_words(
        vocab, rows, target.device, scanned
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        stats_words = (4 * (needs_stats or cut_words > 0) + _launch.mass_items_of(vocab) * needs_stats) * rows
        saved, of_node = stats_words + cut_words, (_paths if paths else _traversal).NODE_WORDS.value
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, saved + of_node * rows * traversal)
        if together:
            cuts = _filtered_trees.cut(
                call, draft, scanned, search, shared, counters, scratch[: 4 * rows], scratch[stats_words:]
            )  # fmt: skip
        else:
            flags = _arguments.Steps(counters[6 * rows + _rows.FLAGS.value :], 8, 0)
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, _cuts.Stored(nodes, 4, counters, 6, flags, 0),
                scratch[stats_words:], requests, nodes,
            )  # fmt: skip
        method = "race" if race else "traversal" if paths else call.method
        plan = (
            method, call.replacement and draft is not None, law.space, None if draft is None else call.draft_law.space,
            separate_law, needs_stats, any(cut_words is not None for cut_words in cuts), _launch.aligned(target, draft),
            tile, _launch.power_of_2(tiles),
        )  # fmt: skip
        node_state = scratch[saved:] if traversal else None
        arguments = shared | dict(
            draft=_arguments.rows_of(draft), draft_map=None if draft is None else call.draft_map,
            target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if separate_law else None),
            leaves=_paths.chains_of(call.leaves if paths else None), plan=_launch.constants(Plan, *plan),
            memory=Memory(counters, scratch, scratch[4 * rows :], node_state, *cuts),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        split = race or needs_stats or isinstance(law.temperature, torch.Tensor)
        scan_splits = splits if split else 1
        chunks = _launch.chunks_of(requests, scan_splits, nodes, target.device)
        if not together and (split or not traversal):
            _launch.launch(verify_tree_kernel, (requests, chunks, scan_splits), warps, arguments | {"STAGE": "scan"})
        if traversal:
            _launch.launch(
                verify_tree_kernel, (requests,), _traversal.MORE_WARPS * warps, arguments | {"STAGE": "walk"}
            )  # fmt: skip
        if not race:
            _launch.launch(verify_tree_kernel, (requests, splits), warps, arguments | {"STAGE": "emit"})
