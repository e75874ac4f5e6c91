"""A walk through a tree whose rows decide for themselves: where a decision is kept, and how the walk is told.

int32 counters, zero before and after a call. Of row r, from 6 r: the best key (two words), programs done, status, the
child walked to plus 2 (1: none, 0: not yet known), T_m of walk.h as the bits of a float. Before there is a key its
place counts the sides of a row that are cut (``_filtered_trees``). Of request b, from 6 rows + 8 b: the best key,
programs done, status, the last node, its T_m, whether a child of it was tried, the front; for the launch that draws
the last token that is the path's depth.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._cuts import DRAFT_MET
from specdec_kernels.triton_kernels._math import NOBODY, NON_FINITE, PARAMETER, TOKEN_RANGE, key_token
from specdec_kernels.triton_kernels._rows import DONE, FLAGS, clear, key_at
from specdec_kernels.triton_kernels._trees import NODES, child_with, next_child, parents_of, status_of, strays
from specdec_kernels.triton_kernels._verdict import clear_off_path, clear_places, put_count, put_node, put_token

ROW = tl.constexpr(6)  # words of a row's record
PAIR, NEXT, SUBTRACTED = tl.constexpr(1), tl.constexpr(4), tl.constexpr(5)  # of a row's record
# Of a request's.
NODE, NODE_SUBTRACTED, TRIED, FRONT = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
NOWHERE = tl.constexpr(1)  # as a row's next: the walk goes no further


@triton.jit
def decide(records, request, node, child, nodes):
    """Says that a walk at ``node`` goes on to ``child`` (-1: ends), and moves the front if it is there."""
    tl.atomic_max(records + node * ROW + NEXT, child + 2, sem="relaxed")
    if tl.atomic_max(request + FRONT, 0, sem="relaxed") == node:
        said = child + 2
        while said > NOWHERE:  # the front first: who decides ``node`` meanwhile sees it there, or is seen here
            node = said - 2
            tl.atomic_max(request + FRONT, node, sem="relaxed")
            said = tl.atomic_max(records + node * ROW + NEXT, 0, sem="relaxed")
        if said == NOWHERE:
            tl.atomic_max(request + FRONT, nodes, sem="relaxed")


@triton.jit
def decide_winner(tree, node, below, nodes, vocab, best, records, request):
    """Says which child of ``node``, whose race the key ``best`` won, the walk goes on to."""
    child = child_with(tree, node, key_token(best), below)
    if strays(tree, node, child, vocab):
        tl.atomic_or(records + node * ROW + FLAGS, TOKEN_RANGE, sem="relaxed")
    decide(records, request, node, tl.where(child < below, child, -1), nodes)


@triton.jit
def finish_walk(
    tree, nodes, flags, live, idle, records, request, vocab, racing, verdict, max_depth
):  # fmt: skip
    """Follows the decisions from the root; what is left for the other launch is the last token, unless ``racing``.

    A request that is not ``live`` has no root: token 0 if it is none, -1 if it is idle.
    """
    node, depth = nodes * 0, tl.where(live | idle, 0, 1)
    child = tl.where(live, 0, -1)
    while child >= 0:
        node = child
        record = records + node * ROW
        child = tl.load(record + NEXT, cache_modifier=".cg") - 2
        row_status = tl.load(record + FLAGS, cache_modifier=".cg")
        flags |= row_status & (DRAFT_MET - 1)
        drafted = (depth < max_depth) & (next_child(tree, node, node, nodes) < nodes)
        flags |= tl.where(drafted & (row_status & DRAFT_MET != 0) & (racing == 0), NON_FINITE, 0)
        flags |= put_node(verdict, depth, node, live)
        if racing:
            key = tl.load(key_at(record), cache_modifier=".cg")
            flags |= tl.where(key == NOBODY, NON_FINITE, 0)
            put_token(verdict, depth, node, key_token(key), live)
        elif child >= 0:
            put_token(verdict, depth, node, tl.load(tree[2] + child * tree[3]), live)
        depth += 1
    depth -= 1
    tried = live & (next_child(tree, node, node, nodes) < nodes)
    flags |= tl.where(tried & (depth == max_depth), PARAMETER, 0) | status_of(tree[0], tree[1], nodes)
    subtracted = tl.load(records + node * ROW + SUBTRACTED, cache_modifier=".cg")
    if racing == 0:
        tl.store(request + NODE, node)
        tl.store(request + NODE_SUBTRACTED, subtracted)
        tl.store(request + TRIED, (tried & (depth < max_depth)).to(tl.int32))
    finish(nodes, depth, flags, live, idle, records, request, tl.where(racing, 0, depth), verdict, max_depth)


@triton.jit
def finish_path(tree, node, depth, verdict):
    """Writes the nodes from the root to ``node``, and the tokens of those behind the root. Returns status bits."""
    reported = 0
    while depth >= 0:
        reported |= put_node(verdict, depth, node, depth >= 0)
        parent, _ = parents_of(tree[0], tree[1], node, depth > 0)
        if depth > 0:
            put_token(verdict, depth - 1, parent, tl.load(tree[2] + node * tree[3]), depth > 0)
        node = parent
        depth -= 1
    return reported


@triton.jit
def finish(nodes, depth, flags, live, idle, records, request, left, verdict, max_depth):
    """Writes what does not depend on the rule, and sets counters back to zero; the front's is ``left`` for ``emit``."""
    put_count(verdict, depth)
    tl.store(verdict.status, tl.where(live, flags, tl.where(idle, 0, PARAMETER)))
    lost = (live == 0) & (idle == 0)
    put_node(verdict, 0, nodes * 0, lost)
    put_token(verdict, 0, nodes * 0, nodes * 0, lost)
    for base in range(0, max_depth + 1, NODES):
        at = base + tl.arange(0, NODES)
        clear_places(verdict, at, (at <= max_depth) & (at > depth))
    clear_off_path(verdict, nodes, depth)
    clear(records, nodes * ROW)
    tl.store(request + DONE, 0)
    tl.store(request + FLAGS, 0)
    tl.store(request + FRONT, left)
