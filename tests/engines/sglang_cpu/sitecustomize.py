"""In each process of a whole SGLang on a CPU: stand-ins for modules that it imports and has no need of there.

Their attributes are classes that take any call. `sgl_kernel`, of which there is no package for CPUs, has the functions
of `sgl_kernel_cpu`.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types

ABSENT = ("IPython", "cuda", "gguf", "pynvml", "sgl_kernel", "torchvision")


class Anything(type):
    def __getattr__(cls, name):
        return new(name)

    def __call__(cls, *_, **__):
        return cls


class Module(types.ModuleType):
    __version__ = "0"
    __path__ = ()

    def __getattr__(self, name):
        return new(name)


def new(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last one to be asked."""

    def find_spec(self, name, *_):
        return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        if module.__name__.startswith("sgl_kernel"):
            vars(module).update(importlib.import_module("sgl_kernel_cpu").FUNCTIONS)


sys.meta_path.append(Finder())
# Seeds come with deterministic inference alone, which has kernels for accelerators.
invariance = sys.modules["sglang.srt.batch_invariant_ops"] = Module("sglang.srt.batch_invariant_ops")
invariance.is_batch_invariant_mode_enabled = bool


# Faults that whole_sglang.py plants: what they make of the arguments of a verification.
def one_later(position, **_):
    return {"position": position._replace(positions=position.positions + 1)}


def unfiltered(sampling, **_):
    return {"sampling": sampling._replace(top_k=0)}


def one_seed(seed, **_):
    return {"seed": seed * 0}


FAULTS = {"one place later": one_later, "filters of the draft alone": unfiltered, "one seed for all": one_seed}


def plant(path):
    """The fault that this file names, if it does, at each verification."""
    import specdec_kernels

    for name in ("verify_chain", "verify_tree"):
        function = getattr(specdec_kernels, name)

        def changed(*given, function=function, **named):
            with open(path) as file:
                fault = file.read()
            return function(*given, **named | (FAULTS[fault](**named) if fault else {}))

        setattr(specdec_kernels, name, changed)


if os.environ.get("WHOLE_SGLANG_FAULT"):
    plant(os.environ["WHOLE_SGLANG_FAULT"])


def count(path):
    """Write the bytes that this process sends for each gather, a line each, into a file of its own."""
    import torch.distributed

    depth = []
    for name in ("all_gather_into_tensor", "all_gather_single"):
        function = getattr(torch.distributed, name, None)

        def counted(every, mine, *rest, function=function, **how):
            if not depth:
                with open(f"{path}.{os.getpid()}", "a") as file:
                    file.write(f"{mine.nbytes}\n")
            depth.append(function)
            try:
                return function(every, mine, *rest, **how)
            finally:
                depth.pop()

        if function is not None:
            setattr(torch.distributed, name, counted)


if os.environ.get("WHOLE_SGLANG_BYTES"):
    count(os.environ["WHOLE_SGLANG_BYTES"])
