"""merge_paths: trees of chains of draft tokens, in which those that begin alike share nodes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._declaration import TENSOR, Op, Output


class MergedPaths(NamedTuple):
    """Trees of n chains of at most K tokens, N = n K + 1.

    Attributes
    ----------
    draft_tokens : Tensor
        int64 [B, N]: the nodes' tokens; -1 for the root, and behind the last node.
    parents : Tensor
        int32 [B, N]: the parent of each node; -1 for the root, and behind the last node.
    leaves : Tensor
        int32 [B, n]: the node at which each chain ends, -1 for one without tokens.
    """

    draft_tokens: torch.Tensor
    parents: torch.Tensor
    leaves: torch.Tensor


MERGE_PATHS = Op(
    "merge_paths",
    paths=TENSOR,
    draft_tokens=Output(torch.int64, "out.draft_tokens"),
    parents=Output(torch.int32, "out.parents"),
    leaves=Output(torch.int32, "out.leaves"),
)


def merge_paths(paths: torch.Tensor, *, out: Sequence[torch.Tensor | None] | None = None) -> MergedPaths:
    """A batch of trees from chains that were drawn independently of each other, for ``verify_tree(method="paths")``.

    Node 0 is the root. The others come chain by chain: each chain adds, in order, those that no chain before it has.

    Parameters
    ----------
    paths : Tensor
        int32 or int64 [B, n, K]: K tokens of each of n chains. A chain ends before its first -1. The chains of a
        request must lie K steps of one stride apart, as those of a contiguous tensor do.
    out : MergedPaths, optional
        Preallocated, contiguous; None among them is made anew.

    Returns
    -------
    MergedPaths
        ``(draft_tokens, parents, leaves)``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> tree = specdec_kernels.merge_paths(torch.tensor([[[5, 7], [5, 8], [6, -1]]]))
    >>> tree.draft_tokens.tolist(), tree.parents.tolist(), tree.leaves.tolist()
    ([[-1, 5, 7, 8, 6, -1, -1]], [[-1, 0, 1, 1, 0, -1, -1]], [[2, 3, 4]])
    """
    raw = paths, out
    if found := MERGE_PATHS.recall(raw):
        return MergedPaths(*found)
    inputs.check_tensor("paths", paths, inputs.TOKEN_DTYPES, 3)
    batch, chains, length = paths.shape
    if chains > 1 and length > 0 and paths.stride(1) != length * paths.stride(2):
        raise ValueError(
            f"paths: expected chains {length} steps apart; got strides {paths.stride()} of {inputs.shown(paths)}"
        )
    nodes = batch, chains * length + 1
    merged = MERGE_PATHS.outputs(MergedPaths, out, paths.device, nodes, nodes, (batch, chains))
    MERGE_PATHS(paths.view(batch, nodes[1] - 1), *merged, given=out is not None, raw=raw, results=merged)
    return merged
