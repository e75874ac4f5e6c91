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

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import (
    _arguments,
    _children,
    _cuts,
    _edits,
    _filtered_trees,
    _kept,
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
    """Counters; four floats that are known of each pair; mass tiles; what walks keep of nodes; cuts."""

    counters: tl.tensor
    figures: tl.tensor
    items: tl.tensor
    kept: tl.tensor
    target_cuts: tl.tensor
    draft_cuts: tl.tensor


class Plan(NamedTuple):
    """What is compiled in. OWN_LAW: the draft has a temperature of its own. FILTERED: cuts are known."""

    METHOD: tl.constexpr
    REPLACEMENT: tl.constexpr
    TARGET: tl.constexpr
    DRAFT: tl.constexpr
    OWN_LAW: tl.constexpr
    LEARNS: tl.constexpr
    FILTERED: tl.constexpr
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


@triton.jit
def race_node(walk, node, below, row, noise, split, splits, TILE: tl.constexpr):
    """A program's part of the race of a row; the last one decides."""
    record = walk.records + node * _tree_walk.ROW
    _kept.race_part_of_row(row, record, noise, split, splits, TILE)
    if _rows.is_last(record + _rows.DONE, splits):
        best = tl.load(_rows.key_at(record), cache_modifier=".cg")
        _tree_walk.decide_winner(walk, node, below, best)


@triton.jit
def try_node(walk, node, below, p, q, noise, figures, items, split, splits, plan):
    """A program's part of what is to be learned of a node's rows; the last one tries the children."""
    p_known, q_known = _laws.Known(0.0, 0.0), _laws.Known(0.0, 0.0)
    decides = node >= 0
    if plan.LEARNS:
        decides, p_known, q_known = _rows.learn_pair(
            p, None, q, walk.records + node * _tree_walk.ROW, items, figures, split, splits, plan.TILE, plan.TILES
        )  # fmt: skip
        if decides:  # the walk may have gone elsewhere since
            at, _ = _trees.next_node(walk.tree, node, walk.nodes, _tree_walk.front_of(walk), walk.nodes)
            decides = at == node
    elif plan.FILTERED:
        p_known = _laws.known_at(figures, p.law, node >= 0)
        if q.at is not None:
            q_known = _laws.known_at(figures + 2, q.law, node >= 0)
    if decides:
        child, subtracted, reported = _children.try_children(
            walk.tree, node, below, _laws.Row(p.at, p.columns, p.law, None, p_known),
            _laws.Row(q.at, q.columns, q.law, q.map, q_known), noise, plan.REPLACEMENT, plan.TILE,
        )  # fmt: skip
        _tree_walk.tell_children(walk, node, child, subtracted, reported)


@_launch.kernel
def verify_tree_kernel(
    drafts: _trees.Drafts, target: _arguments.Rows, draft: _arguments.Rows, draft_map, index: _arguments.Index,
    target_temperature: _arguments.Number, draft_temperature: _arguments.Number, noise: _arguments.Noise,
    entering: _arguments.Entering, leaves: _paths.Chains, verdict: _verdict.Verdict, memory: Memory,
    edits: _edits.LogitEdits, plan: Plan, STAGE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    ALIGNED: tl.constexpr = plan.ALIGNED
    nodes, max_depth, vocab = tl.cast(drafts.nodes, tl.int32), tl.cast(drafts.max_depth, tl.int32), target.vocab
    entry, live, idle = _arguments.entry_of(index, b)
    own_noise = _arguments.entered(_arguments.noise_of(noise, entry, 0, live), entering, b, 0, live)
    inverse, greedy, flags = _arguments.heat_of(target_temperature, entry, 0, live)
    q_inverse, q_greedy = inverse, None
    if plan.OWN_LAW:
        q_inverse, q_greedy, bad_temperature = _arguments.heat_of(draft_temperature, entry, 0, live)
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
    own_edits = _edits.RequestEdits(edits, entry, b, live)
    request, figures = walk.request, memory.figures + 4 * first_row
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
        if plan.LEARNS == 0:  # nothing to be split where probabilities are tried
            end = tl.where(racing | (split == 0), end, 0)
        node, depth = _trees.next_node(tree, chunk, chunks, 0, end)
        while node < end:
            below = tl.where(depth < max_depth, nodes, 0)  # where children end
            row = first_row + node
            start = _rows.of_side(p_side, node, ALIGNED)
            place, bad_bias = _edits.place_of(own_edits, node, live, vocab)
            if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                if bad_bias != 0:
                    tl.atomic_or(walk.records + node * _tree_walk.ROW + _rows.FLAGS, bad_bias, sem="relaxed")
            if racing:
                law = _laws.Law(p_inverse, greedy, memory.target_cuts, row, edits.by_row, place, edits)
                p_row = _laws.Row(start, vocab, law)
                node_noise = _arguments.race_noise(own_noise, entering, b, node, depth)
                race_node(walk, node, below, p_row, node_noise, split, splits, plan.TILE)
            elif plan.METHOD != "race":  # noqa: SIM102  `and` would look for children in a race, too
                if _trees.next_child(tree, node, node, below) < below:
                    law = _laws.Law(p_inverse, None, memory.target_cuts, row, edits.by_row, place, edits)
                    p_row, q_row = _laws.Row(start, vocab, law), _laws.Row(None)
                    if draft.rows is not None:
                        q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, row)
                        q_row = _laws.Row(_rows.of_side(q_side, node, ALIGNED), q_side.columns, q_law, q_side.map)
                    known, items = figures + 4 * node, memory.items + 2 * _rows.mass_items_of(vocab) * row
                    if plan.METHOD == "rejection":
                        try_node(
                            walk, node, below, p_row, q_row, _math.later(own_noise, depth), known, items, split, splits,
                            plan,
                        )  # fmt: skip
                    elif plan.LEARNS:
                        _rows.learn_pair(
                            p_row, None, q_row, walk.records + node * _tree_walk.ROW, items, known, split, splits,
                            plan.TILE, plan.TILES,
                        )  # fmt: skip
            node, depth = _trees.next_node(tree, node + chunks, chunks, _tree_walk.front_of(walk), end)
        if (plan.METHOD != "traversal") or racing:  # noqa: SIM102  `and` would take a ticket
            if _rows.is_last(request + _rows.DONE, splits * chunks):
                flags |= _edits.request_status(edits, entry, 0, live, vocab)
                _tree_walk.finish_walk(walk, flags, racing, writer)
    elif STAGE == "walk":
        if greedy:  # the other launch did it all
            return
        end = tl.where(live, nodes, 0)
        if leaves.nodes.data is None:
            kept = _rows.Memory(walk.records, figures, memory.kept + _traversal.KEPT * first_row)
            walked = _traversal.traverse(
                tree, end, max_depth, p_side, q_side, own_edits, kept, own_noise, _tree_walk.ROW, plan.REPLACEMENT,
                ALIGNED, plan.TILE,
            )  # fmt: skip
        else:
            kept = _rows.Memory(walk.records, figures, memory.kept + _paths.KEPT * first_row)
            chains = _paths.Leaves(
                _arguments.at(leaves.nodes, b, 0), leaves.nodes.inner, tl.cast(leaves.count, tl.int32)
            )  # fmt: skip
            walked = _paths.walk_paths(
                tree, chains, end, max_depth, p_side, q_side, own_edits, kept, own_noise, _tree_walk.ROW, ALIGNED,
                plan.TILE,
            )  # fmt: skip
        flags |= walked.flags | _trees.status_of(tree.parents, tree.parents_node, nodes)
        flags |= _edits.request_status(edits, entry, 0, live, vocab)
        tl.store(request + _tree_walk.NODE, walked.node)
        tl.store(request + _tree_walk.NODE_SUBTRACTED, walked.subtracted.to(tl.int32, bitcast=True))
        tl.store(request + _tree_walk.TRIED, walked.tried.to(tl.int32))
        flags |= _tree_walk.finish_path(tree, walked.node, tl.where(live, walked.depth, -1), writer)
        depth = tl.where(idle, -1, walked.depth)
        _tree_walk.finish(walk, depth, flags, depth, writer)
    else:
        if greedy:  # the other launch did it all
            return
        split, splits = tl.program_id(1), tl.num_programs(1)
        node, tried = tl.load(request + _tree_walk.NODE), tl.load(request + _tree_walk.TRIED) != 0
        depth = tl.load(request + _tree_walk.FRONT)
        q_row, children = _laws.Row(None), None
        if draft.rows is None:
            children = _trees.Children(tree, node, tl.where(tried, nodes, 0))
        else:
            q_law = _laws.Law(q_side.inverse, q_side.greedy, q_side.cuts, first_row + node)
            q_row = _laws.Row(_rows.of_side(q_side, node, ALIGNED), q_side.columns, q_law, q_side.map)
        place, bad_bias = _edits.place_of(own_edits, node, live, vocab)
        law = _laws.Law(p_inverse, None, memory.target_cuts, first_row + node, edits.by_row, place, edits)
        p_row = _laws.Row(_rows.of_side(p_side, node, ALIGNED), vocab, law)
        subtracted = tl.load(request + _tree_walk.NODE_SUBTRACTED).to(tl.float32, bitcast=True)
        own_noise = _math.later(own_noise, depth)
        shares, by_bucket = None, 0.0
        if leaves.nodes.data is not None:
            kept = memory.kept + _paths.KEPT * (first_row + node)
            shares, by_bucket = kept + _paths.SHARES, tl.load(kept + _paths.BY_BUCKET)
        if _races.draw_part(
            p_row, q_row, figures + 4 * node, subtracted, tried, live, None, children, request, own_noise, split,
            splits, plan.TILE, shares, by_bucket,
        ):  # fmt: skip
            token, reported, _ = _races.drawn(p_row, q_row, tried, live, request, own_noise, plan.TILE)
            flags = _verdict.status_of(writer) | reported | bad_bias
            _rows.barrier()  # all warps have read
            _verdict.put_token(writer, depth, node, token, live)
            _verdict.put_status(writer, flags)
            for word in tl.static_range(2, 8):
                tl.store(request + word, 0)


verify_tree_kernel.most_registers = _races.most_registers


def verify_tree(call):
    """The verdict of each request, as ``specdec_kernels.verify_tree`` has it."""
    target, law = call.target, call.target_law
    (requests, width), (_, nodes, vocab) = _verdict.shape_of(call), target.shape
    if requests == 0:
        return
    rows = requests * nodes
    edits = _edits.arguments(call, call.draft_tokens, call.parents)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    # Where all requests are greedy the race is the whole of rejection.
    race = call.method == "race" or _launch.is_greedy(law)
    if race and _launch.is_filtered(law) and _launch.TICKETS_ORDER_STORES:
        return _filtered_trees.race(call, requests, width)
    paths = call.method == "paths" and not race
    traversal = paths or (call.method == "traversal" and not race)
    draft = None if race else call.draft
    own_law = call.draft is not None and _launch.is_own(call.draft_law, law)
    scanned = [False, False] if race else _filtered_trees.scanned_sides(call, draft, own_law)
    together = any(scanned)  # one launch finds cuts and decides
    if not together:
        scanned = _launch.scanned_sides(call, draft, both=False)
    learns = not race and _launch.learns(call, draft, own_law, scanned)
    index = _arguments.index_of(
        call.request_index, call.draft, *_launch.numbers_of(law), *_launch.numbers_of(call.draft_law), *call.noise,
        edit=call.edits,
    )  # fmt: skip
    shared = _filtered_trees.shared_of(call, width, edits, index)
    search = _filtered_trees.search_of(call, requests, edits, sum(scanned)) if together else None
    words = _laws.CUT.value * rows * sum(scanned) + search.words if together else _cuts.words_of(
        vocab, rows, target.device, scanned
    )  # fmt: skip
    with _launch.on_device(target), _launch.whole_calls:
        figures = (4 * (learns or words > 0) + _launch.mass_items_of(vocab) * learns) * rows
        kept, of_node = figures + words, (_paths if paths else _traversal).KEPT.value
        counters, scratch = _launch.workspace(target, 6 * rows + 8 * requests, kept + of_node * rows * traversal)
        if together:
            cuts = _filtered_trees.cut(
                call, draft, scanned, search, shared, counters, scratch[: 4 * rows], scratch[figures:]
            )  # fmt: skip
        else:
            flags = _arguments.Steps(counters[6 * rows + _rows.FLAGS.value :], 8, 0)
            cuts = _cuts.launch_pair(
                call, draft, scanned, index, edits, scratch, _cuts.Stored(nodes, 4, counters, 6, flags, 0),
                scratch[figures:], requests, nodes,
            )  # fmt: skip
        method = "race" if race else "traversal" if paths else call.method
        plan = (
            method, call.replacement and draft is not None, law.space, None if draft is None else call.draft_law.space,
            own_law, learns, any(words is not None for words in cuts), _launch.aligned(target, draft), tile,
            _launch.power_of_2(tiles),
        )  # fmt: skip
        own = scratch[kept:] if traversal else None
        arguments = shared | dict(
            draft=_arguments.rows_of(draft), draft_map=None if draft is None else call.draft_map,
            target_temperature=_arguments.temperature_of(law),
            draft_temperature=_arguments.temperature_of(call.draft_law if own_law else None),
            leaves=_paths.chains_of(call.leaves if paths else None), plan=_launch.constants(Plan, *plan),
            memory=Memory(counters, scratch, scratch[4 * rows :], own, *cuts),
        )  # fmt: skip
        splits = _launch.splits_of(requests, tiles, target.device)
        split = race or learns or isinstance(law.temperature, torch.Tensor)
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
