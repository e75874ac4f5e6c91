"""tree_positions: the position id of each node of a tree."""

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.ops import _trees as trees

TREE_POSITIONS = Op(
    "tree_positions",
    parents=kinds.tokens(role="parents"),
    prefix_len=kinds.counter("E", least=0, most=2**62),
    positions=kinds.Output(torch.int64, "out", "BN"),
    status=kinds.Output(torch.int32, "status", "B"),
)


def tree_positions(
    parents: torch.Tensor,
    *,
    prefix_len: Counter,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Position ids of a batch of trees: ``prefix_len`` + depth, the root's depth being 0.

    Parameters
    ----------
    parents : Tensor
        int32 or int64 [N], one tree for the batch, or [B, N]; see ``verify_tree``. An absent node (-1) has depth 0.
    prefix_len : int or Tensor
        int64 or int32 [B]: number of tokens before the root.
    out : Tensor, optional
        int64 [B, N], preallocated, contiguous.
    status : Tensor, optional
        int32 [B], overwritten: 8 where an entry of ``parents`` or ``prefix_len`` is out of range. Such a node counts as
        absent; such a length counts as the nearest possible one.

    Returns
    -------
    Tensor
        int64 [B, N]; B = 1 where neither argument has one.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> specdec_kernels.tree_positions(torch.tensor([-1, 0, 0, 1]), prefix_len=10).tolist()
    [[10, 11, 11, 12]]
    """
    if (outputs := TREE_POSITIONS.direct(False, parents, prefix_len, out, status)) is not None:
        return outputs
    trees.check_parents(parents)
    batch, nodes, device = trees.batch_of(parents, prefix_len), parents.shape[-1], parents.device
    prefix_len = trees.prefix_lens(prefix_len, batch, device, nodes)
    sizes, given = {"B": batch, "N": nodes, "device": device}, {"out": out, "status": status}
    return TREE_POSITIONS.finish(sizes, given, parents=parents, prefix_len=prefix_len)
