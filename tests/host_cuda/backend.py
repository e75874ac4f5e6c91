"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import importlib.util

from host_cuda.build import HERE, ROOT, build
from specdec_kernels.backends.cuda import Kernels

# The order threads run in, what runs beside what, and which device is played. "small" has few multiprocessors and no
# clusters, "large" enough of them that one request is shared by many blocks.
MACHINES = {
    "small": {"multiprocessors": 2, "blocks_per_multiprocessor": 2, "capability": 80, "blocks_in_flight": 3, "schedule": 1},
    "large": {"multiprocessors": 8, "blocks_per_multiprocessor": 2, "capability": 90, "blocks_in_flight": 9, "schedule": 2},
}


def load(sanitize=False):
    """The native module, built when it is not there yet."""
    sources = [HERE / "module.cpp", *sorted((ROOT / "csrc" / "cuda").glob("*.cu"))]
    path = build("specdec_host_cuda", sources, sanitize=sanitize, module=True)
    spec = importlib.util.spec_from_file_location("specdec_host_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class HostCuda(Kernels):
    """The CUDA ops on the played machine."""

    def __init__(self, machine="small", sanitize=False, **changes):
        native = load(sanitize)
        native.configure(**{**MACHINES[machine], **changes})
        super().__init__(native, lambda device: 0)
