"""Tensors may lie anywhere: with more than 2^31 elements from one request, row or slot to the next, in memory that is
never touched in between. What a call finds and writes is what it does for tensors that lie together."""

import mmap

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import specdec_kernels
from tests.conftest import NATIVE
from tests.support.calls import cache, every_call, outcome

pytestmark = pytest.mark.one_backend
PAGES = {"cache": [x.unflatten(2, (3, 3)).transpose(1, 2).flatten(0, 1) for x in cache()["cache"]]}
PAGES |= {"block_table": torch.arange(8, -1, -1, dtype=torch.int32).view(3, 3)}
CALLS = every_call() | {"compact_kv of pages": (specdec_kernels.compact_kv, cache() | PAGES)}
FAR = 2**31 + 4096  # elements; a multiple of 2^32 bytes would look like none
UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 and newer name it


def apart(tensor, axis):
    """A tensor's values, with that many elements from one entry of this axis to the next."""
    shape, strides, step = tensor.shape, [0] * tensor.ndim, 1
    for i in reversed(range(tensor.ndim)):
        strides[i] = step
        step *= max(shape[i], 1) if i != axis else 1
    strides[axis] = FAR
    bytes_ = tensor.element_size() * (FAR * (shape[axis] - 1) + step)
    memory = mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNRESERVED)
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(shape, strides).copy_(tensor)


def found_by(function, arguments):
    """What a call returns, and what its arguments hold afterwards."""
    return [x.clone() for x in tree_leaves([function(**arguments), arguments]) if isinstance(x, torch.Tensor)]


def axes_of(arguments):
    """(which leaf, axis) of every tensor that can be taken apart. Elements of rows follow each other."""
    leaves, _ = tree_flatten(arguments)
    return [
        (i, axis)
        for i, x in enumerate(leaves)
        if isinstance(x, torch.Tensor) and x.device.type == "cpu"
        for axis in range(x.ndim if x.ndim == 1 or not x.is_floating_point() else x.ndim - 1)
        if x.shape[axis] > 1 and x.numel() < 10**5
    ]


def with_apart(arguments, which):
    """A copy of a call with these tensors so."""
    leaves, tree = tree_flatten(tree_map_only(torch.Tensor, torch.clone, arguments))
    for i, axis in which:
        leaves[i] = apart(leaves[i], axis)
    return tree_unflatten(leaves, tree)


@pytest.mark.parametrize("name", CALLS)
def test_each_tensor_may_lie_far_apart(name):
    """Or an error names it. Private ops, whose callers make the tensors, refuse it as they like."""
    function, arguments = CALLS[name]
    public = hasattr(specdec_kernels, function.__name__)
    refusals = ValueError if public else (ValueError, TypeError, RuntimeError)
    with specdec_kernels.backend(NATIVE):
        expected = outcome(function, arguments)
        for one in axes_of(arguments):
            try:
                found = found_by(function, with_apart(arguments, [one]))
            except refusals as error:
                assert not public or "stride" in str(error) or "contiguous" in str(error), error  # noqa: PT017
                continue
            for x, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(x, wanted, rtol=0, atol=0, equal_nan=True, msg=str(one))
