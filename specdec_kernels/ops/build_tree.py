"""build_tree: links, positions and mask of trees from the numbers of selected candidates."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.ops import _trees as trees


class BuiltTrees(NamedTuple):
    """Trees in the forms that an engine's model and its verification take.

    Attributes
    ----------
    mask : Tensor
        The nodes that each node attends to, itself and its ancestors, in one of the layouts.
    positions : Tensor
        int64 [B, N]: ``prefix_len`` + depth.
    node_index : Tensor
        int64 [B, N]: the index of a node in the batch, ``b N + i``.
    first_child, next_sibling : Tensor
        int64 [B, N], -1 for none. Siblings are linked in the order of their indices.
    """

    mask: torch.Tensor
    positions: torch.Tensor
    node_index: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor


BYTE_DTYPES = (torch.bool, torch.uint8)
WORD_DTYPES = (torch.uint8, torch.uint16, torch.uint32)  # of 1, 2 and 4 bytes a node
MOST_BITS = 32

BUILD_TREE = Op(
    "build_tree",
    result=BuiltTrees,
    parent_list=kinds.tokens("BQ"),
    selected=kinds.tokens("BM"),
    prefix_len=kinds.counter("E", least=0, most=2**62),
    topk=kinds.size(least=1),
    layout=kinds.choice("full", "nodes", "bits"),
    mask=kinds.Output(torch.uint8, "out.mask", "BNN"),  # a mask's bytes, whatever its type
    positions=kinds.Output(torch.int64, "out.positions", "BN"),
    node_index=kinds.Output(torch.int64, "out.node_index", "BN"),
    first_child=kinds.Output(torch.int64, "out.first_child", "BN"),
    next_sibling=kinds.Output(torch.int64, "out.next_sibling", "BN"),
    status=kinds.Output(torch.int32, "status", "B"),
)


def build_tree(
    parent_list: torch.Tensor,
    selected: torch.Tensor,
    *,
    topk: int,
    prefix_len: Counter = 0,
    layout: Literal["full", "nodes", "bits"] = "nodes",
    out: Sequence[torch.Tensor | None] | None = None,
    status: torch.Tensor | None = None,
) -> BuiltTrees:
    """A batch of EAGLE's trees, from the numbers of the candidates that were selected as nodes.

    Candidates are numbered over all levels, in groups of ``topk``: candidate c is one of group ``c // topk``, and all
    of a group follow one candidate. Those of group 0 follow the root, those of group g candidate ``parent_list[b, g]``.
    Node 0 is the root, node i is candidate ``selected[b, i - 1]``. A node whose parent is not among the nodes before it
    has no parent: it attends to itself, and no link leads to it.

    Parameters
    ----------
    parent_list : Tensor
        int32 or int64 [B, G], G of any size. Entry 0 is not read.
    selected : Tensor
        int32 or int64 [B, N - 1], rising, so that parents come before their children.
    topk : int
        Candidates of a group, at least 1.
    prefix_len : int or Tensor
        int64 or int32 [B]: number of tokens before the root.
    layout : {"full", "nodes", "bits"}
        The mask's layout. "full": rows of ``prefix_len[b] + N``, request after request, in one dimension. The last N of
        each row are written; the caller fills the prefix. "nodes": [B, N, N]. "bits": [B, N] words whose bit j says
        whether the node attends to node j, uint8 for up to 8 nodes, uint16 for up to 16, uint32 for up to 32.
    out : BuiltTrees, optional
        Preallocated, contiguous; each None among them is allocated, but for a mask with the layout "full". The mask may
        have any shape, and be larger than the part that is written, which is its beginning: bool or uint8, or with
        "bits" also the other types of words.
    status : Tensor, optional
        int32 [B], overwritten: 8 where a node has no parent, where a ``prefix_len`` is out of range and counts as the
        nearest possible one, or where a full mask has no room for a row, which is then not written.

    Returns
    -------
    BuiltTrees
        ``(mask, positions, node_index, first_child, next_sibling)``.

    References
    ----------
    Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees".

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> # Groups of two: 0 and 1 follow the root, 2 and 3 candidate 0.
    >>> trees = specdec_kernels.build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 1, 3]]), topk=2, prefix_len=5)
    >>> trees.positions.tolist(), trees.first_child.tolist(), trees.next_sibling.tolist()
    ([[5, 6, 6, 7]], [[1, 3, -1, -1]], [[-1, 2, -1, -1]])
    >>> trees.mask[0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """
    if (outputs := BUILD_TREE.direct(False, parent_list, selected, prefix_len, topk, layout, out, status)) is not None:
        return outputs
    BUILD_TREE.check({}, selected=selected, parent_list=parent_list, layout=layout)
    batch, nodes, device = selected.shape[0], selected.shape[1] + 1, selected.device
    # No candidate has a number above that of int64, so larger groups change nothing.
    topk = min(BUILD_TREE.size("topk", topk, "an int of {least} or more"), 2**63 - 1)
    if layout == "bits" and nodes > MOST_BITS:
        raise ValueError(f"layout: expected 'full' or 'nodes' with more than {MOST_BITS} nodes; got 'bits'")
    prefix_len = trees.prefix_lens(prefix_len, batch, device, nodes)
    given = out is not None or status is not None
    out = inputs.outputs(BuiltTrees._fields, out)
    mask = _mask(out[0], layout, batch, nodes, device)
    made = [
        BUILD_TREE.output(name, x, (batch, nodes), device)
        for name, x in zip(BuiltTrees._fields[1:], out[1:], strict=True)
    ]
    status = BUILD_TREE.output("status", status, (batch,), device)
    BUILD_TREE(
        parent_list, selected, prefix_len, topk, layout, mask.view(-1).view(torch.uint8), *made, status, given=given,
    )  # fmt: skip
    return BuiltTrees(mask, *made)


def _mask(given, layout, batch, nodes, device):
    """A new mask, or the given one if it fits."""
    word = WORD_DTYPES[(nodes > 8) + (nodes > 16)]
    if given is None:
        if layout == "full":
            raise ValueError("out.mask: expected a tensor with layout='full'; got None")
        shape, dtype = ((batch, nodes), word) if layout == "bits" else ((batch, nodes, nodes), torch.bool)
        return torch.empty(*shape, dtype=dtype, device=device)
    inputs.check_tensor("out.mask", given, (*BYTE_DTYPES, *WORD_DTYPES[1:]) if layout == "bits" else BYTE_DTYPES, None)
    inputs.check_device("out.mask", given, device)
    if not given.is_contiguous():
        raise ValueError(f"out.mask: expected contiguous; got strides {given.stride()}")
    least = batch * nodes * (word.itemsize if layout == "bits" else nodes)
    if layout != "full" and given.numel() * given.element_size() < least:
        raise ValueError(f"out.mask: expected {least} bytes at least; got {inputs.shown(given)}")
    return given
