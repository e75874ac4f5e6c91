"""Log-probabilities over slices of rows: on every rank those of the whole rows."""

import pytest
import torch

from specdec_kernels import Sampling, sharded
from specdec_kernels.ops import Logprobs
from tests.sharded import test_races
from tests.sharded.test_races import BEGINS, VOCABULARY
from tests.support.cases import adversarial_rows
from tests.support.random_calls import random_slices

SAMPLINGS = {
    "raw": Sampling(), "argmax": Sampling(0.0, top_k=3), "top_k and top_p": Sampling(1.2, top_k=40, top_p=0.6),
    "top_p of the row": Sampling(0.9, top_p=0.8),
}  # fmt: skip


def check(begins, rows, tokens, **how):
    return Logprobs(*test_races.check("logprobs", {"rows": rows, "tokens": tokens, **how}, begins)[:4])


def hard_rows():
    rows = torch.stack(list(adversarial_rows(VOCABULARY).values()))
    rows[1, 7], rows[2, 4097] = torch.nan, torch.inf
    largest = rows.nan_to_num(nan=-torch.inf).topk(3).indices
    tokens = largest[torch.arange(len(rows)), torch.arange(len(rows)) % 3]
    tokens[5::3] = torch.arange(4) * 997
    tokens[-3:] = torch.tensor([-1, VOCABULARY, -5])
    return rows, tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("top", [0, 9, 70])
def test_hard_rows(fast_backend, sampling, top):
    rows, tokens = hard_rows()
    expected = check(BEGINS[2], rows, tokens, sampling=sampling, top=top)
    assert expected.rank.max() > 1


def test_random_calls(fast_backend):
    for number in range(40):
        test_races.check("logprobs", *random_slices(number, "logprobs"))


def test_every_backend(parts_backend):
    rows = 2 * torch.randn(3, 1500, generator=torch.Generator().manual_seed(1))
    check([0, 1024], rows, torch.tensor([1023, 1024, 5]), sampling=Sampling(0.8, top_k=9), top=4)
    check([0, 1024], rows, torch.tensor([1023, 1024, 5]), top=4)


def test_what_is_refused_is_named():
    shard = sharded.VocabShard(2048, 0)
    with pytest.raises(ValueError, match="top: expected an int from 0 to the vocabulary's 2048; got 2049"):
        sharded.logprobs(torch.zeros(1, 2048), torch.zeros(1).long(), shard=shard, top=2049)
