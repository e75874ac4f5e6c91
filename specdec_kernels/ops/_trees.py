"""Checks of trees that several ops share."""

import torch

from specdec_kernels import _C
from specdec_kernels.calls import inputs
from specdec_kernels.calls.inputs import host_sees


def check_parents(parents, shape=None):
    """Check shape and type, and the entries if the host can read them. Returns the greatest depth, else None."""
    # ``shape`` is [B, N], where it is known.
    inputs.check_tensor("parents", parents, inputs.TOKEN_DTYPES, None)
    if parents.ndim not in (1, 2) or parents.shape[-1] == 0:
        raise ValueError(f"parents: expected shape [N] or [B, N], N at least 1; got {inputs.shown(parents)}")
    if shape is not None and parents.shape != shape[-parents.ndim :]:
        raise ValueError(f"parents: expected shape {[*shape[1:]]} or {[*shape]}; got {inputs.shown(parents)}")
    if not host_sees(parents):
        return None
    stride, each = parents.stride(), parents.ndim == 2
    depth, tree, node = _C.check_parents(
        parents.data_ptr(), stride[0] if each else 0, stride[-1], parents.dtype == torch.int64,
        parents.shape[0] if each else 1, parents.shape[-1],
    )  # fmt: skip
    if node >= 0:
        where = (tree, node) if each else (node,)
        allowed = "-1 (the root)" if node == 0 else f"-1 (absent) or a node before it, 0 to {node - 1}"
        raise ValueError(f"parents{[*where]}: expected {allowed}; got {parents[where].item()}")
    return depth


def prefix_lens(prefix_len, batch, device, nodes):
    """``prefix_len`` as an int, or a tensor with one for each request; it leaves ``nodes`` more slots below 2**63."""
    lengths = inputs.counter("prefix_len", prefix_len, (batch,), device)
    if not isinstance(lengths, torch.Tensor) and not 0 <= lengths <= 2**63 - 1 - nodes:
        raise ValueError(f"prefix_len: expected 0 to 2**63 - 1 - {nodes}, the number of nodes; got {prefix_len}")
    return lengths


def batch_of(parents, prefix_len):
    """The number of requests: that of ``parents`` [B, N] or ``prefix_len`` [B]; 1 where both are shared."""
    if parents.ndim == 2:
        return parents.shape[0]
    return prefix_len.shape[0] if isinstance(prefix_len, torch.Tensor) and prefix_len.ndim == 1 else 1
