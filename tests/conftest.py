"""Fixtures that put every backend under the same tests."""

import collections
import contextlib
import gc
import importlib.util
import os
import pathlib

import pytest
import torch

import specdec_kernels
import specdec_kernels.sharded  # its ops are among OPS
from specdec_kernels import backends
from specdec_kernels.backends import cuda
from tests.support.cuda_device import Copied
from tests.support.interpreted import skipped_tests

if not torch.cuda.is_available():  # Triton reads it at its first import, which other packages may make
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The oracle, the backend that is fast here, and those that the CPU plays, which take a thousand times longer.
ORACLE, NATIVE, PLAYED = "reference", "cpu", ("cuda-host",)
# The GPU backends, where there is a device for them. Without one Triton interprets, 0.1 s a tile: tests of a few calls,
# which have the marker `interpreted`.
HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_GPU = (("cuda-device",) if cuda.unavailable() is None else ()) + (
    ("triton-device",) if HAS_TRITON and torch.cuda.is_available() else ()
)
INTERPRETED = ("triton",) if HAS_TRITON and not torch.cuda.is_available() else ()
BY_BACKEND = ("backend", "kernels", "other_backend", "quick_backend", "fast_backend", "parts_backend")
BACKENDS = (ORACLE, NATIVE, *PLAYED, *ON_GPU, *INTERPRETED)


def pytest_configure():
    gc.disable()  # until collection ends
    # Two workers share two cores; ops on more threads have tests of their own.
    torch.set_num_threads(1)
    backends.register("cuda-host", "tests.backends.host_cuda.backend", ("cpu",))
    backends.register("cuda-ptx", "tests.backends.ptx.backend", ("cpu",))
    for name in ("cuda", "triton"):
        backends.register(f"{name}-device", Copied(name, "cuda"), ("cpu",))


def pytest_collection_finish():
    """Imported and collected objects stay, a million of them: garbage collection would scan them again and again, which
    took a quarter of all time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 5, 5)


def pytest_collection_modifyitems(items):
    def kept(item):
        if not hasattr(item, "callspec") or item.callspec.params.get("backend") not in INTERPRETED:
            return True
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))  # NumPy warns where GPUs are silent
        marker = item.get_closest_marker("interpreted")
        return marker is not None and marker.args != (False,)

    items[:] = [item for item in items if kept(item)]
    refuse_without_backend(items)
    mark_slow_combinations(items)
    names = skipped_tests()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


def refuse_without_backend(items):
    """Raise for a test of an op without a backend: it would run on the CPU's alone, unnoticed."""
    ops = pathlib.Path(__file__).parent / "ops"
    without = [
        item.nodeid for item in items
        if ops in item.path.parents and item.get_closest_marker("one_backend") is None
        and not {*BY_BACKEND} & {*item.fixturenames}
    ]  # fmt: skip
    if without:
        raise pytest.UsageError(f"no fixture for backends, and no marker `one_backend`: {', '.join(without)}")


def mark_slow_combinations(items):
    """The quick set has as many combinations of a test's parameters as it takes to have each value of each, anew for
    each backend, and each size with each instruction set, which cuts rows into other vectors. Of tests that are
    interpreted or costly it has one for each backend. The rest is slow.
    """
    groups = {}
    for item in items:
        values = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        names = [name for name, value in values.items() if isinstance(value, str) and value in BACKENDS]
        ours = [values.pop(name) for name in names]
        single = item.get_closest_marker("costly") is not None or any(name in INTERPRETED for name in ours)
        place = (item.nodeid.partition("[")[0], single, *ours)
        meets = {(name, id(value)) for name, value in values.items()}
        if "isa" in values:
            meets |= {(id(values["isa"]), id(values[name])) for name in ("size", "vocabulary") if name in values}
        groups.setdefault(place, {})[item] = meets
    for (_, single, *_), group in groups.items():
        met = collections.Counter()
        while group:
            new = {item: sum(not met[value] for value in values) for item, values in group.items()}
            best = max(group, key=lambda item: (new[item], -sum(met[value] for value in group[item])))
            if met and (single or not new[best]):
                break
            met.update(group.pop(best))
            if not met:  # without parameters
                break
        for item in group:
            item.add_marker(pytest.mark.slow)


@contextlib.contextmanager
def poisoned_memory():
    """Fresh tensors hold NaN or the largest integer, so that an unwritten output shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def running(request):
    """Runs a test under the backend that its parameter names."""
    if request.param in INTERPRETED:
        from tests.support import triton_device  # noqa: F401  makes the interpreter quicker
    with specdec_kernels.backend(request.param), poisoned_memory():
        yield request.param


backend = pytest.fixture(running, name="backend", params=BACKENDS)
# For the parts of sharded ops, which the oracle lacks.
parts_backend = pytest.fixture(running, name="parts_backend", params=BACKENDS[1:])
# The C++ kernels alone.
CUDA_ON_GPU = tuple(name for name in ON_GPU if name.startswith("cuda"))
kernels = pytest.fixture(running, name="kernels", params=(NATIVE, *PLAYED, *CUDA_ON_GPU))
# For comparisons with the oracle.
other_backend = pytest.fixture(running, name="other_backend", params=(NATIVE, *PLAYED, *ON_GPU))
# For statistics over many thousands of requests.
quick_backend = pytest.fixture(running, name="quick_backend", params=(ORACLE, NATIVE, *ON_GPU))
# For many wide rows: the oracle evaluates every token.
fast_backend = pytest.fixture(running, name="fast_backend", params=(NATIVE, *ON_GPU))
