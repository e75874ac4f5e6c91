"""EAGLE's trees: one launch, a program for each request, with the steps of csrc/include/specdec/build.h.

``index`` holds each node's parent until the end. A program is one warp, so its stores are visible behind a barrier.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows, _trees

BLOCK = 64  # nodes of a step


class Candidates(NamedTuple):
    """Candidates in groups of ``topk``."""

    parents: _arguments.Steps  # [B, groups]: the candidate that each group follows
    groups: int
    selected: _arguments.Steps  # [B, N - 1]: the candidate of each node but the root
    topk: int


class Mask(NamedTuple):
    """The mask, in bytes."""

    at: tl.tensor  # [size]
    size: int
    row_bytes: int


class Built(NamedTuple):
    """What a call writes, int64 [B, N] each."""

    positions: tl.tensor
    index: tl.tensor
    first_child: tl.tensor
    next_sibling: tl.tensor


@triton.jit
def bytes_before(b, prefix_len, nodes, size, BLOCK: tl.constexpr):
    """Bytes of the full masks of the requests before ``b``; more than ``size`` if they do not fit."""
    taken = tl.zeros([BLOCK], tl.int64)
    for base in range(0, b, BLOCK):
        at = base + tl.arange(0, BLOCK)
        length = tl.cast(_arguments.number(prefix_len, at, 0, at < b), tl.int64)
        columns = _trees.clamp_prefix(length, size)[0] + nodes
        each = tl.where(columns > size // nodes, size + 1, nodes * columns)
        taken = tl.minimum(taken + tl.where(at < b, each, 0), size + 1)
    return tl.sum(taken, axis=0)


@triton.jit
def find_parent(candidates, b, node, there, nodes):
    """The parents of a block of nodes; -1 if no earlier node is the candidate that the node's group follows."""
    selected, step = _arguments.at(candidates.selected, b, 0), candidates.selected.inner
    candidate_id = tl.load(selected + (node - 1).to(tl.int64) * step, mask=there, other=-1).to(tl.int64)
    group = tl.where(candidate_id < 0, -1, candidate_id // candidates.topk)
    listed = there & (group > 0) & (group < candidates.groups)
    followed = tl.load(_arguments.at(candidates.parents, b, group), mask=listed, other=-1).to(tl.int64)
    parent = tl.where(there & (group == 0), 0, -1)
    for other in range(1, nodes):
        candidate = tl.load(selected + (other - 1) * step).to(tl.int64)
        follows = (parent < 0) & (followed >= 0) & (candidate == followed) & (other < node)
        parent = tl.where(follows, other, parent)
    return parent


@triton.jit
def attended(parents, node, first, there):
    """An int32 for each node of a block: bit j is set if it attends to node ``first`` + j."""
    word = node * 0
    at = tl.where(there, node, -1).to(tl.int64)
    while _math.any_of(at >= first) > 0:
        bit = (node * 0 + 1) << ((at - first) & 31).to(tl.int32)
        word |= tl.where((at >= first) & (at < first + 32), bit, 0)
        at = tl.where(at >= first, tl.load(parents + at, mask=at >= first, other=-1), -1)
    return word


@triton.jit
def write_rows(mask, row, parents, node, there, nodes, row_bytes, LAYOUT: tl.constexpr):
    """Writes which nodes a block of nodes attends to, from byte ``row`` on."""
    if LAYOUT == "bits":
        word = attended(parents, node, 0, there)
        for byte in range(0, row_bytes):
            tl.store(mask + row + byte, (word >> 8 * byte) & 255, mask=there)
    else:
        for first in range(0, nodes, 32):
            word = attended(parents, node, first, there)
            for j in range(0, tl.minimum(nodes - first, 32)):
                tl.store(mask + row + first + j, (word >> j) & 1, mask=there)


@triton.jit
def find_links(parents, node, there, nodes):
    """(first children, next siblings) of a block of nodes, -1 for none."""
    parent = tl.load(parents + node, mask=there, other=-1)
    child, sibling = node * 0 - 1, node * 0 - 1
    for other in range(1, nodes):
        above = tl.load(parents + other)
        child = tl.where((child < 0) & (above == node), other, child)
        sibling = tl.where((sibling < 0) & (other > node) & (parent >= 0) & (above == parent), other, sibling)
    return child, sibling


@_launch.kernel
def build_tree_kernel(
    candidates: Candidates, prefix_len: _arguments.Counter, nodes: tl.int32, mask: Mask, built: Built, status,
    LAYOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    positions, index = built.positions + b * nodes, built.index + b * nodes
    first_child, next_sibling = built.first_child + b * nodes, built.next_sibling + b * nodes
    size, row_bytes = mask.size, tl.cast(mask.row_bytes, tl.int32)
    length = tl.cast(_arguments.number(prefix_len, b, 0, b >= 0), tl.int64)
    prefix, bad = _trees.clamp_prefix(length, 2**63 - 1 - nodes.to(tl.int64))
    bytes_left = size
    if LAYOUT == "full":
        bytes_left -= bytes_before(b, prefix_len, nodes, size, BLOCK)
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = (node > 0) & (node < nodes)
        parent = find_parent(candidates, b, node, there, nodes)
        bad |= _math.any_of(there & (parent < 0)) * _math.PARAMETER
        tl.store(index + node, parent.to(tl.int64), mask=node < nodes)
    _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        there = node < nodes
        depth = tl.zeros([BLOCK], tl.int64)
        at = tl.load(index + node, mask=there, other=-1)
        while _math.any_of(at >= 0) > 0:
            depth += (at >= 0).to(tl.int64)
            at = tl.load(index + at, mask=at >= 0, other=-1)
        tl.store(positions + node, prefix + depth, mask=there)
        row, fits = (b * nodes + node) * row_bytes, there
        if LAYOUT == "full":
            row = size - bytes_left + node * (prefix + nodes) + prefix
            rows = tl.where((bytes_left >= 0) & (prefix <= bytes_left), nodes, 0)
            fits = (node < rows) & (prefix + nodes <= bytes_left // (node + 1))
            bad |= _math.any_of(there & (fits == 0)) * _math.PARAMETER
        write_rows(mask.at, row, index, node, fits, nodes, row_bytes, LAYOUT)
        child, sibling = find_links(index, node, there, nodes)
        tl.store(first_child + node, child.to(tl.int64), mask=there)
        tl.store(next_sibling + node, sibling.to(tl.int64), mask=there)
    _rows.barrier()
    for base in range(0, nodes, BLOCK):
        node = base + tl.arange(0, BLOCK)
        tl.store(index + node, b * nodes + node, mask=node < nodes)
    tl.store(status + b, bad)


def build_tree(call):
    """Links, ``positions`` and ``node_index`` int64 [B, N], ``mask`` in bytes; ``status`` int32 [B]."""
    requests, nodes = call.node_index.shape
    row_bytes = nodes if call.layout != "bits" else 4 if nodes > 16 else 2 if nodes > 8 else 1
    with _launch.on_device(call.selected):
        parents, selected = _arguments.nodes_of(call.parent_list), _arguments.nodes_of(call.selected)
        arguments = dict(
            candidates=Candidates(parents, call.parent_list.shape[1], selected, call.topk), nodes=nodes,
            prefix_len=_arguments.counter_of(call.prefix_len), mask=Mask(call.mask, len(call.mask), row_bytes),
            built=Built(call.positions, call.node_index, call.first_child, call.next_sibling), status=call.status,
            LAYOUT=call.layout, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(build_tree_kernel, (requests,), 1, arguments)
