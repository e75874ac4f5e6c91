"""Trees whose rows have filters: the first launch of ``verify_tree`` then finds what filters keep, too.

On AMD GPUs a ticket does not order the stores of all waves. There cuts have launches of their own (``_cuts``).
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _children,
    _cuts,
    _edits,
    _filters,
    _kept,
    _launch,
    _laws,
    _math,
    _rows,
    _tree_walk,
    _trees,
    _verdict,
)


class Plan(NamedTuple):
    """What is compiled in: of ``verify_tree``."""

    METHOD: tl.constexpr
    REPLACEMENT: tl.constexpr
    DRAFT: tl.constexpr


@_launch.kernel
def filtered_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, index: _arguments.Index, law: _arguments.Law,
    noise: _arguments.Noise, entering: _arguments.Entering, verdict: _verdict.Verdict, counters, search: _cuts.Search,
    edits: _edits.LogitEdits, tiling: _cuts.Tiling,
):  # fmt: skip
    """Races of rows with filters. The programs of a group go from row to row together only if there is one of them:
    the group has memory for one row."""
    b = tl.program_id(0).to(tl.int64)
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.entry_of(index, b)
    own_noise = _arguments.entered(_arguments.noise_of(noise, entry, 0, live), entering, b, 0, live)
    inverse, greedy, flags = _arguments.heat_of(law.temperature, entry, 0, live)
    filter, bad_filter = _filters.filter_of(law, entry, 0, live, vocab, greedy)
    flags |= tl.where(live, bad_filter, 0)
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    start = _rows.start_of(target, b, 0, tiling.ALIGNED)
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, counters, b, live, idle)
    own_edits = _edits.RequestEdits(edits, entry, b, live)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.words * (b * chunks + chunk)
    end = tl.where(live, nodes, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # where children end
        record = walk.records + node * _tree_walk.ROW
        place, bad_bias = _edits.place_of(own_edits, node, live, vocab)
        if bad_bias != 0:
            tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        own_law = _laws.Law(inverse, greedy, None, nodes * b + node, edits.by_row, place, edits)
        own = _laws.Row(_rows.row_at(start, node * target.inner, tiling.ALIGNED), vocab, own_law)
        node_noise = _arguments.race_noise(own_noise, entering, b, node, depth)
        _kept.begin_kept(own, filter, record, scratch, node_noise, split, splits, tiling)
        if _rows.is_last(record + _rows.DONE, splits):
            _kept.finish_kept(own, filter, record, scratch, search.cuts, node_noise, tiling)
            best = tl.atomic_max(_rows.key_at(record), tl.full([], 0, tl.uint64), sem="relaxed")
            _tree_walk.decide_winner(walk, node, below, best)
        node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
    if _rows.is_last(walk.request + _rows.DONE, splits * chunks):
        flags |= _edits.request_status(edits, entry, 0, live, vocab)
        _tree_walk.finish_walk(walk, flags, b >= 0, _verdict.Writer(verdict, b))


filtered_tree_kernel.most_registers = _cuts.most_registers


class Numbers(NamedTuple):
    """The numbers of a request: 1 / T, whether T is 0; its filter; status bits of the temperature and of the filter."""

    inverse: tl.tensor
    greedy: tl.tensor
    filter: _filters.Filter
    bad: tl.tensor
    bad_filter: tl.tensor


@triton.jit
def numbers_at(side, entry, live):
    """They are loaded where they are needed: registers are few where cuts are found."""
    inverse, greedy, bad = _arguments.heat_of(side.law.temperature, entry, 0, live)
    filter, bad_filter = _filters.filter_of(side.law, entry, 0, live, side.rows.vocab, greedy)
    return Numbers(inverse, greedy, filter, bad, bad_filter)


@triton.jit
def cut_node(
    side, b, node, entry, live, index, packing, stored, edits, scratch, split, splits, DRAFT: tl.constexpr, tiling
):
    """A program's part of what filters keep of a node's row; whether it was the last is returned."""
    own = numbers_at(side, entry, live)
    at = _arguments.At(b, node.to(tl.int64), entry, live, live == 0)
    return _cuts.cut_one(
        side, (own.inverse, own.greedy), _filters.without_ties(own.filter, own.greedy), at, index, packing, stored,
        edits, scratch, split, splits, "all", DRAFT, tiling,
    ).to(tl.int32)  # fmt: skip


@triton.jit
def try_cut_node(walk, node, below, p, q, noise, figures, REPLACEMENT: tl.constexpr, TILE: tl.constexpr):
    """Tries the children of a node whose rows are known, unless the walk has gone elsewhere."""
    at, _ = _trees.next_node(walk.tree, node, walk.nodes, _tree_walk.front_of(walk), walk.nodes)
    if at == node:
        q_known = _laws.Known(0.0, 0.0)
        if q.at is not None:
            q_known = _laws.known_at(figures + 2, q.law, node >= 0)
        p_known = _laws.known_at(figures, p.law, node >= 0)
        child, subtracted, reported = _children.try_children(
            walk.tree, node, below, _laws.Row(p.at, p.columns, p.law, None, p_known),
            _laws.Row(q.at, q.columns, q.law, q.map, q_known), noise, REPLACEMENT, TILE,
        )  # fmt: skip
        _tree_walk.tell_children(walk, node, child, subtracted, reported)


@_launch.kernel
def cut_tree_kernel(
    drafts: _trees.Drafts, target: _cuts.Side, draft: _cuts.Side, index: _arguments.Index, packing: _arguments.Packing,
    noise: _arguments.Noise, entering: _arguments.Entering, verdict: _verdict.Verdict, stored: _cuts.Stored,
    search: _cuts.Search, edits: _edits.LogitEdits, no_edits: _edits.LogitEdits, plan: Plan, tiling: _cuts.Tiling,
):  # fmt: skip
    """The cuts of a target's rows, and of a draft's that children are tried with. In rejection, who stores the second
    of a node tries the children; a request at temperature 0 goes to the child that is the argmax."""
    b = tl.program_id(0).to(tl.int64)
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.rows.vocab
    ALIGNED: tl.constexpr = tiling.ALIGNED
    entry, live, idle = _arguments.entry_of(index, b)
    own_noise = _arguments.entered(_arguments.noise_of(noise, entry, 0, live), entering, b, 0, live)
    of_target = numbers_at(target, entry, live)
    greedy, flags, bad = of_target.greedy, of_target.bad, of_target.bad_filter
    if plan.DRAFT == "logits":
        of_draft = numbers_at(draft, entry, live)
        flags |= of_draft.bad
        bad |= of_draft.bad_filter
    tree = _trees.tree_of(drafts.parents, drafts.tokens, b)
    walk = _tree_walk.walk_of(tree, nodes, max_depth, vocab, stored.records, b, live, idle)
    own_edits = _edits.RequestEdits(edits, entry, b, live)
    flags |= tl.where(live, bad, 0)
    if plan.METHOD == "traversal":  # noqa: SIM102  the next launch says so
        if live & (bad != 0):
            tl.atomic_or(walk.request + _rows.FLAGS, bad, sem="relaxed")
    decides = greedy | (plan.METHOD == "rejection")  # rows do; in traversal a walk of its own
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    split, splits = tl.program_id(2), tl.num_programs(2)
    scratch = search.scratch + search.words * (b * chunks + chunk)
    # One program takes its rows one after the other. Where several share them, the draft's has a place of its own.
    draft_scratch = scratch + tl.where(splits > 1, search.words * chunks * tl.num_programs(0), 0)
    end = tl.where(live, nodes, 0)
    node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
    while node < end:
        below = tl.where(depth < max_depth, nodes, 0)  # where children end
        record, n = walk.records + node * _tree_walk.ROW, nodes * b + node
        place, bad_bias = _edits.place_of(own_edits, node, live, vocab)
        if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
            if bad_bias != 0:
                tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
        tries = (greedy == 0) & (_trees.next_child(tree, node, node, below) < below)
        done = cut_node(
            target, b, node, entry, live, index, packing, stored, edits, scratch, split, splits, False, tiling
        )  # fmt: skip
        parts = 1
        if plan.DRAFT == "logits":
            parts = tl.where(tries, 2, 1)
            if tries:
                done += cut_node(
                    draft, b, node, entry, live, index, packing, stored, no_edits, draft_scratch, split, splits, True,
                    tiling,
                )  # fmt: skip
        if (done > 0) & decides & (tries | greedy):  # noqa: SIM102  `and` would take a ticket
            if _rows.is_last(record + _tree_walk.PAIR, parts, done):
                known = target.known + 4 * n
                if greedy:
                    token = tl.load(known, cache_modifier=".cg").to(tl.int32, bitcast=True)
                    best = tl.where(token >= 0, _math.key_of(token * 0.0, token), _math.NOBODY)
                    tl.store(_rows.key_at(record), best)
                    _tree_walk.decide_winner(walk, node, below, best)
                elif plan.METHOD == "rejection":
                    q_row = _laws.Row(None)
                    if draft.rows.rows is not None:
                        q_law = _laws.Law(None, None)
                        if plan.DRAFT == "logits":
                            q_inverse, q_greedy, _ = _arguments.heat_of(draft.law.temperature, entry, 0, live)
                            q_law = _laws.Law(q_inverse, q_greedy, draft.cuts, n)
                        q_start = _rows.row_at(
                            _rows.start_of(draft.rows, entry, 0, ALIGNED), node * draft.rows.inner, ALIGNED
                        )  # fmt: skip
                        q_row = _laws.Row(q_start, draft.rows.vocab, q_law, draft.map)
                    inverse, _, _ = _arguments.heat_of(target.law.temperature, entry, 0, live)
                    start = _rows.row_at(_rows.start_of(target.rows, b, 0, ALIGNED), node * target.rows.inner, ALIGNED)
                    law = _laws.Law(inverse, None, target.cuts, n, edits.by_row, place, edits)
                    try_cut_node(
                        walk, node, below, _laws.Row(start, vocab, law), q_row, _math.later(own_noise, depth), known,
                        plan.REPLACEMENT, tiling.TILE,
                    )  # fmt: skip
        node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
    if decides:  # noqa: SIM102  `and` would take a ticket
        if _rows.is_last(walk.request + _rows.DONE, splits * chunks):
            flags |= _edits.request_status(edits, entry, 0, live, vocab)
            _tree_walk.finish_walk(walk, flags, greedy, _verdict.Writer(verdict, b))


cut_tree_kernel.most_registers = _cuts.most_registers


class Search(NamedTuple):
    """How the rows of trees are looked through. ``words`` are float32 words of memory that the launch needs."""

    grid: tuple
    warps: int
    words: int
    tile: int
    tiles: int


def search_of(call, requests, edits, sides=1):
    """Programs in groups. A group has memory for one row; for one of each side if several programs share a row."""
    target = call.target
    _, nodes, vocab = target.shape
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    rows, words = sides * requests * nodes, _cuts.search_words_of(vocab)
    groups = _cuts.groups_of(rows, target.device)
    chunks = max(1, min(nodes, groups // requests))
    splits = _launch.splits_of(rows, tiles, target.device) if groups == rows else 1
    words *= requests * chunks * (1 if splits == 1 else sides)
    return Search((requests, chunks, splits), warps, words, tile, tiles)


def shared_of(call, width, edits, index):
    """Arguments that all kernels of trees have."""
    entering = _arguments.entering_of(call, _arguments.steps_or_none(call.input_positions))
    return dict(
        drafts=_trees.drafts_of(call, width), target=_arguments.rows_of(call.target), index=index,
        noise=_arguments.noise_numbers(call.noise), entering=entering, verdict=_verdict.verdict_of(call), **edits,
    )  # fmt: skip


def race(call, requests, width):
    """All rows are raced under filters: one launch."""
    target, law, rows = call.target, call.target_law, requests * call.target.shape[1]
    index = _arguments.index_of(call.request_index, *_launch.numbers_of(law), *call.noise, edit=call.edits)
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    search, cuts = search_of(call, requests, edits), _laws.CUT.value * rows
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, cuts + search.words)
        arguments = shared_of(call, width, edits, index) | dict(
            law=_arguments.law_of(law), counters=counters,
            search=_cuts.Search(scratch, scratch[cuts:], _cuts.search_words_of(target.shape[2])),
            tiling=_cuts.tiling_of(search.tile, search.tiles, _launch.aligned(target)),
        )  # fmt: skip
        _launch.launch(filtered_tree_kernel, search.grid, search.warps, arguments)


def scanned_sides(call, draft, own_law):
    """Which sides one launch looks through, and decides from; none if it can not."""
    scanned = _launch.scanned_sides(call, draft)
    needs_more = not scanned[0] or _launch.learns(call, draft, own_law, scanned)
    return [False, False] if needs_more or not _launch.TICKETS_ORDER_STORES else scanned


def cut(call, draft, scanned, search, shared, counters, known, scratch):
    """Launches the kernel for sides that are ``scanned_sides``, and returns the cuts of both."""
    # ``known`` has four words a row; ``scratch`` CUT words a row of each side, and what the search needs.
    target, rows, law, nodes = call.target, len(known) // 4, call.draft_law, call.target.shape[1]
    cuts = scratch, scratch[_laws.CUT.value * rows :] if scanned[1] else None
    flags = _arguments.Steps(counters[6 * rows + _rows.FLAGS.value :], 8, 0)
    method = "traversal" if call.method == "paths" else call.method  # rows are learned alike
    space = None if draft is None else law.space
    arguments = shared | dict(
        target=_cuts.Side(shared["target"], _arguments.law_of(call.target_law), None, cuts[0], known),
        draft=_cuts.Side(_arguments.rows_of(draft), _arguments.law_of(law) if scanned[1] else _arguments.NO_LAW,
        None if draft is None else call.draft_map, cuts[1], known[2:]), packing=_arguments.UNPACKED,
        stored=_cuts.Stored(nodes, 4, counters, _tree_walk.ROW.value, flags, 0), search=_cuts.Search(None,
        scratch[_laws.CUT.value * rows * sum(scanned) :], _cuts.search_words_of(target.shape[2])),
        no_edits=_edits.LogitEdits.OFF,
        plan=_launch.constants(Plan, method, call.replacement and draft is not None, space),
        tiling=_cuts.tiling_of(search.tile, search.tiles, _launch.aligned(target, draft)),
    )  # fmt: skip
    _launch.launch(cut_tree_kernel, search.grid, search.warps, arguments)
    filtered = _launch.is_filtered(call.target_law), scanned[1] and _launch.is_filtered(law)
    return [words if on else None for words, on in zip(cuts, filtered, strict=True)]
