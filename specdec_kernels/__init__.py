"""Kernels that verify speculative decoding, exactly, in one fused launch over the whole vocabulary."""

from specdec_kernels.backends import available_backends, backend, build_info
from specdec_kernels.headers import get_include
from specdec_kernels.ops import (
    Overlap,
    Residual,
    TreeVerdict,
    Verdict,
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
from specdec_kernels.sampling import Sampling
from specdec_kernels.status import Status
from specdec_kernels.trees import DraftTree

__all__ = [
    "DraftTree",
    "Overlap",
    "Residual",
    "Sampling",
    "Status",
    "TreeVerdict",
    "Verdict",
    "available_backends",
    "backend",
    "build_info",
    "compact_kv",
    "get_include",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "tree_mask",
    "tree_positions",
    "verify_chain",
    "verify_tree",
]
__version__ = "0.1.0"
