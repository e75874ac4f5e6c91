"""Writes calls of every op on the CPU into a file, with all they read and what they wrote.

    python -m tests.backends.arm.record LIBRARY FILE

LIBRARY is calls.cpp with -DRECORD. Prints how many calls of each op there are.
"""

import collections
import ctypes
import sys
import types

import torch
from torch.utils._pytree import tree_leaves

counts = collections.Counter()


def recorded(op, call):
    """A backend's function."""
    spans = []  # of tensors that overlap there is one
    for x in tree_leaves(tuple(call)):
        if isinstance(x, torch.Tensor) and x.numel():
            last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
            spans.append([x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()])
    apart = []
    for begin, end in sorted(spans):
        if apart and begin <= apart[-1][1]:
            apart[-1][1] = max(apart[-1][1], end)
        else:
            apart.append([begin, end])
    flat = [number for begin, end in apart for number in (begin, end - begin)]
    recorder.record_tensors((ctypes.c_int64 * len(flat))(*flat), ctypes.c_int64(len(apart)))
    getattr(_C, op)(call)
    counts[op] += 1


def make_calls():
    """A call of every op as its test has it, and random calls, of rows of up to several tiles of every type."""
    for function, arguments in every_call().values():
        function(**arguments)
    for number in range(300):
        result(*random_call(number, 2100))
    for options in ({}, {"draft": None, "method": "race"}, {"method": "block"}):  # parts of rows, as shards have them
        on_ranks(sharded.verify_chain, [0, 1024], chain_call_with_hits(2100, requests=6) | options)
    for options in ({}, {"method": "traversal"}):
        on_ranks(sharded.verify_tree, [0, 1024], tree_call_with_hits(2100, requests=6, nodes=8) | options)


if __name__ == "__main__":
    library, path = sys.argv[1:]
    recorder = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # before _C, which finds the recorder's functions first
    from specdec_kernels import _C, backend, backends, sharded
    from specdec_kernels.calls.op import OPS
    from specdec_kernels.headers import get_library_dir
    from tests.support.calls import every_call
    from tests.support.random_calls import random_call
    from tests.support.ranks import chain_call_with_hits, on_ranks, tree_call_with_hits
    from tests.support.same_bits import result

    torch.set_num_threads(1)
    functions = {op: lambda call, op=op: recorded(op, call) for op in OPS}
    backends.register("recorder", types.SimpleNamespace(**functions), ("cpu",))
    recorder.record_into(path.encode(), f"{get_library_dir()}/libspecdec.so".encode())
    with backend("recorder"):
        make_calls()
    recorder.record_end()
    for op in OPS:
        print(op, counts[op])
