"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import os
import shutil

from specdec_kernels.backends.cuda import HAS
from tests.backends.host_cuda.build import MODULE, build
from tests.backends.host_cuda.played import Played

__all__ = [
    *HAS, "begin_capture", "bytes_needed", "counted", "direct", "pend", "play", "taken_error",
    "tickets_are_zero", "unavailable", "workspaces", "write_before",
]  # fmt: skip


def unavailable():
    """Why the machine cannot be played here, or None."""
    return None if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler"


class HostCuda(Played):
    """The CUDA ops on the played machine."""

    asked = None  # bytes, while calls do not run

    def __init__(self, machine="small", **changes):
        super().__init__(MODULE, build(MODULE), machine, **changes)

    def bytes_needed(self, call):
        """The workspace that a call asks for if it has none; it does not run. One block a row needs none."""
        self.asked = []
        try:
            call()
            return self.asked[0]
        finally:
            self.asked = None

    def _launch(self, function, call):
        if self.asked is None:
            return super()._launch(function, call)
        self.asked.append(function(call, 0, 1 << 20, -(1 << 20)) or 0)

    def _run(self, function, raw):
        return super()._run(function, raw) if self.asked is None else None


_kernels = HostCuda(os.environ.get("SPECDEC_HOST_CUDA", "small"))
play, counted, workspaces, bytes_needed = _kernels.play, _kernels.counted, _kernels.workspaces, _kernels.bytes_needed
begin_capture, tickets_are_zero = _kernels.begin_capture, _kernels.tickets_are_zero
write_before = _kernels.write_before
direct = _kernels.direct
pend, taken_error = _kernels._native.pend, _kernels._native.taken_error
globals().update({name: getattr(_kernels, name) for name in HAS})
