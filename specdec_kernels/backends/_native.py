"""What a native module has to know of torch; it is told once."""

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import _profiler_enabled


def use_torch(native):
    """Tell it what a tensor is, how torch gives its address and shape without Python, and how to make one.

    If one of the last three functions says that a mode or a profiler watches torch, calls are not recalled.
    """
    native.use_tensors(torch.Tensor, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
    watchers = [_len_torch_dispatch_stack, _len_torch_function_stack, _profiler_enabled]
    native.use_functions(torch.empty_strided, watchers)


def ops_of(native):
    """The names of the ops that a native module has."""
    return [name.removeprefix("remember_") for name in dir(native) if name.startswith("remember_")]


def recipes(results):
    """Outputs as a caller got them, and for each the arguments with which ``torch.empty_strided`` makes a new one."""
    strides = [torch.empty(x.shape, device="meta").stride() for x in results]
    return tuple(results), tuple(
        ((tuple(x.shape), stride), {"dtype": x.dtype, "device": x.device})
        for x, stride in zip(results, strides, strict=True)
    )
