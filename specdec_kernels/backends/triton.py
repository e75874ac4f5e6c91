"""The Triton backend: CUDA and ROCm tensors, or CPU tensors under Triton's interpreter."""

import torch

from specdec_kernels import triton_kernels
from specdec_kernels.triton_kernels._launch import INTERPRETED

__all__ = [*triton_kernels.__all__, "unavailable"]

globals().update({name: getattr(triton_kernels, name) for name in triton_kernels.__all__})


def unavailable():
    """Why these kernels cannot run here, or None."""
    if INTERPRETED or torch.cuda.is_available():
        return None
    return "no GPU; on a CPU set TRITON_INTERPRET=1 before specdec_kernels.triton_kernels is first imported"
