"""Denormal numbers, which a thread's mode may flush to 0. Logits may be denormal, and filters compare them.

C++ sets the mode in each call (csrc/cpu/float_mode.h); this module does so for torch's operations on a CPU.
"""

import functools
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


def with_denormals(function: Function) -> Function:
    """The function, run without ``torch.set_flush_denormal(True)`` in this thread."""

    @functools.wraps(function)
    def run(*arguments, **options):
        if sys.float_info.min / 2 > 0.0:
            return function(*arguments, **options)
        torch.set_flush_denormal(False)
        try:
            return function(*arguments, **options)
        finally:
            torch.set_flush_denormal(True)

    return run  # type: ignore[return-value]
