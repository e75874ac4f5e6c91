"""Checked options: argparse types that say what was expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any


def checked(kind: Callable[[str], Any], expected: str, allowed: Callable[[Any], bool]) -> Callable[[str], Any]:
    """A type of argparse's: `kind` of the word, if `allowed`."""

    def parse(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"expected {expected}; got {word!r}")
        return value

    return parse


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in a range."""
    span = f">= {least}" if most is None else f"from {least} to {most}"
    return checked(int, f"a whole number {span}", lambda value: least <= value and (most is None or value <= most))


seed = checked(int, "a whole number", lambda value: True)
probability = checked(float, "a number in [0, 1]", lambda value: 0 <= value <= 1)
finite = checked(float, "a finite number >= 0", lambda value: 0 <= value < math.inf)
positive = checked(float, "a finite number above 0", lambda value: 0 < value < math.inf)
