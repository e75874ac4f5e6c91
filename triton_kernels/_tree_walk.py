"""A walk through a tree in which each row decides alone: records of decisions, and the front that they move.

Counters are int32, zero before and after a call. Row r has ROW words from 6 r on: the best key (two words; before there
is a key the second counts the cut sides of the row), programs done, status, the next child plus 2 (1: none, 0:
undecided), T_m of walk.h as the bits of a float. Request b has 8 words from 6 rows + 8 b on: the best key, programs
done, status, the last node, its T_m, whether a child of it was tried, the front. The launch that samples the last
token reads the path's depth there.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _math, _rows, _trees, _verdict

ROW = tl.constexpr(6)  # words of a row's record
PAIR, NEXT, SUBTRACTED = tl.constexpr(1), tl.constexpr(4), tl.constexpr(5)  # words of a row's record
# Words of a request's record.
NODE, NODE_SUBTRACTED, TRIED, FRONT = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
NOWHERE = tl.constexpr(1)  # a row's NEXT if the walk ends there


class Walk(NamedTuple):
    """The walk of one request."""

    tree: _trees.Tree
    nodes: tl.tensor
    max_depth: tl.tensor
    vocab: tl.tensor
    records: tl.tensor  # int32 [nodes, ROW]
    request: tl.tensor  # int32 [8]
    live: tl.tensor  # whether the request has an entry; else it has no root
    idle: tl.tensor


@triton.jit
def walk_of(tree, nodes, max_depth, vocab, counters, b, live, idle):
    records, request = counters + nodes * ROW * b, counters + nodes * ROW * tl.num_programs(0).to(tl.int64) + 8 * b
    return Walk(tree, nodes, max_depth, vocab, records, request, live, idle)


@triton.jit
def front_of(walk):
    return tl.atomic_max(walk.request + FRONT, 0, sem="relaxed")


@triton.jit
def decide(walk, node, child):
    """Stores that a walk at ``node`` goes on to ``child``, or ends at -1, and moves the front if it is at ``node``."""
    tl.atomic_max(walk.records + node * ROW + NEXT, child + 2, sem="relaxed")
    if front_of(walk) == node:
        decision = child + 2
        while decision > NOWHERE:  # the front first: a program that decides ``node`` sees it, or is seen below
            node = decision - 2
            tl.atomic_max(walk.request + FRONT, node, sem="relaxed")
            decision = tl.atomic_max(walk.records + node * ROW + NEXT, 0, sem="relaxed")
        if decision == NOWHERE:
            tl.atomic_max(walk.request + FRONT, walk.nodes, sem="relaxed")


@triton.jit
def decide_winner(walk, node, below, best):
    """Decides ``node``, whose race the key ``best`` won: the walk goes on to the child with that token."""
    below = tl.where(best == _math.NO_CANDIDATE, 0, below)  # a row without weight ends the branch
    child = _trees.child_with(walk.tree, node, _math.key_token(best), below)
    if _trees.has_stray(walk.tree, node, child, walk.vocab):
        tl.atomic_or(walk.records + node * ROW + _rows.FLAGS, _math.TOKEN_RANGE, sem="relaxed")
    decide(walk, node, tl.where(child < below, child, -1))


@triton.jit
def store_children(walk, node, child, subtracted, reported):
    """Stores the result of ``try_children`` at ``node``, and decides."""
    record = walk.records + node * ROW
    tl.store(record + SUBTRACTED, subtracted.to(tl.int32, bitcast=True))
    if reported != 0:
        tl.atomic_or(record + _rows.FLAGS, reported, sem="relaxed")
    decide(walk, node, child)


@triton.jit
def finish_walk(walk, flags, racing, writer):
    """Follows the decisions from the root and writes the verdict, but for the last token unless ``racing``."""
    # A request that is not ``live`` has no root: its token is 0, or -1 if it is idle.
    tree, nodes = walk.tree, walk.nodes
    node, depth = nodes * 0, tl.where(walk.live | walk.idle, 0, 1)
    child = tl.where(walk.live, 0, -1)
    while child >= 0:
        node = child
        record = walk.records + node * ROW
        child = tl.load(record + NEXT, cache_modifier=".cg") - 2
        row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
        flags |= row_status & (_cuts.DRAFT_BAD - 1)
        drafted = (depth < walk.max_depth) & (_trees.next_child(tree, node, node, nodes) < nodes)
        draft_bad = drafted & (row_status & _cuts.DRAFT_BAD != 0) & (racing == 0)
        flags |= tl.where(draft_bad, _math.NON_FINITE, 0) | _verdict.put_node(writer, depth, node, walk.live)
        if racing:
            key = tl.load(_rows.key_at(record), cache_modifier=".cg")
            flags |= tl.where(key == _math.NO_CANDIDATE, _math.NON_FINITE, 0)
            _verdict.put_token(writer, depth, node, _math.key_token(key), walk.live)
        elif child >= 0:
            _verdict.put_token(writer, depth, node, _trees.token_of(tree, child), walk.live)
        depth += 1
    depth -= 1
    tried = walk.live & (_trees.next_child(tree, node, node, nodes) < nodes)
    flags |= tl.where(tried & (depth == walk.max_depth), _math.PARAMETER, 0)
    flags |= _trees.check_parents(tree.parents, tree.parents_node, nodes)
    subtracted = tl.load(walk.records + node * ROW + SUBTRACTED, cache_modifier=".cg")
    if racing == 0:
        tl.store(walk.request + NODE, node)
        tl.store(walk.request + NODE_SUBTRACTED, subtracted)
        tl.store(walk.request + TRIED, (tried & (depth < walk.max_depth)).to(tl.int32))
    finish(walk, depth, flags, tl.where(racing, 0, depth), writer)


@triton.jit
def finish_path(tree, node, depth, writer):
    """Writes the nodes from the root to ``node``, and the tokens of all but the root. Returns status bits."""
    reported = 0
    while depth >= 0:
        reported |= _verdict.put_node(writer, depth, node, depth >= 0)
        parent, _ = _trees.load_parent(tree.parents, tree.parents_node, node, depth > 0)
        if depth > 0:
            _verdict.put_token(writer, depth - 1, parent, _trees.token_of(tree, node), depth > 0)
        node = parent
        depth -= 1
    return reported


@triton.jit
def finish(walk, depth, flags, left, writer):
    """Writes counts and status, and sets counters back to zero; the front becomes ``left``, for ``emit``."""
    nodes, max_depth = walk.nodes, walk.max_depth
    _verdict.put_count(writer, depth)
    _verdict.put_status(writer, tl.where(walk.live, flags, tl.where(walk.idle, 0, _math.PARAMETER)))
    lost = (walk.live == 0) & (walk.idle == 0)
    _verdict.put_node(writer, 0, nodes * 0, lost)
    _verdict.put_token(writer, 0, nodes * 0, nodes * 0, lost)
    for base in range(0, max_depth + 1, _trees.NODES):
        at = base + tl.arange(0, _trees.NODES)
        _verdict.clear_columns(writer, at, (at <= max_depth) & (at > depth))
    _verdict.clear_off_path(writer, nodes, depth)
    _rows.clear(walk.records, nodes * ROW)
    tl.store(walk.request + _rows.DONE, 0)
    tl.store(walk.request + _rows.FLAGS, 0)
    tl.store(walk.request + FRONT, left)
