"""The played GPU of CUDA's kernels, and the launches of Triton's."""

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


@pytest.fixture
def triton():
    """CPU tensors go to Triton's interpreter, or to a GPU and back. Its counters end at zero."""
    from tests.support.triton_device import INTERPRETED  # selects the interpreter, before Triton is imported

    with specdec_kernels.backend("triton" if INTERPRETED else "triton-device"):
        yield
    from specdec_kernels.triton_kernels import _launch

    for counters, _ in _launch._workspaces.__dict__.values():
        assert not counters.any()


@pytest.fixture
def launched(monkeypatch):
    """The names of Triton's kernels, as they are launched."""
    from specdec_kernels.triton_kernels import _launch

    launch, names = _launch.launch, []
    monkeypatch.setattr(_launch, "launch", lambda kernel, *rest: (names.append(kernel.__name__), launch(kernel, *rest)))
    return names
