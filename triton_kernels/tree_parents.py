"""Trees from links: one launch, a program for each request, with the steps of csrc/include/specdec/links.h.

The outputs hold intermediate notes. Atomics bypass the L1 cache, so loads of notes do, too. A program is one warp, so
its stores are visible behind a barrier.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows

BLOCK = 64  # nodes of a step
ELDEST, FIRST, LOST = tl.constexpr(-1), tl.constexpr(-2), tl.constexpr(0)


@triton.jit
def link_of(links, links_node, node, there, nodes):
    """(links of a block of nodes, whether each leads to a node, which is never the root)."""
    link = tl.load(links + node.to(tl.int64) * links_node, mask=there, other=-1).to(tl.int64)
    return link, (link > 0) & (link < nodes)


@triton.jit
def note_of(notes, node, there):
    return tl.load(notes + node, mask=there, other=-1, cache_modifier=".cg")


@triton.jit
def settle(next_sibling, sibling_node, parents, ranks, node, there, nodes):
    """Each eldest child stores its parent and the rank in all its younger siblings."""
    at, rank = node, tl.zeros_like(node)
    mine = there & (note_of(ranks, node, there) == ELDEST)
    parent = note_of(parents, node, mine)
    while _math.any_of(mine) > 0:
        _rows.barrier()  # all threads have loaded their notes
        tl.store(parents + at, parent, mask=mine)
        tl.store(ranks + at, -rank + FIRST, mask=mine)
        sibling, leads = link_of(next_sibling, sibling_node, at, mine, nodes)
        mine = mine & leads
        mine = mine & (note_of(ranks, sibling, mine) == at)
        at = tl.where(mine, sibling, at).to(tl.int32)
        rank += 1


@triton.jit
def connected(parents, ranks, node, there, nodes):
    """Whether the ancestors of each node end at the root."""
    at, left = tl.where(there, node, -1), nodes + 0
    while (_math.any_of(at > 0) > 0) & (left > 0):
        lost = note_of(ranks, at, at > 0) >= 0
        at = tl.where(at > 0, tl.where(lost, -1, note_of(parents, at, at > 0)), at)
        left -= 1
    return at == 0


@triton.jit
def astray(links, links_node, parents, ranks, node, there, parent, rank, nodes):
    """Whether a link is bad: neither -1 nor to a node with this parent and rank."""
    link, leads = link_of(links, links_node, node, there, nodes)
    leads = leads & (note_of(ranks, node, there) >= 0)
    right = leads & (note_of(parents, link, leads) == parent) & (note_of(ranks, link, leads) == rank)
    return (link != -1) & (right == 0)


@_launch.kernel
def tree_parents_kernel(
    children: _arguments.Steps, siblings: _arguments.Steps, nodes: tl.int32, parents, ranks, status, BLOCK: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    first_child, first_child_node = _arguments.at(children, b, 0), children.inner
    next_sibling, next_sibling_node = _arguments.at(siblings, b, 0), siblings.inner
    parents += b * nodes
    ranks += b * nodes
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        tl.store(parents + node, tl.full([BLOCK], -1, tl.int32), mask=node < nodes)
        tl.store(ranks + node, tl.full([BLOCK], ELDEST, tl.int32), mask=node < nodes)
    _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = node < nodes
        child, leads = link_of(first_child, first_child_node, node, there, nodes)
        tl.atomic_max(parents + child, node, mask=leads, sem="relaxed")
        sibling, leads = link_of(next_sibling, next_sibling_node, node, there, nodes)
        tl.atomic_max(ranks + sibling, node, mask=leads, sem="relaxed")
    _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        settle(next_sibling, next_sibling_node, parents, ranks, node, node < nodes, nodes)
    _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = node < nodes
        lost = connected(parents, ranks, node, there, nodes) == 0
        _rows.barrier()  # all threads have followed their ancestors
        tl.store(ranks + node, tl.full([BLOCK], LOST, tl.int32), mask=there & lost)
        _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = node < nodes
        rank = note_of(ranks, node, there)
        tl.store(parents + node, tl.full([BLOCK], -1, tl.int32), mask=there & (rank >= 0))
        tl.store(ranks + node, tl.where(rank >= 0, -1, -rank + FIRST), mask=there)
    _rows.barrier()
    bad = 0
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = node < nodes
        parent, rank = note_of(parents, node, there), note_of(ranks, node, there)
        first = astray(first_child, first_child_node, parents, ranks, node, there, node, 0, nodes)
        younger = astray(next_sibling, next_sibling_node, parents, ranks, node, there, parent, rank + 1, nodes)
        bad |= _math.any_of(first | younger) * _math.PARAMETER
    tl.store(status + b, bad)


def tree_parents(call):
    """Parents and ranks int32 [B, N] of links; ``status`` int32 [B]."""
    requests, nodes = call.parents.shape
    with _launch.on_device(call.first_child):
        arguments = dict(
            children=_arguments.nodes_of(call.first_child), siblings=_arguments.nodes_of(call.next_sibling),
            nodes=nodes, parents=call.parents, ranks=call.ranks, status=call.status, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(tree_parents_kernel, (requests,), 1, arguments)
