"""The C++ backend for CPU tensors: the functions of ``_C`` take the call as it is."""

import torch

from specdec_kernels import _C
from specdec_kernels.backends._native import ops_of, recipes, use_torch

_HAS = ops_of(_C)

__all__ = [*_HAS, "recalls", "remember"]


def remember(op, raw, call, results):
    """From now on ``recalls[op.name]`` runs calls like this one."""
    getattr(_C, f"remember_{op.name}")(raw, call, *recipes(results))


use_torch(_C)
_C.use_threads(torch.get_num_threads)
recalls = {name: getattr(_C, f"recall_{name}") for name in _HAS}
globals().update({name: getattr(_C, name) for name in _HAS})
