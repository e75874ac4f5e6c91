"""Attention masks of trees: one launch. A program writes a block of a node's row, from the node's path to the root."""

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows, _trees

BLOCK = 1024  # columns, or int32 of bits, of a program


@_launch.kernel
def tree_mask_kernel(
    parents: _arguments.Steps, prefix_len: _arguments.Counter, nodes: tl.int32, columns: tl.int64, width: tl.int64,
    mask, status, LAYOUT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, node = row // nodes, (row % nodes).to(tl.int32)
    tree_parents, parents_node = _arguments.at(parents, b, 0), parents.inner
    length = tl.cast(_arguments.number(prefix_len, b, 0, b >= 0), tl.int64)
    prefix, bad = _trees.clamp_prefix(length, columns - nodes)
    at = block * BLOCK + tl.arange(0, BLOCK)
    if LAYOUT == "bits":
        full = tl.minimum(tl.maximum(prefix - 32 * at, 0), 32)  # bits of the prefix in each word
        seen = ((tl.full([BLOCK], 1, tl.int64) << full) - 1).to(tl.int32)
    else:
        seen = at < prefix
    while node >= 0:
        column = prefix + node
        if LAYOUT == "bits":
            seen |= tl.where(at == column // 32, 1 << (column % 32).to(tl.int32), 0)
        else:
            seen |= at == column
        node = _trees.load_parent(tree_parents, parents_node, node, node >= 0)[0]
    if ALIGNED:  # shows the compiler that whole vectors are inside or outside
        width = width // 16 * 16
    to = _rows.row_at(mask, row * width, ALIGNED) + at
    tl.store(to, tl.where(seen, 0.0, -_math.INFINITY) if LAYOUT == "additive" else seen, mask=at < width)
    if (row % nodes == 0) & (block == 0):
        tl.store(status + b, bad | _trees.check_parents(tree_parents, parents_node, nodes))


def tree_mask(call):
    """The columns that each node attends to; ``mask`` [B, N, columns], or int32 of 32 bits; ``status`` int32 [B]."""
    requests, nodes, width = call.mask.shape
    layout = {torch.bool: "bool", torch.int32: "bits"}.get(call.mask.dtype, "additive")
    with _launch.on_device(call.parents):
        arguments = dict(
            parents=_arguments.nodes_of(call.parents), prefix_len=_arguments.counter_of(call.prefix_len),
            nodes=nodes, columns=call.columns, width=width, mask=call.mask, status=call.status, LAYOUT=layout,
            ALIGNED=_launch.aligned(call.mask) and width % 16 == 0, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(tree_mask_kernel, (requests * nodes, triton.cdiv(width, BLOCK)), 4, arguments)
