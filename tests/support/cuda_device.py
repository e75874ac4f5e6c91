"""The backends ``cuda-device`` and ``triton-device`` of the tests: CPU tensors in and out, a GPU's backend on copies.

So the tests of every op run on a GPU unchanged. Whole storages are copied, so that padding, strides and misaligned
starts are the same there; and copied back, so that a write to the wrong place shows.
"""

import importlib

import torch

from specdec_kernels.calls.op import OPS


class Copied:
    """The ops of backend ``name``, on copies of their arguments on ``device``."""

    def __init__(self, name, device):
        self._name, self._device = f"specdec_kernels.backends.{name}", device

    def __getattr__(self, op):
        kernels = importlib.import_module(self._name)
        if op not in OPS:
            return getattr(kernels, op)

        def run(call):
            storages = {}  # address -> the storage here and its copy, as bytes

            def twin(x):
                if isinstance(x, (tuple, list)):
                    return x._make(map(twin, x)) if hasattr(x, "_make") else type(x)(map(twin, x))
                if not isinstance(x, torch.Tensor):
                    return x
                storage = x.untyped_storage()
                if storage.data_ptr() not in storages:
                    here = torch.empty(0, dtype=torch.uint8).set_(storage)
                    storages[storage.data_ptr()] = here, here.to(self._device, copy=True)
                copy = storages[storage.data_ptr()][1].untyped_storage()
                whole = torch.empty(0, dtype=x.dtype, device=self._device)
                return whole.set_(copy, x.storage_offset(), x.size(), x.stride())

            getattr(kernels, op)(twin(call))
            for here, copy in storages.values():
                here.copy_(copy)

        return run
