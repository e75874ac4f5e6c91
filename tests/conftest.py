"""Fixtures that put every backend under the same tests."""

import contextlib
import importlib.util
import os
import re

import pytest
import torch

import specdec_kernels
from specdec_kernels import backends
from specdec_kernels.backends import cuda

if not torch.cuda.is_available():  # Triton looks when it is first imported, which other packages do
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The oracle, the backend that is fast on this machine, and those played on it, which take a thousand times longer.
ORACLE, NATIVE, PLAYED = "reference", "cpu", ("cuda-host",)
# The GPU backends, where there is a device for them. Without one Triton interprets, 0.1 s a tile: tests of a few calls.
HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_GPU = (("cuda-device",) if cuda.unavailable() is None else ()) + (
    ("triton-device",) if HAS_TRITON and torch.cuda.is_available() else ()
)
INTERPRETED = ("triton",) if HAS_TRITON and not torch.cuda.is_available() else ()
QUICK_TO_INTERPRET = re.compile(
    r"test_(compact_kv|bad_input)\.py::"
    r"|test_tree_mask\.py::(?!TestMask::test_bits)"
    r"|test_(residual|overlap)\.py::(?!test_equals_the_oracle|test_accepted_and_replaced)"
    r"|test_race_topk\.py::test_(temperature|rows)"
    r"|test_race_sample\.py::test_(temperature|seeds|one_row|out_is)"
    r"|test_sampling\.py::Test(Figures|OfTheDraft)"
    r"|test_draft_map\.py::TestTogether|test_request_index\.py::Test(Ragged|WithoutStates|EveryOp::test_no_requests)"
    r"|test_peer_bugs\.py::test_(a_|padding|ragged|the_seeds)"
    r"|test_verify_chain\.py::Test(Race|Status::(?!test_parameters))"
    r"|test_verify_tree\.py::TestStatus::(?!test_trees_deeper)"
)


def pytest_configure():
    # Two workers share two cores; ops that take more threads are tested for that by name.
    torch.set_num_threads(1)
    backends.register("cuda-host", "tests.host_cuda.backend", ("cpu",))
    backends.register("cuda-device", "tests.cuda_device", ("cpu",))
    backends.register("triton-device", "tests.triton_on_device", ("cpu",))


def pytest_collection_modifyitems(items):
    def kept(item):
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("backend", parameters.get("able_backend")) not in INTERPRETED:
            return True
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))  # NumPy's, of what GPUs do in silence
        return QUICK_TO_INTERPRET.search(item.nodeid)

    items[:] = [item for item in items if kept(item)]


@contextlib.contextmanager
def poisoned_memory():
    """Fresh tensors hold NaN or the largest integer, so that an output left unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def running(request):
    """Runs a test under the backend that its parameter names."""
    if request.param in INTERPRETED:
        from tests import triton_device  # noqa: F401  makes the interpreter quicker, and exact
    with specdec_kernels.backend(request.param), poisoned_memory():
        yield request.param


backend = pytest.fixture(running, name="backend", params=(ORACLE, NATIVE, *PLAYED, *ON_GPU, *INTERPRETED))
# For request_index, draft_map and laws of the draft's own; the others join as they learn them.
able_backend = pytest.fixture(running, name="able_backend", params=(ORACLE, *INTERPRETED))
# For what is compared with the oracle.
other_backend = pytest.fixture(running, name="other_backend", params=(NATIVE, *PLAYED, *ON_GPU))
# For statistics over many thousands of requests.
quick_backend = pytest.fixture(running, name="quick_backend", params=(ORACLE, NATIVE, *ON_GPU))
# For many wide rows: the oracle evaluates every token.
fast_backend = pytest.fixture(running, name="fast_backend", params=(NATIVE, *ON_GPU))
