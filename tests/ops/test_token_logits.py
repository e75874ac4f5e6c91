"""token_logits: the logits of some tokens in rows, which may be parts of rows."""

import pytest
import torch

from specdec_kernels import LogitEdits
from specdec_kernels.sharded._parts import token_logits
from tests.support.cases import DTYPES, adversarial_rows
from tests.support.parts import edited, edits_of

ROWS = torch.randn(3, 300, generator=torch.Generator().manual_seed(3))
TOKENS = torch.tensor([[5, 299, 5], [0, 1, 2], [300, -1, 31]])
CALLS = {
    "token_logits": (token_logits, {"rows": ROWS, "tokens": TOKENS}),
    "token_logits, edited": (
        token_logits,
        {"rows": ROWS, "tokens": TOKENS.int()[:, 0], "row_indices": torch.tensor([2, 0, 2], dtype=torch.int32),
         "edits": edits_of(3, vocabulary=300, seed=1)._replace(bias=None)},
    ),
}  # fmt: skip


def bits(x):
    """A NaN is any NaN: a GPU widens those of float16 to one of its own."""
    return torch.where(x.isnan(), torch.full_like(x, torch.nan), x).view(torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_as_they_are(parts_backend, dtype):
    """NaN, infinities and both zeros; int32 and int64 tokens of any strides; nothing past a row's end is read."""
    rows = torch.stack(list(adversarial_rows(70).values())).to(dtype)
    wide = torch.full((len(rows), 90), torch.nan, dtype=dtype)
    wide[:, :70] = rows
    tokens = torch.randint(-3, 80, (len(rows), 9), generator=torch.Generator().manual_seed(1))
    there = (tokens >= 0) & (tokens < 70)
    expected = torch.where(there, rows.float().gather(1, tokens.clamp(0, 69)), 0.0)
    for asked in (tokens, tokens.int(), tokens.T.contiguous().T):
        assert torch.equal(bits(token_logits(wide[:, :70], asked)), bits(expected))
    assert torch.equal(bits(token_logits(rows, tokens[:, 3])), bits(expected[:, 3].contiguous()))


@pytest.mark.parametrize("bias", [False, True])
def test_edited_elements(parts_backend, bias):
    """All that edits may be, of rows [A, R]; more tokens than a program takes at once."""
    rows = torch.randn(3, 2, 333, generator=torch.Generator().manual_seed(2))
    edits = edits_of(3, 2, vocabulary=333, seed=7)
    edits = edits if bias else edits._replace(bias=None)
    tokens = torch.randint(333, (3, 2, 150), generator=torch.Generator().manual_seed(1))
    expected = edited(rows, edits).gather(-1, tokens)
    assert torch.equal(bits(token_logits(rows, tokens, edits=edits)), bits(expected))
    assert not torch.equal(token_logits(rows, tokens), expected)
    row_indices = torch.tensor([5, 0, 5, 2, -1, 6, 1])
    there = (row_indices >= 0) & (row_indices < 6)
    own = tokens.flatten(0, 1)[row_indices.clamp(0, 5)]
    rows_there = edited(rows, edits).flatten(0, 1)[row_indices.clamp(0, 5)]
    expected = torch.where(there.unsqueeze(-1), rows_there.gather(1, own), 0.0)
    for at in (row_indices, row_indices.int(), torch.stack([row_indices, row_indices], 1)[:, 0]):
        assert torch.equal(bits(token_logits(rows, own, row_indices=at, edits=edits)), bits(expected))


def test_none_at_all(fast_backend):
    assert token_logits(ROWS, TOKENS[:, :0]).shape == (3, 0)
    assert token_logits(ROWS[:0], TOKENS[:0]).shape == (0, 3)
    assert token_logits(ROWS, TOKENS[:0], row_indices=torch.zeros(0).long()).shape == (0, 3)
    assert token_logits(ROWS[:0], TOKENS, row_indices=torch.zeros(3).long()).tolist() == [[0.0] * 3] * 3
    assert token_logits(ROWS[:0], TOKENS, row_indices=torch.zeros(3).long(), edits=LogitEdits(presence=0.5)).sum() == 0
    row = LogitEdits(allowed=torch.zeros(10, dtype=torch.int32))
    assert token_logits(ROWS[0], torch.tensor(7), edits=row) == -torch.inf
