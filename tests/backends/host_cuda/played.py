"""What backends on a machine that is played have in common, whether it runs the sources or what nvcc makes of them."""

import importlib.util
import os
import shutil

import pytest

from specdec_kernels.backends import _native
from specdec_kernels.backends.cuda import Kernels

NEEDS_COMPILER = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")


def machine(multiprocessors, capability, blocks_in_flight, schedule):
    """Which device is played, what runs beside what, and the seed of the order threads run in."""
    return {
        "multiprocessors": multiprocessors, "blocks_per_multiprocessor": 2, "capability": capability,
        "blocks_in_flight": blocks_in_flight, "schedule": schedule,
    }  # fmt: skip


MACHINES = {
    # Few multiprocessors, no clusters: most requests have one block, some a software cluster.
    "small": machine(2, capability=80, blocks_in_flight=3, schedule=1),
    # Many: one request is shared by a cluster or by many blocks, and all rows of some calls fit at once.
    "large": machine(16, capability=90, blocks_in_flight=9, schedule=2),
    # One block at a time, as far as the launch allows: whoever waits for a block that has not started never ends. It is
    # of a desktop's kind, whose blocks have 99 KB of shared memory.
    "lone": machine(1, capability=120, blocks_in_flight=1, schedule=3),
}


# SPECDEC_CUDA_FEW_ROWS of each machine: which kernels rows of race_sample take (csrc/cuda/rows/draw.cuh).
FEW_ROWS = {"small": "0", "large": "", "lone": "1"}


def load(name, path):
    """A native module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _native.use_torch(module)
    return module


class Played(Kernels):
    """The CUDA ops on one of the machines."""

    def __init__(self, name, path, machine, **changes):
        super().__init__(load(name, path), lambda device: 0)
        self.play(machine, **changes)

    def play(self, machine, few_rows=None, **changes):
        """Play another machine from here on; ``few_rows`` is SPECDEC_CUDA_FEW_ROWS, if not the machine's own."""
        os.environ["SPECDEC_CUDA_FEW_ROWS"] = FEW_ROWS[machine] if few_rows is None else few_rows
        self._native.configure(**{**MACHINES[machine], **changes})
        self._before = []  # what kernels before write: the machine knows addresses alone

    def counted(self, call):
        """Kernels and blocks that a call launches, and bytes it streams from rows."""
        before = self._native.counters()
        call()
        return {name: count - before[name] for name, count in self._native.counters().items()}

    def begin_capture(self, number):
        """From here on calls are in this capture; 0 ends it."""
        self._native.begin_capture(number)

    def write_before(self, to, values):
        """The kernel before the next launch writes these values; until it has ended `to` holds what it holds now."""
        assert to.is_contiguous()
        assert values.is_contiguous()
        assert (to.dtype, to.shape) == (values.dtype, values.shape)
        self._before.append(values)
        self._native.kernel_before(to.data_ptr(), values.data_ptr(), to.numel() * to.element_size())

    def workspaces(self):
        return list(self._workspaces.held.values())

    def tickets_are_zero(self):
        """Whether all calls have left their workspaces as they found them."""
        return not any(workspace[: workspace.numel() // 64 * 8].any() for workspace in self.workspaces())
