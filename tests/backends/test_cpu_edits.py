"""LogitEdits on the CPU, which lists few tokens and reads the others where they lie: at all sizes, in rows of all
types."""

import pytest
import torch

from specdec_kernels import Sampling, backend, cutoff, race_sample
from tests.support.cases import DTYPES, SIZES, poisoned, seeds
from tests.support.edits import random_edits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_as_in_the_reference(vocabulary, dtype):
    """Masses are of all tokens, so one wrong element shows."""
    generator = torch.Generator().manual_seed(vocabulary)
    rows = poisoned(2 * torch.randn(8, vocabulary, generator=generator).to(dtype))
    edits = random_edits(8, vocabulary=vocabulary, seed=1, bias_by_row=True)
    results = []
    for name in ("reference", "cpu"):
        with backend(name):
            drawn = race_sample(
                rows, seed=seeds(8), position=0, edits=edits, temperature=torch.tensor([1.0, 0.0]).repeat(4)
            )
            results.append(
                [drawn, *cutoff(rows, edits=edits), *cutoff(rows, edits=edits, sampling=Sampling(top_p=0.5))]
            )
    assert all(map(torch.equal, *results))
