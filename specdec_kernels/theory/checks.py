"""The theory's argument checks: each raises a ValueError that names the argument, the expected value and the value."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

TOLERANCE = 1e-6  # how far a law's sum may be from 1


def non_negative(values: ArrayLike, name: str, ndims: Sequence[int] = (1,)) -> np.ndarray:
    """`values` as a float64 array of one of the dimensions `ndims`, not empty, finite and non-negative."""
    array = numbers(values, name)
    if array.ndim not in ndims or array.size == 0:
        expected = " or ".join(f"{n}-D" for n in ndims)
        raise ValueError(f"{name}: expected a {expected} array that is not empty; got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite numbers; got {array[~np.isfinite(array)][0]:g}")
    if array.min() < 0:
        raise ValueError(f"{name}: expected numbers >= 0; got {array.min():g}")
    return array


def numbers(values: ArrayLike, name: str) -> np.ndarray:
    """`values` as a float64 array."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected an array of numbers; got {values!r}") from None


def law(values: ArrayLike, name: str, ndims: Sequence[int] = (1,)) -> np.ndarray:
    """`values` as probability laws along the last axis."""
    array = non_negative(values, name, ndims)
    sums = np.ravel(array.sum(axis=-1))
    worst = sums[np.argmax(np.abs(sums - 1))]
    if abs(worst - 1) > TOLERANCE:
        raise ValueError(f"{name}: expected a sum of 1 within {TOLERANCE:g}; got {worst:.9g}")
    return array


def law_pair(
    p: ArrayLike, q: ArrayLike, names: tuple[str, str] = ("p", "q"), ndims: Sequence[int] = (1,)
) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of laws of one shape."""
    first, second = law(p, names[0], ndims), law(q, names[1], ndims)
    if first.shape != second.shape:
        raise ValueError(f"{names[1]}: expected the shape of {names[0]}, {first.shape}; got {second.shape}")
    return first, second


def unit(value: Any, name: str) -> float:
    """A float in [0, 1]."""
    return between(value, name, "a number in [0, 1]", 1.0)


def cost(value: float, name: str) -> float:
    """A finite float, not negative."""
    return between(value, name, "a finite number >= 0", np.finfo(float).max)


def between(value: Any, name: str, expected: str, most: float) -> float:
    """A float in [0, most]."""
    number = numbers(value, name)
    if number.ndim or not 0 <= number <= most:
        raise ValueError(f"{name}: expected {expected}; got {value}")
    return float(number)


def count(value: Any, name: str, least: int = 0) -> int:
    """An integer of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected a whole number; got {value!r}") from None
    if number < least:
        raise ValueError(f"{name}: expected at least {least}; got {number}")
    return number


def choice(value: str, name: str, options: Sequence[str]) -> str:
    """One of the strings `options`."""
    if value not in options:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, options))}; got {value!r}")
    return value
