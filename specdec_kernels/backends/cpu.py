"""The C++ backend for CPU tensors: ``_C`` reads the call as it is."""

import torch

from specdec_kernels import _C
from specdec_kernels.backends._missing import unsupported
from specdec_kernels.backends._native import use_tensors
from specdec_kernels.ops import OPS

__all__ = [*OPS, "unsupported"]


def _threaded(function):
    return lambda call: function(call, torch.get_num_threads())


use_tensors(_C)
globals().update({name: _threaded(getattr(_C, name)) for name in OPS})
