"""Trying the children of a node, one after the other: rejection in a tree (csrc/include/specdec/tree.h)."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._laws import probabilities, unclean_groups
from specdec_kernels.triton_kernels._math import (
    GROUP,
    LARGEST,
    NON_FINITE,
    TOKEN_RANGE,
    accept_coin,
    accepts,
    any_of,
    of_units,
    residual_weight,
    share_left,
    unit_sums,
)
from specdec_kernels.triton_kernels._races import shared, without_children
from specdec_kernels.triton_kernels._rows import group_tops, load_tile, load_tokens, probability_at, tile_tokens
from specdec_kernels.triton_kernels._trees import child_with, next_child

MASS_PART = tl.constexpr(1024)  # tokens at once of a pass for masses


@triton.jit
def marks_of(children, columns, PART: tl.constexpr):
    """Bits of the parts of a row, modulo 64, in which children have tokens."""
    tree, node, end = children
    marks = tl.full([], 0, tl.uint64)
    child = next_child(tree, node, node, end)
    while child < end:
        token = tl.load(tree[2] + child * tree[3]).to(tl.int64)
        part = tl.where((token >= 0) & (token < columns), token, 0) // PART % 64
        marks |= tl.full([], 1, tl.uint64) << part.to(tl.uint64)
        child = next_child(tree, node, child, end)
    return marks


@triton.jit
def pair_at(
    target, target_law, draft, draft_law, draft_map, p_known, q_known, start, p_all, q_all, bad, PART: tl.constexpr
):  # fmt: skip
    """(p, q) of a part of two rows, and what ``pair_status`` needs by group: sums of both, what no row should hold."""
    tokens = tile_tokens(start, PART)
    x = load_tile(target, target_law, start, PART)
    y = load_tokens(draft, draft_law, draft_map, start, PART)
    p = probabilities(x, tokens, target_law, p_known)
    q = probabilities(y, tokens, draft_law, q_known)
    if target_law.inverse is None:
        bad = bad | unclean_groups(x, group_tops(x), target_law)
        p_all += tl.sum(p, axis=1)
    if draft_law.inverse is None:
        bad = bad | unclean_groups(y, group_tops(y), draft_law)
        q_all += tl.sum(q, axis=1)
    return p, q, p_all, q_all, bad


@triton.jit
def pair_status(p_all, q_all, bad, target_law, draft_law):
    """The status of two whole rows. That of logits was told when their sums were learned."""
    unfit = any_of(bad) > 0
    if target_law.inverse is None:
        unfit = unfit | (any_of(p_all > 0.0) == 0)
    if draft_law.inverse is None:
        unfit = unfit | (any_of(q_all > 0.0) == 0)
    return tl.where(unfit, NON_FINITE, 0)


@triton.jit
def masses(
    target, target_law, draft, draft_law, draft_map, p_known, q_known, subtracted, children, PART: tl.constexpr,
    shares=None, by_bucket=0.0,
):  # fmt: skip
    """(sum of (p - taken q)^+, sum of q but for the tokens of ``children``, status), by one program.

    Without ``children`` q is not changed by those tried, and its sum is 1. ``shares``: of q, where it is ``by_bucket``.
    """
    GROUPS: tl.constexpr = PART // GROUP
    if children is not None:
        marks = marks_of(children, target.columns, PART)
    residual_mass, untried_mass = tl.zeros([GROUPS], tl.int64), tl.zeros([GROUPS], tl.int64)
    p_all, q_all = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    bad = tl.zeros([GROUPS], tl.int1)
    for at in range(0, target.columns, PART):
        start = tl.cast(at, tl.int32)
        p, q, p_all, q_all, bad = pair_at(
            target, target_law, draft, draft_law, draft_map, p_known, q_known, start, p_all, q_all, bad, PART
        )  # fmt: skip
        if shares is not None:
            q = shared(p, q, shares, by_bucket)
        residual_mass += unit_sums(residual_weight(p, subtracted * q))
        if children is not None:
            if (marks >> (start // PART % 64).to(tl.uint64)) & 1 == 1:
                q = without_children(q, start, 0.0, children, PART)
            untried_mass += unit_sums(q)
    rest = tl.full([], 1.0, tl.float32)
    if children is not None:
        rest = of_units(tl.sum(untried_mass, axis=0))
    status = pair_status(p_all, q_all, bad, target_law, draft_law)
    return of_units(tl.sum(residual_mass, axis=0)), rest, status


@triton.jit
def try_children(
    tree, node, nodes, target, target_law, draft, draft_law, draft_map, p_known, q_known, noise,
    REPLACEMENT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """tree.h's: (the child accepted or -1, T_m after the last one tried, status)."""
    tokens, tokens_node = tree[2], tree[3]
    REPEATS: tl.constexpr = REPLACEMENT and draft is not None
    accepted, flags = -1 + 0 * node, 0 * node
    subtracted, share = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    tried = node < 0
    child = next_child(tree, node, node, nodes)
    while child < nodes:
        token = tl.load(tokens + child * tokens_node).to(tl.int64)
        in_range = (token >= 0) & (token < target.columns)
        flags |= tl.where(in_range, 0, TOKEN_RANGE)
        if (REPEATS == 0) & tried & in_range:  # a repeated sibling is no draw from q^m, which has it no more
            again = child_with(tree, node, token, child) < child
        else:
            again = node < 0
        if again == 0:
            if (draft is not None) and tried:
                children = None
                if REPEATS == 0:
                    children = (tree, node, child)
                residual_mass, untried_mass, reported = masses(
                    target, target_law, draft, draft_law, draft_map, p_known, q_known, subtracted, children,
                    min(MASS_PART, TILE),
                )  # fmt: skip
                flags |= reported
                share = share_left(residual_mass, untried_mass)
            tried = node >= 0
            p, bad = probability_at(target, token, in_range, target_law, p_known, None)
            q = 1.0
            if draft is not None:
                q, bad_draft = probability_at(draft, token, in_range, draft_law, q_known, draft_map)
                bad |= bad_draft
            flags |= tl.where(bad, NON_FINITE, 0)
            if in_range & accepts(accept_coin(noise, child - 1), p - subtracted * q, share * q, 0.0):
                accepted = child
            elif draft is not None:
                subtracted = tl.minimum(subtracted + share, LARGEST)
            else:  # one-hot drafts: the mass not yet tried
                share = tl.maximum(share - p, 0.0)
        child = tl.where(accepted < 0, next_child(tree, node, child, nodes), nodes)
    return accepted, subtracted, flags
