"""Which global memory kernels may touch."""

import ctypes


def allow(library, pieces):
    """Let kernels touch these pieces of memory, (address, bytes), and no other."""
    begins = (ctypes.c_uint64 * len(pieces))(*(start for start, _ in pieces))
    ends = (ctypes.c_uint64 * len(pieces))(*(start + size for start, size in pieces))
    library.ptx_allow(begins, ends, ctypes.c_size_t(len(pieces)))
