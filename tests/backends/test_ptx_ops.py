"""The ops' own tests, and the played machine's, under what nvcc makes of the kernels; wide rows, large batches."""

import importlib
import importlib.util

import pytest
import torch

from specdec_kernels import Sampling, race_sample
from specdec_kernels.calls.op import OPS
from tests.backends import (
    test_cuda_chains,
    test_cuda_edges,
    test_cuda_filters,
    test_cuda_ops,
    test_cuda_order,
    test_cuda_trees,
    test_ptx_calls,
    test_random_calls,
)
from tests.backends.ptx.build import unavailable
from tests.conftest import running
from tests.ops import test_row_seeds
from tests.support.cases import chain_call, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.same_bits import assert_as_cpu
from tests.support.trees import tree_call

pytestmark = [pytest.mark.slow, pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))]

PTX = ("cuda-ptx",)
backend = pytest.fixture(running, name="backend", params=PTX)
other_backend = pytest.fixture(running, name="other_backend", params=PTX)
kernels = pytest.fixture(running, name="kernels", params=PTX)


@pytest.fixture
def quick_backend():
    pytest.skip("thousands of requests, or many wide rows")


fast_backend = quick_backend


device, play = test_ptx_calls.device, test_cuda_order.play


def borrowed(module, *names):
    """A module's tests, or those of these names, for this module; with the fixtures that all of its tests use."""
    short = module.__name__.rpartition("test_")[2]
    marks = getattr(module, "pytestmark", [])
    used = [mark for mark in (marks if isinstance(marks, list) else [marks]) if mark.name == "usefixtures"]
    for name, test in vars(module).items():
        if name in names or (not names and name.startswith(("test", "Test"))):
            kind = "Test" if name.startswith("Test") else "test"
            for mark in used:
                test = mark(test)
            globals()[f"{kind}_{short}_{name.removeprefix(kind).lstrip('_')}"] = test


for op in OPS:
    if importlib.util.find_spec(f"tests.ops.test_{op}"):
        borrowed(importlib.import_module(f"tests.ops.test_{op}"))
borrowed(test_random_calls, "TestPlayedMachine")
borrowed(test_cuda_chains, "TestPlayedMachine")
borrowed(test_cuda_filters, "TestTheSameBits")
borrowed(
    test_cuda_ops, "test_uniforms_at_the_threshold", "test_a_draft_row_whose_only_weight_one_block_sees",
    "test_every_offset_has_64_bits",
)  # fmt: skip
borrowed(test_cuda_trees, "test_wide_rows_and_many_nodes", "test_uniforms_of_later_siblings_at_the_threshold")
borrowed(
    test_cuda_edges,
    "test_the_last_token_of_an_aligned_row_may_win", "test_clusters_of_any_size_have_the_bits_of_one_block",
    "test_every_part_of_a_row_tells_what_it_met", "test_tiles_end_where_their_output_does",
    "test_more_may_win_than_a_block_lists", "test_a_first_guess_excludes_no_winner",
)  # fmt: skip
borrowed(test_row_seeds)
order = ("test_the_same_verdict", "test_a_status_comes_along", "test_forms", "test_given_tokens", "test_turns")
borrowed(test_cuda_order, *order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"method": "race", "draft": None}, {"method": "block"}])
def test_rows_of_a_large_vocabulary(machine, options, dtype):
    call = chain_call(1, requests=2, slots=2, vocabulary=128_256, dtype=dtype) | options
    filtered = {name: x for name, x in call.items() if name != "temperature"} | {
        "sampling": Sampling(top_k=50, top_p=0.9)
    }
    for one in (call, filtered):
        if one is call or options.get("method") != "block":
            assert_as_cpu(verify_chain, **one)
    rows = call["target"][:, 0]
    assert_as_cpu(race_sample, rows, seed=seeds(2), position=1)
    for op in (residual, overlap):
        assert_as_cpu(op, rows, rows.flip(0))


@pytest.mark.parametrize("options", [{}, {"method": "race", "draft": None}])
def test_batches_of_64(machine, options):
    call = chain_call(2, requests=64, slots=4, vocabulary=2049, dtype=torch.bfloat16) | options
    assert_as_cpu(verify_chain, **call)
    tree = tree_call(3, requests=64, nodes=9, vocabulary=1025) | options
    assert_as_cpu(verify_tree, **tree)
