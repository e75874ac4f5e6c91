"""Trying the children of a node, one after the other: rejection in a tree (csrc/include/specdec/tree.h)."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _laws, _math, _races, _rows, _trees

MASS_PART = tl.constexpr(1024)  # tokens at once of a pass for masses


@triton.jit
def marks_of(children, columns, PART: tl.constexpr):
    """Bits of the parts of a row, modulo 64, in which children have tokens."""
    marks = tl.full([], 0, tl.uint64)
    child = _trees.next_child(children.tree, children.node, children.node, children.end)
    while child < children.end:
        token = _trees.token_of(children.tree, child).to(tl.int64)
        part = tl.where((token >= 0) & (token < columns), token, 0) // PART % 64
        marks |= tl.full([], 1, tl.uint64) << part.to(tl.uint64)
        child = _trees.next_child(children.tree, children.node, child, children.end)
    return marks


@triton.jit
def pair_at(p_row, q_row, start, p_all, q_all, bad, PART: tl.constexpr):
    """(p, q) of a part of two rows, and what ``pair_status`` needs by group: sums of both, what no row should hold."""
    tokens = _rows.tile_tokens(start, PART)
    x = _rows.load_tile(p_row, start, PART)
    y = _rows.load_tokens(q_row, tokens, start, PART)
    p = _laws.probabilities(x, tokens, p_row.law, p_row.known)
    q = _laws.probabilities(y, tokens, q_row.law, q_row.known)
    if p_row.law.inverse is None:
        bad = bad | _laws.unclean_groups(x, _rows.group_tops(x), p_row.law)
        p_all += tl.sum(p, axis=1)
    if q_row.law.inverse is None:
        bad = bad | _laws.unclean_groups(y, _rows.group_tops(y), q_row.law)
        q_all += tl.sum(q, axis=1)
    return p, q, p_all, q_all, bad


@triton.jit
def pair_status(p_row, q_row, p_all, q_all, bad):
    """The status of two whole rows. That of logits was told when their sums were learned."""
    unfit = _math.any_of(bad) > 0
    if p_row.law.inverse is None:
        unfit = unfit | (_math.any_of(p_all > 0.0) == 0)
    if q_row.law.inverse is None:
        unfit = unfit | (_math.any_of(q_all > 0.0) == 0)
    return tl.where(unfit, _math.NON_FINITE, 0)


@triton.jit
def masses(p_row, q_row, subtracted, children, PART: tl.constexpr, shares=None, by_bucket=0.0):
    """(sum of (p - subtracted q)^+, sum of q but for the tokens of ``children``, status), by one program."""
    # Without ``children`` q is not changed by those tried, and its sum is 1. ``shares``: of q, where it is
    # ``by_bucket``.
    GROUPS: tl.constexpr = PART // _math.GROUP
    if children is not None:
        marks = marks_of(children, p_row.columns, PART)
    residual_mass, untried_mass = tl.zeros([GROUPS], tl.int64), tl.zeros([GROUPS], tl.int64)
    p_all, q_all = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    bad = tl.zeros([GROUPS], tl.int1)
    for at in range(0, p_row.columns, PART):
        start = tl.cast(at, tl.int32)
        p, q, p_all, q_all, bad = pair_at(p_row, q_row, start, p_all, q_all, bad, PART)
        if shares is not None:
            q = _races.shared(p, q, shares, by_bucket)
        residual_mass += _math.unit_sums(_math.residual_weight(p, subtracted * q))
        if children is not None:
            if (marks >> (start // PART % 64).to(tl.uint64)) & 1 == 1:
                q = _races.without_children(q, _rows.tile_tokens(start, PART), start, 0.0, children, PART)
            untried_mass += _math.unit_sums(q)
    rest = tl.full([], 1.0, tl.float32)
    if children is not None:
        rest = _math.of_units(tl.sum(untried_mass, axis=0))
    status = pair_status(p_row, q_row, p_all, q_all, bad)
    return _math.of_units(tl.sum(residual_mass, axis=0)), rest, status


@triton.jit
def try_children(tree, node, nodes, p_row, q_row, noise, REPLACEMENT: tl.constexpr, TILE: tl.constexpr):
    """tree.h's: (the child accepted or -1, T_m after the last one tried, status)."""
    REPEATS: tl.constexpr = REPLACEMENT and q_row.at is not None
    accepted, flags = -1 + 0 * node, 0 * node
    subtracted, share = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    tried = node < 0
    child = _trees.next_child(tree, node, node, nodes)
    while child < nodes:
        token = _trees.token_of(tree, child).to(tl.int64)
        in_range = (token >= 0) & (token < p_row.columns)
        flags |= tl.where(in_range, 0, _math.TOKEN_RANGE)
        if (REPEATS == 0) & tried & in_range:  # a repeated sibling is no draw from q^m, which has it no more
            again = _trees.child_with(tree, node, token, child) < child
        else:
            again = node < 0
        ends = node < 0
        if again == 0:
            first = tried == 0
            if (q_row.at is not None) and tried:
                children = None
                if REPEATS == 0:
                    children = _trees.Children(tree, node, child)
                residual_mass, untried_mass, reported = masses(p_row, q_row, subtracted, children, min(MASS_PART, TILE))
                flags |= reported
                share = _math.share_left(residual_mass, untried_mass)
            tried = node >= 0
            p, bad = _rows.probability_at(p_row, token, in_range)
            q = 1.0
            if q_row.at is not None:
                q, bad_draft = _rows.probability_at(q_row, token, in_range)
                bad |= bad_draft
            flags |= tl.where(bad, _math.NON_FINITE, 0)
            if first & (p <= 0.0):
                ends = _rows.is_empty(p_row, min(MASS_PART, TILE))
            if in_range & _math.accepts(_math.accept_uniform(noise, child - 1), p - subtracted * q, share * q, 0.0):
                accepted = child
            elif q_row.at is not None:
                subtracted = tl.minimum(subtracted + share, _math.LARGEST)
            else:  # one-hot drafts: the mass not yet tried
                share = tl.maximum(share - p, 0.0)
        if ends:  # a row without weight ends the branch: its children count as absent
            subtracted, flags, child = tl.full([], 0.0, tl.float32), 0 * node, nodes
        child = tl.where((accepted < 0) & (child < nodes), _trees.next_child(tree, node, child, nodes), nodes)
    return accepted, subtracted, flags
