"""Position ids of trees: one launch, in which every node follows its path to the root."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _trees

BLOCK = 128  # nodes of a program


@_launch.kernel
def tree_positions_kernel(
    parents: _arguments.Steps, prefix_len: _arguments.Counter, nodes: tl.int32, positions, status, BLOCK: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    tree_parents, parents_node = _arguments.at(parents, b, 0), parents.inner
    prefix = tl.cast(_arguments.number(prefix_len, b, 0, b >= 0), tl.int64)
    prefix, bad = _trees.clamp_prefix(prefix, 2**63 - 1 - nodes.to(tl.int64))
    node = block * BLOCK + tl.arange(0, BLOCK)
    there = node < nodes
    depth = tl.zeros([BLOCK], tl.int32)
    at, _ = _trees.load_parent(tree_parents, parents_node, node, there)
    while _math.any_of(at >= 0) > 0:
        depth += (at >= 0).to(tl.int32)
        at, _ = _trees.load_parent(tree_parents, parents_node, at, at >= 0)
    tl.store(positions + b * nodes + node, prefix + depth, mask=there)
    if block == 0:
        tl.store(status + b, bad | _trees.check_parents(tree_parents, parents_node, nodes))


def tree_positions(call):
    """prefix_len + depth of each node; ``positions`` int64 [B, N], ``status`` int32 [B]."""
    requests, nodes = call.positions.shape
    with _launch.on_device(call.parents):
        arguments = dict(
            parents=_arguments.nodes_of(call.parents), prefix_len=_arguments.counter_of(call.prefix_len),
            nodes=nodes, positions=call.positions, status=call.status, BLOCK=BLOCK,
        )  # fmt: skip
        _launch.launch(tree_positions_kernel, (requests, triton.cdiv(nodes, BLOCK)), 4, arguments)
