"""merge_chains: a tree from chains of draft tokens, in which chains with a common beginning share nodes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op


class MergedChains(NamedTuple):
    """Trees of n chains of at most K tokens, N = n K + 1.

    Attributes
    ----------
    draft_tokens : Tensor
        int64 [B, N]: the nodes' tokens; -1 for the root, and behind the last node.
    parents : Tensor
        int32 [B, N]: the parent of each node; -1 for the root, and behind the last node.
    leaves : Tensor
        int32 [B, n]: the node at which each chain ends, -1 for a chain without tokens.
    """

    draft_tokens: torch.Tensor
    parents: torch.Tensor
    leaves: torch.Tensor


MERGE_CHAINS = Op(
    "merge_chains",
    direct=False,
    result=MergedChains,
    sizes={"nodes": kinds.size("N")},
    paths=kinds.tokens("BQK"),
    draft_tokens=kinds.Output(torch.int64, "out.draft_tokens", "BN"),
    parents=kinds.Output(torch.int32, "out.parents", "BN"),
    leaves=kinds.Output(torch.int32, "out.leaves", "BQ"),
)


def merge_chains(paths: torch.Tensor, *, out: Sequence[torch.Tensor | None] | None = None) -> MergedChains:
    """A batch of trees from chains that were drawn independently of each other, for ``verify_tree(method="paths")``.

    Node 0 is the root. The others come chain by chain: each chain adds, in order, the nodes that are new.

    Parameters
    ----------
    paths : Tensor
        int32 or int64 [B, n, K]: K tokens of each of n chains. A chain ends before its first -1. The chains of a
        request must lie K steps of one stride apart, as those of a contiguous tensor do.
    out : MergedChains, optional
        Preallocated, contiguous; each None among them is allocated.

    Returns
    -------
    MergedChains
        ``(draft_tokens, parents, leaves)``.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> tree = specdec_kernels.merge_chains(torch.tensor([[[5, 7], [5, 8], [6, -1]]]))
    >>> tree.draft_tokens.tolist(), tree.parents.tolist(), tree.leaves.tolist()
    ([[-1, 5, 7, 8, 6, -1, -1]], [[-1, 0, 1, 1, 0, -1, -1]], [[2, 3, 4]])
    """
    several = isinstance(paths, torch.Tensor) and paths.ndim == 3
    nodes = paths.shape[1] * paths.shape[2] + 1 if several else 1
    if (outputs := MERGE_CHAINS.direct(False, nodes, paths, out)) is not None:
        return outputs
    sizes = MERGE_CHAINS.check({"N": nodes}, paths=paths)
    batch, chains, length = paths.shape
    if chains > 1 and length > 0 and paths.stride(1) != length * paths.stride(2):
        raise ValueError(
            f"paths: expected chains {length} steps apart; got strides {paths.stride()} of {inputs.shown(paths)}"
        )
    return MERGE_CHAINS.finish(sizes, {"out": out}, paths=paths.view(batch, nodes - 1))
