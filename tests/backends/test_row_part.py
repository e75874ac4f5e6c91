"""A row may be a part of a vocabulary: what arrives there is what arrives in the whole row, what is known adds up."""

import ctypes
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from specdec_kernels import race_sample, race_topk
from tests.backends.host_cuda.build import FLAGS, ROOT, build

SOURCE = Path(__file__).parent / "row_part.cpp"
COMPILER = os.environ.get("CXX", "g++")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NOBODY = 0x7FFFFFFF  # kNoToken
# Cuts between groups of 64 tokens, inside of them, inside of a tile of 2,048, and parts of a single token.
CUTS = [0, 1, 64, 128, 1000, 2048, 2049, 4096 + 32, 16032, 16033, 40000, 40960]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")


class RowPartial(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("max", "sum", "score")] + [
        (name, ctypes.c_int32) for name in ("token", "status")
    ]


def played(tmp_path_factory):
    library = ctypes.CDLL(str(build("row_part", [SOURCE])))
    library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(1))
    return library


def native(tmp_path_factory):
    path = tmp_path_factory.mktemp("row_part") / "row_part.so"
    flags = [*FLAGS, "-O1", "-fopenmp", "-shared", "-DSPECDEC_ISA=scalar", "-I", ROOT / "csrc" / "include"]
    subprocess.run([COMPILER, *map(str, flags), str(SOURCE), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(scope="module", params=[native, played], ids=["cpu", "cuda-host"])
def race_part(request, tmp_path_factory):
    library = request.param(tmp_path_factory)

    def run(logits, first_token, k, temperature, seed):
        tokens = torch.full((k,), -77)
        failed = library.race_part(
            ctypes.c_void_p(logits.data_ptr()),
            DTYPES.index(logits.dtype),
            len(logits),
            first_token,
            ctypes.c_float(temperature),
            ctypes.c_int64(seed),
            ctypes.c_int64(k),
            ctypes.c_void_p(tokens.data_ptr()),
        )
        assert not failed
        return tokens.tolist()

    return run


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_agree_with_the_whole(race_part, dtype, temperature):
    logits = torch.randn(CUTS[-1], generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    for seed in range(3):
        whole = race_topk(logits[None], 40, seed=seed, position=0, temperature=temperature)[0].tolist()
        for begin, end in pairwise(CUTS):
            expected = [token for token in whole if begin <= token < end]
            found = race_part(logits[begin:end], begin, 40, temperature, seed)
            assert found[: len(expected)] == expected
            assert race_part(logits[begin:end], begin, 1, temperature, seed) == found[:1]
            assert all(begin <= token < end for token in found if token != -1)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("case", ["normal", "nan", "ties", "empty part", "no weight"])
def test_what_is_known_of_parts_is_known_of_the_whole(tmp_path_factory, case, backwards):
    library = played(tmp_path_factory)
    begin = torch.tensor([0, 1, 64, 1000, 1000, 2048, 3000], dtype=torch.int32)
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(2)).mul(3)
    if case == "nan":
        logits[2500] = float("nan")
    elif case == "ties":
        logits[[30, 700, 2900]] = 20.0
    elif case == "empty part":
        logits[64:1000] = -torch.inf
    elif case == "no weight":
        logits[:] = -torch.inf
    row = RowPartial()
    library.known_of_parts(
        ctypes.c_void_p(logits.data_ptr()),
        ctypes.c_void_p(begin.data_ptr()),
        len(begin) - 1,
        int(backwards),
        ctypes.byref(row),
    )
    clean = logits.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    top = clean.max().item()
    assert row.max == row.score == top
    assert row.status == (1 if case == "nan" else 0)
    if case == "no weight":
        assert row.sum == 0.0 and row.token == NOBODY
    else:
        assert row.token == clean.argmax().item()
        # 3,000 terms of at most 1, each within 3e-7, and a rounding of the sum a term.
        assert row.sum == pytest.approx((clean.double() - top).exp().sum().item(), rel=3000 * 2**-24)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_epilogue_of_a_matrix_product_races(tmp_path_factory, temperature):
    """Its logits are in registers and nowhere else."""
    library = played(tmp_path_factory)
    draw = torch.Generator().manual_seed(3)
    weights, hidden = torch.randn(CUTS[-1], 3, generator=draw), torch.randn(3, generator=draw)
    logits = torch.zeros(len(weights))
    for column, factor in zip(weights.T, hidden, strict=True):
        logits += column * factor
    for begin, end in ((0, CUTS[-1]), (1000, 9000), (2049, 2050)):
        part = weights[begin:end].contiguous()
        inside = torch.full_like(logits, -torch.inf)
        inside[begin:end] = logits[begin:end]
        for seed in range(5):
            token = torch.full((1,), -77)
            failed = library.race_product(
                ctypes.c_void_p(part.data_ptr()),
                ctypes.c_void_p(hidden.data_ptr()),
                3,
                len(part),
                begin,
                ctypes.c_float(temperature),
                ctypes.c_int64(seed),
                ctypes.c_void_p(token.data_ptr()),
            )
            expected = race_sample(inside, seed=seed, position=0, temperature=temperature)
            assert not failed and begin + token.item() == expected.item()
