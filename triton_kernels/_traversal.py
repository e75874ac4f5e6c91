"""Traversal (csrc/include/specdec/walk.h): drafts are tried leaf by leaf, from the bottom up. On a chain it is block.

One program walks a request, in a launch of its own, once all rows are learned: what is subtracted at a node depends on
those above it. Four numbers of a node wait in scratch memory while the walk is below it. They are kept and fetched by
atomics, which one thread does in order: on gfx942 a barrier does not wait for the stores of other waves.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._children import masses
from specdec_kernels.triton_kernels._cuts import DRAFT_MET
from specdec_kernels.triton_kernels._edits import place_at
from specdec_kernels.triton_kernels._laws import Known, Law, known_at
from specdec_kernels.triton_kernels._math import (
    NON_FINITE,
    PARAMETER,
    SMALLEST,
    TOKEN_RANGE,
    accept_coin,
    child_weight,
    later,
    share_left,
    subtracted_after,
    untried_after,
    weight_after,
)
from specdec_kernels.triton_kernels._rows import FLAGS, probability_at, row_of
from specdec_kernels.triton_kernels._trees import child_with, next_child, parents_of

FIRST_COIN = tl.constexpr(1 << 30)  # lower indices belong to rejection
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
    child = next_child(tree, node, after, end)
    if SKIPS:
        repeats = child < end
        while repeats:
            token = tl.load(tree[2] + child * tree[3]).to(tl.int64)
            repeats = (token >= 0) & (token < vocab) & (child_with(tree, node, token, child) < child)
            if repeats:
                child = next_child(tree, node, child, end)
                repeats = child < end
    return child


@triton.jit
def traverse(
    tree, nodes, max_depth, target, target_law, draft, draft_law, draft_map, edits, entry, request, first_row,
    first_draft, records, figures, kept, noise, ROW: tl.constexpr, REPLACEMENT: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr, given_at=None,
):  # fmt: skip
    """walk.h's: (the last node accepted, its depth, T there, whether a child of it was taken off, status).

    The laws and rows are those of the root. No request without a root is walked. Node ``given_at`` has no row, for the
    token after it is given.
    """
    CHAIN: tl.constexpr = tree[0] is None
    REPEATS: tl.constexpr = CHAIN or (REPLACEMENT and draft is not None)
    kept = kept.to(tl.pointer_type(tl.int32), bitcast=True)
    node, after, depth, flags = nodes * 0, nodes * 0, nodes * 0, nodes * 0
    none, full = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    # Of walk.h: the node's weight, T, W, and R. With certain drafts p of its own token is in the place of R.
    weight, subtracted, residual_mass, other = full, none, full, full
    walking = nodes > 0
    due = nodes < 0  # weight and sums do not know yet of the child taken off last
    while walking:
        record, own, row = records + ROW * node, figures + 4 * node, target_law.row + node
        place, bad_bias = place_at(
            edits, entry, 0, request, first_row + node, node, first_draft,
            walking if given_at is None else walking & (node != given_at), target.columns,
        )  # fmt: skip
        p_law = Law(target_law.inverse, None, target_law.cuts, row, *place, *edits)
        p_row, p_known = row_of(target, node, ALIGNED), known_at(own, p_law, walking)
        q_row, q_law, q_known = None, None, Known(0.0, 0.0)
        if draft is not None:
            q_law = Law(draft_law.inverse, draft_law.greedy, draft_law.cuts, row)
            q_row, q_known = row_of(draft, node, ALIGNED), known_at(own + 2, q_law, walking)
        row_status = tl.load(record + FLAGS)
        of_target = bad_bias | (row_status & (DRAFT_MET - 1))
        of_both = of_target | tl.where(row_status & DRAFT_MET != 0, NON_FINITE, 0)

        child = first_left(tree, node, after, nodes, target.columns, REPEATS == 0)
        flags |= tl.where((child < nodes) & (depth == max_depth), PARAMETER, 0)
        goes_on = (child < nodes) & (depth < max_depth)
        coin = accept_coin(later(noise, depth - 1), node - 1 + FIRST_COIN)
        if draft is not None:  # noqa: SIM102  one is known when it is compiled
            if due & (goes_on | ((node > 0) & (weight < 1.0) & (coin < weight))):
                children = None
                if REPEATS == 0:
                    children = (tree, node, after + 1)
                rest, other, unfit = masses(
                    p_row, p_law, q_row, q_law, draft_map, p_known, q_known, subtracted, children, TILE
                )  # fmt: skip
                flags |= of_both | unfit
                weight = weight_after(weight, residual_mass, rest)
                residual_mass = rest
        goes_on = goes_on & (weight >= SMALLEST)

        gone = node + 0  # what may be taken off now
        own_p = other
        if goes_on:
            token = tl.load(tree[2] + child * tree[3]).to(tl.int64)
            in_range = (token >= 0) & (token < target.columns)
            own_p, bad = probability_at(p_row, token, in_range, p_law, p_known, None)
            q, share = 1.0, residual_mass
            if draft is not None:
                q, bad_draft = probability_at(q_row, token, in_range, q_law, q_known, draft_map)
                bad |= bad_draft
                share = share_left(residual_mass, other)
            flags |= tl.where(in_range, of_both, TOKEN_RANGE) | tl.where(bad, NON_FINITE, 0)
            below = tl.where(in_range, child_weight(weight, own_p, q, subtracted, share), 0.0)
            gone = child
            goes_on = below >= SMALLEST
            if goes_on:
                keep(kept + KEPT * node, (weight, subtracted, residual_mass, other))
                node, after, depth = child, child, depth + 1
                weight, subtracted, residual_mass, other = below, none, full, full
                if draft is None:
                    other = own_p
        elif node == 0:
            walking = node < 0
        else:
            walking = coin >= weight
            if walking:
                node, _ = parents_of(tree[0], tree[1], node, walking)
                depth -= 1
                at = kept + KEPT * node
                weight, subtracted, residual_mass, other = fetch(at), fetch(at + 1), fetch(at + 2), fetch(at + 3)
        if walking & (goes_on == 0):
            after = gone
            if draft is None:
                rest = untried_after(residual_mass, own_p)
                weight = weight_after(weight, residual_mass, rest)
                residual_mass = rest
            else:
                subtracted = subtracted_after(subtracted, share_left(residual_mass, other), weight)
        due = walking & (goes_on == 0)
        flags |= tl.where(walking, 0, tl.where(after != node, of_both, of_target))
    return node, depth, subtracted, (after != node) & (nodes > 0), flags
