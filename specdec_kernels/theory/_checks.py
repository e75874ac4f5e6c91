"""The theory's argument checks: each raises a ValueError that names the argument, what was expected, what came."""

import operator

import numpy as np

TOLERANCE = 1e-6  # how far a law's sum may be from 1


def non_negative(values, name, ndims=(1,)):
    """`values` as a float64 array of one of the dimensions `ndims`, not empty, finite and non-negative."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in ndims or array.size == 0:
        expected = " or ".join(f"{n}-D" for n in ndims)
        raise ValueError(f"{name} must be a non-empty {expected} array; got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite; got NaN or infinity")
    if array.min() < 0:
        raise ValueError(f"{name} must not be negative; got {array.min():g}")
    return array


def law(values, name, ndims=(1,)):
    """`values` as probability laws along the last axis."""
    array = non_negative(values, name, ndims)
    sums = array.sum(axis=-1)
    worst = np.ravel(sums)[np.argmax(np.abs(np.ravel(sums) - 1))]
    if abs(worst - 1) > TOLERANCE:
        raise ValueError(f"{name} must sum to 1 within {TOLERANCE:g}; got a sum of {worst:.9g}")
    return array


def law_pair(p, q, names=("p", "q"), ndims=(1,)):
    """Two arrays of laws of one shape."""
    first, second = law(p, names[0], ndims), law(q, names[1], ndims)
    if first.shape != second.shape:
        raise ValueError(f"{names[1]} must have the shape of {names[0]}, {first.shape}; got {second.shape}")
    return first, second


def unit(value, name):
    """A float in [0, 1]."""
    value = float(value)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1]; got {value:g}")
    return value


def cost(value, name):
    """A finite float, not negative."""
    value = float(value)
    if not 0 <= value < np.inf:
        raise ValueError(f"{name} must be finite and not negative; got {value:g}")
    return value


def count(value, name, least=0):
    """An integer of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer; got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def choice(value, name, options):
    """One of the strings `options`."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}")
    return value
