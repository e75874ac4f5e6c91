"""The Triton backend: CUDA and ROCm tensors, or CPU tensors under Triton's interpreter."""

import torch

from specdec_kernels.triton_kernels import (
    compact_kv,
    overlap,
    race_sample,
    race_topk,
    residual,
    tree_mask,
    tree_positions,
    verify_chain,
    verify_tree,
)
from specdec_kernels.triton_kernels._launch import INTERPRETED

__all__ = [
    "compact_kv",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "tree_mask",
    "tree_positions",
    "unavailable",
    "verify_chain",
    "verify_tree",
]


def unavailable():
    """Why these kernels cannot run here, or None."""
    if INTERPRETED or torch.cuda.is_available():
        return None
    return "no GPU; on a CPU set TRITON_INTERPRET=1 before specdec_kernels.triton_kernels is first imported"
