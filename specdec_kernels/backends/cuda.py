"""The CUDA backend: one kernel a call, on the current stream of the tensors' device."""

import functools
import json
import threading

import torch

from specdec_kernels import _C
from specdec_kernels.backends import _native
from specdec_kernels.calls.op import OPS

__all__ = ["HAS", "Kernels", "Workspaces", "absent", "runs_on", "unavailable"]

HAS = _C.ops  # the ops of the CPU backend
unsupported = None

_BYTES = 5 << 18  # a stream's first workspace: enough for most calls
_ASIDE = 4 << 20  # bytes reserved for captures
_STEP = 4 << 10  # captures get multiples of this


def runs_on(capability, archs):
    """Whether a build for these architectures has code for a device of this capability, (major, minor)."""
    for arch in archs:
        number = arch.removesuffix("+PTX")
        built = divmod(int(number.rstrip("af")), 10)
        if capability == built:
            return True
        later = capability > built and (arch != number or capability[0] == built[0])
        if later and not number.endswith("a"):
            return True
    return False


def absent():
    """The reason why this backend cannot run here, or None, without touching a device."""
    # A process that has touched a device can no longer fork children that use it.
    built = json.loads(_C.build_info())
    if not hasattr(_C, "cuda"):
        return f"built without CUDA: {built['cuda_reason']}"
    if torch.version.cuda is None:
        return "this torch cannot use CUDA"
    if torch.cuda.device_count() == 0:  # reads the driver's management library
        return "no CUDA device can be used: torch finds none"
    return None


def unavailable():
    """The reason why this backend cannot run here, or None."""
    if reason := absent():
        return reason
    if reason := _C.cuda.unavailable():
        return f"no CUDA device can be used: {reason}"
    archs = json.loads(_C.build_info())["cuda_archs"]
    major, minor = torch.cuda.get_device_capability()
    if not runs_on((major, minor), archs):
        return f"built for {', '.join(archs)}; the device is of capability {major}.{minor}"
    return None


class Workspaces:
    """Device memory that kernels leave unchanged: one for each stream of a device, and one for each capture.

    A CUDA graph holds the workspace of its capture for as long as it can be replayed, beside other work. So that memory
    is never reused. Nothing permanent can be allocated while a graph is captured: captures take memory that an earlier
    call reserved. When that is used up, the graph gets other memory, and clears it at each replay.
    """

    def __init__(self, capture_of, wait):
        """``capture_of(stream)``: the number of the capture that a stream is in, or 0. ``wait(stream)``: waits for it,
        whatever other threads capture.
        """
        self.held = {}  # (device, stream) -> memory
        self._capture_of = capture_of
        self._wait = wait
        self._captured = {}  # (device, stream) -> (capture, memory)
        self._aside = {}  # device -> reserved memory for captures
        self._taken = set()  # devices of whose reserve a part is taken
        self._borrowed = []  # memory that graphs may still use
        # Guards all but `held`, which a stream orders. It is re-entrant: a finaliser may call an op while it is held.
        self._lock = threading.RLock()

    def get(self, device, stream, size):
        """Memory of ``size`` bytes or more; a capture may get none for one byte."""
        key, capture = (device, stream), self._capture_of(stream)
        if capture:
            with self._lock:
                return self._of_capture(key, capture, size)
        held = self.held.get(key)
        if held is None or held.numel() < size:
            # The stream that used the old memory is the one it was allocated on, so it may be freed.
            held = self.held[key] = torch.zeros(max(size, _BYTES), dtype=torch.uint8, device=device)
        if device in self._taken or device not in self._aside:
            with self._lock:
                self._put_aside(device, stream)
        return held

    def _of_capture(self, key, capture, size):
        last_capture, held = self._captured.get(key, (0, None))
        if last_capture != capture:
            held = torch.empty(0, dtype=torch.uint8, device=key[0])  # the first call then returns the size it needs
        if size > max(held.numel(), 1):
            held = self._taken_aside(key[0], -(-size // _STEP) * _STEP)
        self._captured[key] = capture, held
        return held

    def _taken_aside(self, device, size):
        while (aside := self._aside.get(device)) is not None and aside.numel() >= size:
            mine, rest = aside[:size], aside[size:]
            if self._aside[device] is aside:  # no finaliser took a part since
                self._aside[device] = rest
                self._taken.add(device)
                return mine
        return torch.zeros(size, dtype=torch.uint8, device=device)  # an allocation inside the graph

    def _put_aside(self, device, stream):
        if device not in self._aside or self._aside[device].numel() < _ASIDE // 2:
            aside = torch.zeros(_ASIDE, dtype=torch.uint8, device=device)
            self._wait(stream)  # other streams will use it
            self._borrowed.append(aside)
            self._aside[device] = aside
        self._taken.discard(device)


class Kernels:
    """The ops of one native module: ``_C.cuda``, or the tests' machine without a GPU."""

    def __init__(self, native, current_stream):
        self._native = native
        self._current_stream = current_stream
        self._workspaces = Workspaces(native.capture, native.wait)
        for name in HAS:
            setattr(self, name, functools.partial(self._launch, getattr(native, name)))

    def _launch(self, function, call):
        device = OPS[type(call).__name__].device(call)
        stream = self._current_stream(device)
        needed = 1
        while needed is not None:
            workspace = self._workspaces.get(device, stream, needed)
            needed = function(call, stream, workspace.data_ptr(), workspace.numel())

    def _run(self, function, raw):
        """The outputs of a direct call; None if Python must check it, or if it needs a larger workspace."""
        device = next((x.device for x in raw if isinstance(x, torch.Tensor)), None)
        if device is None or device.type == "meta":  # nothing runs there, so it needs no workspace
            return None
        stream = self._current_stream(device)
        workspace = self._workspaces.get(device, stream, 1)
        return function(raw, stream, workspace.data_ptr(), workspace.numel())

    def direct(self, op):
        """The function for direct calls of an op that has a plan."""
        return functools.partial(self._run, _native.direct(self._native, op))


class _OnDevice(Kernels):
    """Launches with the tensors' device as the current one."""

    def __init__(self):
        super().__init__(_C.cuda, lambda device: torch.cuda.current_stream(device).cuda_stream)

    def _launch(self, function, call):
        device = OPS[type(call).__name__].device(call)
        if device.index == torch.cuda.current_device():
            return super()._launch(function, call)
        with torch.cuda.device(device):
            return super()._launch(function, call)

    def _run(self, function, raw):
        device = next((x.device for x in raw if isinstance(x, torch.Tensor)), None)
        if device is None or device.type != "cuda":
            return None
        with torch.cuda.device(device):
            return super()._run(function, raw)


if hasattr(_C, "cuda"):
    _native.use_torch(_C.cuda)
    _kernels = _OnDevice()
    direct = _kernels.direct
    globals().update({name: getattr(_kernels, name) for name in HAS})
