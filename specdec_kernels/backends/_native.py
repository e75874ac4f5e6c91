"""How C++ reads tensors."""

import torch


def use_tensors(native):
    """Tell a native module what a tensor is, and how torch 2.10 and newer give its address and shape without Python."""
    if hasattr(native, "use_tensors"):
        native.use_tensors(torch.Tensor, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
