"""The C++ backend for CPU tensors: the functions of ``_C`` take calls unchanged."""

import functools

import torch

from specdec_kernels import _C
from specdec_kernels.backends import _cores, _native

__all__ = ["direct"]

_native.use_torch(_C)
_C.use_threads(torch.get_num_threads, torch.get_num_threads(), _cores.threads())
unsupported = None  # it does every call; looking up a name that a module lacks would take 0.5 µs
direct = functools.partial(_native.direct, _C)
for _name in _C.ops:
    globals()[_name] = getattr(_C, _name)
    __all__.append(_name)
