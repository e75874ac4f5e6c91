"""Random calls on each backend: the bits of the CPU's baseline. `support.random_calls` says what is in them.

The maths of C++ is in headers that all of its copies share, and a fault there is on both sides. So calls whose rows are
hard for that maths are compared with the oracle.
"""

import contextlib
import functools

import pytest
import torch

import specdec_kernels
from specdec_kernels import _C, Sampling
from tests.backends import test_cuda_ops
from tests.conftest import INTERPRETED, NATIVE, ON_GPU, ORACLE
from tests.support import ops
from tests.support.random_calls import far_call, random_call

FEW, MANY = range(60), range(1000, 2000)
NEAR, EXACT = {"rtol": 2e-5, "atol": 2e-6}, {"rtol": 0, "atol": 0}
LONG = 33_000, 70_001  # rows that threads share
SUMS = "overlap", "residual", "logprobs"  # in Triton each sums floats in an order of its own
pytestmark = test_cuda_ops.pytestmark


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
            off = NEAR if op in near and one.is_floating_point() else EXACT
            torch.testing.assert_close(
                one, other, **off, equal_nan=True, msg=lambda text, number=number, op=op: f"{number}, {op}: {text}"
            )
    assert refused < len(numbers) / 10


@functools.cache
def by_oracle(number, *sizes):
    with specdec_kernels.backend(ORACLE):
        return result(*far_call(number, *sizes))


def assert_near(found, expected, call):
    """Figures of the oracle are float64."""
    assert isinstance(found, str) == isinstance(expected, str), call
    for one, other in () if isinstance(found, str) else zip(found, expected, strict=True):
        off = NEAR if one.is_floating_point() else EXACT
        torch.testing.assert_close(one, other, **off, equal_nan=True, msg=lambda text: f"{call}: {text}")


def assert_as_by_oracle(numbers, *sizes):
    """Of these numbers no call has a uniform that tells the difference."""
    for number in numbers:
        op, call = far_call(number, *sizes)
        assert_near(result(op, call), by_oracle(number, *sizes), (number, op))


def far_tails():
    """Calls on rows most of whose tokens have no weight, or next to none: masses of more tokens than are listed, by
    bins and as they come; and pairs of plain rows, of which one alone is so."""
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(2, 9000, generator=generator)
    far = near.where(torch.arange(9000) % 40 == 0, near - 50 - 60 * torch.rand(2, 9000, generator=generator))
    for sampling in (Sampling(top_k=5000), Sampling(min_p=1e-37)):
        yield "cutoff", {"rows": far, "sampling": sampling}
    for target, draft in ((near, far), (far, near)):
        yield "overlap", {"target": target, "draft": draft}


@pytest.mark.parametrize("isa", _C.isas())
class TestOracleCpu:
    def test_few(self, isa):
        with cpu(isa):
            assert_as_by_oracle(FEW)

    def test_far_tails(self, isa):
        for op, call in far_tails():
            with cpu(isa):
                found = result(op, call)
            with specdec_kernels.backend(ORACLE):
                assert_near(found, result(op, call), op)

    @pytest.mark.slow
    def test_many(self, isa):
        with cpu(isa):
            assert_as_by_oracle(MANY[:400])


def test_oracle_cpu_of_rows_that_threads_share():
    before = torch.get_num_threads()
    try:
        for threads in range(2, 8):
            torch.set_num_threads(threads)
            with specdec_kernels.backend(NATIVE):
                assert_as_by_oracle([threads], LONG)
    finally:
        torch.set_num_threads(before)


class TestOracleCuda:
    def test_few(self, machine):
        assert_as_by_oracle(FEW[:24])

    @pytest.mark.slow
    def test_many(self, machine):
        assert_as_by_oracle(FEW)


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
