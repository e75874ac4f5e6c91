"""A row may be a part of a vocabulary: what arrives there is what arrives in the whole row."""

import ctypes
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from specdec_kernels import race_topk
from tests.backends.host_cuda.build import FLAGS, ROOT, build

SOURCE = Path(__file__).parent / "row_part.cpp"
COMPILER = os.environ.get("CXX", "g++")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Cuts between groups of 64 tokens, inside of them, inside of a tile of 2,048, and parts of a single token.
CUTS = [0, 1, 64, 128, 1000, 2048, 2049, 4096 + 32, 16032, 16033, 40000, 40960]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=["cpu", "cuda-host"])
def race_part(request, tmp_path_factory):
    if request.param == "cuda-host":
        library = ctypes.CDLL(str(build("row_part", [SOURCE])))
        library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(1))
    else:
        path = tmp_path_factory.mktemp("row_part") / "row_part.so"
        flags = [*FLAGS, "-O1", "-fopenmp", "-shared", "-DSPECDEC_ISA=scalar", "-I", ROOT / "csrc" / "include"]
        subprocess.run([COMPILER, *map(str, flags), str(SOURCE), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))

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
