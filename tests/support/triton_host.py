"""The host's side of Triton without a GPU: a driver that compiles nothing and records the latest launch.

    python -m tests.support.triton_host        faults of launches of all kinds, and which are direct, as JSON

Run without TRITON_INTERPRET.
"""

import collections
import contextlib
import json
import random

import torch
import triton
from specdec_kernels.triton_kernels import _launch, _versions
from triton.compiler import CompiledKernel
from triton.runtime import driver, jit

from tests.support import triton_aot


class Driver:
    """Device 0 of a machine that does not exist. ``launched`` has the arguments of the latest launches."""

    def __init__(self, target):
        self.target, self.launched = target, collections.deque(maxlen=4)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 7

    def run(self, *arguments):
        self.launched.append(arguments)


class Compiled(CompiledKernel):
    def __del__(self):
        pass


@contextlib.contextmanager
def mocked(target=triton_aot.ARCHS["sm_90"]):
    """Launches go to a ``Driver``."""
    machine = Driver(target)

    def compiled(kernel, key, signature, device, *_):
        found = object.__new__(Compiled)
        found._run = machine.run
        found.name, found.src, found.module = kernel.__name__, None, machine
        found.function, found.packed_metadata = len(kernel.device_caches[device][0]), key
        kernel.device_caches[device][0][key] = found
        return found

    kept = jit.JITFunction._do_compile, _launch.on_device, _launch.seen_of, driver._active
    seen = triton.compiler.make_backend(target).get_tensor_specialization
    jit.JITFunction._do_compile, _launch.on_device = compiled, lambda tensor: contextlib.nullcontext()
    _launch.seen_of = lambda device: seen
    driver.set_active(machine)
    try:
        yield machine
    finally:
        jit.JITFunction._do_compile, _launch.on_device, _launch.seen_of, driver._active = kept


def launches():
    """(kernel, warps, arguments) of calls of every op, that differ in whatever a call can differ in."""
    for dtype, space in ((torch.bfloat16, "logits"), (torch.float32, "probs")):
        for requests, drafts, vocabulary, number in ((2, 1, 128, None), (1, 3, 99, 2**40), (3, 2, 4100, 1)):
            for _, call in triton_aot.calls(dtype, space, vocabulary, requests, drafts, number):
                yield from triton_aot.recorded(call)
    for spaces in (("logits", "probs"), ("probs", "logits")):
        for _, call in triton_aot.unusual_calls(*spaces):
            yield from triton_aot.recorded(call)


def varied(arguments, generator):
    """The arguments with other numbers, types and addresses of tensors: all that a program may depend on."""

    def other(name, x):
        if name in _launch.SIZES and generator.random() < 0.5:
            return generator.choice((1, 32, 33))
        if isinstance(x, tuple):
            return type(x)(*map(other, x._fields, x))
        if not isinstance(x, torch.Tensor) or generator.random() < 0.5:
            return x
        like = (torch.float32, torch.bfloat16) if x.is_floating_point() else (torch.int32, torch.int64)
        place = 16 * x.element_size() + generator.choice((0, 8))
        return torch.empty(place + 64, dtype=torch.uint8)[place:].view(generator.choice((x.dtype, *like)))

    return {name: other(name, x) for name, x in arguments.items()}


def same(values, others):
    return all(x is y or x == y for x, y in zip(values, others, strict=True))


def forget(kernel):
    kernel.device_caches.clear()
    if kernel.programs is not None:
        kernel.programs.programs.clear()


def mistakes():
    """Launches that took another's program, and those whose arguments differ from Triton's."""
    found = []
    for target in (triton_aot.ARCHS["sm_90"], triton_aot.ARCHS["gfx942"]):
        generator, wanted = random.Random(0), {}
        with mocked(target) as machine:
            for kernel, warps, arguments in launches():
                if kernel.programs is None:
                    continue
                for version in (arguments, *(varied(arguments, generator) for _ in range(6))):
                    key = kernel.__name__, kernel.programs.key(0, warps, version)
                    own = str(triton_aot.specialised(kernel, warps, version, target)[1:])
                    if wanted.setdefault(key, own) != own:
                        found.append([target.backend, "program", kernel.__name__])
                    for _ in range(2):  # the first by Triton's launch, or by the one before
                        _launch.launch(kernel, (5, 3), warps, version)
                    _launch.jit_launch(kernel, (5, 3), warps, version)
                    *_, direct, jit = machine.launched
                    if direct[:6] != jit[:6] or direct[6:9] != (None,) * 3 or not same(direct[9:], jit[9:]):
                        found.append([target.backend, "arguments", kernel.__name__])
        for kernel in {id(kernel): kernel for kernel, *_ in launches()}.values():
            if kernel.programs is not None and not kernel.programs.programs:
                found.append([target.backend, "nothing remembered", kernel.__name__])
            forget(kernel)
    return found


def launched_directly():
    """Whether a launch bypasses Triton's: as a rule; with a hook; with an unknown Triton; as a rule."""

    def is_direct():
        _launch.launch(kernel, (1,), warps, arguments)
        return machine.launched[-1][7] is None

    kernel, warps, arguments = next(launches())
    hooks = triton.knobs.runtime.launch_enter_hook
    with mocked() as machine:
        is_direct()  # the first is cached
        found = [is_direct()]
        hooks.add(print)
        found.append(is_direct())
        hooks.remove(print)
        _versions.DIRECT_LAUNCH = False
        found.append(is_direct())
        _versions.DIRECT_LAUNCH = True
        return [*found, is_direct()]


if __name__ == "__main__":
    print(json.dumps({"mistakes": mistakes(), "direct": launched_directly()}))
