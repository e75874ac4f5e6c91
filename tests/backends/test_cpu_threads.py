"""The CPU's threads: a call's own thread does its work, others help if they come, and nobody waits for who does not.

That bits do not depend on them is tested in tests/ops/test_batch_invariance.py.
"""

import ctypes
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec_kernels.headers import get_library_dir
from tests.backends.test_c_api import CXX, C, run

HERE = Path(__file__).resolve().parent
LIBRARY = Path(get_library_dir(), "libspecdec.so")
TRIED = (
    "once many_callers nobody_waits throws nested at_most small_work_is_done_alone helped_rows forks "
    "more_callers_than_slots modes bound_caller exit_in_a_call"
).split()

pytestmark = pytest.mark.skipif(shutil.which(CXX[0]) is None, reason="no C++ compiler")


def compiled(folder, *flags):
    run(CXX[0], "-std=c++17", "-O1", *flags, "-Wall", "-Wextra", "-Werror", *CXX[1:],
        HERE / "threads.cpp", "-pthread", "-o", folder / "threads")  # fmt: skip
    return folder / "threads"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("threads"))


@pytest.mark.parametrize("tried", TRIED)
def test_promises(program, tried):
    run(program, tried)


def test_every_promise_is_tried(program):
    assert run(program).split() == TRIED


@pytest.mark.slow
def test_no_races(tmp_path):
    """Under ThreadSanitizer, with more rounds."""
    program = compiled(tmp_path, "-g", "-fsanitize=thread")
    environment = os.environ | {"TSAN_OPTIONS": "die_after_fork=0"}
    for tried in TRIED:
        done = subprocess.run([program, tried, "5"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{tried}: {done.stderr}"


CALLS = """
import sys, torch, specdec_kernels as sd
torch.set_num_threads(3)
rows, seeds = torch.randn(64, 50_000), torch.arange(64)
for _ in sys.stdin:
    for _ in range(5):
        sd.race_sample(rows, seed=seeds, position=0)
    print("done", flush=True)
"""
SEIZE, INTERRUPT, GO_ON, EVERY_THREAD = 0x4206, 0x4207, 7, 0x40000000  # of ptrace(2) and waitpid(2)


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace of Linux")
def test_no_call_waits_for_a_thread_that_does_not_come():
    """As if the cores of all other threads were taken, sixty times, each at another moment after a call.

    A condition variable of glibc 2.36, whose signals may wait for who waits, hung at one in thirteen.
    """
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    moments, stopped = random.Random(1), set()
    with subprocess.Popen([sys.executable, "-c", CALLS], stdin=-1, stdout=-1, text=True) as child:

        def calls():
            child.stdin.write("\n")
            child.stdin.flush()
            ended, _, _ = select.select([child.stdout], [], [], 100)
            assert ended
            assert child.stdout.readline() == "done\n"

        try:
            for _ in range(60):
                calls()
                time.sleep(moments.random() * 2e-4)
                others = {int(task) for task in os.listdir(f"/proc/{child.pid}/task")} - {child.pid}
                for thread in others:
                    if thread not in stopped and ptrace(SEIZE, thread, None, None):
                        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
                    stopped.add(thread)
                    ptrace(INTERRUPT, thread, None, None)
                    os.waitpid(thread, EVERY_THREAD)
                calls()
                for thread in others:
                    ptrace(GO_ON, thread, None, None)
        finally:
            child.kill()
            for thread in stopped:  # or the child would not end
                os.waitpid(thread, EVERY_THREAD)
        assert others


def test_the_library_may_be_unloaded(tmp_path):
    run(*C, "-D_GNU_SOURCE", HERE / "unload.c", "-ldl", "-o", tmp_path / "unload")
    run(tmp_path / "unload", LIBRARY)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_the_library_needs_no_openmp():
    """A second runtime beside torch's would have threads of its own, which spin."""
    assert "gomp" not in run("readelf", "-d", LIBRARY)
