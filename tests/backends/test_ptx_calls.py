"""What nvcc makes of the kernels, run on a CPU: the bits of the ``cpu`` backend, whatever the device and the order of
threads, and no access beyond what a call has.
"""

import contextlib
import os
import subprocess
import sys

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling, race_sample
from tests.backends.ptx.build import unavailable
from tests.support.calls import every_call
from tests.support.cases import chain_as_tree, chain_call, poisoned, seeds
from tests.support.edits import random_edits
from tests.support.ops import residual, verify_tree
from tests.support.same_bits import assert_as_by_baseline, assert_as_cpu, random_calls

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@contextlib.contextmanager
def played(machine, **changes):
    with specdec_kernels.backend("cuda-ptx"):
        from tests.backends.ptx import backend

        backend.play(machine, **changes)
        try:
            yield backend
        finally:
            backend.play("small")


@pytest.fixture
def device():
    with played("small") as backend:
        yield backend


def test_every_op(machine):
    assert_as_by_baseline((name, *call) for name, call in every_call().items())


def test_random_calls(machine):
    """Those of the played machine, as compiled: guards of edits once were behind their loads."""
    assert_as_by_baseline(random_calls(range(30), 1100))


OVERLAPPING = """
from specdec_kernels import backend
from tests import conftest
from tests.backends.test_cuda_edges import test_a_filtered_race_waits_for_the_kernel_before as filtered
from tests.support.calls import every_call
conftest.pytest_configure()
with backend("cuda-ptx"):
    from tests.backends.ptx import backend as device
    device.play("large")
    print(device.counted(lambda: [op(**arguments) for op, arguments in every_call().values()])["overlapped"])
    filtered(device)
"""


def test_kernels_that_may_overlap_touch_no_memory_before_they_wait():
    environment = {**os.environ, "SPECDEC_CUDA_OVERLAP": "1"}
    run = subprocess.run([sys.executable, "-c", OVERLAPPING], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 20


# Requests and multiprocessors that make clusters of so many blocks.
CLUSTERS = {2: (1, 1), 3: (5, 8), 5: (3, 8), 7: (2, 7), 8: (8, 31)}


@pytest.mark.parametrize("size", CLUSTERS)
def test_clusters(size):
    requests, multiprocessors = CLUSTERS[size]
    call = chain_call(size, requests=requests, slots=1, vocabulary=33_001)
    pair = call["target"][:, 0], call["draft"][:, 0]
    tree = chain_as_tree(call) | {"temperature": None, "sampling": Sampling(top_k=40)}
    with played("large", multiprocessors=multiprocessors) as backend:
        assert backend.counted(lambda: assert_as_cpu(verify_tree, **tree))["blocks"] == requests * size
        assert_as_cpu(residual, *pair)


class TestBounds:
    """Each tensor ends, for the machine, where its last element does."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("size", [1, 7, 8, 9, 33, 256, 1024, 1025, 2049, 4100])
    def test_rows_of_any_size_and_start(self, machine, size, dtype):
        whole = torch.randn(5, size, generator=torch.Generator().manual_seed(size)).to(dtype)
        for rows in (whole, poisoned(whole), whole[1:]):
            for edits in (None, random_edits(len(rows), vocabulary=size, seed=1)):
                assert_as_cpu(race_sample, rows, seed=seeds(len(rows)), position=3, edits=edits)
                assert_as_cpu(residual, rows, rows.flip(0), edits=edits)

    @pytest.mark.parametrize("short", [1, 16, 200])
    def test_a_load_behind_an_input_is_caught(self, monkeypatch, short):
        """The machine is told of fewer bytes than the kernel reads."""
        rows = torch.randn(3, 333)
        with played("small") as backend:
            monkeypatch.setattr(
                backend, "extent", lambda tensor: (tensor.data_ptr(), tensor.numel() * tensor.itemsize - short)
            )
            with pytest.raises(RuntimeError, match="bytes behind the end of"):
                race_sample(rows, seed=seeds(len(rows)), position=3)
