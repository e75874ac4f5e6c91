"""Log-probabilities over slices of rows: on every rank those of the whole rows."""

import pytest
import torch

from specdec_kernels import Sampling, sharded
from specdec_kernels.ops import Logprobs
from tests.sharded import test_races
from tests.sharded.test_filters import rows_of
from tests.sharded.test_races import BEGINS, VOCABULARY
from tests.support.cases import DTYPES, adversarial_rows

SAMPLINGS = {
    "raw": Sampling(),
    "temperature": Sampling(0.6),
    "argmax": Sampling(0.0, top_k=3),
    "top_k": Sampling(0.8, top_k=7),
    "top_k and top_p": Sampling(1.2, top_k=40, top_p=0.6),
    "ties together": Sampling.huggingface(top_k=5),
    "before the temperature": Sampling.llamacpp(0.6, top_k=20, top_p=0.9, min_p=0.01),
    "top_p of the row": Sampling(0.9, top_p=0.8),
}


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
@pytest.mark.parametrize("top", [0, 9])
def test_hard_rows(fast_backend, sampling, top):
    rows, tokens = hard_rows()
    expected = check(BEGINS[2], rows, tokens, sampling=sampling, top=top)
    assert expected.rank.max() > 1


@pytest.mark.parametrize("begins", BEGINS, ids=len)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_ranks_gives_the_same(fast_backend, begins, dtype):
    rows = (3 * torch.randn(2, 3, VOCABULARY, generator=torch.Generator().manual_seed(1))).to(dtype)
    tokens = rows.argmax(dim=-1) + torch.tensor([0, 1, -1])
    check(begins, rows, tokens)
    check(begins, rows, tokens, temperature=torch.tensor([[1.0], [0.5]]).expand(2, 3), top=70)


def test_numbers_of_rows_and_requests(fast_backend):
    rows, tokens = hard_rows()
    sampling = rows_of(Sampling(), len(rows))
    check(BEGINS[1], rows, tokens, sampling=sampling, top=3)
    check(BEGINS[1], rows, tokens, temperature=torch.linspace(-0.2, 2, len(rows)), top=3)
    index = torch.arange(len(rows), dtype=torch.int32).flip(0)
    index[[0, 4]] = torch.tensor([-1, 99], dtype=torch.int32)
    check(BEGINS[1], rows, tokens, sampling=sampling, top=3, request_index=index)
    check(BEGINS[1], rows, tokens, temperature=0.7, request_index=index)


@pytest.mark.interpreted
def test_every_backend(parts_backend):
    rows = 2 * torch.randn(3, 1500, generator=torch.Generator().manual_seed(1))
    check([0, 1024], rows, torch.tensor([1023, 1024, 5]), sampling=Sampling(0.8, top_k=9), top=4)
    check([0, 1024], rows, torch.tensor([1023, 1024, 5]), top=4)


def test_what_is_refused_is_named():
    shard = sharded.VocabShard(2048, 0)
    with pytest.raises(ValueError, match="top: expected an int from 0 to the vocabulary's 2048; got 2049"):
        sharded.logprobs(torch.zeros(1, 2048), torch.zeros(1).long(), shard=shard, top=2049)
