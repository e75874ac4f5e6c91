"""The CUDA tree ops on the played machine: the CPU backend's bits, on every machine and in every order of threads."""

import pytest
import torch

from specdec_kernels import tree_mask, tree_positions
from tests import test_cuda_ops
from tests.test_cuda_ops import assert_same, on_cpu
from tests.trees import random_parents

machine, pytestmark = test_cuda_ops.machine, test_cuda_ops.pytestmark

LAYOUTS = (
    {"layout": "bool"},
    {"layout": "bits"},
    *({"layout": "additive", "dtype": dtype} for dtype in (torch.float32, torch.bfloat16, torch.float16)),
)


def trees_of(nodes, requests=3):
    """Parents, int32 and one of them no tree, and prefixes of which one is out of range."""
    generator = torch.Generator().manual_seed(nodes)
    parents = random_parents(requests, nodes, generator).int()
    if nodes > 2:
        parents[0, nodes // 2] = nodes
    prefix_len = torch.randint(0, 2000, (requests,), generator=generator)
    prefix_len[-1] = -5
    return parents, prefix_len


def statuses():
    return [torch.full((3,), -77, dtype=torch.int32) for _ in range(2)]


@pytest.fixture
def unseen(monkeypatch):
    """As on a device: the host does not look into a tensor."""
    monkeypatch.setattr("specdec_kernels.ops._trees.host_sees", lambda tensor: False)


@pytest.mark.usefixtures("unseen")
class TestTheSameBits:
    @pytest.mark.parametrize("nodes", [1, 5, 40, 300])
    def test_tree_positions(self, machine, nodes):
        parents, prefix_len = trees_of(nodes)
        mine, theirs = statuses()
        found = tree_positions(parents, prefix_len=prefix_len, status=mine)
        assert_same(found, on_cpu(tree_positions, parents, prefix_len=prefix_len, status=theirs))
        assert_same(mine, theirs)

    @pytest.mark.parametrize("nodes, columns", [(1, 1), (5, 1023), (40, 1024), (40, 2047)])
    def test_tree_mask(self, machine, nodes, columns):
        parents, prefix_len = trees_of(nodes)
        for options in LAYOUTS:
            mine, theirs = statuses()
            call = {"prefix_len": prefix_len, "columns": columns, **options}
            assert_same(tree_mask(parents, status=mine, **call), on_cpu(tree_mask, parents, status=theirs, **call))
            assert_same(mine, theirs)


def every_op():
    """One call of each op, small and odd, against the CPU backend; gives how many calls that were."""
    parents, prefix_len = random_parents(2, 70, torch.Generator().manual_seed(1)), torch.tensor([0, 45])
    assert_same(tree_positions(parents, prefix_len=prefix_len), on_cpu(tree_positions, parents, prefix_len=prefix_len))
    for options in LAYOUTS:
        call = {"prefix_len": prefix_len, "columns": 1100, **options}
        assert_same(tree_mask(parents, **call), on_cpu(tree_mask, parents, **call))
    return 1 + len(LAYOUTS)


class TestTheLaunch:
    def test_one_kernel_a_call(self, machine):
        before = machine.launches()
        calls = every_op()
        assert machine.launches() - before == calls
