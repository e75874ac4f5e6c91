"""tree_parents: the parents of trees that an engine stores as links."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.calls.op import Op


class TreeParents(NamedTuple):
    """Trees by their nodes' parents.

    Attributes
    ----------
    parents : Tensor
        int32 [B, N]: the parent of each node; -1 for the root, and for nodes in no tree.
    ranks : Tensor
        int32 [B, N]: the index of each node among its siblings, from 0, in the order in which they are linked; 0 for
        the root, -1 for nodes in no tree.
    """

    parents: torch.Tensor
    ranks: torch.Tensor


TREE_PARENTS = Op(
    "tree_parents",
    result=TreeParents,
    first_child=kinds.tokens("BN"),
    next_sibling=kinds.tokens("BN"),
    parents=kinds.Output(torch.int32, "out.parents", "BN"),
    ranks=kinds.Output(torch.int32, "out.ranks", "BN"),
    status=kinds.Output(torch.int32, "status", "B"),
)


def tree_parents(
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    *,
    out: Sequence[torch.Tensor | None] | None = None,
    status: torch.Tensor | None = None,
) -> TreeParents:
    """Parents of a batch of trees whose nodes name their first child and their next sibling, read on the device.

    Any links end, and no other request is ever read. If several nodes name one as next sibling, it follows the one of
    the highest index; if none does, it is the first child of the highest that names it so. Nothing leads to the root. A
    node whose ancestors do not end at the root is in no tree.

    Parameters
    ----------
    first_child, next_sibling : Tensor
        int32 or int64 [B, N], -1 for none. Nodes may have any order of indices.
    out : TreeParents, optional
        Preallocated, contiguous; each None among them is allocated.
    status : Tensor, optional
        int32 [B], overwritten: 8 where a link is neither -1 nor part of the tree.

    Returns
    -------
    TreeParents
        ``(parents, ranks)``.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> first_child, next_sibling = torch.tensor([[2, -1, 3, -1]]), torch.tensor([[-1, -1, 1, -1]])
    >>> parents, ranks = specdec_kernels.tree_parents(first_child, next_sibling)
    >>> parents.tolist(), ranks.tolist()  # the root's children are 2, then 1
    ([[-1, 0, 0, 2]], [[0, 1, 0, 0]])
    """
    if (outputs := TREE_PARENTS.direct(False, first_child, next_sibling, out, status)) is not None:
        return outputs
    links = {"first_child": first_child, "next_sibling": next_sibling}
    return TREE_PARENTS.finish(TREE_PARENTS.check({}, **links), {"out": out, "status": status}, **links)
