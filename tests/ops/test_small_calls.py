"""Small random calls with all arguments give what the oracle gives, which rules by hand, enumerations and the tests of
each argument hold.
"""

import functools

import pytest
import torch

import specdec_kernels
from tests.support.random_calls import small_call
from tests.support.same_bits import EXACT, NEAR, result


@functools.cache
def by_oracle(number):
    with specdec_kernels.backend("reference"):
        return result(*small_call(number))


def assert_as_by_oracle(numbers):
    """In none of these calls is a number within the roundings of float32 of what decides."""
    for number in numbers:
        op, call = small_call(number)
        found, expected = result(op, call), by_oracle(number)
        assert isinstance(found, list), (number, op, found)
        for one, other in zip(found, expected, strict=True):
            off = NEAR if one.is_floating_point() else EXACT
            torch.testing.assert_close(
                one, other, **off, equal_nan=True, msg=lambda text, of=(number, op): f"{of}: {text}"
            )


@pytest.mark.parametrize("part", range(8))
def test_few(other_backend, part):
    assert_as_by_oracle(range(50 * part, 50 * part + (50 if other_backend == "cpu" else 12)))


@pytest.mark.slow
def test_many(other_backend):
    assert_as_by_oracle(number for number in range(400, 1500) if number not in (512, 583, 620, 1152))
