"""tree_mask: the cache slots that each node of a tree attends to."""

from typing import Literal

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.ops import _trees as trees

LAYOUTS = ("bool", "additive", "bits")
ADDITIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

TREE_MASK = Op(
    "tree_mask",
    parents=kinds.tokens(role="parents"),
    prefix_len=kinds.counter("E", least=0, most=2**62),
    columns=kinds.size(role="mask"),
    mask=kinds.Output(torch.bool, "out", "BNC", role="mask"),  # or the type of another layout
    status=kinds.Output(torch.int32, "status", "B"),
)


def tree_mask(
    parents: torch.Tensor,
    *,
    prefix_len: Counter | None = None,
    layout: Literal["bool", "additive", "bits"] = "bool",
    dtype: torch.dtype | None = None,
    columns: int | None = None,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """The attention mask of a batch of trees, from their parents.

    Columns are cache slots: a request's committed prefix lies in slots ``0 .. prefix_len - 1``, its node j in slot
    ``prefix_len + j``. Node i attends to the prefix, to its ancestors and to itself.

    Parameters
    ----------
    parents : Tensor
        int32 or int64 [N], one tree for the batch, or [B, N]; see ``verify_tree``. An absent node (-1) attends to the
        prefix and to itself, so no row of a softmax is empty.
    prefix_len : int or Tensor, optional
        int64 or int32 [B]: length of the prefix of each request. Default 0: the mask among the nodes alone.
    layout : {"bool", "additive", "bits"}
        "bool": True where attended. "additive": 0 where attended, else -inf, to be added to scores. "bits": int32
        words, bit j of word w (bit 0 the lowest) is column 32 w + j; bits past the last column are 0.
    dtype : torch.dtype, optional
        For the additive layout: float32 (default), bfloat16 or float16.
    columns : int, optional
        Number of slots covered. Default: the longest prefix plus N; needed where ``prefix_len`` is a tensor that the
        host cannot read (on a device, or under compilation). A prefix that leaves no room for the nodes is cut off and
        sets status 8.
    out : Tensor, optional
        Preallocated, contiguous, of the shape and type returned.
    status : Tensor, optional
        int32 [B], overwritten: 8 where an entry of ``parents`` or ``prefix_len`` is out of range. Such a node counts as
        absent; such a length counts as the nearest possible one.

    Returns
    -------
    Tensor
        [B, N, columns], or int32 [B, N, ceil(columns / 32)]; B = 1 where neither argument has one.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> specdec_kernels.tree_mask(torch.tensor([-1, 0, 0, 1]), prefix_len=1)[0].int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 0, 1, 0],
            [1, 1, 1, 0, 1]], dtype=torch.int32)
    >>> specdec_kernels.tree_mask(torch.tensor([-1, 0, 0, 1]), layout="bits").flatten().tolist()
    [1, 3, 5, 11]
    """
    prefix_len = 0 if prefix_len is None else prefix_len
    if (outputs := TREE_MASK.direct(False, parents, prefix_len, layout, dtype, columns, out, status)) is not None:
        return outputs
    trees.check_parents(parents)
    inputs.check_choice("layout", layout, LAYOUTS)
    if layout == "additive":
        dtype = torch.float32 if dtype is None else dtype
        if dtype not in ADDITIVE_DTYPES:
            raise TypeError(f"dtype: expected float32, bfloat16 or float16; got {dtype}")
    elif dtype is not None:
        raise ValueError(f"dtype: expected None with layout={layout!r}; got {dtype}")
    nodes, batch, device = parents.shape[-1], trees.batch_of(parents, prefix_len), parents.device
    prefix_len = trees.prefix_lens(prefix_len, batch, device, nodes)
    columns = _columns(columns, prefix_len, nodes)
    given = out is not None or status is not None
    if layout == "bits":
        out = TREE_MASK.output("mask", out, (batch, nodes, (columns + 31) // 32), device, torch.int32)
    else:
        out = TREE_MASK.output("mask", out, (batch, nodes, columns), device, dtype)
    status = TREE_MASK.output("status", status, (batch,), device)
    TREE_MASK(
        parents, prefix_len, columns, out, status, given=given,
    )  # fmt: skip
    return out


def _columns(columns, prefix_len, nodes):
    if columns is not None:
        return inputs.whole("columns", columns, "an int of at least the {least} nodes", nodes)
    if not isinstance(prefix_len, torch.Tensor):
        return prefix_len + nodes
    if not inputs.host_sees(prefix_len):
        raise ValueError("columns: expected an int where the host does not look into prefix_len; got None")
    return nodes + max(0, int(prefix_len.max()) if prefix_len.numel() else 0)
