"""tree_mask: which cache slots each node of a tree attends to."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops import _trees as trees
from specdec_kernels.ops._registration import define

LAYOUTS = ("bool", "additive", "bits")
ADDITIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_op = define(
    "tree_mask",
    "Tensor parents, Tensor? prefix_lens, SymInt prefix_len, SymInt columns, Tensor(a!) mask, Tensor(b!) status",
    lambda parents, prefix_lens, prefix_len, columns, mask, status: (
        parents, prefix_len if prefix_lens is None else prefix_lens, columns, mask, status,
    ),
)  # fmt: skip


def tree_mask(parents, *, prefix_len=None, layout="bool", dtype=None, columns=None, status=None):
    """The attention mask of a batch of trees, straight from their parents.

    Columns are cache slots: a request's committed prefix lies in slots ``0 .. prefix_len - 1``, its node j in slot
    ``prefix_len + j``. Node i attends to the prefix, to its ancestors and to itself.

    Parameters
    ----------
    parents : Tensor
        int32 or int64 [N], one tree for the batch, or [B, N]; see ``verify_tree``. An absent node (-1) attends to the
        prefix and to itself, so no row of a softmax is empty.
    prefix_len : int or Tensor, optional
        int64 [B]: length of the prefix of each request. Default 0: the mask among the nodes alone.
    layout : {"bool", "additive", "bits"}
        "bool": True where attended. "additive": 0 where attended, else -inf, to be added to scores. "bits": int32
        words, bit j of word w (bit 0 the lowest) is column 32 w + j; bits past the last column are 0.
    dtype : torch.dtype, optional
        Of the additive layout: float32 (default), bfloat16 or float16.
    columns : int, optional
        Number of slots covered. Default: the longest prefix plus N; needed where ``prefix_len`` is a tensor whose
        values the host cannot see (on a device, or under compilation). A prefix that leaves no room for the nodes is
        cut off and sets status 8.
    status : Tensor, optional
        int32 [B], overwritten: 8 where an entry of ``parents`` or ``prefix_len`` is out of range. Such a node counts as
        absent, such a length as the nearest possible.

    Returns
    -------
    Tensor
        [B, N, columns], or int32 [B, N, ceil(columns / 32)]; B = 1 where neither argument has one.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came; for bad entries of ``parents`` on a CPU.

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
    trees.check_parents(parents)
    inputs.check_choice("layout", layout, LAYOUTS)
    if layout == "additive":
        dtype = torch.float32 if dtype is None else dtype
        if dtype not in ADDITIVE_DTYPES:
            raise TypeError(f"dtype: expected float32, bfloat16 or float16; got {dtype}")
    elif dtype is not None:
        raise ValueError(f"dtype: expected None with layout={layout!r}; got {dtype}")
    prefix_len = 0 if prefix_len is None else prefix_len
    nodes, batch, device = parents.shape[-1], trees.batch_of(parents, prefix_len), parents.device
    lens, length = trees.prefix_lens(prefix_len, batch, device)
    columns = _columns(columns, lens, length, nodes)
    if layout == "bits":
        mask = torch.empty(batch, nodes, (columns + 31) // 32, dtype=torch.int32, device=device)
    else:
        mask = torch.empty(batch, nodes, columns, dtype=dtype or torch.bool, device=device)
    _op(parents, lens, length, columns, mask, trees.status_tensor(status, batch, device))
    return mask


def _columns(columns, lens, length, nodes):
    if columns is not None:
        if not inputs.is_int(columns) or columns < nodes:
            raise ValueError(f"columns: expected an int of at least the {nodes} nodes; got {columns!r}")
        return columns
    if lens is None:
        return length + nodes
    if not trees.host_sees(lens):
        raise ValueError("columns: expected an int where the host does not look into prefix_len; got None")
    return nodes + max(0, int(lens.max()) if lens.numel() else 0)
