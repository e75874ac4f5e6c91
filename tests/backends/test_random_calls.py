"""Random calls on each backend: the bits of the CPU's baseline. `support.random_calls` says what is in them.

The maths of C++ is in headers that all of its copies share, and a fault there is on both sides. So calls whose rows are
hard for that maths are compared with the oracle.
"""

import functools

import pytest
import torch

import specdec_kernels
from specdec_kernels import _C, Sampling
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.conftest import INTERPRETED, NATIVE, ON_GPU, ORACLE
from tests.support.calls import every_call
from tests.support.random_calls import far_call
from tests.support.same_bits import EXACT, NEAR, assert_as_by_baseline, cpu, random_calls, result

FEW, MANY = range(60), range(1000, 2000)
LONG = 33_000, 70_001  # rows that threads share
pytestmark = NEEDS_COMPILER


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
            assert_as_by_baseline(random_calls(FEW))

    @pytest.mark.slow
    def test_many(self, isa):
        with cpu(isa):
            assert_as_by_baseline(random_calls(MANY))


class TestPlayedMachine:
    """Each call is one launch, behind which all tickets are zero again."""

    def assert_one_launch_each(self, device, calls):
        made = []
        assert device.counted(lambda: made.append(assert_as_by_baseline(calls)))["launches"] == made[0]
        assert device.tickets_are_zero()

    def test_few(self, machine):
        self.assert_one_launch_each(machine, random_calls(FEW))

    def test_every_op(self, machine):
        self.assert_one_launch_each(machine, ((name, *call) for name, call in every_call().items()))

    @pytest.mark.slow
    def test_many(self, machine):
        assert_as_by_baseline(random_calls(range(1000, 4000)))


@pytest.mark.interpreted
@pytest.mark.parametrize("backend", [*INTERPRETED, *ON_GPU], indirect=True)
class TestOtherBackends:
    def test_few(self, backend):
        assert_as_by_baseline(random_calls(FEW, 200))

    def test_few_wider(self, backend):
        assert_as_by_baseline(random_calls(FEW[:12], 1100))

    @pytest.mark.slow
    def test_many(self, backend):
        assert_as_by_baseline(random_calls(MANY[:600], 200))
        assert_as_by_baseline(random_calls(MANY[:200], 1100))
