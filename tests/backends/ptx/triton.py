"""Runs Triton's kernels as Triton compiles them for a GPU that need not be here: calls of every op, beside the CPU's.

    python -m tests.backends.ptx.triton sm_90 [call ...]     one line of JSON for each call: its name, and what is wrong

Run without TRITON_INTERPRET, which leaves nothing to compile.
"""

import argparse
import contextlib
import copy
import ctypes
import functools
import json
import re
import struct
import sys

import torch
import triton
from specdec_kernels.triton_kernels import _launch
from triton.compiler import ASTSource

from specdec_kernels import backend, backends, triton_kernels
from tests.backends.ptx.build import build_text
from tests.backends.ptx.memory import allow, extent
from tests.support.calls import every_call
from tests.support.cases import adversarial_rows
from tests.support.ops import overlap
from tests.support.same_bits import tensors_of
from tests.support.triton_aot import ARCHS, specialised

triton.knobs.compilation.always_compile = False
triton.knobs.nvidia.dump_ptxas_log = False
CODES = {"i1": "?", "u1": "?", "i8": "b", "i16": "h", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "fp32": "f"}


class Program:
    """A kernel as compiled for one kind of arguments."""

    def __init__(self, source, target, options):
        compiled = triton.compile(source, target=target, options=options.__dict__)
        self.shared, self.threads = compiled.metadata.shared, 32 * compiled.metadata.num_warps
        text = compiled.asm["ptx"]
        self.name, parameters = re.search(r"\.entry (\w+)\(([^)]*)\)", text).groups()
        self.kinds = re.findall(r"\.param \.(\w+)", parameters)
        self.library = ctypes.CDLL(str(build_text(text)))
        self.library.host_cuda_last_fault.restype = ctypes.c_char_p
        self.library.ptx_copies_are_written(ctypes.c_bool(True))

    def run(self, grid, values, others, seed):
        """``values``: (type, value) of each argument that is not a constant. They may have the addresses of others."""
        packed, pieces = b"", list(map(extent, others))
        # Behind the arguments Triton has two pointers, to scratch memory that these kernels do not ask for.
        values = [*values, *[("*i8", None)] * (len(self.kinds) - len(values))]
        for type, value in values:
            if isinstance(value, torch.Tensor) and value.numel():
                pieces.append(extent(value))
            if type[0] == "*":
                value = 0 if value is None else value.data_ptr()
            code = "Q" if type[0] == "*" else CODES[type]
            packed += b"\0" * (-len(packed) % struct.calcsize(code)) + struct.pack(code, value)
        self.library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(seed))
        allow(self.library, pieces)
        shape = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        failed = self.library.ptx_launch(
            self.name.encode(), shape, self.threads, 1, ctypes.c_size_t(self.shared), 0, packed
        )
        if failed:
            raise RuntimeError(self.library.host_cuda_last_fault().decode())


def flat(types, values):
    """(type, value) of each argument that is not a constant; tuples one by one."""
    for type, value in zip(types, values, strict=True):
        if isinstance(type, tuple):
            yield from flat(type, value)
        elif type != "constexpr":
            yield type, value


class Launches:
    """In the place of Triton's launches."""

    def __init__(self, target):
        self.target, self.programs, self.seed, self.tensors = target, {}, 1, []

    def __call__(self, kernel, grid, num_warps, arguments):
        options, signature, constants, attributes = specialised(kernel, num_warps, arguments, self.target)
        key = kernel.__name__, num_warps, repr((signature, constants, attributes))
        if key not in self.programs:
            self.programs[key] = Program(ASTSource(kernel, signature, constants, attributes), self.target, options)
        values = [arguments[parameter.name] for parameter in kernel.params]
        self.programs[key].run(grid, list(flat(signature.values(), values)), self.tensors, self.seed)


def difference(launches, op, arguments):
    """What is wrong with a call, or ""."""
    results = []
    for name in ("cpu", "triton-ptx"):
        given = copy.deepcopy(arguments)
        launches.tensors = [tensor for tensor in tensors_of(given) if tensor.numel()]
        with backend(name):
            results.append(tensors_of(op(**given), given))
    near = {"rtol": 2e-6, "atol": 1e-7} if op.__name__ == "overlap" else {"rtol": 0, "atol": 0}
    try:
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True, **near)
    except AssertionError as error:
        return str(error)
    return ""


def rows_alone(launches):
    """What is wrong with sums of rows by themselves, or "". Beside others their addresses are not multiples of 16."""
    target = torch.stack(list(adversarial_rows(2049).values()))
    draft = target.roll(1, dims=0)
    launches.tensors = [target, draft]
    with backend("triton-ptx"):
        together = overlap(target, draft)
        alone = [overlap(*rows) for rows in zip(target, draft, strict=True)]
    try:
        for name in together._fields:
            rows = torch.stack([getattr(result, name) for result in alone])
            torch.testing.assert_close(rows, getattr(together, name), equal_nan=True, rtol=0, atol=0)
    except AssertionError as error:
        return f"{name}: {error}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arch", choices=[name for name in ARCHS if name.startswith("sm")])
    parser.add_argument("calls", nargs="*")
    asked = parser.parse_args()
    backends.register("triton-ptx", triton_kernels, ("cpu",))
    launches = _launch.launch = Launches(ARCHS[asked.arch])
    _launch.on_device = lambda tensor: contextlib.nullcontext()
    _launch.multiprocessors = functools.cache(lambda device: 2)
    for name, (op, arguments) in every_call().items():
        if not asked.calls or name in asked.calls:
            try:
                wrong = difference(launches, op, arguments)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            print(json.dumps({"call": name, "wrong": wrong}), flush=True)
    print(json.dumps({"call": "rows alone", "wrong": rows_alone(launches)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
