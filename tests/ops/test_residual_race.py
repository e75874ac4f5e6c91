"""residual_race: the race over a part of what a draft left."""

import pytest
import torch

from specdec_kernels import Sampling, race_sample, residual
from specdec_kernels.backends import BackendError
from specdec_kernels.ops import mass_tiles, residual_race, tile_laws
from tests.support.cases import seeds

ROWS = torch.randn(2, 3, 2, 33, generator=torch.Generator().manual_seed(3))
CALLS = {
    "residual_race": (
        residual_race,
        {"target": ROWS[0], "draft": ROWS[1], "row": torch.tensor([0, -1, 5], dtype=torch.int32), "first_token": 0,
         "draft_row": torch.tensor([1, -1, 4], dtype=torch.int32), "known": torch.ones(3, 4), "taken": torch.ones(3),
         "seed": seeds(3), "position": torch.full((3,), 5), "temperature": torch.ones(3),
         "excluded": torch.tensor([-1, -1, 3], dtype=torch.int32)},
    ),
}  # fmt: skip
MANY = 4000


def known_of(rows):
    return tile_laws(mass_tiles(rows)[0], rows[..., :1].contiguous())[0]


def draws(target, draft, **how):
    """Tokens of many requests on one row."""
    row = torch.zeros(MANY, dtype=torch.int32)
    known = torch.cat([known_of(target), known_of(target if draft is None else draft)], dim=-1).expand(MANY, 4)
    tokens, _, status = residual_race(
        target, draft, row, first_token=0, draft_row=None if draft is None else row, known=known.contiguous(),
        seed=seeds(MANY), position=3, **how,
    )  # fmt: skip
    assert not status.any()
    return tokens


def test_the_law_is_that_of_the_residual(quick_backend):
    """Chi-squared at 15 degrees of freedom; a right law is refused once in a million."""
    generator = torch.Generator().manual_seed(2)
    target, draft = torch.randn(1, 16, generator=generator), torch.randn(1, 16, generator=generator)
    law = residual(target, draft).probs[0]
    counts = torch.bincount(draws(target, draft), minlength=16).double()
    assert not counts[law == 0].any()
    some = law > 0
    assert ((counts - MANY * law)[some] ** 2 / (MANY * law)[some]).sum() < 55


@pytest.mark.interpreted
def test_a_token_that_is_excluded(backend):
    """Over p: never that token, and otherwise the first arrival of the stream that residuals have."""
    target = torch.tensor([[5.0, 4.0, 3.0]]).repeat(4, 1)
    row = torch.arange(4, dtype=torch.int32)
    how = dict(first_token=0, known=torch.zeros(4, 4), seed=seeds(4), position=3)
    whole, _, _ = residual_race(target, None, row, **how)
    without, _, _ = residual_race(target, None, row, excluded=whole.int(), **how)
    assert (without != whole).all()
    other = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    kept = residual_race(target, None, row, excluded=torch.where(other == whole, -1, other).int(), **how)[0]
    assert torch.equal(kept, whole)


@pytest.mark.interpreted
def test_the_argmax_at_temperature_0(backend):
    target = torch.tensor([[1.0, 7.0, 7.0]])
    row = torch.zeros(1, dtype=torch.int32)
    token, score, _ = residual_race(
        target,
        target,
        row,
        first_token=1024,
        draft_row=row,
        known=torch.zeros(1, 4),
        seed=1,
        position=0,
        temperature=0.0,
    )
    assert (token.item(), score.item()) == (1025, 7.0)
    assert race_sample(target, seed=1, position=0, temperature=0.0).item() == 1


@pytest.mark.interpreted
def test_filters_are_honoured_or_refused(backend):
    target = torch.tensor([[1.0, 7.0, 6.0, 7.0]])
    how = dict(first_token=0, known=torch.zeros(1, 4), seed=1, position=0)
    row = torch.zeros(1, dtype=torch.int32)
    if backend in ("cpu", "reference"):
        first = residual_race(target, None, row, sampling=Sampling(5.0, top_k=1), **how)[0]
        assert first.item() == 1
        return
    for sampling in ({"sampling": Sampling(top_k=1)}, {"draft_sampling": Sampling(min_p=0.5)}):
        with pytest.raises(BackendError, match=r"cannot do this residual_race: it has no (top_k|min_p) in this op"):
            residual_race(target, target, row, draft_row=row, **sampling, **how)


@pytest.mark.interpreted
def test_rows_out_of_range(backend):
    """They are not read, and harm no neighbour; so at temperature 0, too."""
    call = CALLS["residual_race"][1]
    row = torch.tensor([0, 6, -2, 1, -1, 2**31 - 1, 5], dtype=torch.int32)
    beside = torch.tensor([6, 0, 0, -2, 9, 0, 5], dtype=torch.int32)
    how = {"seed": 3, "position": 4, "first_token": 1024, "known": torch.ones(7, 4)}
    for temperature in (1.0, 0.0):
        tokens, scores, status = residual_race(
            call["target"], call["draft"], row, draft_row=beside, temperature=temperature, **how
        )
        assert tokens[:6].tolist() == [0, 0, 0, 0, -1, 0]
        assert (scores[:6] == torch.inf).all()
        assert status.tolist() == [8, 8, 8, 8, 0, 8, 0]
        how_alone = how | {"known": torch.ones(1, 4)}
        alone = residual_race(
            call["target"], call["draft"], row[6:], draft_row=beside[6:], temperature=temperature, **how_alone
        )
        assert [x[6].item() for x in (tokens, scores, status)] == [x.item() for x in alone]


def test_bad_arguments():
    call = CALLS["residual_race"][1]
    with pytest.raises(ValueError, match="draft: expected the target's 33 columns"):
        residual_race(**{**call, "draft": ROWS[1][..., :30]})
    with pytest.raises(ValueError, match="draft_row: expected None without a draft"):
        residual_race(**{**call, "draft": None})
    with pytest.raises(ValueError, match=r"draft_row: expected int32 \[B\] with a draft; got None"):
        residual_race(**{**call, "draft_row": None})
    with pytest.raises(ValueError, match="draft: expected a tensor on cpu"):
        residual_race(**{**call, "draft": ROWS[1].to("meta")})
    with pytest.raises(ValueError, match=r"known: expected shape \[3, 4\]"):
        residual_race(**{**call, "known": torch.ones(3, 2)})
