"""Rejection in a tree: a node's children are tried one after the other (csrc/include/specdec/tree.h)."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _laws, _math, _races, _rows, _trees

MASS_SLICE = tl.constexpr(1024)  # tokens of a step when masses are summed


@triton.jit
def mark_slices(children, columns, SLICE: tl.constexpr):
    """Bit i is set if a child has a token in a slice whose index is i modulo 64."""
    marks = tl.full([], 0, tl.uint64)
    child = _trees.next_child(children.tree, children.node, children.node, children.end)
    while child < children.end:
        token = _trees.token_of(children.tree, child).to(tl.int64)
        slice_index = tl.where((token >= 0) & (token < columns), token, 0) // SLICE % 64
        marks |= tl.full([], 1, tl.uint64) << slice_index.to(tl.uint64)
        child = _trees.next_child(children.tree, children.node, child, children.end)
    return marks


@triton.jit
def load_pair(p_row, q_row, start, p_all, q_all, bad, SLICE: tl.constexpr):
    """(p, q) of a slice of two rows, and by group the sums of p and q, and whether a value is bad."""
    tokens = _rows.tile_tokens(start, SLICE)
    x = _rows.load_tile(p_row, start, SLICE)
    y = _rows.load_tokens(q_row, tokens, start, SLICE)
    p = _laws.probabilities(x, tokens, p_row.law, p_row.stats)
    q = _laws.probabilities(y, tokens, q_row.law, q_row.stats)
    if p_row.law.inverse is None:
        bad = bad | _laws.unclean_groups(x, _rows.group_tops(x), p_row.law)
        p_all += tl.sum(p, axis=1)
    if q_row.law.inverse is None:
        bad = bad | _laws.unclean_groups(y, _rows.group_tops(y), q_row.law)
        q_all += tl.sum(q, axis=1)
    return p, q, p_all, q_all, bad


@triton.jit
def pair_status(p_row, q_row, p_all, q_all, bad):
    """The status of two whole rows of probabilities; that of logits is already in the record."""
    unfit = _math.any_of(bad) > 0
    if p_row.law.inverse is None:
        unfit = unfit | (_math.any_of(p_all > 0.0) == 0)
    if q_row.law.inverse is None:
        unfit = unfit | (_math.any_of(q_all > 0.0) == 0)
    return tl.where(unfit, _math.NON_FINITE, 0)


@triton.jit
def masses(p_row, q_row, subtracted, children, SLICE: tl.constexpr, bucket_scales=None, by_bucket=0.0):
    """(sum of (p - subtracted q)^+, sum of q without the tokens of ``children``, status) of two whole rows."""
    # Without ``children`` tried tokens stay in q, so its sum is 1. q is scaled by ``bucket_scales`` if ``by_bucket`` >
    # 0.
    GROUPS: tl.constexpr = SLICE // _math.GROUP
    if children is not None:
        marks = mark_slices(children, p_row.columns, SLICE)
    residual_mass, untried_mass = tl.zeros([GROUPS], tl.int64), tl.zeros([GROUPS], tl.int64)
    p_all, q_all = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    bad = tl.zeros([GROUPS], tl.int1)
    for at in range(0, p_row.columns, SLICE):
        start = tl.cast(at, tl.int32)
        p, q, p_all, q_all, bad = load_pair(p_row, q_row, start, p_all, q_all, bad, SLICE)
        if bucket_scales is not None:
            q = _races.scale_by_bucket(p, q, bucket_scales, by_bucket)
        residual_mass += _math.unit_sums(_math.residual_weight(p, subtracted * q))
        if children is not None:
            if (marks >> (start // SLICE % 64).to(tl.uint64)) & 1 == 1:
                q = _races.without_children(q, _rows.tile_tokens(start, SLICE), start, 0.0, children, SLICE)
            untried_mass += _math.unit_sums(q)
    rest = tl.full([], 1.0, tl.float32)
    if children is not None:
        rest = _math.of_units(tl.sum(untried_mass, axis=0))
    status = pair_status(p_row, q_row, p_all, q_all, bad)
    return _math.of_units(tl.sum(residual_mass, axis=0)), rest, status


@triton.jit
def try_children(tree, node, nodes, p_row, q_row, noise, REPLACEMENT: tl.constexpr, TILE: tl.constexpr):
    """(accepted child or -1, T_m after the last child tried, status), as ``walk_rejection`` of walk.h."""
    REPEATS: tl.constexpr = REPLACEMENT and q_row.at is not None
    accepted, flags = -1 + 0 * node, 0 * node
    subtracted, scale = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    tried = node < 0
    child = _trees.next_child(tree, node, node, nodes)
    while child < nodes:
        token = _trees.token_of(tree, child).to(tl.int64)
        in_range = (token >= 0) & (token < p_row.columns)
        flags |= tl.where(in_range, 0, _math.TOKEN_RANGE)
        if (REPEATS == 0) & tried & in_range:  # q^m has no weight on a repeated sibling, so it is skipped
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
                residual_mass, rest, reported = masses(p_row, q_row, subtracted, children, min(MASS_SLICE, TILE))
                flags |= reported
                scale = _math.draft_scale(residual_mass, rest)
            tried = node >= 0
            p, bad = _rows.probability_at(p_row, token, in_range)
            q = 1.0
            if q_row.at is not None:
                q, bad_draft = _rows.probability_at(q_row, token, in_range)
                bad |= bad_draft
            flags |= tl.where(bad, _math.NON_FINITE, 0)
            if first & (p <= 0.0):
                ends = _rows.is_empty(p_row, min(MASS_SLICE, TILE))
            if in_range & _math.accepts(_math.accept_uniform(noise, child - 1), p - subtracted * q, scale * q, 0.0):
                accepted = child
            elif q_row.at is not None:
                subtracted = tl.minimum(subtracted + scale, _math.LARGEST)
            else:  # the scale of a one-hot draft is the mass not yet tried
                scale = tl.maximum(scale - p, 0.0)
        if ends:  # a row without weight ends the branch: its children count as absent
            subtracted, flags, child = tl.full([], 0.0, tl.float32), 0 * node, nodes
        child = tl.where((accepted < 0) & (child < nodes), _trees.next_child(tree, node, child, nodes), nodes)
    return accepted, subtracted, flags
