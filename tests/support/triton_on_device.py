"""The backend ``triton-device`` of the tests: CPU tensors in and out, the Triton backend on copies of them."""

import importlib

from tests.support.cuda_device import Copied


def __getattr__(op):
    if op.startswith("_"):
        raise AttributeError(op)
    return getattr(Copied(importlib.import_module("specdec_kernels.backends.triton"), "cuda"), op)
