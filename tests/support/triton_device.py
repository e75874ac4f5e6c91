"""Where Triton runs its tests: on the GPU if there is one, else in the interpreter that tests/conftest.py asks for."""

import contextlib
import os

import pytest
import torch

pytest.importorskip("triton", reason="no triton for this Python here")
from triton.runtime import interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


_patched = set()


def patch_language_once_a_launch():
    """The interpreter patches triton.language anew at every call of a device function; that takes half of its time."""
    patch, run = interpreter._patch_lang, interpreter.GridExecutor.__call__

    def patch_once(function):
        modules = frozenset(
            name for name, value in function.__globals__.items() if getattr(value, "__name__", "").startswith("triton.")
        )
        if modules not in _patched:
            _patched.add(modules)
            return patch(function)

    def run_patched(self, *arguments, **keywords):
        _patched.clear()
        return run(self, *arguments, **keywords)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, run_patched


@contextlib.contextmanager
def interpreted_language(function):
    """triton.language as the interpreter has it, where a function runs outside of a launch."""
    _patched.clear()
    scope = interpreter._patch_lang(function)
    try:
        yield
    finally:
        scope.restore()


if INTERPRETED:
    patch_language_once_a_launch()
