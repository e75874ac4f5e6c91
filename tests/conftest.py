"""One fixture puts every backend under the same tests."""

import contextlib

import pytest
import torch

import specdec_kernels

BACKENDS = ("reference", "cpu")


def pytest_configure():
    # Two workers share two cores; ops that take more threads are tested for that by name.
    torch.set_num_threads(1)


@contextlib.contextmanager
def poisoned_memory():
    """Fresh tensors hold NaN or the largest integer, so that an output left unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Runs the test once under every backend of this machine."""
    with specdec_kernels.backend(request.param), poisoned_memory():
        yield request.param


@pytest.fixture(params=BACKENDS[1:])
def fast_backend(request):
    """Every backend but the oracle, which evaluates all tokens: for what takes many wide rows."""
    with specdec_kernels.backend(request.param), poisoned_memory():
        yield request.param
