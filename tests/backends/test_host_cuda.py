"""The machine that plays CUDA on the CPU: each planted fault is caught, and what has none runs clean."""

import ctypes
import os
import re
import shutil

import numpy as np
import pytest

from tests.backends.host_cuda.build import build

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")

SCHEDULES = range(1, 6)
# The fault's number in faults.cu, blocks a cluster, and what the report must say.
FAULTS = {
    "missing barrier": (1, 1, "without a barrier between|unwritten shared memory"),
    "barrier in a branch": (2, 1, "without a barrier between|unwritten shared memory|other threads of the block are"),
    "early exit": (3, 1, r"deadlock; block .*threads 33 left the kernel.*wait in __syncthreads at faults.cu"),
    "off by one": (4, 1, r"values\[64\]: out of bounds, it has 64 elements"),
    "read of unwritten shared memory": (5, 1, r"never\[\d\]: read of unwritten shared memory"),
    "shuffle from outside": (6, 1, "reads lane 20, which is not in the mask"),
    "vote without a lane": (7, 1, r"deadlock; block .*wait in __ballot_sync.*threads 5,37 wait in __syncthreads"),
    "spins for ever": (9, 1, "no progress, threads spin for ever"),
    "cluster barrier": (10, 2, "deadlock; block .*wait in the cluster barrier"),
    "peer left": (11, 2, "unwritten shared memory|without a barrier between|its shared memory is gone"),
    "write after read": (12, 1, "without a barrier between"),
    "relaxed ticket": (14, 1, "without a release and an acquire between|that nobody wrote"),
    "one set of items": (15, 2, r"writes over what block \d may still read|without a release"),
    "write without a fence": (17, 2, "read of what was written by thread .* without a barrier between"),
    "read without a fence": (18, 2, "write over what was read by thread .* without a barrier between"),
    "never waits": (20, 1, "never waited for the kernel before"),
    "touches memory early": (21, 1, "touches memory before it waited for the kernel before"),
    "plain read beside an atomic": (13, 1, r"most\[0\]: (read|write) .* without a barrier between"),
}
LOST_TICKET, FENCED_CLUSTER, WAITS, READS_EARLY = 8, 16, 19, 22


@pytest.fixture(scope="module")
def machine():
    library = ctypes.CDLL(str(build("faults")))
    library.host_cuda_last_fault.restype = ctypes.c_char_p

    def run(fault, schedule, cluster=1, blocks=6):
        """The report, what the kernel wrote, and the counter that must be zero again."""
        library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(schedule))
        counter, out = np.zeros(4, np.uint32), np.full(65, np.nan, np.float32)
        given = np.arange(64, dtype=np.float32)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (counter, out, given))
        failed = library.run_planted(fault, blocks, cluster, *pointers)
        report = library.host_cuda_last_fault().decode()
        assert bool(failed) == bool(report)
        return report, out, counter[0]

    return run


@pytest.mark.parametrize("schedule", SCHEDULES)
class TestTheMachine:
    def test_a_kernel_without_a_fault(self, machine, schedule):
        report, out, counter = machine(0, schedule)
        assert report == ""
        assert counter == 0
        np.testing.assert_array_equal(out, [*(np.arange(64) + 32) % 64, 1])

    def test_what_a_cluster_shares_behind_fences(self, machine, schedule):
        report, out, _ = machine(FENCED_CLUSTER, schedule, cluster=2)
        assert report == ""
        np.testing.assert_array_equal(out[:64], (np.arange(64) + 32) % 64)

    @pytest.mark.parametrize("name", FAULTS)
    def test_catches(self, machine, schedule, name):
        fault, cluster, expected = FAULTS[name]
        report, *_ = machine(fault, schedule, cluster)
        assert report.startswith("kernel faults::planted: ")
        assert re.search(expected, report), report


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_input_read_before_the_kernel_before_has_ended_shows(machine, schedule):
    """Plain loads are out of the machine's sight, but what they bring is old."""
    report, out, counter = machine(WAITS, schedule)
    assert report == ""
    assert counter == 0
    np.testing.assert_array_equal(out, [*(np.arange(64) + 32) % 64, 1])
    outs = [machine(READS_EARLY, schedule, blocks=blocks)[1] for blocks in (1, 2)]
    assert (outs[0][:64] == 0).all()
    assert (outs[1][:64] == 0).all()


def test_a_lost_ticket_shows(machine):
    """No rule is broken, but blocks in flight lose each other's counts: the last block never learns that it is."""
    outcomes = [machine(LOST_TICKET, schedule) for schedule in SCHEDULES]
    assert all(report == "" for report, *_ in outcomes)
    assert any(np.isnan(out[64]) or counter != 0 for _, out, counter in outcomes)


def test_one_schedule_is_one_order(machine):
    reports = {machine(1, 3)[0] for _ in range(3)}
    assert len(reports) == 1


def test_each_object_runs_the_inline_functions_that_were_compiled_with_it():
    library = ctypes.CDLL(str(build("twice")))
    assert (library.which_of_1(), library.which_of_2()) == (1, 2)
