"""The CUDA backend: one kernel a call, on the current stream of the tensors' device."""

import functools
import json

import torch

from specdec_kernels import _C
from specdec_kernels.backends._native import likes, use_torch
from specdec_kernels.ops import OPS

__all__ = ["HAS", "Kernels", "Workspaces", "runs_on", "unavailable"]

HAS = list(OPS)

_WORKSPACE_BYTES = 256 << 10  # enough for most calls; one that needs more gets more
_SPARES = 2


def runs_on(capability, archs):
    """Is there code for a device of this capability, (major, minor), in a build for these architectures?"""
    for arch in archs:
        number = arch.removesuffix("+PTX")
        built = divmod(int(number.rstrip("af")), 10)
        if capability == built:
            return True
        later = capability > built and (arch != number or capability[0] == built[0])
        if later and not number.endswith("a"):
            return True
    return False


def unavailable():
    """Why this backend cannot run here, or None."""
    built = json.loads(_C.build_info())
    if not hasattr(_C, "cuda"):
        return f"built without CUDA: {built['cuda_reason']}"
    if reason := _C.cuda.unavailable():
        return f"no CUDA device can be used: {reason}"
    if not torch.cuda.is_available():
        return "this torch cannot use CUDA"
    major, minor = torch.cuda.get_device_capability()
    if not runs_on((major, minor), built["cuda_archs"]):
        return f"built for {', '.join(built['cuda_archs'])}; the device is of capability {major}.{minor}"
    return None


class Workspaces:
    """Device memory that kernels leave as they found it: one per device and stream.

    A CUDA graph keeps the workspace of the stream it was captured on, so graphs captured on one stream must not be
    replayed at the same time. Nothing may be allocated for good while a graph is captured; so the first call on a
    device puts some spares aside, and where they are used up the graph gets one of its own, cleared in each replay.
    """

    def __init__(self):
        self.held = {}
        self._spares = {}

    def get(self, device, stream, size):
        held = self.held.get((device, stream))
        if held is None or held.numel() < size:
            held = self._new((device, stream), max(size, _WORKSPACE_BYTES))
        return held

    def _new(self, place, size):
        device = place[0]
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            spares = self._spares.get(device, [])
            if size > _WORKSPACE_BYTES or not spares:
                return torch.zeros(size, dtype=torch.uint8, device=device)
            self.held[place] = spares.pop()
        else:
            if device.type == "cuda" and device not in self._spares:
                self._spares[device] = list(torch.zeros(_SPARES, _WORKSPACE_BYTES, dtype=torch.uint8, device=device))
                torch.cuda.synchronize(device)  # once a device: another stream will use them
            self.held[place] = torch.zeros(size, dtype=torch.uint8, device=device)
        return self.held[place]


class Kernels:
    """The ops over one native module: ``_C.cuda``, or the tests' machine without a GPU."""

    def __init__(self, native, current_stream):
        self._native = native
        self._current_stream = current_stream
        self._workspaces = Workspaces()
        for name in HAS:
            setattr(self, name, functools.partial(self._launch, OPS[name], getattr(native, name)))
        self.recalls = {name: functools.partial(self._recall, OPS[name]) for name in HAS}

    def _launch(self, op, function, call):
        device = op.device(call)
        stream = self._current_stream(device)
        needed = 1
        while needed:
            workspace = self._workspaces.get(device, stream, needed)
            needed = function(call, stream, workspace.data_ptr(), workspace.numel())

    def _recall(self, op, raw):
        """The outputs of a call like a remembered one; None for others, or if it needs a larger workspace."""
        device = next((x.device for x in raw if isinstance(x, torch.Tensor)), None)
        if device is None or device.type == "meta":  # nothing runs there, so no workspace is made
            return None
        stream = self._current_stream(device)
        workspace = self._workspaces.get(device, stream, 1)
        return getattr(self._native, f"recall_{op.name}")(raw, stream, workspace.data_ptr(), workspace.numel())

    def remember(self, op, raw, call, results):
        """From now on ``recalls[op.name]`` runs calls like this one."""
        getattr(self._native, f"remember_{op.name}")(raw, call, *likes(results))


class _OnDevice(Kernels):
    """Launches with the tensors' device as the current one."""

    def __init__(self):
        super().__init__(_C.cuda, lambda device: torch.cuda.current_stream(device).cuda_stream)

    def _launch(self, op, function, call):
        device = op.device(call)
        if device.index == torch.cuda.current_device():
            return super()._launch(op, function, call)
        with torch.cuda.device(device):
            return super()._launch(op, function, call)

    def _recall(self, op, raw):
        device = next((x.device for x in raw if isinstance(x, torch.Tensor)), None)
        if device is None or device.type != "cuda":
            return None
        with torch.cuda.device(device):
            return super()._recall(op, raw)


if hasattr(_C, "cuda"):
    use_torch(_C)
    _kernels = _OnDevice()
    recalls, remember = _kernels.recalls, _kernels.remember
    globals().update({name: getattr(_kernels, name) for name in HAS})
