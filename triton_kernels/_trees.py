"""Trees, read a block of nodes at a time: parents, children, depths (csrc/include/specdec/tree.h)."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _math

NODES = tl.constexpr(32)  # nodes of a block


class Tree(NamedTuple):
    """The tree of one request. A chain has no ``parents``: each node is the child of the one before it."""

    parents: tl.tensor  # [N], or None
    parents_node: tl.tensor  # step between nodes
    tokens: tl.tensor  # [N]
    tokens_node: tl.tensor


class Drafts(NamedTuple):
    """The trees of a call."""

    parents: _arguments.Steps  # [B, N], or [N] for all requests
    tokens: _arguments.Steps  # [B, N], or [N] for all requests
    nodes: int  # N
    max_depth: int


class Children(NamedTuple):
    """The children of a node of a tree with an index below ``end``."""

    tree: Tree
    node: tl.tensor
    end: tl.tensor


@triton.jit
def tree_of(parents, tokens, b):
    """The tree of request ``b``."""
    return Tree(_arguments.at(parents, b, 0), parents.inner, _arguments.at(tokens, b, 0), tokens.inner)


@triton.jit
def token_of(tree, node):
    return tl.load(tree.tokens + node * tree.tokens_node)


@triton.jit
def load_parent(parents, parents_node, node, there):
    """(parents of a block of nodes, -1 for the root and absent nodes; whether an entry is bad: not below its node)."""
    if parents is None:
        parent = node - 1
    else:
        parent = tl.load(parents + node * parents_node, mask=there, other=-1)
    good = (parent >= 0) & (parent < node)
    return tl.where(good, parent, -1).to(tl.int32), there & (good == 0) & (parent != -1)


@triton.jit
def check_parents(parents, parents_node, nodes):
    """PARAMETER if an entry of a tree is bad, else 0."""
    status = 0
    for base in range(0, nodes, NODES):
        node = base + tl.arange(0, NODES)
        status |= _math.any_of(load_parent(parents, parents_node, node, node < nodes)[1]) * _math.PARAMETER
    return status


@triton.jit
def clamp_prefix(prefix, most):
    """(a prefix length in [0, most], status)."""
    fit = tl.minimum(tl.maximum(prefix, 0), most)
    return fit, tl.where(fit == prefix, 0, _math.PARAMETER)


@triton.jit
def next_node(tree, node, step, by, nodes):
    """(the first of ``node``, ``node + step``, … that is ``by`` or below it, its depth); ``nodes`` if there is none."""
    # An absent node, and all nodes below it, are not connected to the root, so they are skipped.
    first, depth = nodes + 0, nodes * 0
    while node < first:
        index = node + step * tl.arange(0, NODES)
        at = tl.where(index < nodes, index, -1)
        leads = at == by
        ups = tl.zeros([NODES], tl.int32)
        while _math.any_of(at > 0) > 0:
            parent, _ = load_parent(tree.parents, tree.parents_node, at, at > 0)
            token = tl.load(tree.tokens + at * tree.tokens_node, mask=at > 0, other=0)
            ups += (at > 0).to(tl.int32)
            at = tl.where(at > 0, tl.where(token == -1, -1, parent), at)
            leads = leads | (at == by)
        first = tl.min(tl.where((at == 0) & leads, index, nodes), axis=0)
        depth = tl.sum(tl.where(index == first, ups, 0), axis=0)
        node += step * NODES
    return first, depth


@triton.jit
def children_at(tree, base, node, end):
    """(index, token, whether it is a child of ``node`` before ``end``) of the block of nodes from ``base`` on."""
    index = base + tl.arange(0, NODES)
    if tree.parents is None:
        is_child = (index == node + 1) & (index < end)
    else:
        is_child = tl.load(tree.parents + index * tree.parents_node, mask=index < end, other=-1) == node
    token = tl.load(tree.tokens + index * tree.tokens_node, mask=is_child, other=-1).to(tl.int64)
    return index, token, is_child & (token != -1)


@triton.jit
def next_child(tree, node, after, nodes):
    """The first child of ``node`` with an index above ``after`` that is not absent; ``nodes`` if there is none."""
    child = nodes + 0
    base = after + 1
    while base < child:
        index, _token, is_child = children_at(tree, base, node, nodes)
        child = tl.minimum(child, tl.min(tl.where(is_child, index, nodes), axis=0))
        base += NODES
    return child


@triton.jit
def child_with(tree, node, token, end):
    """The first child of ``node`` before ``end`` that has a token, ``end`` if there is none."""
    child = end + 0
    base = node + 1
    while base < child:
        index, other, is_child = children_at(tree, base, node, end)
        child = tl.minimum(child, tl.min(tl.where(is_child & (other == token), index, end), axis=0))
        base += NODES
    return child


@triton.jit
def has_stray(tree, node, end, vocab):
    """Whether a child of ``node`` before ``end`` has a token out of range."""
    stray = 0
    for base in range(node + 1, end, NODES):
        _index, token, is_child = children_at(tree, base, node, end)
        stray |= _math.any_of(is_child & ((token < 0) | (token >= vocab)))
    return stray


def drafts_of(call, width):
    parents, tokens = _arguments.nodes_of(call.parents), _arguments.nodes_of(call.draft_tokens)
    return Drafts(parents, tokens, call.draft_tokens.shape[-1], width - 1)
