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
    """All that tests call an op with, and rows of several tiles of every type."""
    for function, arguments in every_call().values():
        function(**arguments)
    for vocabulary in (1, 65, 2100):
        every_op(vocabulary)
    for dtype in DTYPES:
        single_rows(torch.stack([row.to(dtype) for row in adversarial_rows(VOCABULARY).values()]))
        chains(chain_call_with_hits(VOCABULARY, requests=6, dtype=dtype))
        trees(tree_call_with_hits(VOCABULARY, requests=6, nodes=8, dtype=dtype))
    chains(chain_call_with_hits(VOCABULARY, requests=6, space="probs"))


def single_rows(rows):
    race, tokens = {"seed": seeds(len(rows)), "position": 1}, seeds(len(rows))
    race_topk(rows, 5, **race)
    for sampling in (None, Sampling(0.7, top_k=40, top_p=0.9, min_p=0.01)):
        race_sample(rows, sampling=sampling, **race)
        logprobs(rows, tokens, sampling=sampling, top=3)
        overlap(rows, rows.roll(1, dims=0), sampling=sampling)
        residual(rows, rows.roll(1, dims=0), sampling=sampling)
    mask_logits(rows, cutoff(rows, sampling=sampling), temperature=0.7)


def chains(call):
    for options in ({}, {"draft": None}, {"draft": None, "method": "race"}, {"method": "block"}, {"draft_prob": 0.7}):
        verify_chain(**ragged(call | options, torch.tensor([3, 0, 1, 2, 3, 3])))
        if call["space"] == "logits":
            verify_chain(**call | options | FILTERS)
            verify_chain(**call | options, edits=random_edits(6, 4, vocabulary=VOCABULARY, seed=6))
            on_ranks(sharded.verify_chain, [0, 1024], call | options)


def trees(call):
    for options in ({}, {"draft": None}, {"draft": None, "method": "race"}, {"method": "traversal"}):
        for filters in ({}, FILTERS):
            verify_tree(**call | options | filters)
            on_ranks(sharded.verify_tree, [0, 1024], call | options | filters)
        verify_tree(**call | options, edits=random_edits(6, 8, vocabulary=VOCABULARY, seed=6))


if __name__ == "__main__":
    library, path = sys.argv[1:]
    recorder = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # before _C, which finds the recorder's functions first
    from specdec_kernels import _C, Sampling, backend, backends, cutoff, logprobs, race_sample, race_topk, sharded
    from specdec_kernels.calls.op import OPS
    from specdec_kernels.headers import get_library_dir
    from specdec_kernels.ops import mask_logits
    from tests.ops.test_batch_invariance import every_op
    from tests.support.calls import every_call
    from tests.support.cases import DTYPES, adversarial_rows, ragged, seeds
    from tests.support.edits import random_edits
    from tests.support.ops import overlap, residual, verify_chain, verify_tree
    from tests.support.ranks import chain_call_with_hits, on_ranks, tree_call_with_hits

    VOCABULARY = 2100
    FILTERS = {"temperature": None, "sampling": Sampling(0.9, top_k=40, top_p=0.95)}
    torch.set_num_threads(1)
    functions = {op: lambda call, op=op: recorded(op, call) for op in OPS}
    backends.register("recorder", types.SimpleNamespace(**functions), ("cpu",))
    recorder.record_into(path.encode(), f"{get_library_dir()}/libspecdec.so".encode())
    with backend("recorder"):
        make_calls()
    recorder.record_end()
    for op in OPS:
        print(op, counts[op])
