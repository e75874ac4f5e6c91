"""Triton's interpreter for vLLM's code: what that needs more than ours, and a backend "cpu" for its V2 runner."""

import types

import numpy as np
import triton.language as tl
from triton.backends import backends
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.driver import driver

from tests.support import triton_device  # makes the interpreter quicker


def log1p(x):
    """The interpreter has no functions of the device's library."""
    return tl.tensor(interpreter.TensorHandle(np.log1p(x.handle.data), x.type.scalar), x.type)


def count_in_tensors():
    """``tl.range`` then gives scalars, as in a compiled kernel; the interpreter's gives ints, which have no ``to``."""
    patch = interpreter._patch_lang_core

    def counting(language, scope):
        patch(language, scope)
        count = language.range

        def counted(*given, **named):
            for i in count(*given, **named):
                yield tl.tensor(interpreter.TensorHandle(np.array([i], dtype=np.int32), tl.int32), tl.int32)

        scope.set_attr(language, "range", counted)

    interpreter._patch_lang_core = counting


def take_masks_of_numbers():
    """vLLM's kernels have some, which this interpreter takes; tests of ours refuse them."""
    builder = interpreter.InterpreterBuilder
    for name in triton_device.MASKED:
        function = getattr(builder, name)
        setattr(builder, name, getattr(function, "__wrapped__", function))


class Driver:
    """Of a device that is always there. Kernels are interpreted, so nothing is asked of it."""

    @classmethod
    def is_active(cls):
        return True


def install():
    """To be called before vLLM is imported, which looks once for what is there."""
    backends["cpu"] = types.SimpleNamespace(driver=Driver, compiler=None)
    driver.set_active(Driver())
    libdevice.log1p = log1p
    count_in_tensors()
    take_masks_of_numbers()
