"""In each process of a whole SGLang on a CPU: stand-ins for modules that it imports and has no need of there.

Their attributes are classes that take any call. `sgl_kernel`, of which there is no package for CPUs, has the functions
of `sgl_kernel_cpu`.
"""

import importlib
import importlib.abc
import importlib.machinery
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
