"""What a native module has to know of torch; it is told once."""

import torch

from specdec_kernels.calls import torch_names
from specdec_kernels.calls.tensors import functions_of_torch, use_tensors
from specdec_kernels.layout import InputPositions, OutputFormat, Packing
from specdec_kernels.sampling import Draft, LogitEdits, Sampling

# A new tensor in C; it as an object of Python, which C++ gives under this name in 2.11 to 2.14; to drop the first.
_FUNCTIONS = (
    "aoti_torch_empty_strided", "_Z16THPVariable_WrapRKN2at10TensorBaseE", "aoti_torch_delete_tensor_object",
)  # fmt: skip


def _functions_of_torch():
    """The addresses of ``_FUNCTIONS``; None where a torch has not got one of them."""
    return functions_of_torch(*_FUNCTIONS)


def use_torch(native):
    """Tell it what a tensor is, how torch gives its address and shape without Python, and how to make one."""
    # If one of the watchers says that a mode or a profiler watches torch, calls are not read directly.
    use_tensors(native)
    watchers = [torch_names.dispatch_modes, torch_names.function_modes, torch_names.profiles]
    types = [Sampling, LogitEdits, Draft, Packing, InputPositions, OutputFormat]
    floats = [torch.float32, torch.bfloat16, torch.float16]
    native.use_functions(watchers, floats, types, _functions_of_torch())


def direct(native, op):
    """The native module's function for direct calls of an op that has a plan."""
    getattr(native, f"declare_{op.name}")(op.plan, op.result)
    return getattr(native, f"direct_{op.name}")
