"""The backend ``cuda-ptx``: the PTX that nvcc makes of csrc/cuda, for CPU tensors.

Kernels may touch the elements of a call's tensors and the workspace, to the byte: the machine is told where they lie.
"""

import ctypes
import functools
import os

import torch
from torch.utils._pytree import tree_leaves

from specdec_kernels.backends.cuda import HAS
from tests.backends.host_cuda.played import Played
from tests.backends.ptx import build
from tests.backends.ptx.memory import allow, extent

__all__ = [*HAS, "counted", "play", "tickets_are_zero", "unavailable", "workspaces", "write_before"]  # noqa: F822  see __getattr__

unavailable = build.unavailable


class Ptx(Played):
    """The CUDA ops as nvcc compiles them, on one of the machines."""

    def __init__(self, machine="small", path=None, **changes):
        path = path or build.build()
        super().__init__(build.MODULE, path, machine, **changes)
        self._library = ctypes.CDLL(str(path))

    def _launch(self, function, call):
        tensors = [leaf for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor) and leaf.numel()]

        def bounded(call, stream, workspace, size):
            allow(self._library, [*map(extent, tensors), (workspace, size)])
            return function(call, stream, workspace, size)

        super()._launch(bounded, call)


@functools.cache
def kernels():
    return Ptx(os.environ.get("SPECDEC_HOST_CUDA", "small"))


def __getattr__(name):
    """Nothing is built before an op is called: whoever lists the backends imports this."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(kernels(), name)
