"""Replaces functions in an engine's modules and classes, and restores them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def hide_checkout() -> None:
    """Make an engine's search for triton_kernels fail where a checkout of ours is on the path.

    The checkout's folder of that name is for `specdec_kernels.triton_kernels` alone and refuses to be imported.
    """
    seen = importlib.util.find_spec("triton_kernels")
    if seen is not None and seen.origin is not None and (Path(seen.origin).parent / "verify_chain.py").exists():
        sys.modules["triton_kernels"] = None  # type: ignore[assignment]  # an import raises ImportError


class Replacements:
    """Replaced names, and their previous values."""

    def __init__(self) -> None:
        self._before: list[tuple[ModuleType | type, str, object]] = []

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self._before)

    def put(self, module: ModuleType | type, name: str, function: Callable[..., object]) -> None:
        """Replace `module.name`; a second time does nothing."""
        if not any(module is owner and name == replaced_name for owner, replaced_name, _ in self._before):
            self._before.append((module, name, getattr(module, name)))
            setattr(module, name, function)

    def undo(self) -> None:
        """Restore all names."""
        while self._before:
            setattr(*self._before.pop())
