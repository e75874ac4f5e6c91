"""Kernels that verify speculative decoding, exactly, in one fused launch over the whole vocabulary."""

from specdec_kernels.backends import available_backends, backend, build_info
from specdec_kernels.headers import get_include
from specdec_kernels.ops import (
    Overlap,
    Verdict,
    overlap,
    race_sample,
    race_topk,
    residual,
    verify_chain,
)

__all__ = [
    "Overlap",
    "Verdict",
    "available_backends",
    "backend",
    "build_info",
    "get_include",
    "overlap",
    "race_sample",
    "race_topk",
    "residual",
    "verify_chain",
]
__version__ = "0.1.0"
