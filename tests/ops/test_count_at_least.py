"""count_at_least: how many tokens of rows are at least as large as a number."""

import pytest
import torch

from specdec_kernels.sharded._parts import count_at_least
from tests.support.cases import adversarial_rows, poisoned
from tests.support.edits import random_edits
from tests.support.parts import LARGEST, edited, edits_of

CALLS = {
    "count_at_least": (
        count_at_least,
        {"rows": torch.randn(3, 33, generator=torch.Generator().manual_seed(3)),
         "least": torch.tensor([0.0, 1.0, -1.0]), "temperature": torch.tensor([1.0, 0.5, 2.0]),
         "request_index": torch.tensor([0, -1, 2], dtype=torch.int32)},
    ),
    "count_at_least, edited": (
        count_at_least,
        {"rows": torch.ones(3, 33), "least": torch.zeros(3),
         "edits": edits_of(3, vocabulary=33, seed=1)._replace(bias=None)},
    ),
}  # fmt: skip


def counted(rows, least, temperature):
    x = (rows.float() * (1 / torch.tensor(temperature))).nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf)
    return (x >= least.unsqueeze(-1)).sum(-1).int()


@pytest.mark.parametrize("size", [1, 7, 2049])
def test_every_token_is_counted(parts_backend, size):
    """Rows with NaN and infinities; bars that are elements, between elements, and past all of them."""
    rows = torch.stack(list(adversarial_rows(size).values()))
    largest = rows.nan_to_num(nan=-torch.inf, posinf=LARGEST).amax(-1)
    for bar in (0.0, -LARGEST, LARGEST, torch.inf, largest / 0.7, largest.nextafter(torch.tensor(torch.inf)) / 0.7):
        least = torch.as_tensor(bar).expand(len(rows)).contiguous()
        least = torch.where(least > -torch.inf, least, 0.0)
        assert torch.equal(count_at_least(poisoned(rows), least, temperature=0.7), counted(rows, least, 0.7))
    own = rows[:, size // 2].nan_to_num(nan=0.0, posinf=LARGEST, neginf=-LARGEST)
    assert torch.equal(count_at_least(rows, own), counted(rows, own, 1.0))


def test_what_is_not_counted(parts_backend):
    """Nothing where nothing is asked for, of idle requests and of those whose index is out of range."""
    rows = torch.zeros(6, 1500)
    index = torch.tensor([0, -1, 3, 1, 2, -7], dtype=torch.int32)
    least = torch.tensor([0.0, 0.0, 0.0, -torch.inf, torch.nan, 0.0])
    found = count_at_least(rows, least, temperature=torch.tensor([1.0, 0.5, 0.0]), request_index=index)
    assert found.tolist() == [1500, 0, 0, 0, 0, 0]
    assert count_at_least(rows[:2], least[:2], temperature=torch.tensor([0.0, torch.nan])).tolist() == [1500, 1500]
    assert count_at_least(rows[:0], least[:0]).shape == (0,)


def test_edited_rows(parts_backend):
    rows = torch.randn(4, 1061, generator=torch.Generator().manual_seed(2))
    edits = random_edits(4, vocabulary=1061, seed=7)
    expected = edited(rows, edits)
    least = expected.nan_to_num(neginf=-9.0)[:, 5].contiguous()
    found = count_at_least(rows, least, edits=edits)
    assert torch.equal(found, counted(expected, least, 1.0))
    assert not torch.equal(found, count_at_least(rows, least))
