"""The Triton backend: CUDA and ROCm tensors, or CPU tensors under Triton's interpreter."""

import torch

from specdec_kernels import _check_place, triton_kernels
from specdec_kernels.triton_kernels._launch import INTERPRETED

__all__ = [*triton_kernels.__all__, "unavailable"]

_check_place(triton_kernels, "triton_kernels", "../triton_kernels")
globals().update({name: getattr(triton_kernels, name) for name in triton_kernels.__all__})


def unavailable():
    """The reason why these kernels cannot run here, or None. Touches no device (see `absent` of the CUDA backend)."""
    if INTERPRETED or torch.cuda.device_count() > 0:
        return None
    return "no GPU; on a CPU set TRITON_INTERPRET=1 before specdec_kernels.triton_kernels is first imported"
