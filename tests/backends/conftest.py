"""The played GPU of the tests of CUDA's kernels."""

import pytest

import specdec_kernels
from tests.backends.host_cuda.played import MACHINES


@pytest.fixture
def device():
    """Runs a test under ``cuda-host``, on the machine that it plays."""
    with specdec_kernels.backend("cuda-host"):
        from tests.backends.host_cuda import backend

        yield backend
        backend.play("small")


@pytest.fixture(params=MACHINES)
def machine(request, device):
    device.play(request.param)
    return device
