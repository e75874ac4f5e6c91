"""A row may be a part of a vocabulary: what arrives there is what arrives in the whole row, what is known adds up."""

import ctypes
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

from specdec_kernels import race_sample, race_topk
from specdec_kernels.backends.reference import mass
from tests.backends.cpu_parts import COMPILER, compiled
from tests.backends.host_cuda.build import build

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NOBODY = 0x7FFFFFFF  # kNoToken
# Cuts between groups of 64 tokens, inside of them, inside of a tile of 2,048, and parts of a single token.
CUTS = [0, 1, 64, 128, 1000, 2048, 2049, 4096 + 32, 16032, 16033, 40000, 40960]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")


class RowPartial(ctypes.Structure):
    _fields_ = [("score", ctypes.c_float), ("token", ctypes.c_int32), ("status", ctypes.c_int32)]


class LogSumExp(ctypes.Structure):
    _fields_ = [("max", ctypes.c_float), ("log_sum", ctypes.c_float)]


def played():
    library = ctypes.CDLL(str(build("row_part")))
    library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(1))
    return library


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def race_part(library, logits, vocab_start, k, temperature, seed):
    """The first k arrivals in a part of a vocabulary that begins with `vocab_start`."""
    tokens, form = torch.full((k,), -77), DTYPES.index(logits.dtype)
    numbers = (ctypes.c_float(temperature), ctypes.c_int64(seed), ctypes.c_int64(k))
    assert not library.race_part(pointer(logits), form, len(logits), vocab_start, *numbers, pointer(tokens))
    return tokens.tolist()


def race_product(library, weights, hidden, vocab_start, temperature, seed):
    """The winner among the rows of `weights` by their products with `hidden`."""
    token, (rows, depth) = torch.full((1,), -77), weights.shape
    numbers = (ctypes.c_float(temperature), ctypes.c_int64(seed))
    assert not library.race_product(
        pointer(weights), pointer(hidden), depth, rows, vocab_start, *numbers, pointer(token)
    )
    return token.item()


def every_part():
    """For the sanitizers: parts that begin and end anywhere, on the played machine."""
    library = played()
    weights = torch.randn(CUTS[-1], 3)
    for begin, end in pairwise(CUTS):
        for dtype in DTYPES:
            part = weights[begin:end, 0].to(dtype, copy=True)
            for k in (1, 40):
                race_part(library, part, begin, k, 1.0, 0)
        race_product(library, weights[begin:end].clone(), weights[0], begin, 1.0, 0)


@pytest.fixture(scope="module", params=["cpu", "cuda-host"])
def library(request):
    return played() if request.param == "cuda-host" else compiled()


@pytest.mark.parametrize("spiked", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_agree_with_the_whole(library, dtype, temperature, spiked):
    logits = torch.randn(CUTS[-1], generator=torch.Generator().manual_seed(1)).mul(3)
    if spiked:  # in the second tile of 2,048 of the vocabulary, but in the first one of the part
        logits[6144:6160] += 20
        logits[16384:16400] += 20
    logits = logits.to(dtype)
    for seed in range(3):
        whole = race_topk(logits[None], 40, seed=seed, position=0, temperature=temperature)[0].tolist()
        for begin, end in pairwise(CUTS):
            expected = [token for token in whole if begin <= token < end]
            found = race_part(library, logits[begin:end], begin, 40, temperature, seed)
            assert found[: len(expected)] == expected
            assert race_part(library, logits[begin:end], begin, 1, temperature, seed) == found[:1]
            assert all(begin <= token < end for token in found if token != -1)


def known_of_parts(library, logits, begin, backwards=False):
    """(winner and status, log-sum-exp, mass) from parts that begin there."""
    row, lse, whole = RowPartial(), LogSumExp(), ctypes.c_uint64()
    begin = torch.tensor([*begin, len(logits)], dtype=torch.int32)
    found = ctypes.byref(row), ctypes.byref(lse), ctypes.byref(whole)
    library.known_of_parts(pointer(logits), pointer(begin), len(begin) - 1, int(backwards), *found)
    return row, lse, whole.value


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("case", ["normal", "nan", "ties", "empty part", "no weight"])
def test_what_is_known_of_parts_is_known_of_the_whole(library, case, backwards):
    logits = torch.randn(6000, generator=torch.Generator().manual_seed(2)).mul(3)
    if case == "nan":
        logits[2500] = float("nan")
    elif case == "ties":
        logits[[30, 700, 4900]] = 20.0
    elif case == "empty part":
        logits[1024:4096] = -torch.inf
    elif case == "no weight":
        logits[:] = -torch.inf
    row, lse, whole = known_of_parts(library, logits, [0, 1024, 1024, 4096, 5120], backwards)
    clean = logits.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    top = clean.max().item()
    assert row.score == top
    assert row.status == (1 if case == "nan" else 0)
    if case == "no weight":
        assert (row.token, whole, lse.log_sum) == (NOBODY, 0, float("inf"))
    else:
        assert row.token == clean.argmax().item()
        assert whole == mass.mass(clean.numpy(), np.float32(top))
        assert lse.max == top
        assert lse.log_sum == pytest.approx((clean.double() - top).exp().sum().log().item(), rel=2e-6)


def far_below(size):
    """One large logit in each tile of 1,024; the others are more than 30 ln 2 below, so they have no units there."""
    row = -21.0 - torch.rand(size, generator=torch.Generator().manual_seed(5))
    row[::1024] = 0.0
    return row


def test_parts_that_begin_inside_a_tile_have_another_mass(library):
    """Half of a tile has a maximum of its own. Its units keep what those of the whole tile lose."""
    logits = far_below(6000)
    expected = mass.mass(logits.numpy(), np.float32(0))
    assert known_of_parts(library, logits, [0, 2048])[2] == expected
    assert known_of_parts(library, logits, [0, 512])[2] != expected


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_epilogue_of_a_matrix_product_races(temperature):
    """Its logits are in registers and nowhere else."""
    library = played()
    draw = torch.Generator().manual_seed(3)
    weights, hidden = torch.randn(CUTS[-1], 3, generator=draw), torch.randn(3, generator=draw)
    logits = torch.zeros(len(weights))
    for column, factor in zip(weights.T, hidden, strict=True):
        logits += column * factor
    for begin, end in ((0, CUTS[-1]), (1000, 9000), (2049, 2050)):
        part = torch.full_like(logits, -torch.inf)
        part[begin:end] = logits[begin:end]
        for seed in range(5):
            found = race_product(library, weights[begin:end].clone(), hidden, begin, temperature, seed)
            assert begin + found == race_sample(part, seed=seed, position=0, temperature=temperature)
