"""The backend ``cuda-host``: csrc/cuda on the played machine, for CPU tensors."""

import os
import shutil

import torch

from specdec_kernels.backends.cuda import HAS
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import FILTERED, Edit, Law, Noise
from tests.backends.host_cuda.build import MODULE, build
from tests.backends.host_cuda.played import Played

__all__ = [
    *HAS, "begin_capture", "bytes_needed", "counted", "direct", "pend", "play", "taken_error",
    "unavailable", "workspaces", "write_before",
]  # fmt: skip


def unavailable():
    """Why the machine cannot be played here, or None."""
    return None if shutil.which(os.environ.get("CXX", "g++")) else "no C++ compiler"


class HostCuda(Played):
    """The CUDA ops on the played machine."""

    def __init__(self, machine="small", **changes):
        super().__init__(MODULE, build(MODULE), machine, **changes)

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
            return *rows, method, law, law, edits, 1.0, 0.0, noise, *[None] * 3, *verdict, *[None] * 4, 0

        def tree(law=law, edits=off):
            parents = torch.arange(-1, rows - 1)
            return (
                verdict[0], parents, target, target, None, None, "rejection", False, law, law, edits, noise,
                *[None] * 3, *tree_verdict, None, 0,
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
