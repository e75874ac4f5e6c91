"""LogitEdits on the CPU, which lists few tokens and reads the others where they lie: at all sizes, in rows of all
types."""

import pytest
import torch

from specdec_kernels import Sampling, backend, cutoff, race_sample, verify_chain
from tests.support.cases import DTYPES, SIZES, poisoned, seeds
from tests.support.edits import random_edits

REQUESTS, SLOTS = 4, 3


def rows_of(vocabulary, dtype, *lead):
    generator = torch.Generator().manual_seed(vocabulary)
    return poisoned(2 * torch.randn(*lead, vocabulary, generator=generator).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_as_in_the_reference(vocabulary, dtype):
    """Masses are of all tokens, so one wrong element shows."""
    rows = rows_of(vocabulary, dtype, 8)
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


@pytest.mark.parametrize("bias_by_row", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [2, 65, 2049, 4097])
def test_counts_move_along_the_draft(vocabulary, dtype, bias_by_row):
    """A chain accepts what races draw one by one, where the tokens before are pending ones."""
    rows = poisoned(rows_of(vocabulary, dtype, REQUESTS, 1).expand(-1, SLOTS + 1, -1))
    edits = random_edits(REQUESTS, SLOTS + 1, vocabulary=vocabulary, seed=2, bias_by_row=bias_by_row)
    edits = edits._replace(presence=3.0)  # a token that comes twice without it will not with it
    race = {"seed": seeds(REQUESTS), "temperature": torch.tensor([0.0, 1.0]).repeat(REQUESTS // 2)}
    drawn = torch.zeros(REQUESTS, 0, dtype=torch.int64)
    with backend("cpu"):
        for slot in range(SLOTS + 1):
            tokens, values, spans = edits.bias
            here = edits._replace(
                allowed=edits.allowed[:, slot],
                bias=(tokens, values, spans[:, slot] if bias_by_row else spans),
                pending=torch.cat([edits.pending, drawn], -1),
            )
            token = race_sample(rows[:, slot], position=slot, edits=here, **race)
            drawn = torch.cat([drawn, token.unsqueeze(-1)], -1)
        verdict = verify_chain(drawn[:, :-1], rows, method="race", position=0, edits=edits, **race)
    there = verdict.tokens != -1  # a row where all tokens are forbidden ends its chain, with status 1
    assert torch.equal(verdict.tokens[there], drawn[there])
    assert torch.equal(there.all(1), verdict.status == 0)
