"""Passes a native module, once, the functions of torch that it calls."""

import numpy as np
import torch

from specdec_kernels.calls import torch_names
from specdec_kernels.calls.tensors import functions_of_torch, use_tensors
from specdec_kernels.layout import InputPositions, OutputFormat, Packing
from specdec_kernels.sampling import Draft, LogitEdits, Sampling

# They make a new tensor in C, wrap it as a Python object (torch 2.11 to 2.14 export this C++ name), drop the first, and
# return its address.
_FUNCTIONS = (
    "aoti_torch_empty_strided", "_Z16THPVariable_WrapRKN2at10TensorBaseE", "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
)  # fmt: skip


def _functions_of_torch():
    """The addresses of ``_FUNCTIONS``; None where a torch lacks one of them."""
    return functions_of_torch(*_FUNCTIONS)


def use_torch(native):
    """Pass it the type of tensors, and torch's functions that read or make one without Python."""
    # While one of the watchers reports a mode or a profiler, the C++ fast path declines calls.
    use_tensors(native)
    watchers = [torch_names.dispatch_modes, torch_names.function_modes, torch_names.profiles]
    types = [Sampling, LogitEdits, Draft, Packing, InputPositions, OutputFormat, np.floating]
    floats = [torch.float32, torch.bfloat16, torch.float16]
    native.use_functions(watchers, types, floats, _functions_of_torch())


def direct(native, op):
    """The native module's function for direct calls of an op that has a plan."""
    getattr(native, f"declare_{op.name}")(op.plan, op.result)
    return getattr(native, f"direct_{op.name}")
