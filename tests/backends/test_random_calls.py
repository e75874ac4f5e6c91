"""Random calls on each backend: the bits of the CPU's baseline. `support.random_calls` says what is in them."""

import contextlib

import pytest
import torch

import specdec_kernels
from specdec_kernels import _C
from tests.backends import test_cuda_ops
from tests.conftest import INTERPRETED, NATIVE, ON_GPU
from tests.support import ops
from tests.support.random_calls import random_call

FEW, MANY = range(60), range(1000, 2000)
SUMS = "overlap", "residual", "logprobs"  # in Triton each sums floats in an order of its own
machine, pytestmark = test_cuda_ops.machine, test_cuda_ops.pytestmark


def result(op, call):
    """What an op gives, with its status; or how it refuses the call."""
    run = getattr(ops, op, None) or getattr(specdec_kernels, op)
    status = torch.zeros(next(iter(call.values())).shape[:-1], dtype=torch.int32)
    try:
        found = run(**call) if op.startswith("verify") else (run(**call, status=status), status)
    except (ValueError, TypeError) as error:
        return str(error)
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


@contextlib.contextmanager
def cpu(isa):
    before = _C.isa()
    _C.set_isa(isa)
    try:
        with specdec_kernels.backend(NATIVE):
            yield
    finally:
        _C.set_isa(before)


def assert_as_by_baseline(numbers, near=("overlap",), most=4097):
    """Figures of ops in ``near`` are sums of floats, in an order of their own."""
    refused = 0
    for number in numbers:
        op, call = random_call(number, most)
        found = result(op, call)
        with cpu("scalar"):
            expected = result(op, call)
        refused += isinstance(expected, str)
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected, number
            continue
        for one, other in zip(found, expected, strict=True):
            off = {"rtol": 2e-5, "atol": 2e-6} if op in near and one.is_floating_point() else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(
                one, other, **off, equal_nan=True, msg=lambda text, number=number, op=op: f"{number}, {op}: {text}"
            )
    assert refused < len(numbers) / 10


@pytest.mark.parametrize("isa", _C.isas()[1:])
class TestInstructionSets:
    def test_few(self, isa):
        with cpu(isa):
            assert_as_by_baseline(FEW)

    @pytest.mark.slow
    def test_many(self, isa):
        with cpu(isa):
            assert_as_by_baseline(MANY)


class TestPlayedMachine:
    def test_few(self, machine):
        assert_as_by_baseline(FEW)

    @pytest.mark.slow
    def test_many(self, machine):
        assert_as_by_baseline(MANY)


@pytest.mark.interpreted
@pytest.mark.parametrize("backend", [*INTERPRETED, *ON_GPU], indirect=True)
class TestOtherBackends:
    def test_few(self, backend):
        assert_as_by_baseline(FEW[:12], near=SUMS, most=1100)

    @pytest.mark.slow
    def test_many(self, backend):
        assert_as_by_baseline(MANY[:200], near=SUMS, most=1100)
