"""residual_race: the race over a part of what a draft left."""

import pytest
import torch

from specdec_kernels import Sampling
from specdec_kernels.sharded._parts import mass_tiles, residual_race, tile_laws
from tests.support.cases import DTYPES, assert_same, seeds
from tests.support.parts import cut_words, edited, edits_of, support_of

ROWS = torch.randn(2, 3, 2, 33, generator=torch.Generator().manual_seed(3))
CALL = {
    "target": ROWS[0], "draft": ROWS[1], "row": torch.tensor([0, -1, 5], dtype=torch.int32), "vocab_start": 0,
    "draft_row": torch.tensor([1, -1, 4], dtype=torch.int32), "row_stats": torch.ones(3, 4),
    "subtracted": torch.ones(3),
    "seed": seeds(3), "position": torch.full((3,), 5), "temperature": torch.ones(3),
    "excluded": torch.tensor([-1, -1, 3], dtype=torch.int32),
}  # fmt: skip
CUTS = torch.tensor([[-1.0, 0.0, 1.0] * 2] * 3).view(torch.int32)
CALLS = {
    "residual_race": (residual_race, CALL),
    "residual_race, cut": (
        residual_race, CALL | {"cuts": CUTS, "excluded": torch.tensor([[5, -1], [1, 2], [-1, 3]], dtype=torch.int32)},
    ),
    "residual_race, edited": (
        residual_race, CALL | {"cuts": CUTS, "edits": edits_of(3, 2, vocabulary=33, seed=1)._replace(bias=None)},
    ),
}  # fmt: skip


def row_stats_of(rows):
    return tile_laws(mass_tiles(rows)[0], rows[..., :1].contiguous())[0]


def test_a_token_that_is_excluded(parts_backend):
    """Over p: never that token, and otherwise the first arrival of the stream that residuals have."""
    target = torch.tensor([[5.0, 4.0, 3.0]]).repeat(4, 1)
    row = torch.arange(4, dtype=torch.int32)
    how = dict(vocab_start=0, row_stats=torch.zeros(4, 4), seed=seeds(4), position=3)
    whole, _, _ = residual_race(target, None, row, **how)
    without, _, _ = residual_race(target, None, row, excluded=whole.int(), **how)
    assert (without != whole).all()
    other = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    kept = residual_race(target, None, row, excluded=torch.where(other == whole, -1, other).int(), **how)[0]
    assert torch.equal(kept, whole)


def pairs_of(rows, size=1500, seed=4):
    """Rows of a target and a draft, a row of each for every request, and what else a race needs."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = 3 * torch.randn(2, rows, size, generator=generator)
    target[:, 1:40:3] = target[:, :1]  # ties
    row = torch.arange(rows, dtype=torch.int32).flip(0)
    beside = torch.where(torch.arange(rows) % 3 == 2, -1, row - 1).clamp(min=-1).int()
    row_stats = torch.cat([row_stats_of(target)[row.long()], row_stats_of(draft)[beside.long()]], dim=-1)
    return target, draft, {
        "row": row, "draft_row": beside, "row_stats": row_stats, "vocab_start": 1024, "seed": seeds(rows),
        "position": 3, "subtracted": torch.linspace(0, 1.2, rows),
        "temperature": torch.tensor([0.7, 1.0, 0.0, 1.5])[row.long() % 4], "draft_temperature": 0.9,
    }  # fmt: skip


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_cuts(parts_backend, factor):
    """Where filters cut: the race is that over rows in which what they drop is -inf. Ties, NaN, infinities, no cut."""
    target, draft, how = pairs_of(8)
    target[0, 5], target[3, 700], draft[2, 9], draft[4, 9] = torch.inf, torch.nan, torch.inf, torch.nan
    row, beside = how["row"].long(), how["draft_row"].long()
    sampling = Sampling(1 / factor, top_k=torch.tensor([1, 3, 9, 64, 300, 2, 1499, 0])), Sampling(top_k=12)
    words = [cut_words(target, sampling[0], factor)[row], cut_words(draft, sampling[1], 1.0)[beside]]
    words[0][0, 1], words[0][1, 1] = -(2**31), 2**31 - 1  # the last column lies in another part
    found = residual_race(target, draft, cuts=torch.cat(words, dim=-1), **how)
    kept = [support_of(target[row], words[0]), support_of(draft[beside], words[1])]
    row_indices = torch.arange(8, dtype=torch.int32)
    kept[0] = torch.where((how["temperature"] == 0).unsqueeze(-1), target[row], kept[0])  # the argmax of all
    draft_row = torch.where(beside < 0, -1, row_indices).int()
    expected = residual_race(*kept, **how | {"row": row_indices, "draft_row": draft_row})
    whole = residual_race(target, draft, **how)
    assert_same(found[:2], expected[:2])
    assert torch.equal(found[2], whole[2])  # the status is that of all tokens
    assert not torch.equal(found[0], whole[0])


def test_nothing_is_kept_of_a_part(parts_backend):
    target, draft, how = pairs_of(4)
    words = torch.tensor([torch.finfo(torch.float32).max, 0.0, 1.0]).view(torch.int32)
    words[1] = -1
    tokens, scores, _ = residual_race(target, draft, cuts=words.repeat(4, 2), **how | {"temperature": 1.0})
    assert tokens.tolist() == [-1] * 4
    assert (scores == -torch.inf).all()


def test_several_tokens_are_excluded(parts_backend):
    """By lists of different lengths, some of other parts; beside cuts, and where a draft row leaves no use for them."""
    target, draft, how = pairs_of(6)
    row = how["row"].long()
    tokens = target[row].topk(5).indices + 1024
    tokens[1, 2:], tokens[2, 1], tokens[3] = -1, 3, -1
    excluded = tokens.int()
    words = torch.cat([cut_words(target, Sampling(top_k=40), 1.0)[row]] * 2, dim=-1)
    for cuts in (None, words):
        found = residual_race(target, draft, excluded=excluded, cuts=cuts, **how)
        for b in range(6):
            alone = {name: x[b : b + 1] if isinstance(x, torch.Tensor) else x for name, x in how.items()}
            rows = target.clone()
            over_p = alone["draft_row"].item() < 0 and alone["temperature"].item() > 0
            if over_p:
                out = tokens[b][tokens[b] >= 1024] - 1024
                rows[row[b], out] = -torch.inf
            expected = residual_race(rows, draft, cuts=None if cuts is None else cuts[b : b + 1], **alone)
            assert_same([x[b : b + 1] for x in found], expected)
    over_p = {**how, "draft_row": None}
    strided = torch.full((6, 9), 7, dtype=torch.int32)[:, 2:7].copy_(excluded)
    assert_same(
        residual_race(target, None, excluded=strided, **over_p),
        residual_race(target, None, excluded=excluded, **over_p),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edited_rows(parts_backend, dtype):
    """The edits of the target's rows [A, R], whichever of them race; with cuts of edited rows."""
    target, draft, how = pairs_of(6, size=1061)
    target, draft = (x.to(dtype).view(3, 2, -1) for x in (target, draft))
    edits = edits_of(3, 2, vocabulary=1061, seed=7)
    rows = edited(target, edits)
    assert_same(residual_race(target, draft, edits=edits, **how), residual_race(rows, draft.float(), **how))
    words = cut_words(rows, Sampling(top_k=30), 1.0).flatten(0, 1)[how["row"].long()]
    cuts = torch.cat([words, words], dim=-1)
    found = residual_race(target, draft, edits=edits, cuts=cuts, **how)
    assert_same(found, residual_race(rows, draft.float(), cuts=cuts, **how))
    assert not torch.equal(found[0], residual_race(target, draft, cuts=cuts, **how)[0])


def test_rows_out_of_range(parts_backend):
    """They are not read, and harm no neighbour; so at temperature 0, too."""
    call = CALL
    row = torch.tensor([0, 6, -2, 1, -1, 2**31 - 1, 5], dtype=torch.int32)
    beside = torch.tensor([6, 0, 0, -2, 9, 0, 5], dtype=torch.int32)
    how = {"seed": 3, "position": 4, "vocab_start": 1024, "row_stats": torch.ones(7, 4)}
    for temperature in (1.0, 0.0):
        tokens, scores, status = residual_race(
            call["target"], call["draft"], row, draft_row=beside, temperature=temperature, **how
        )
        assert tokens[:6].tolist() == [0, 0, 0, 0, -1, 0]
        assert (scores[:6] == torch.inf).all()
        assert status.tolist() == [8, 8, 8, 8, 0, 8, 0]
        how_alone = how | {"row_stats": torch.ones(1, 4)}
        alone = residual_race(
            call["target"], call["draft"], row[6:], draft_row=beside[6:], temperature=temperature, **how_alone
        )
        assert [x[6].item() for x in (tokens, scores, status)] == [x.item() for x in alone]
