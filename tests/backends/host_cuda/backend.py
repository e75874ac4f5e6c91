"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import importlib.util
import os
import shutil

import torch

from specdec_kernels.backends import arguments
from specdec_kernels.backends.cuda import Kernels
from tests.backends.host_cuda.build import HERE, ROOT, build


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
    # One block at a time, as far as the launch allows: whoever waits for a block that has not started never ends.
    "lone": machine(1, capability=90, blocks_in_flight=1, schedule=3),
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

    def counted(self, call):
        """Kernels and blocks that a call launches, and bytes it streams from rows."""
        before = self._native.counters()
        call()
        return {name: count - before[name] for name, count in self._native.counters().items()}

    def workspaces(self):
        return list(self._workspaces.held.values())

    def bytes_needed(self, target):
        """The workspace that each op asks for on rows of this shape, if it has none; one block a row needs none."""
        requests, rows, _ = target.shape
        outputs = [torch.empty(requests, rows), torch.empty(requests), torch.empty(requests)]
        parents = torch.arange(-1, rows - 1)
        noise = (torch.zeros(requests).long(), 0, 0)
        drafts = torch.zeros(requests, rows - 1).long()
        options = ("logits", 1.0, 1.0, 0.0, *noise, *outputs)
        race = arguments.chain(drafts, target, None, None, "race", *options)
        rejection = arguments.chain(drafts, target, target[:, 1:], None, "rejection", *options)
        options = ("rejection", False, "logits", 1.0, *noise, outputs[0], *outputs)
        tree = arguments.tree(outputs[0].long(), target, target, parents, *options)
        sample = arguments.race(target[:, :1], 1, "logits", 1.0, 0, 0, 0, outputs[0])
        pair = target[:, :1], target[:, :1], "logits", 1.0
        calls = {
            "race": (self._native.verify_chain, race),
            "rejection": (self._native.verify_chain, rejection),
            "race_sample": (self._native.race_sample, sample),
            "tree": (self._native.verify_tree, tree),
            "residual": (self._native.residual, arguments.residual(*pair, 1.0, 0.0, *outputs[:2])),
            "overlap": (self._native.overlap, arguments.overlap(*pair, *outputs, outputs[0])),
        }
        return {name: op(call, 0, 0, -(1 << 20)) for name, (op, call) in calls.items()}


_kernels = HostCuda(os.environ.get("SPECDEC_HOST_CUDA", "small"), os.environ.get("SPECDEC_HOST_CUDA_SANITIZE") == "1")
play, counted, workspaces, bytes_needed = _kernels.play, _kernels.counted, _kernels.workspaces, _kernels.bytes_needed
verify_chain = _kernels.verify_chain
race_sample = _kernels.race_sample
race_topk = _kernels.race_topk
residual = _kernels.residual
overlap = _kernels.overlap
verify_tree = _kernels.verify_tree
tree_mask = _kernels.tree_mask
tree_positions = _kernels.tree_positions
compact_kv = _kernels.compact_kv
