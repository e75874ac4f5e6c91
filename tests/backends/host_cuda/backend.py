"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import importlib.util
import os
import shutil

import torch

from specdec_kernels.backends import _native
from specdec_kernels.backends.cuda import HAS, Kernels
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import FILTERED, Edit, Law, Noise
from tests.backends.host_cuda.build import MODULE, build

__all__ = [
    *HAS, "begin_capture", "bytes_needed", "counted", "direct", "pend", "play", "taken_error",
    "unavailable", "workspaces", "write_before",
]  # fmt: skip


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


def unavailable():
    """Why the machine cannot be played here, or None."""
    return None if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler"


def load():
    """The native module, built when it is not there yet."""
    spec = importlib.util.spec_from_file_location(MODULE, build(MODULE))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _native.use_torch(module)
    return module


class HostCuda(Kernels):
    """The CUDA ops on the played machine."""

    def __init__(self, machine="small", **changes):
        super().__init__(load(), lambda device: 0)
        self.play(machine, **changes)

    def play(self, machine, **changes):
        """Play another machine from here on."""
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

    def bytes_needed(self, target):
        """The workspace that each op asks for on rows of this shape, if it has none; one block a row needs none."""
        requests, rows, _ = target.shape
        head = target[:, :1]
        law, cut, off, on = Law("logits", 1.0), Law("logits", 1.0, 50, 0.9, 0.0, FILTERED), Edit(), Edit(frequency=1.0)
        noise = Noise(torch.zeros(requests).long(), 0, 0)
        verdict = torch.empty(requests, rows).long(), *torch.empty(2, requests).int()
        tree_verdict = verdict[0], verdict[0].int(), *verdict[1:]
        figures = torch.empty(4, requests)
        drafts = verdict[0][:, 1:]

        def chain(draft, method, law=law, edits=off):
            rows = drafts, target, draft, None, False, None, None
            return *rows, method, law, law, edits, 1.0, 0.0, noise, None, None, *verdict, *[None] * 4, 0

        def tree(law=law, edits=off):
            parents = torch.arange(-1, rows - 1)
            return (
                verdict[0], parents, target, target, None, None, "rejection", False, law, law, edits, noise,
                None, None, *tree_verdict, None, 0,
            )  # fmt: skip

        def sample(law=law, edits=off):
            return head, 0, None, None, law, edits, Noise(0, 0, 0), verdict[0][:, 0].contiguous(), None, None

        def pair(law=law, edits=off):
            return head, head, None, None, law, law, edits

        top, ids = torch.empty(requests, 1, 5), torch.empty(2, requests).long()
        calls = {
            "race": ("verify_chain", *chain(None, "race")),
            "rejection": ("verify_chain", *chain(target[:, 1:], "rejection")),
            "race_sample": ("race_sample", *sample()),
            "tree": ("verify_tree", *tree()),
            "residual": ("residual", *pair(), 1.0, target[:, 0].float(), figures[0], None),
            "overlap": ("overlap", *pair(), *figures, None),
            "race, filtered": ("verify_chain", *chain(None, "race", cut)),
            "rejection, filtered": ("verify_chain", *chain(target[:, 1:], "rejection", cut)),
            "race_sample, filtered": ("race_sample", *sample(cut)),
            "race_topk, filtered": ("race_topk", *sample(cut)[:7], torch.empty(requests, 1, 5).long(), None, None),
            "tree, filtered": ("verify_tree", *tree(cut)),
            "overlap, filtered": ("overlap", *pair(cut), *figures, None),
            "race, edited": ("verify_chain", *chain(None, "race", law, on)),
            "rejection, edited": ("verify_chain", *chain(target[:, 1:], "rejection", law, on)),
            "race_sample, edited": ("race_sample", *sample(law, on)),
            "race_topk, edited": ("race_topk", *sample(law, on)[:7], torch.empty(requests, 1, 5).long(), None, None),
            "tree, edited": ("verify_tree", *tree(law, on)),
            "overlap, edited": ("overlap", *pair(law, on), *figures, None),
            "cutoff": ("cutoff", head, None, cut, off, figures[0], ids[0], figures[0].int(), ids[1], figures[1], None),
            "logprobs": (
                "logprobs", head, drafts[:, :1], None, cut, off, figures[0], figures[0].int(), top.long(), top,
                None, None, None,
            ),
        }  # fmt: skip
        return {
            name: getattr(self._native, op)(OPS[op].Call(*call), 0, 1 << 20, -(1 << 20)) or 0
            for name, (op, *call) in calls.items()
        }


_kernels = HostCuda(os.environ.get("SPECDEC_HOST_CUDA", "small"))
play, counted, workspaces, bytes_needed = _kernels.play, _kernels.counted, _kernels.workspaces, _kernels.bytes_needed
begin_capture = _kernels.begin_capture
write_before = _kernels.write_before
direct = _kernels.direct
pend, taken_error = _kernels._native.pend, _kernels._native.taken_error
globals().update({name: getattr(_kernels, name) for name in HAS})
