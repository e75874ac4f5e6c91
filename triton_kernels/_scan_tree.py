"""The first launch over trees: the rows of all nodes, split over programs.

The last program of a row decides which child a walk at that node goes to: it compares the row's winner with the
children, or tries them one by one. Decisions that connect to the root move the front of the walk. Programs take rows in
order, load the front before each, and skip nodes that are not below it. No program waits: if programs are many all rows
are read at once, if rows are many few off the path are read. The last program of a request follows the decisions
(``_tree_walk``). In traversal rows do not decide: the launch stores the ``RowStats`` of rows with children.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _children,
    _edits,
    _filtered_races,
    _launch,
    _laws,
    _math,
    _paths,
    _races,
    _rows,
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
def race_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    inputs: _arguments.Inputs, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan,
):  # fmt: skip
    """Grid: requests, chunks of nodes, splits of a row. The draft's rows are not read; its temperature is checked."""
    b = tl.program_id(0).to(tl.int64)
    ALIGNED: tl.constexpr = plan.ALIGNED
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    inverse, greedy, flags = _arguments.load_temperature(target_temperature, entry, 0, live)
    if plan.SEPARATE_LAW:
        _inverse, _greedy, bad_temperature = _arguments.load_temperature(draft_temperature, entry, 0, live)
        flags |= bad_temperature
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    first_row = nodes * b
    p_start, p_inverse = _rows.start_of(target, b, 0, ALIGNED), inverse if plan.TARGET == "logits" else None
    p_side = _rows.Side(p_start, target.inner, vocab, p_inverse, None, memory.target_cuts, first_row)
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, memory.counters, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    request = walk.request
    if plan.FILTERED:
        flags |= tl.load(request + _rows.FLAGS) & _math.PARAMETER
    writer = _verdict.Writer(verdict, b)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    end = tl.where(live, nodes, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # children have indices below this
        row = first_row + node
        row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
            if bad_bias != 0:
                tl.atomic_or(walk.records + node * _tree_walk.ROW + _rows.FLAGS, bad_bias, sem="relaxed")
        law = _laws.Law(p_inverse, greedy, memory.target_cuts, row, edits.by_row, row_edits, edits)
        p_row = _laws.Row(_rows.side_row(p_side, node, ALIGNED), vocab, law)
        node_noise = _arguments.race_noise(request_noise, inputs, b, node, depth)
        race_node(walk, node, below, p_row, node_noise, split, splits, plan.TILE)
        node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
    if _rows.is_last(request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, entry, 0, live, vocab)
        _tree_walk.finish_walk(walk, flags, True, writer)


race_tree_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "race")


@_launch.kernel
def scan_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    inputs: _arguments.Inputs, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan,
):  # fmt: skip
    """Grid: requests, chunks of nodes, splits of a row. In rejection it decides at each node."""
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
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    end = tl.where(live, nodes, 0)
    if plan.NEEDS_STATS == 0:  # without ``RowStats`` one program tries children alone
        end = tl.where(greedy | (split == 0), end, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # children have indices below this
        row = first_row + node
        start = _rows.side_row(p_side, node, ALIGNED)
        row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
            if bad_bias != 0:
                tl.atomic_or(walk.records + node * _tree_walk.ROW + _rows.FLAGS, bad_bias, sem="relaxed")
        if greedy:
            law = _laws.Law(p_inverse, greedy, memory.target_cuts, row, edits.by_row, row_edits, edits)
            p_row = _laws.Row(start, vocab, law)
            node_noise = _arguments.race_noise(request_noise, inputs, b, node, depth)
            race_node(walk, node, below, p_row, node_noise, split, splits, plan.TILE)
        elif _trees.next_child(tree, node, node, below) < below:
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
    if (plan.METHOD != "traversal") or greedy:  # noqa: SIM102  `and` would always take a ticket
        if _rows.is_last(request + _rows.DONE, splits * chunks):
            flags |= _edits.request_status(edits, entry, 0, live, vocab)
            _tree_walk.finish_walk(walk, flags, greedy, writer)


scan_tree_kernel.most_registers = lambda arguments: _races.most_registers(arguments, "scan")
