"""The walk of several chains (csrc/include/specdec/walk.h, paths.h): one of them is taken, then verified as a block.

One program walks a request after all ``RowStats`` are stored, as in ``_traversal``. A node's words in scratch memory
are its weight, whether q is scaled by bucket there, and the scales.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _children, _edits, _laws, _math, _rows, _traversal, _trees

BUCKETS = tl.constexpr(21)
LANES = tl.constexpr(32)  # of a vector with a lane for each bucket
MOST_LOOKED = tl.constexpr(16)  # chains that a node chooses from, at most
WAYS = tl.constexpr(512)  # ways to choose how many, at most
LOOK_UNIFORM = tl.constexpr(1 << 31)
BY_BUCKET, BUCKET_SCALES = tl.constexpr(1), tl.constexpr(2)  # index in a node's words, of which the first is its weight
NODE_WORDS = tl.constexpr(32)  # words of a node


@triton.jit
def put(at, number):
    tl.atomic_xchg(at, number.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def bucket_sums(p_row, q_row, SLICE: tl.constexpr):
    """(units of p by bucket, units of q by bucket, status) of two whole rows."""
    GROUPS: tl.constexpr = SLICE // _math.GROUP
    bucket_index = tl.arange(0, LANES)
    p_sums, q_sums = tl.zeros([LANES], tl.int64), tl.zeros([LANES], tl.int64)
    p_all, q_all = tl.zeros([GROUPS], tl.float32), tl.zeros([GROUPS], tl.float32)
    bad = tl.zeros([GROUPS], tl.int1)
    for at in range(0, p_row.columns, SLICE):
        start = tl.cast(at, tl.int32)
        p, q, p_all, q_all, bad = _children.load_pair(p_row, q_row, start, p_all, q_all, bad, SLICE)
        bucket = _math.bucket_of(p, q)
        for b in range(0, BUCKETS):
            in_bucket = bucket == b
            p_sums += tl.where(bucket_index == b, tl.sum(_math.unit_sums(tl.where(in_bucket, p, 0.0)), axis=0), 0)
            q_sums += tl.where(bucket_index == b, tl.sum(_math.unit_sums(tl.where(in_bucket, q, 0.0)), axis=0), 0)
    return p_sums, q_sums, _children.pair_status(p_row, q_row, p_all, q_all, bad)


@triton.jit
def number_at(numbers, lanes, lane):
    """One lane of a vector; exact, since it is added to zeros."""
    return tl.sum(tl.where(lanes == lane, numbers, 0.0), axis=0)


@triton.jit
def look_at(p_sums, q_sums, chains, weight):
    """(i, j, s, bucket scales of q): a node chooses from i chains with probability s, else from j (paths.h)."""
    lane = tl.arange(0, LANES)
    most = tl.minimum(chains, MOST_LOOKED)
    through, total = tl.cumsum(q_sums, axis=0), tl.sum(q_sums, axis=0)
    whole = tl.where(total > 0, total.to(tl.float32), 1.0) + tl.zeros([LANES], tl.float32)
    before, upto = tl.div_rn((through - q_sums).to(tl.float32), whole), tl.div_rn(through.to(tl.float32), whole)
    weighed, drafted = weight * _math.of_units(p_sums), _math.of_units(q_sums)

    way = tl.arange(0, WAYS)
    pair, few = (way - most) // 4, tl.full([WAYS], 1, tl.int32)
    for i in range(1, most):
        beyond = (pair >= most - few) & (way >= most) & (few == i)
        pair = tl.where(beyond, pair - (most - few), pair)
        few += beyond.to(tl.int32)
    many = few + 1 + pair
    mix = tl.div_rn(((way - most) % 4 + 1).to(tl.float32), tl.full([WAYS], 5.0, tl.float32))
    few = tl.where(way < most, way + 1, few)
    many = tl.where(way < most, few, many)
    reach = tl.zeros([WAYS], tl.float32)
    for b in range(0, BUCKETS):
        first, last = number_at(before, lane, b), number_at(upto, lane, b)
        gain, power = tl.full([], 1.0, tl.float32), tl.full([], 1.0, tl.float32)
        of_few, of_many = tl.full([WAYS], 1.0, tl.float32), tl.full([WAYS], 1.0, tl.float32)
        for j in range(2, most + 1):
            power = power * first
            gain = last * gain + power
            of_few, of_many = tl.where(few == j, gain, of_few), tl.where(many == j, gain, of_many)
        mixed = tl.where(few == many, of_few, mix * of_few + (1.0 - mix) * of_many)
        reach += tl.minimum(number_at(weighed, lane, b), number_at(drafted, lane, b) * mixed)
    ways = most + 2 * most * (most - 1)
    reach = tl.where(way < ways, reach, -1.0)
    best = tl.min(tl.where(reach >= tl.max(reach, axis=0) - 2.0**-14, way, WAYS), axis=0)
    i, j = tl.sum(tl.where(way == best, few, 0), axis=0), tl.sum(tl.where(way == best, many, 0), axis=0)
    s = tl.where(i == j, 1.0, number_at(mix, way, best))

    gain, power = tl.full([LANES], 1.0, tl.float32), tl.full([LANES], 1.0, tl.float32)
    of_i, of_j = gain, gain
    for number in range(2, most + 1):
        power = power * before
        gain = upto * gain + power
        of_i, of_j = tl.where(i == number, gain, of_i), tl.where(j == number, gain, of_j)
    return i, j, s, tl.where(i == j, of_i, s * of_i + (1.0 - s) * of_j)


@triton.jit
def next_of_chain(tree, leaf, node):
    """The node after ``node`` on the chain that ends at ``leaf``, -1 if there is none."""
    child, successor = leaf, leaf * 0 - 1
    while child > node:
        parent, _ = _trees.load_parent(tree.parents, tree.parents_node, child, child > node)
        if parent == node:
            successor = child
        child = tl.where(parent == node, node, parent)
    token = tl.load(tree.tokens + successor * tree.tokens_node, mask=successor >= 0, other=-1)
    return tl.where(token == -1, -1, successor)


class Chains(NamedTuple):
    """The leaves of a call."""

    nodes: _arguments.Steps  # [B, count]: the node at which each chain ends
    count: int


class Leaves(NamedTuple):
    """The leaves of one request: ``count``, from ``at`` on, ``step`` elements apart."""

    at: tl.tensor
    step: tl.tensor
    count: tl.tensor


@triton.jit
def leaf_at(leaves, chain, nodes):
    """(the node at which ``chain`` ends, -1 for none; status)."""
    leaf = tl.load(leaves.at + tl.cast(chain, tl.int64) * leaves.step).to(tl.int64)
    inside = (leaf >= 0) & (leaf < nodes)
    return tl.where(inside, leaf, -1).to(tl.int32), tl.where(inside | (leaf == -1), 0, _math.PARAMETER)


@triton.jit
def best_child(tree, leaves, node, nodes, looked, p_row, q_row, pair_status):
    """The first child in the highest bucket among those of the first ``looked`` chains; q = 0 is the lowest bucket."""
    # Returns (the child, its bucket, p and q of its token, whether that is in range, status).
    best, best_bucket, seen, flags = nodes * 0, nodes * 0 - 2, nodes * 0, nodes * 0
    best_p, best_q, best_in_range = tl.full([], 0.0, tl.float32), tl.full([], 0.0, tl.float32), nodes < 0
    for chain in range(0, leaves.count):
        leaf, _bad_leaf = leaf_at(leaves, chain, nodes)
        child = next_of_chain(tree, leaf, node)
        if (child >= 0) & (seen < looked):
            seen += 1
            token = _trees.token_of(tree, child).to(tl.int64)
            in_range = (token >= 0) & (token < p_row.columns)
            p, bad = _rows.probability_at(p_row, token, in_range)
            q, bad_draft = _rows.probability_at(q_row, token, in_range)
            flags |= tl.where(in_range, pair_status, _math.TOKEN_RANGE)
            flags |= tl.where(bad | bad_draft, _math.NON_FINITE, 0)
            bucket = tl.where(in_range & (q > 0.0), _math.bucket_of(p, q), -1)
            if bucket > best_bucket:
                best, best_bucket, best_p, best_q, best_in_range = child, bucket, p, q, in_range
    return best, best_bucket, best_p, best_q, best_in_range, flags


@triton.jit
def walk_paths(
    tree, leaves, nodes, max_depth, target, draft, edits, memory, noise, ROW: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Walks a request as ``walk_paths`` of walk.h; returns the ``Walked``."""
    node_state = memory.node_state.to(tl.pointer_type(tl.int32), bitcast=True)
    node, depth, flags = nodes * 0, nodes * 0, nodes * 0
    none, full = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    weight, subtracted = full, none
    down, walking, removed = nodes > 0, nodes > 0, nodes < 0
    while walking:
        record, pair_stats = memory.records + ROW * node, memory.pair_stats + 4 * node
        row_edits, bad_bias = _edits.load_node_edits(edits, node, walking, target.columns)
        row, by_row = target.row + node, edits.edits.by_row
        p_law = _laws.Law(target.inverse, None, target.cuts, row, by_row, row_edits, edits.edits)
        p_stats = _laws.load_row_stats(pair_stats, p_law, walking)
        p_row = _laws.Row(_rows.side_row(target, node, ALIGNED), target.columns, p_law, None, p_stats)
        q_law = _laws.Law(draft.inverse, draft.greedy, draft.cuts, draft.row + node)
        q_stats = _laws.load_row_stats(pair_stats + 2, q_law, walking)
        q_row = _laws.Row(_rows.side_row(draft, node, ALIGNED), draft.columns, q_law, draft.map, q_stats)
        target_status, pair_status = _traversal.load_status(record, bad_bias)
        at = node_state + NODE_WORDS * node
        if down:
            count = nodes * 0
            for chain in range(0, leaves.count):
                leaf, bad_leaf = leaf_at(leaves, chain, nodes)
                flags |= bad_leaf
                count += (next_of_chain(tree, leaf, node) >= 0).to(tl.int32)
            flags |= tl.where((count > 0) & (depth == max_depth), _math.PARAMETER, 0)
            down = (count > 0) & (depth < max_depth)
            if down:
                down = _rows.is_empty(p_row, TILE) == 0  # a row without weight ends the chains
                flags |= tl.where(down, 0, bad_bias)
            if down:
                looked, by_bucket = nodes * 0 + 1, none
                if count > 1:
                    p_sums, q_sums, unfit = bucket_sums(p_row, q_row, TILE)
                    flags |= pair_status | unfit
                    i, j, s, bucket_scales = look_at(p_sums, q_sums, count, weight)
                    looked = tl.where(
                        _math.accept_uniform(_math.later(noise, depth), tl.full([], LOOK_UNIFORM, tl.uint32)) < s, i, j
                    )
                    by_bucket = full
                    for b in range(0, BUCKETS):
                        put(at + BUCKET_SCALES + b, number_at(bucket_scales, tl.arange(0, LANES), b))
                put(at, weight)
                put(at + BY_BUCKET, by_bucket)
                best, best_bucket, p, q, in_range, reported = best_child(
                    tree, leaves, node, nodes, looked, p_row, q_row, pair_status
                )  # fmt: skip
                flags |= reported
                scale = full
                if by_bucket > 0.0:
                    scale = _traversal.fetch(at + BUCKET_SCALES + tl.maximum(best_bucket, 0))
                below = tl.where(in_range, _math.child_weight(weight, p, q, none, scale), 0.0)
                down = below >= _math.SMALLEST
                removed = below < _math.SMALLEST
                if down:
                    node, depth, weight = best, depth + 1, below
        else:
            if removed:
                subtracted = _math.subtracted_after(none, _math.draft_scale(full, full), weight)
            uniform = _math.accept_uniform(_math.later(noise, depth - 1), node - 1 + _traversal.FIRST_UNIFORM)
            accepted = (node == 0) | (uniform < weight)
            if removed & (node > 0) & accepted & (weight < 1.0):
                table = (at + BUCKET_SCALES).to(tl.pointer_type(tl.float32), bitcast=True)
                rest, _other, unfit = _children.masses(
                    p_row, q_row, subtracted, None, TILE, table, _traversal.fetch(at + BY_BUCKET)
                )  # fmt: skip
                flags |= pair_status | unfit
                accepted = uniform < _math.weight_after(weight, full, rest)
            if accepted:
                flags |= tl.where(removed, pair_status, target_status)
                walking = nodes < 0
            else:
                node, _ = _trees.load_parent(tree.parents, tree.parents_node, node, walking)
                depth -= 1
                weight = _traversal.fetch(node_state + NODE_WORDS * node)
                removed = nodes > 0
    return _traversal.Walked(node, depth, subtracted, removed & (nodes > 0), flags)


def chains_of(leaves):
    return Chains(_arguments.steps_or_none(leaves), None if leaves is None else leaves.shape[1])
