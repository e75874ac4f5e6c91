"""residual_sums: what a draft left of its law in parts of rows, and what the draft has there."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling
from specdec_kernels.sharded._parts import mass_tiles, residual_sums, tile_laws
from tests.support.cases import adversarial_pairs, poisoned
from tests.support.parts import cut_words, edited, edits_of, support_of

ROWS = torch.randn(2, 3, 2, 33, generator=torch.Generator().manual_seed(3))
CALL = {
    "target": ROWS[0], "draft": ROWS[1], "row": torch.tensor([0, -1, 5], dtype=torch.int32),
    "draft_row": torch.tensor([1, 2, 4], dtype=torch.int32), "row_stats": torch.ones(3, 4), "subtracted": torch.ones(3),
    "temperature": torch.ones(3), "draft_temperature": torch.ones(3),
}  # fmt: skip
CUTS = torch.tensor([[-1.0, 0.0, 1.0] * 2] * 3).view(torch.int32)
CALLS = {
    "residual_sums": (residual_sums, CALL),
    "residual_sums, cut": (residual_sums, CALL | {"cuts": CUTS}),
    "residual_sums, edited": (
        residual_sums, CALL | {"cuts": CUTS, "edits": edits_of(3, 2, vocabulary=33, seed=1)._replace(bias=None)},
    ),
}  # fmt: skip
PAIRS = torch.arange(6, dtype=torch.int32)
UNIT = 2.0**42


def law_of(rows, temperature=1.0):
    """(log-sum-exps, probabilities) of rows [n, V], by this backend."""
    temperature = torch.as_tensor(temperature).expand(len(rows)).contiguous()
    return tile_laws(mass_tiles(rows, temperature=temperature)[0], rows, temperature=temperature)


def counted(p, q, subtracted):
    """The sums of probabilities that are known: int64 [n, 2]."""
    left = p - subtracted.unsqueeze(-1) * q
    weights = torch.stack([torch.where(left >= torch.finfo(torch.float32).tiny, left, 0.0), q])
    return (weights.clamp(max=1).double() * UNIT).round().long().sum(-1).T


@pytest.mark.parametrize("size", [1, 7, 2049])
def test_every_token_is_counted(parts_backend, size):
    """Rows with NaN, infinities and no weight at all; a float16 draft beside them; the same bits on every kernel."""
    target, draft = adversarial_pairs(size)
    target = torch.cat([target, torch.full((1, size), -torch.inf), torch.zeros(1, size)])
    draft = torch.cat([draft, torch.zeros(1, size), torch.full((1, size), -torch.inf)]).half()
    place = torch.arange(len(target), dtype=torch.int32)
    temperature, subtracted = torch.tensor([0.7, 1.0, 2.0])[place % 3], torch.tensor([1.0, 0.0, 0.25, 3.0])[place % 4]
    (p_stats, p), (q_stats, q) = law_of(target, temperature), law_of(draft, 0.9)
    call = {
        "target": poisoned(target), "draft": poisoned(draft), "row": place, "draft_row": place,
        "subtracted": subtracted, "row_stats": torch.cat([p_stats, q_stats], dim=-1), "temperature": temperature,
        "draft_temperature": 0.9,
    }  # fmt: skip
    sums, status = residual_sums(**call)
    assert torch.equal(sums, counted(p, q, subtracted))
    assert not status.any()
    with specdec_kernels.backend("cpu"):
        expected, _ = residual_sums(**call)
    assert torch.equal(sums, expected)


def test_the_rows_of_a_pair_are_any_two(parts_backend):
    """Of sides with other numbers of rows, by strides; some pairs share a row."""
    generator = torch.Generator().manual_seed(2)
    target, draft = torch.randn(2, 6, 40, generator=generator)[:, ::2, 3:36], torch.randn(4, 1, 33, generator=generator)
    row, draft_row = (torch.tensor(x, dtype=torch.int32) for x in ([5, 0, 3, 3, 1], [3, 3, 0, 1, 2]))
    (p_stats, p), (q_stats, q) = law_of(target.reshape(6, 33)), law_of(draft.view(4, 33))
    row_stats = torch.cat([p_stats[row.long()], q_stats[draft_row.long()]], dim=-1)
    sums, _ = residual_sums(target, draft, row, draft_row, row_stats=row_stats, subtracted=0.5)
    assert torch.equal(sums, counted(p[row.long()], q[draft_row.long()], torch.full((5,), 0.5)))


def test_what_is_not_weighed(parts_backend):
    """Idle pairs and rows out of range, beside a pair that is neither; temperatures that are none."""
    rows = torch.zeros(2, 1500)
    row = torch.tensor([0, -1, 0, 2, 1, -2, 0, 1], dtype=torch.int32)
    draft_row = torch.tensor([1, 0, -1, 0, 2, 0, 1, -3], dtype=torch.int32)
    row_stats = law_of(rows)[0][:1].repeat(8, 2)
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, torch.nan, 1.0])
    how = {"row_stats": row_stats, "subtracted": 0.0, "temperature": temperature}
    sums, status = residual_sums(rows, rows, row, draft_row, **how)
    assert status.tolist() == [0, 0, 0, 8, 8, 8, 8, 8]
    assert abs(sums[0, 0].item() / UNIT - 1) < 1e-6
    assert not sums[[1, 2, 3, 4, 5, 7]].any()
    none = residual_sums(rows, rows, row[:0], row[:0], row_stats=row_stats[:0])
    assert [tuple(x.shape) for x in none] == [(0, 2), (0,)]


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16, torch.float16)], ids=str)
def test_cuts_and_edits(parts_backend, dtypes):
    """As over rows written out: what is dropped is -inf. With ties, a part after the last token, and no cut."""
    generator = torch.Generator().manual_seed(4)
    target, draft = (torch.randn(3, 2, 2061, generator=generator).to(dtype) for dtype in dtypes)
    target[..., 1:90:4] = target[..., :1]
    edits = edits_of(3, 2, vocabulary=2061, seed=7)
    rows = edited(target, edits)
    row, draft_row = PAIRS.flip(0), PAIRS
    row_stats = torch.cat([law_of(x.flatten(0, 1).float())[0] for x in (rows, draft)], dim=-1)
    call = {"row_stats": row_stats, "subtracted": 0.5, "draft_temperature": 0.8}
    sampling = Sampling(2.0, top_k=torch.tensor([[1, 40], [7, 0], [2060, 300]]))
    flat = [rows.flatten(0, 1)[row.long()], draft.flatten(0, 1)[draft_row.long()]]
    words = [
        cut_words(rows, sampling, 0.5).flatten(0, 1)[row.long()],
        cut_words(draft, Sampling(top_k=25), 1.0).flatten(0, 1)[draft_row.long()],
    ]
    words[0][2, 1], words[1][3, 1] = -5, 10**6
    kept = [support_of(x.float(), own) for x, own in zip(flat, words, strict=True)]
    both = torch.cat(words, dim=-1)
    for how, expected in (
        ({"cuts": both, "edits": edits}, kept),
        ({"cuts": both}, [support_of(target.flatten(0, 1)[row.long()].float(), words[0]), kept[1]]),
        ({"edits": edits}, flat),
    ):
        sums, status = residual_sums(target, draft, row, draft_row, **call, **how)
        assert torch.equal(sums, residual_sums(*(x.float() for x in expected), PAIRS, PAIRS, **call)[0])
        assert not status.any()
