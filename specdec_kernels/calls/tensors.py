"""The functions of torch's tensors that native modules call."""

import ctypes

import torch

from specdec_kernels.calls import torch_names

_IS_NEGATIVE = "_ZN2at6native6is_negERKNS_6TensorE"  # of a tensor, in C++; 2.13 and 2.14 have it under this name


def functions_of_torch(*names):
    """The addresses of functions by their names in C; None where this torch lacks one of them."""
    try:
        torch_and_all_it_needs = ctypes.CDLL(torch._C.__file__)
        return [ctypes.cast(getattr(torch_and_all_it_needs, name), ctypes.c_void_p).value for name in names]
    except (OSError, AttributeError):
        return None


def use_tensors(native):
    """Pass it the tensors' type, and torch's functions for their address, shape and negative bit, without Python."""
    native.use_tensors(torch.Tensor, torch.Tensor.__dlpack_c_exchange_api__, _negative_example())


def _negative_example():
    """Torch's function that reads the negative bit, and tensors without and with it, each with its address in C++.

    None if this torch has no such function, or addresses: then its Python method is called, which takes longer.
    """
    function, plain = functions_of_torch(_IS_NEGATIVE), torch.zeros(1, dtype=torch.float32, device="cpu")
    negative = torch_names.negative_view(plain)
    if function is None or negative is None or not hasattr(plain, "_cdata"):
        return None
    return *function, plain, plain._cdata, negative, negative._cdata
