"""Checks of single arguments. Errors name the argument, the expected value and the given one."""

from __future__ import annotations

import operator
from collections.abc import Iterable


def several(values: object) -> bool:
    """Whether this is a collection of values: no string, no array without dimensions."""
    return isinstance(values, Iterable) and not isinstance(values, str) and getattr(values, "ndim", 1) > 0


def whole_number(name: str, value: object, least: int | None = 0) -> int:
    """An int, of Python, NumPy or torch."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number; got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name}: expected at least {least}; got {number}")
    return number


def real_number(name: str, value: object) -> float:
    """A float, of Python, NumPy or torch."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"{name}: expected a number; got {value!r}") from None


def whole_numbers(values: object) -> list[int]:
    """A list of ints from any iterable of them; TypeError for anything else."""
    if not several(values):
        raise TypeError
    return [operator.index(value) for value in values]
