"""Triton's device for tests: the GPU if there is one, else the interpreter that tests/conftest.py selects."""

import contextlib
import dataclasses
import functools
import os

import pytest
import torch

pytest.importorskip("triton", reason="no triton for this Python here")
import triton.language as tl
from triton.runtime import interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


_patched = set()
_modules = {}  # a function's globals -> those of them that are parts of triton


def patch_language_once_a_launch():
    """The interpreter patches triton.language anew at every call of a device function; that takes half of its time."""
    patch, run = interpreter._patch_lang, interpreter.GridExecutor.__call__

    def patch_once(function):
        scope = function.__globals__
        modules = _modules.get(id(scope))
        if modules is None:
            modules = _modules[id(scope)] = frozenset(
                name for name, value in scope.items() if getattr(value, "__name__", "").startswith("triton.")
            )
        if modules not in _patched:
            _patched.add(modules)
            return patch(function)

    def run_patched(self, *arguments, **keywords):
        _patched.clear()
        return run(self, *arguments, **keywords)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, run_patched


def leave_out_what_nobody_sees():
    """The interpreter checks sums of integers for overflow, although without ``debug`` nothing asserts it: half of the
    rest. And it derives types anew for each operation.
    """
    builder, semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    of_any = interpreter._get_np_dtype
    of_scalar = functools.cache(of_any)

    def np_dtype(type_):
        scalar = type_.scalar
        return of_scalar(scalar) if type(scalar) is tl.dtype else of_any(type_)

    interpreter._get_np_dtype = np_dtype
    semantic.computation_type_impl = functools.cache(semantic.computation_type_impl)


MASKED = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}  # name -> operand


def take_no_mask_of_numbers():
    """Triton 3.9's interpreter refuses masks that are not boolean in memory; here older ones refuse them, too."""
    builder = interpreter.InterpreterBuilder
    for name, operand in MASKED.items():
        run = getattr(builder, name)

        @functools.wraps(run)
        def checked(self, *arguments, _run=run, _operand=operand, **keywords):
            if arguments[_operand].data.dtype != bool:
                raise TypeError(f"mask: expected booleans in memory, got {arguments[_operand].data.dtype}")
            return _run(self, *arguments, **keywords)

        setattr(builder, name, checked)


@contextlib.contextmanager
def interpreted_language(function):
    """The interpreter's triton.language, for a function that runs outside of a launch."""
    _patched.clear()
    scope = interpreter._patch_lang(function)
    try:
        yield
    finally:
        scope.restore()


if INTERPRETED:
    patch_language_once_a_launch()
    leave_out_what_nobody_sees()
    take_no_mask_of_numbers()
