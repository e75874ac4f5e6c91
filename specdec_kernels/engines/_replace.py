"""Putting functions into an engine's modules and classes, and taking them out again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


class Replacements:
    """The names that were replaced, and what they were before."""

    def __init__(self) -> None:
        self._before: list[tuple[ModuleType | type, str, object]] = []

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self._before)

    def put(self, module: ModuleType | type, name: str, function: Callable[..., object]) -> None:
        """Replace `module.name`; a second time does nothing."""
        if not any(module is place and name == known for place, known, _ in self._before):
            self._before.append((module, name, getattr(module, name)))
            setattr(module, name, function)

    def undo(self) -> None:
        """Put everything back."""
        while self._before:
            setattr(*self._before.pop())
