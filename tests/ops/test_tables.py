"""Every call of the ops' tables, on every backend: it returns, and leaves in its arguments, what the CPU's does."""

import pytest
import torch

import specdec_kernels
from tests.conftest import NATIVE
from tests.support.calls import every_call, outcome

CALLS = every_call()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_tables_gives_what_it_gives_on_the_cpu(name, parts_backend):
    results = outcome(*CALLS[name])
    with specdec_kernels.backend(NATIVE):
        expected = outcome(*CALLS[name])
    for result, wanted in zip(results, expected, strict=True):
        # Floats that are sums may differ in their last bits; whole numbers may not.
        torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
