"""Traversal (csrc/include/specdec/walk.h): drafts are tried leaf by leaf, from the bottom up. On a chain it is block.

One program walks a request, in a launch of its own, once all rows are learned: what is subtracted at a node depends on
those above it. Four numbers of a node wait in scratch memory while the walk is below it. They are kept and fetched by
atomics, which one thread does in order: on gfx942 a barrier does not wait for the stores of other waves.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _children, _cuts, _edits, _laws, _math, _rows, _trees

FIRST_UNIFORM = tl.constexpr(1 << 30)  # lower indices belong to rejection
KEPT = tl.constexpr(4)  # words of a node in scratch memory
MORE_WARPS = 4  # times those of other launches, for one program has a row pair to itself


@triton.jit
def keep(at, numbers):
    for i in tl.static_range(KEPT):
        tl.atomic_xchg(at + i, numbers[i].to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def fetch(at):
    return tl.atomic_or(at, 0, sem="relaxed").to(tl.float32, bitcast=True)


@triton.jit
def first_left(tree, node, after, end, vocab, SKIPS: tl.constexpr):
    """The first child of ``node`` behind ``after``, but for one that repeats a token if it SKIPS; ``end``: none."""
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
    """Where a walk ended: the last node accepted, its depth, T there, whether a child of it was refused; status."""

    node: tl.tensor
    depth: tl.tensor
    subtracted: tl.tensor
    tried: tl.tensor
    flags: tl.tensor


@triton.jit
def of_both(row_status, of_target):
    """The status where a draft's row was used beside the target's."""
    return of_target | tl.where((row_status & _cuts.DRAFT_MET) != 0, _math.NON_FINITE, 0)


@triton.jit
def traverse(
    tree, nodes, max_depth, target, draft, edits, memory, noise, ROW: tl.constexpr, REPLACEMENT: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """walk.h's. No request without a root is walked."""
    CHAIN: tl.constexpr = tree.parents is None
    REPEATS: tl.constexpr = CHAIN or (REPLACEMENT and draft.at is not None)
    kept = memory.kept.to(tl.pointer_type(tl.int32), bitcast=True)
    node, after, depth, flags = nodes * 0, nodes * 0, nodes * 0, nodes * 0
    none, full = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    # Of walk.h: the node's weight, T, W, and R. With certain drafts p of its own token is in the place of R.
    weight, subtracted, residual_mass, other = full, none, full, full
    walking = nodes > 0
    due = nodes < 0  # weight and sums do not know yet of the child taken off last
    while walking:
        record, figures = memory.records + ROW * node, memory.figures + 4 * node
        place, bad_bias = _edits.place_of(edits, node, walking, target.columns)
        p_law = _laws.Law(target.inverse, None, target.cuts, target.row + node, edits.edits.by_row, place, edits.edits)
        p_known = _laws.known_at(figures, p_law, walking)
        p_row = _laws.Row(_rows.of_side(target, node, ALIGNED), target.columns, p_law, None, p_known)
        q_row = _laws.Row(None)
        if draft.at is not None:
            q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + node)
            q_known = _laws.known_at(figures + 2, q_law, walking)
            q_row = _laws.Row(_rows.of_side(draft, node, ALIGNED), draft.columns, q_law, draft.map, q_known)
        row_status = tl.load(record + _rows.FLAGS)
        of_target = bad_bias | (row_status & (_cuts.DRAFT_MET - 1))
        of_pair = of_both(row_status, of_target)

        child = first_left(tree, node, after, nodes, target.columns, REPEATS == 0)
        flags |= tl.where((child < nodes) & (depth == max_depth), _math.PARAMETER, 0)
        goes_on = (child < nodes) & (depth < max_depth)
        uniform = _math.accept_uniform(_math.later(noise, depth - 1), node - 1 + FIRST_UNIFORM)
        if draft.at is not None:  # noqa: SIM102  one is known when it is compiled
            if due & (goes_on | ((node > 0) & (weight < 1.0) & (uniform < weight))):
                children = None
                if REPEATS == 0:
                    children = _trees.Children(tree, node, after + 1)
                rest, other, unfit = _children.masses(p_row, q_row, subtracted, children, TILE)
                flags |= of_pair | unfit
                weight = _math.weight_after(weight, residual_mass, rest)
                residual_mass = rest
        goes_on = goes_on & (weight >= _math.SMALLEST)

        gone = node + 0  # what may be taken off now
        own_p = other
        token, in_range, bad = tl.full([], -1, tl.int64), node < 0, node < 0
        if goes_on:
            token = _trees.token_of(tree, child).to(tl.int64)
            in_range = (token >= 0) & (token < target.columns)
            own_p, bad = _rows.probability_at(p_row, token, in_range)
            if (after == node) & (own_p <= 0.0):
                goes_on = _rows.is_empty(p_row, TILE) == 0  # a row without weight ends the branch
                flags |= tl.where(goes_on, 0, bad_bias)
                own_p = tl.where(goes_on, own_p, other)
        if goes_on:
            q, share = 1.0, residual_mass
            if draft.at is not None:
                q, bad_draft = _rows.probability_at(q_row, token, in_range)
                bad |= bad_draft
                share = _math.share_left(residual_mass, other)
            flags |= tl.where(in_range, of_pair, _math.TOKEN_RANGE) | tl.where(bad, _math.NON_FINITE, 0)
            below = tl.where(in_range, _math.child_weight(weight, own_p, q, subtracted, share), 0.0)
            gone = child
            goes_on = below >= _math.SMALLEST
            if goes_on:
                keep(kept + KEPT * node, (weight, subtracted, residual_mass, other))
                node, after, depth = child, child, depth + 1
                weight, subtracted, residual_mass, other = below, none, full, full
                if draft.at is None:
                    other = own_p
        elif node == 0:
            walking = node < 0
        else:
            walking = uniform >= weight
            if walking:
                node, _ = _trees.parents_of(tree.parents, tree.parents_node, node, walking)
                depth -= 1
                at = kept + KEPT * node
                weight, subtracted, residual_mass, other = fetch(at), fetch(at + 1), fetch(at + 2), fetch(at + 3)
        if walking & (goes_on == 0):
            after = gone
            if draft.at is None:
                rest = _math.untried_after(residual_mass, own_p)
                weight = _math.weight_after(weight, residual_mass, rest)
                residual_mass = rest
            else:
                subtracted = _math.subtracted_after(subtracted, _math.share_left(residual_mass, other), weight)
        due = walking & (goes_on == 0)
        flags |= tl.where(walking, 0, tl.where(after != node, of_pair, of_target))
    return Walked(node, depth, subtracted, (after != node) & (nodes > 0), flags)
