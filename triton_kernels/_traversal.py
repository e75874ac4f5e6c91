"""Traversal (csrc/include/specdec/walk.h): drafts are tried leaf by leaf, from the bottom up. On a chain it is block.

One program walks a request, in a launch after the one that stores all ``RowStats``, for the subtracted mass of a node
depends on the nodes above it. While the walk is below a node, four numbers of it are in scratch memory. Atomics save
and fetch them, since one thread runs these in order: on gfx942 a barrier does not wait for the stores of other waves.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _children, _cuts, _edits, _laws, _math, _rows, _trees

FIRST_UNIFORM = tl.constexpr(1 << 30)  # rejection uses lower indices
NODE_WORDS = tl.constexpr(4)  # scratch words of a node
MORE_WARPS = 4  # factor over other launches, for one program reads whole pairs of rows


@triton.jit
def save(at, numbers):
    for i in tl.static_range(NODE_WORDS):
        tl.atomic_xchg(at + i, numbers[i].to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def fetch(at):
    return tl.atomic_or(at, 0, sem="relaxed").to(tl.float32, bitcast=True)


@triton.jit
def first_left(tree, node, after, end, vocab, SKIPS: tl.constexpr):
    """The first child of ``node`` behind ``after``, ``end`` if none is. SKIPS passes over repeated tokens."""
    child = _trees.next_child(tree, node, after, end)
    if SKIPS:
        repeats = child < end
        while repeats:
            token = _trees.token_of(tree, child).to(tl.int64)
            repeats = (token >= 0) & (token < vocab) & (_trees.child_with(tree, node, token, child) < child)
            if repeats:
                child = _trees.next_child(tree, node, child, end)
                repeats = child < end
    return child


class Walked(NamedTuple):
    """The end of a walk."""

    node: tl.tensor  # the last accepted node
    depth: tl.tensor
    subtracted: tl.tensor  # T of walk.h at that node
    tried: tl.tensor  # whether a child of it was refused
    flags: tl.tensor  # status bits


@triton.jit
def load_status(record, bad_bias):
    """(the status of the target's row, that of the pair: NON_FINITE, too, if the draft's row is bad)."""
    row_status = tl.load(record + _rows.FLAGS)
    target_status = bad_bias | (row_status & (_cuts.DRAFT_BAD - 1))
    return target_status, target_status | tl.where((row_status & _cuts.DRAFT_BAD) != 0, _math.NON_FINITE, 0)


@triton.jit
def traverse(
    tree, nodes, max_depth, target, draft, edits, memory, noise, ROW: tl.constexpr, REPLACEMENT: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walks a request as ``walk_traversal`` of walk.h; returns the ``Walked``. None without nodes is walked."""
    CHAIN: tl.constexpr = tree.parents is None
    REPEATS: tl.constexpr = CHAIN or (REPLACEMENT and draft.at is not None)
    node_state = memory.node_state.to(tl.pointer_type(tl.int32), bitcast=True)
    node, after, depth, flags = nodes * 0, nodes * 0, nodes * 0, nodes * 0
    none, full = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    # walk.h names these the node's weight, T, W and R. With one-hot drafts ``other`` is p of the node's token, not R.
    weight, subtracted, residual_mass, other = full, none, full, full
    walking = nodes > 0
    due = nodes < 0  # weight and sums are from before the last child was refused
    while walking:
        record, pair_stats = memory.records + ROW * node, memory.pair_stats + 4 * node
        row_edits, bad_bias = _edits.load_node_edits(edits, node, walking, target.columns)
        row, by_row = target.row + node, edits.edits.by_row
        p_law = _laws.Law(target.inverse, None, target.cuts, row, by_row, row_edits, edits.edits)
        p_stats = _laws.load_row_stats(pair_stats, p_law, walking)
        p_row = _laws.Row(_rows.side_row(target, node, ALIGNED), target.columns, p_law, None, p_stats)
        q_row = _laws.Row(None)
        if draft.at is not None:
            q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + node)
            q_stats = _laws.load_row_stats(pair_stats + 2, q_law, walking)
            q_row = _laws.Row(_rows.side_row(draft, node, ALIGNED), draft.columns, q_law, draft.map, q_stats)
        target_status, pair_status = load_status(record, bad_bias)

        child = first_left(tree, node, after, nodes, target.columns, REPEATS == 0)
        flags |= tl.where((child < nodes) & (depth == max_depth), _math.PARAMETER, 0)
        goes_on = (child < nodes) & (depth < max_depth)
        uniform = _math.accept_uniform(_math.later(noise, depth - 1), node - 1 + FIRST_UNIFORM)
        if draft.at is not None:  # noqa: SIM102  the outer `if` is constexpr
            if due & (goes_on | ((node > 0) & (weight < 1.0) & (uniform < weight))):
                children = None
                if REPEATS == 0:
                    children = _trees.Children(tree, node, after + 1)
                rest, other, unfit = _children.masses(p_row, q_row, subtracted, children, TILE)
                flags |= pair_status | unfit
                weight = _math.weight_after(weight, residual_mass, rest)
                residual_mass = rest
        goes_on = goes_on & (weight >= _math.SMALLEST)

        gone = node + 0  # ``after`` of the next turn, if the walk stays at this node
        p = other
        token, in_range, bad = tl.full([], -1, tl.int64), node < 0, node < 0
        if goes_on:
            token = _trees.token_of(tree, child).to(tl.int64)
            in_range = (token >= 0) & (token < target.columns)
            p, bad = _rows.probability_at(p_row, token, in_range)
            if (after == node) & (p <= 0.0):
                goes_on = _rows.is_empty(p_row, TILE) == 0  # a row without weight ends the branch
                flags |= tl.where(goes_on, 0, bad_bias)
                p = tl.where(goes_on, p, other)
        if goes_on:
            q, scale = 1.0, residual_mass
            if draft.at is not None:
                q, bad_draft = _rows.probability_at(q_row, token, in_range)
                bad |= bad_draft
                scale = _math.draft_scale(residual_mass, other)
            flags |= tl.where(in_range, pair_status, _math.TOKEN_RANGE) | tl.where(bad, _math.NON_FINITE, 0)
            below = tl.where(in_range, _math.child_weight(weight, p, q, subtracted, scale), 0.0)
            gone = child
            goes_on = below >= _math.SMALLEST
            if goes_on:
                save(node_state + NODE_WORDS * node, (weight, subtracted, residual_mass, other))
                node, after, depth = child, child, depth + 1
                weight, subtracted, residual_mass, other = below, none, full, full
                if draft.at is None:
                    other = p
        elif node == 0:
            walking = node < 0
        else:
            walking = uniform >= weight
            if walking:
                node, _ = _trees.load_parent(tree.parents, tree.parents_node, node, walking)
                depth -= 1
                at = node_state + NODE_WORDS * node
                weight, subtracted, residual_mass, other = fetch(at), fetch(at + 1), fetch(at + 2), fetch(at + 3)
        if walking & (goes_on == 0):
            after = gone
            if draft.at is None:
                rest = _math.untried_after(residual_mass, p)
                weight = _math.weight_after(weight, residual_mass, rest)
                residual_mass = rest
            else:
                subtracted = _math.subtracted_after(subtracted, _math.draft_scale(residual_mass, other), weight)
        due = walking & (goes_on == 0)
        flags |= tl.where(walking, 0, tl.where(after != node, pair_status, target_status))
    return Walked(node, depth, subtracted, (after != node) & (nodes > 0), flags)
