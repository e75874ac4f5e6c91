"""What a backend gives and writes beside the CPU backend: its bits, but for sums of floats in an order of their own."""

import contextlib
import copy

import torch
from torch.utils._pytree import tree_leaves

import specdec_kernels
from specdec_kernels import _C
from specdec_kernels.backends import block
from tests.support import ops
from tests.support.random_calls import random_call

NEAR, EXACT = {"rtol": 2e-5, "atol": 2e-6}, {"rtol": 0, "atol": 0}


def sums_of_floats():
    """The ops whose figures are sums of floats in an order of this backend's own."""
    return ("overlap", "residual", "logprobs") if block().name.startswith("triton") else ("overlap",)


def tensors_of(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def on_cpu(op, *arguments, **options):
    with specdec_kernels.backend("cpu"):
        return op(*arguments, **options)


def assert_same(found, expected, near=False, name=""):
    for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
        torch.testing.assert_close(
            one, other, **(NEAR if near and one.is_floating_point() else EXACT), equal_nan=True,
            msg=lambda text: f"{name}: {text}",
        )  # fmt: skip


def outcome(op, arguments, options):
    """What a call gives, and what its arguments hold then."""
    arguments, options = copy.deepcopy((arguments, options))
    return tensors_of(op(*arguments, **options), arguments, options)


def assert_as_cpu(op, *arguments, **options):
    expected = on_cpu(outcome, op, arguments, options)
    assert_same(outcome(op, arguments, options), expected, near=op.__name__ in sums_of_floats())


@contextlib.contextmanager
def cpu(isa):
    before = _C.isa()
    _C.set_isa(isa)
    try:
        with specdec_kernels.backend("cpu"):
            yield
    finally:
        _C.set_isa(before)


def result(op, call):
    """What an op gives and writes, with its status; or how it refuses the call. An op is a public one by name, or a
    function, which gets no status."""
    if callable(op):
        return outcome(op, (), call)
    call, run = copy.deepcopy(call), getattr(ops, op, None) or getattr(specdec_kernels, op)
    status = torch.zeros(next(iter(call.values())).shape[:-1], dtype=torch.int32)
    try:
        found = run(**call) if op.startswith("verify") else (run(**call, status=status), status)
    except (ValueError, TypeError) as error:
        return str(error)
    return tensors_of(found, call.get("output_format"))


def random_calls(numbers, most=4097):
    """(name, op, arguments) of random calls."""
    return [(number, *random_call(number, most)) for number in numbers]


def assert_as_by_baseline(calls):
    """Calls (name, op, arguments) by this backend and by the CPU's plainest instruction set. A tenth of them may be
    refused, by both; returns how many were made.
    """
    calls, made = list(calls), 0
    for name, op, call in calls:
        found = result(op, call)
        with cpu("scalar"):
            expected = result(op, call)
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected, name
            continue
        made += 1
        assert_same(found, expected, getattr(op, "__name__", op) in sums_of_floats(), (name, op))
    assert made > 0.9 * len(calls)
    return made
