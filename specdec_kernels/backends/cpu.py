"""The C++ backend for CPU tensors: the functions of ``_C`` take calls unchanged."""

import functools

import torch

from specdec_kernels import _C
from specdec_kernels.backends import _cores, _native

__all__ = [*_C.ops, "direct"]

_native.use_torch(_C)
_C.use_threads(torch.get_num_threads, torch.get_num_threads(), _cores.threads())
direct = functools.partial(_native.direct, _C)
globals().update({name: getattr(_C, name) for name in _C.ops})
