"""Trees in Triton: what csrc/include/specdec/tree.h asks of a tree, for a block of nodes at a time.

A tree is the tuple (parents, their stride, draft tokens, their stride) of one request. A chain has None as parents:
each node is the child of the one before it.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._math import PARAMETER, any_of

NODES = tl.constexpr(32)  # looked at together


@triton.jit
def parents_of(parents, parents_node, node, there):
    """For a block of nodes (parent, -1 for the root and absent nodes; whether the entry is no node before it)."""
    if parents is None:
        parent = node - 1
    else:
        parent = tl.load(parents + node * parents_node, mask=there, other=-1)
    good = (parent >= 0) & (parent < node)
    return tl.where(good, parent, -1).to(tl.int32), there & (good == 0) & (parent != -1)


@triton.jit
def status_of(parents, parents_node, nodes):
    """PARAMETER if an entry of a tree is bad, else 0."""
    status = 0
    for base in range(0, nodes, NODES):
        node = base + tl.arange(0, NODES)
        status |= any_of(parents_of(parents, parents_node, node, node < nodes)[1]) * PARAMETER
    return status


@triton.jit
def prefix_of(prefix, most):
    """(a prefix length in [0, most], status)."""
    fit = tl.minimum(tl.maximum(prefix, 0), most)
    return fit, tl.where(fit == prefix, 0, PARAMETER)


@triton.jit
def next_node(tree, node, step, by, nodes):
    """(the first of ``node``, ``node + step``, … that is ``by`` or below it, its depth); ``nodes`` if there is none.

    An absent node, and all nodes below it, are not connected to the root, and are passed over.
    """
    parents, parents_node, tokens, tokens_node = tree
    found, depth = nodes + 0, nodes * 0
    while node < found:
        index = node + step * tl.arange(0, NODES)
        at = tl.where(index < nodes, index, -1)
        leads = at == by
        ups = tl.zeros([NODES], tl.int32)
        while any_of(at > 0) > 0:
            parent, _ = parents_of(parents, parents_node, at, at > 0)
            token = tl.load(tokens + at * tokens_node, mask=at > 0, other=0)
            ups += (at > 0).to(tl.int32)
            at = tl.where(at > 0, tl.where(token == -1, -1, parent), at)
            leads = leads | (at == by)
        found = tl.min(tl.where((at == 0) & leads, index, nodes), axis=0)
        depth = tl.sum(tl.where(index == found, ups, 0), axis=0)
        node += step * NODES
    return found, depth


@triton.jit
def children_at(tree, base, node, end):
    """(index, token, whether it is a child of ``node`` before ``end``) of the block of nodes from ``base`` on."""
    parents, parents_node, tokens, tokens_node = tree
    index = base + tl.arange(0, NODES)
    if parents is None:
        mine = (index == node + 1) & (index < end)
    else:
        mine = tl.load(parents + index * parents_node, mask=index < end, other=-1) == node
    token = tl.load(tokens + index * tokens_node, mask=mine, other=-1).to(tl.int64)
    return index, token, mine & (token != -1)


@triton.jit
def next_child(tree, node, after, nodes):
    """The first child of ``node`` with an index above ``after`` that is not absent; ``nodes`` if there is none."""
    child = nodes + 0
    base = after + 1
    while base < child:
        index, _token, mine = children_at(tree, base, node, nodes)
        child = tl.minimum(child, tl.min(tl.where(mine, index, nodes), axis=0))
        base += NODES
    return child


@triton.jit
def child_with(tree, node, token, end):
    """The first child of ``node`` before ``end`` that has a token, ``end`` if there is none."""
    child = end + 0
    base = node + 1
    while base < child:
        index, other, mine = children_at(tree, base, node, end)
        child = tl.minimum(child, tl.min(tl.where(mine & (other == token), index, end), axis=0))
        base += NODES
    return child


@triton.jit
def strays(tree, node, end, vocab):
    """Whether a child of ``node`` before ``end`` has a token out of range."""
    found = 0
    for base in range(node + 1, end, NODES):
        _index, token, mine = children_at(tree, base, node, end)
        found |= any_of(mine & ((token < 0) | (token >= vocab)))
    return found
