"""What a step of an engine takes, by part: seconds, launches, copies from the host to the device, waits for the device.

On a CPU a copy is any call that would make one on a GPU, and a wait any call that would read the device's memory there.
"""

import contextlib
import functools
import inspect
import time
from collections import Counter

import torch
from torch.overrides import TorchFunctionMode

import specdec_kernels
from specdec_kernels import ops
from specdec_kernels.engines._replace import Replacements
from tests.engines.launches import Launches

ENGINE = "engine"  # the part that is not wrapped
OPS = "ops"
KERNELS = "kernels"  # what they call is no launch
COPIES = ("tensor", "as_tensor", "to", "cuda")
# Not numpy, which takes tensors of the host alone.
WAITS = ("item", "tolist", "cpu", "nonzero", "masked_select", "unique",
         "__bool__", "__int__", "__float__", "__index__")  # fmt: skip


class Parts(Replacements):
    """The seconds of each part, without those of the parts that it calls. Leaving it restores what was wrapped."""

    def __init__(self, clock=time.thread_time):
        super().__init__()
        self.clock, self.active, self.seconds, self.since = clock, [ENGINE], Counter(), clock()
        self.launches = Counter()
        for name in ops.__all__:
            if inspect.isfunction(getattr(ops, name)):
                self.wrap(specdec_kernels, name, OPS)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.undo()

    def wrap(self, owner, name, part):
        """Count the calls of ``owner.name`` to this part. Those of an interpreted kernel are a launch each."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*given, **named):
            if part == KERNELS:
                self.launches[self.active[-1]] += 1
            self._switch()
            self.active.append(part)
            try:
                return function(*given, **named)
            finally:
                self._switch()
                self.active.pop()

        self.put(owner, name, timed)

    def taken(self):
        """The seconds of each part since the last call."""
        self._switch()
        seconds, self.seconds = self.seconds, Counter()
        return seconds

    def _switch(self):
        now = self.clock()
        self.seconds[self.active[-1]] += now - self.since
        self.since = now

    @contextlib.contextmanager
    def counting(self):
        """Counters of launches, copies and waits by part, of what runs meanwhile."""
        self.launches, copies, waits = Counter(), Counter(), Counter()
        with _Transfers(self, copies, waits), _Launched(self, self.launches):
            yield self.launches, copies, waits


class _Launched(Launches):
    def __init__(self, parts, counts):
        super().__init__()
        self.parts, self.counts = parts, counts

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        before = len(self.names)
        result = super().__torch_dispatch__(op, types, args, kwargs)
        if len(self.names) > before and self.parts.active[-1] != KERNELS:
            self.counts[self.parts.active[-1]] += 1
        return result


class _Transfers(TorchFunctionMode):
    def __init__(self, parts, copies, waits):
        super().__init__()
        self.parts, self.copies, self.waits = parts, copies, waits

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, part = function.__name__, self.parts.active[-1]
        if part == KERNELS:
            pass
        elif name in WAITS or (name == "__getitem__" and _is_mask(args[1])):
            self.waits[part] += 1
        elif (name == "copy_" and kwargs.get("non_blocking")) or (name in COPIES and _names_a_device(args, kwargs)):
            self.copies[part] += 1
        return function(*args, **kwargs)


def _is_mask(index):
    """Whether an index is a mask, whose number of entries the host has to know."""
    entries = index if isinstance(index, tuple) else (index,)
    return any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in entries)


def _names_a_device(args, kwargs):
    named = *args[1:], kwargs.get("device")
    return any(isinstance(each, (str, torch.device)) for each in named)
