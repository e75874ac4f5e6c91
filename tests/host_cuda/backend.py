"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import importlib.util
import os
import shutil

from specdec_kernels.backends.cuda import Kernels
from tests.host_cuda.build import HERE, ROOT, build

# The order threads run in, what runs beside what, and which device is played.
MACHINES = {
    # Few multiprocessors, no clusters: most requests have one block, some a software cluster.
    "small": {"multiprocessors": 2, "blocks_per_multiprocessor": 2, "capability": 80, "blocks_in_flight": 3, "schedule": 1},
    # Many: one request is shared by a cluster or by many blocks.
    "large": {"multiprocessors": 8, "blocks_per_multiprocessor": 2, "capability": 90, "blocks_in_flight": 9, "schedule": 2},
    # One block at a time, as far as the launch allows: whoever waits for a block that has not started never ends.
    "lone": {"multiprocessors": 1, "blocks_per_multiprocessor": 2, "capability": 90, "blocks_in_flight": 1, "schedule": 3},
}


def unavailable():
    """Why the machine cannot be played here, or None."""
    return None if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler"


def load(sanitize=False):
    """The native module, built when it is not there yet."""
    cuda = ROOT / "csrc" / "cuda"
    sources = [HERE / "module.cpp", cuda / "bindings.cpp", *sorted(cuda.glob("*.cu"))]
    path = build("specdec_host_cuda", sources, sanitize=sanitize, module=True)
    spec = importlib.util.spec_from_file_location("specdec_host_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class HostCuda(Kernels):
    """The CUDA ops on the played machine."""

    def __init__(self, machine="small", sanitize=False, **changes):
        super().__init__(load(sanitize), lambda device: 0)
        self.play(machine, **changes)

    def play(self, machine, **changes):
        """Play another machine from here on."""
        self._native.configure(**{**MACHINES[machine], **changes})


_kernels = HostCuda(os.environ.get("SPECDEC_HOST_CUDA", "small"), os.environ.get("SPECDEC_HOST_CUDA_SANITIZE") == "1")
play = _kernels.play
verify_chain = _kernels.verify_chain
race_sample = _kernels.race_sample
race_topk = _kernels.race_topk
residual = _kernels.residual
overlap = _kernels.overlap
