"""first_arrivals: winners of rows from what their parts found."""

import torch

import specdec_kernels
from specdec_kernels import race_sample
from specdec_kernels.sharded import race_partial
from specdec_kernels.sharded._parts import first_arrivals
from specdec_kernels.status import Status

PACKED = torch.zeros(2, 4, 3, dtype=torch.int32)
CALLS = {"first_arrivals": (first_arrivals, {"packed": PACKED})}


def packed(*parts):
    """int32 [parts, rows, 3] of (token, score, status) of each part and row."""
    found = torch.tensor(parts, dtype=torch.float64)
    scores = found[..., 1].float().view(torch.int32)
    return torch.stack([found[..., 0].int(), scores, found[..., 2].int()], dim=-1)


def test_the_best_score_wins_then_the_lower_token(parts_backend):
    inf = float("inf")
    tokens, status, empty = first_arrivals(
        packed(
            [(5, 1.5, 0), (9, 2.0, 0), (7, -0.0, 0), (-1, -inf, 1), (-1, inf, 0), (0, inf, 8), (3, -8e37, 0)],
            [(1030, 2.5, 4), (8, 2.0, 0), (6, 0.0, 0), (-1, -inf, 4), (-1, inf, 0), (0, inf, 8), (-1, -inf, 1)],
            [(2050, 2.5, 0), (10, 1.0, 2), (2060, 0.0, 0), (-1, -inf, 0), (-1, inf, 0), (0, inf, 8), (-1, -inf, 0)],
        )
    )
    assert tokens.tolist() == [1030, 8, 6, 0, -1, 0, 3]
    assert status.tolist() == [4, 2, 0, 5, 0, 8, 1]
    assert empty.tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_many_rows_of_parts_that_race(parts_backend):
    """More rows than a program or a block has: the winners are those of whole rows. One row has no weight."""
    rows = torch.randn(3, 100, 384, generator=torch.Generator().manual_seed(1))
    rows[1, 7] = -torch.inf
    noise = {"seed": torch.arange(300).view(3, 100), "position": 5}
    with specdec_kernels.backend("cpu"):
        parts = [
            race_partial(part, vocab_start=128 * i, **noise).packed() for i, part in enumerate(rows.split(128, -1))
        ]
        expected = race_sample(rows, **noise)
    tokens, status, empty = first_arrivals(torch.stack(parts))
    assert torch.equal(tokens, expected)
    assert empty.nonzero().tolist() == [[1, 7]]
    assert status[1, 7] == Status.NON_FINITE
    assert status.count_nonzero() == 1
    assert [x.shape for x in first_arrivals(PACKED[:, :0])] == [(0,)] * 3
