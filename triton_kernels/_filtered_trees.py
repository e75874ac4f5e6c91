"""Trees with filters: the first launch of ``verify_tree`` also finds the cuts of rows.

On AMD GPUs a ticket does not order the stores of all waves, so separate launches find them there (``_cuts``).
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _children,
    _cuts,
    _edits,
    _filtered_races,
    _filters,
    _launch,
    _laws,
    _math,
    _rows,
    _tree_walk,
    _trees,
    _verdict,
)


class Plan(NamedTuple):
    """What is compiled in, as in ``verify_tree.Plan``."""

    METHOD: tl.constexpr
    REPLACEMENT: tl.constexpr
    DRAFT: tl.constexpr


@_launch.kernel
def filtered_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, counters, search: _cuts.Search,
    edits: _edits.LogitEdits, tiling: _cuts.Tiling,
):  # fmt: skip
    """Races rows with filters. A group of programs has memory for one row, so it takes several rows only if it is one
    program."""
    b = tl.program_id(0).to(tl.int64)
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    inverse, greedy, flags = _arguments.load_temperature(law.temperature, entry, 0, live)
    filter, bad_filter = _filters.load_filter(law, entry, 0, live, vocab, greedy)
    flags |= tl.where(live, bad_filter, 0)
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    start = _rows.start_of(target, b, 0, tiling.ALIGNED)
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, counters, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.row_words * (b * chunks + chunk)
    end = tl.where(live, nodes, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # children have indices below this
        record = walk.records + node * _tree_walk.ROW
        row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        p_law = _laws.Law(inverse, greedy, None, nodes * b + node, edits.by_row, row_edits, edits)
        p_row = _laws.Row(_rows.row_at(start, node * target.inner, tiling.ALIGNED), vocab, p_law)
        node_noise = _arguments.race_noise(request_noise, inputs, b, node, depth)
        _filtered_races.begin_row(p_row, filter, record, scratch, node_noise, split, splits, tiling)
        if _rows.is_last(record + _rows.DONE, splits):
            _filtered_races.end_row(p_row, filter, record, scratch, search.cuts, node_noise, tiling)
            best = tl.atomic_max(_rows.key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            _tree_walk.decide_winner(walk, node, below, best)
        node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
    if _rows.is_last(walk.request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, entry, 0, live, vocab)
        _tree_walk.finish_walk(walk, flags, b >= 0, _verdict.Writer(verdict, b))


filtered_tree_kernel.most_registers = _cuts.most_registers


class Numbers(NamedTuple):
    """The numbers of a request, and status bits of its temperature and of its filter."""

    inverse: tl.tensor  # 1 / T
    greedy: tl.tensor
    filter: _filters.Filter
    bad: tl.tensor
    bad_filter: tl.tensor


@triton.jit
def numbers_at(side, entry, live):
    """The ``Numbers`` of a request. Each use loads them anew, for a search of a cut leaves few registers."""
    inverse, greedy, bad = _arguments.load_temperature(side.law.temperature, entry, 0, live)
    filter, bad_filter = _filters.load_filter(side.law, entry, 0, live, side.rows.vocab, greedy)
    return Numbers(inverse, greedy, filter, bad, bad_filter)


@triton.jit
def cut_node(
    side, b, node, entry, live, index, packing, stored, edits, scratch, split, splits, DRAFT: tl.constexpr, tiling
):
    """Scans one program's tiles of a node's row; the last program stores the cut. Returns whether it was the last."""
    numbers = numbers_at(side, entry, live)
    at = _arguments.At(b, node.to(tl.int64), entry, live, live == 0)
    return _cuts.cut_one(
        side, (numbers.inverse, numbers.greedy), _filters.without_ties(numbers.filter, numbers.greedy), at, index,
        packing, stored, edits, scratch, split, splits, "all", DRAFT, tiling,
    ).to(tl.int32)  # fmt: skip


@triton.jit
def try_cut_node(walk, node, below, p, q, noise, pair_stats, REPLACEMENT: tl.constexpr, TILE: tl.constexpr):
    """Tries the children of a node whose row stats are stored, unless the walk has gone elsewhere."""
    at, _ = _trees.next_node(walk.tree, node, walk.nodes, _tree_walk.front_of(walk), walk.nodes)
    if at == node:
        q_stats = _laws.RowStats(0.0, 0.0)
        if q.at is not None:
            q_stats = _laws.load_row_stats(pair_stats + 2, q.law, node >= 0)
        p_stats = _laws.load_row_stats(pair_stats, p.law, node >= 0)
        child, subtracted, reported = _children.try_children(
            walk.tree, node, below, _laws.Row(p.at, p.columns, p.law, None, p_stats),
            _laws.Row(q.at, q.columns, q.law, q.map, q_stats), noise, REPLACEMENT, TILE,
        )  # fmt: skip
        _tree_walk.store_children(walk, node, child, subtracted, reported)


@_launch.kernel
def cut_tree_kernel(
    drafts: _trees.Drafts, target: _cuts.Side, draft: _cuts.Side, index: _arguments.Index, packing: _arguments.Packing,
    noise: _arguments.Noise, inputs: _arguments.Inputs, verdict: _verdict.Verdict, stored: _cuts.Stored,
    search: _cuts.Search, edits: _edits.LogitEdits, no_edits: _edits.LogitEdits, plan: Plan, tiling: _cuts.Tiling,
):  # fmt: skip
    """Cuts the target's rows, and the draft's rows at nodes with children. In rejection the program that stores the
    second cut of a node tries its children; at temperature 0 the walk goes to the child that is the argmax."""
    b = tl.program_id(0).to(tl.int64)
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.rows.vocab
    ALIGNED: tl.constexpr = tiling.ALIGNED
    entry, live, idle = _arguments.load_entry(index, b)
    request_noise = _arguments.noise_at_input(_arguments.load_noise(noise, entry, 0, live), inputs, b, 0, live)
    p_numbers = numbers_at(target, entry, live)
    greedy, flags, bad = p_numbers.greedy, p_numbers.bad, p_numbers.bad_filter
    if plan.DRAFT == "logits":
        q_numbers = numbers_at(draft, entry, live)
        flags |= q_numbers.bad
        bad |= q_numbers.bad_filter
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, stored.records, b, live, idle)
    request_edits = _edits.RequestEdits(edits, entry, b, live)
    flags |= tl.where(live, bad, 0)
    if plan.METHOD == "traversal":  # noqa: SIM102  the next launch reports it
        if live & (bad != 0):
            tl.atomic_or(walk.request + _rows.FLAGS, bad, sem="relaxed")
    decides = greedy | (plan.METHOD == "rejection")  # whether rows decide; in traversal a later launch walks
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.row_words * (b * chunks + chunk)
    # One program cuts both rows in the same memory, one after the other. If several share rows the draft's has its own.
    draft_scratch = scratch + tl.where(splits > 1, search.row_words * chunks * tl.num_programs(0), 0)
    end = tl.where(live, nodes, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # children have indices below this
        record, row = walk.records + node * _tree_walk.ROW, nodes * b + node
        row_edits, bad_bias = _edits.load_node_edits(request_edits, node, live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
            if bad_bias != 0:
                tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        tries = (greedy == 0) & (_trees.next_child(tree, node, node, below) < below)
        done = cut_node(
            target, b, node, entry, live, index, packing, stored, edits, scratch, split, splits, False, tiling
        )  # fmt: skip
        sides = 1
        if plan.DRAFT == "logits":
            sides = tl.where(tries, 2, 1)
            if tries:
                done += cut_node(
                    draft, b, node, entry, live, index, packing, stored, no_edits, draft_scratch, split, splits, True,
                    tiling,
                )  # fmt: skip
        if (done > 0) & decides & (tries | greedy):  # noqa: SIM102  `and` would always take a ticket
            if _rows.is_last(record + _tree_walk.PAIR, sides, done):
                node_stats = target.row_stats + 4 * row
                if greedy:
                    token = tl.load(node_stats, cache_modifier=".cg").to(tl.int32, bitcast=True)
                    best = tl.where(token >= 0, _math.key_of(token * 0.0, token), _math.NO_CANDIDATE)
                    tl.store(_rows.key_at(record), best)
                    _tree_walk.decide_winner(walk, node, below, best)
                elif plan.METHOD == "rejection":
                    q_row = _laws.Row(None)
                    if draft.rows.rows is not None:
                        q_law = _laws.Law(None, None)
                        if plan.DRAFT == "logits":
                            q_inverse, q_greedy, _ = _arguments.load_temperature(draft.law.temperature, entry, 0, live)
                            q_law = _laws.Law(q_inverse, q_greedy, draft.cuts, row)
                        q_start = _rows.row_at(
                            _rows.start_of(draft.rows, entry, 0, ALIGNED), node * draft.rows.inner, ALIGNED
                        )  # fmt: skip
                        q_row = _laws.Row(q_start, draft.rows.vocab, q_law, draft.map)
                    inverse, _, _ = _arguments.load_temperature(target.law.temperature, entry, 0, live)
                    start = _rows.row_at(_rows.start_of(target.rows, b, 0, ALIGNED), node * target.rows.inner, ALIGNED)
                    law = _laws.Law(inverse, None, target.cuts, row, edits.by_row, row_edits, edits)
                    try_cut_node(
                        walk, node, below, _laws.Row(start, vocab, law), q_row, _math.later(request_noise, depth),
                        node_stats, plan.REPLACEMENT, tiling.TILE,
                    )  # fmt: skip
        node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
    if decides:  # noqa: SIM102  `and` would always take a ticket
        if _rows.is_last(walk.request + _rows.DONE, splits * chunks):
            flags |= _edits.request_status(edits, entry, 0, live, vocab)
            _tree_walk.finish_walk(walk, flags, greedy, _verdict.Writer(verdict, b))


cut_tree_kernel.most_registers = _cuts.most_registers


class Search(NamedTuple):
    """The shape of a launch over the rows of trees. ``scratch_words`` counts float32 words of scratch memory."""

    grid: tuple
    warps: int
    scratch_words: int
    tile: int
    tiles: int


def search_of(call, requests, edits, sides=1):
    """The ``Search`` of a call. A group has memory for one row; if it is several programs, for one of each side."""
    target = call.target
    _, nodes, vocab = target.shape
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    rows, scratch_words = sides * requests * nodes, _cuts.count_search_words(vocab)
    groups = _cuts.groups_of(rows, target.device)
    chunks = max(1, min(nodes, groups // requests))
    splits = _launch.splits_of(rows, tiles, target.device) if groups == rows else 1
    scratch_words *= requests * chunks * (1 if splits == 1 else sides)
    return Search((requests, chunks, splits), warps, scratch_words, tile, tiles)


def shared_of(call, width, edits, index):
    """Arguments that all kernels of trees have."""
    inputs = _arguments.inputs_of(call, _arguments.steps_or_none(call.input_positions))
    return dict(
        drafts=_trees.drafts_of(call, width), target=_arguments.rows_of(call.target), index=index,
        noise=_arguments.noise_numbers(call.noise), inputs=inputs, verdict=_verdict.verdict_of(call), **edits,
    )  # fmt: skip


def race(call, requests, width):
    """Races all rows under filters, in one launch."""
    target, law, rows = call.target, call.target_law, requests * call.target.shape[1]
    index = _arguments.index_of(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits)
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    search, cuts = search_of(call, requests, edits), _laws.CUT.value * rows
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, cuts + search.scratch_words)
        arguments = shared_of(call, width, edits, index) | dict(
            law=_arguments.law_of(law), counters=counters,
            search=_cuts.Search(scratch, scratch[cuts:], _cuts.count_search_words(target.shape[2])),
            tiling=_cuts.tiling_of(search.tile, search.tiles, _launch.aligned(target)),
        )  # fmt: skip
        _launch.launch(filtered_tree_kernel, search.grid, search.warps, arguments)


def scanned_sides(call, draft, separate_law):
    """Which sides the launch that cuts rows can also decide from; none if it cannot."""
    scanned = _launch.scanned_sides(call, draft)
    needs_more = not scanned[0] or _launch.needs_stats(call, draft, separate_law, scanned)
    return [False, False] if needs_more or not _launch.TICKETS_ORDER_STORES else scanned


def cut(call, draft, scanned, search, shared, counters, pair_stats, scratch):
    """Launches the kernel for the sides that are ``scanned``, and returns ``_laws.Law``'s ``cuts`` of both."""
    # ``pair_stats`` is float32 [rows, 4]; ``scratch`` has CUT words a row of each side, then those of the search.
    target, rows, law, nodes = call.target, len(pair_stats) // 4, call.draft_law, call.target.shape[1]
    cuts = scratch, scratch[_laws.CUT.value * rows :] if scanned[1] else None
    flags = _arguments.Steps(counters[6 * rows + _rows.FLAGS.value :], 8, 0)
    method = "traversal" if call.method == "paths" else call.method  # both scan rows alike
    space = None if draft is None else law.space
    arguments = shared | dict(
        target=_cuts.Side(shared["target"], _arguments.law_of(call.target_law), None, cuts[0], pair_stats),
        draft=_cuts.Side(_arguments.rows_of(draft), _arguments.law_of(law) if scanned[1] else _arguments.NO_LAW,
        None if draft is None else call.draft_map, cuts[1], pair_stats[2:]), packing=_arguments.UNPACKED,
        stored=_cuts.Stored(nodes, 4, counters, _tree_walk.ROW.value, flags, 0), search=_cuts.Search(None,
        scratch[_laws.CUT.value * rows * sum(scanned) :], _cuts.count_search_words(target.shape[2])),
        no_edits=_edits.LogitEdits.OFF,
        plan=_launch.constants(Plan, method, call.replacement and draft is not None, space),
        tiling=_cuts.tiling_of(search.tile, search.tiles, _launch.aligned(target, draft)),
    )  # fmt: skip
    _launch.launch(cut_tree_kernel, search.grid, search.warps, arguments)
    filtered = _launch.is_filtered(call.target_law), scanned[1] and _launch.is_filtered(law)
    return [side_cuts if on else None for side_cuts, on in zip(cuts, filtered, strict=True)]
