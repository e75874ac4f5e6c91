"""What C++ is told of torch, once a native module."""

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import _profiler_enabled


def use_torch(native):
    """What a tensor is, how torch gives its address and shape without Python, and how to make one.

    Where the last three say that modes or a profiler watch torch, calls are not recalled.
    """
    native.use_tensors(torch.Tensor, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
    native.use_functions(torch.empty_like, [_len_torch_dispatch_stack, _len_torch_function_stack, _profiler_enabled])


def likes(results):
    """Outputs as a caller got them, and what to make others like: tensors that hold next to no memory."""
    return tuple(results), tuple(x.new_empty(()).expand(x.shape) for x in results)
