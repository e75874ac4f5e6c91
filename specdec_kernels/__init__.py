"""Kernels that verify speculative decoding, exactly, in one fused launch over the whole vocabulary."""

from specdec_kernels import ops
from specdec_kernels.backends import available_backends, backend, build_info
from specdec_kernels.headers import get_include
from specdec_kernels.ops import *  # noqa: F403
from specdec_kernels.sampling import Sampling
from specdec_kernels.status import Status
from specdec_kernels.trees import DraftTree

__all__ = [
    "DraftTree",
    "Sampling",
    "Status",
    "available_backends",
    "backend",
    "build_info",
    "get_include",
    *ops.__all__,
]
__version__ = "0.1.0"
