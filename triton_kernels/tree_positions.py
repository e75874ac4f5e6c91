"""Position ids of trees: one launch, every node goes up to its root."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._math import any_of
from specdec_kernels.triton_kernels._rows import number
from specdec_kernels.triton_kernels._trees import parents_of, prefix_of, status_of

BLOCK = 128  # nodes of a program


@_launch.kernel
def tree_positions_kernel(
    parents, parents_request: tl.int64, parents_node: tl.int64,
    prefix_len, prefix_len_request: tl.int64, prefix_len_value: tl.int64, nodes: tl.int32,
    positions, status, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    parents += b * parents_request
    prefix = number(prefix_len, prefix_len_value, b * prefix_len_request, b >= 0).to(tl.int64)
    prefix, bad = prefix_of(prefix, 2**63 - 1 - nodes.to(tl.int64))
    node = block * BLOCK + tl.arange(0, BLOCK)
    there = node < nodes
    depth = tl.zeros([BLOCK], tl.int32)
    at, _ = parents_of(parents, parents_node, node, there)
    while any_of(at >= 0) > 0:
        depth += (at >= 0).to(tl.int32)
        at, _ = parents_of(parents, parents_node, at, at >= 0)
    tl.store(positions + b * nodes + node, prefix + depth, mask=there)
    if block == 0:
        tl.store(status + b, bad | status_of(parents, parents_node, nodes))


def tree_positions(call):
    """prefix_len + depth of each node; ``positions`` int64 [B, N], ``status`` int32 [B]."""
    requests, nodes = call.positions.shape
    if requests == 0:
        return
    with _launch.on_device(call.parents):
        arguments = dict(
            **_launch.nodes("parents", call.parents), **_launch.number("prefix_len", call.prefix_len, "request"),
            nodes=nodes, positions=call.positions, status=call.status, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(tree_positions_kernel, (requests, triton.cdiv(nodes, BLOCK)), 4, arguments)
