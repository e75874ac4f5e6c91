"""Which global memory kernels may touch."""

import ctypes


def allow(library, pieces):
    """Let kernels touch these pieces of memory, (address, bytes), and no other."""
    begins = (ctypes.c_uint64 * len(pieces))(*(start for start, _ in pieces))
    ends = (ctypes.c_uint64 * len(pieces))(*(start + size for start, size in pieces))
    library.ptx_allow(begins, ends, ctypes.c_size_t(len(pieces)))


def extent(tensor):
    """Where a tensor's elements lie: the address of the first, and the bytes to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()
