"""The CUDA tree ops on the played machine: trees that random calls lack, on every machine, and what is launched."""

import pytest
import torch

from specdec_kernels import compact_kv, verify_tree
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.ops import test_verify_tree
from tests.support.cases import beside_threshold, seeds
from tests.support.same_bits import assert_as_cpu, assert_same, on_cpu
from tests.support.trees import leaves_of, tree_call

pytestmark = NEEDS_COMPILER

OPTIONS = test_verify_tree.OPTIONS | {"paths": {"method": "paths", "replacement": True}}


def test_shared_memory_that_only_just_needs_to_be_allowed(machine):
    """A bit a token is 48 KiB less some bytes here, and what the kernel declares comes on top."""
    call = tree_call(1, requests=1, nodes=2, vocabulary=392_000) | {"draft": None}
    assert_as_cpu(verify_tree, **call)
    # It was allowed when the kernels were loaded. Another thread may launch them with more.
    assert machine.counted(lambda: verify_tree(**call))["permissions"] == 0


def test_no_number_of_layers_is_too_large(device):
    """Up to 128 tensors travel with one launch. Of several types and sizes, so columns of every width are moved."""
    path, prefix_len = torch.tensor([[0, *range(2, 20)], [0, 3, 2, *[-1] * 16]]).int(), torch.tensor([3, 0])
    for count, launches in ((128, 1), (129, 2), (260, 3)):
        shapes = [(2, 1 + i % 2, 40, (64, 36, 7, 1, 12)[i % 5]) for i in range(count)]
        dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.float16)
        caches = [(100 * torch.randn(shape)).to(dtypes[i % 4]) for i, shape in enumerate(shapes)]
        copies = [x.clone() for x in caches]
        found = device.counted(lambda: compact_kv(caches, path, prefix_len=prefix_len))  # noqa: B023
        on_cpu(compact_kv, copies, path, prefix_len=prefix_len)
        assert_same(caches, copies)
        assert found["launches"] == launches


def made(seed, options, **changes):
    call = tree_call(seed, replacement=options.get("replacement", False), **changes) | options
    if call.get("method") == "paths":
        call["leaves"] = leaves_of(call["parents"].expand(call["draft_tokens"].shape))
    return call


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_wide_rows_and_many_nodes(machine, options):
    """What one block alone cannot hold of a row it reads again, for each child; several blocks can."""
    sizes = {"nodes": 8, "parents": [-1, 0, 0, 0, 0, 1, 1, 1], "vocabulary": 15_000, "draft_vocabulary": 9000}
    for requests in (1, 4):
        assert_as_cpu(verify_tree, **made(2, options, requests=requests, **sizes) | {"temperature": 2.0})
    assert_as_cpu(verify_tree, **made(3, options, requests=1, nodes=1024, vocabulary=40) | {"temperature": 1.5})


@pytest.mark.parametrize("options", [OPTIONS["distinct"], OPTIONS["independent"], OPTIONS["traversal"]], ids=str)
def test_uniforms_of_later_siblings_at_the_threshold(machine, options):
    """A bit more or less in any sum over a pair of rows would decide otherwise about the second sibling, whose uniform
    compares p with these; the first is never accepted."""
    generator = torch.Generator().manual_seed(7)
    target = 2 * torch.randn(64, 1, 5000, generator=generator)
    draft = (target + torch.randn(64, 1, 5000, generator=generator)).softmax(-1).repeat(1, 3, 1)
    target = target.softmax(-1).repeat(1, 3, 1)
    target[:, 0, 0], draft[:, 0, 1] = 0.0, 0.02
    noise = {"seed": seeds(64), "position": 5, "space": "probs", "parents": torch.tensor([-1, 0, 0])}
    call = {"draft_tokens": torch.tensor([-1, 0, 1]).repeat(64, 1), "target": target, "draft": draft} | noise | options
    second = (slice(None), 0, 1)
    calls = beside_threshold(verify_tree, call, "target", second, lambda verdict: verdict.num_accepted == 1)
    for accepted, one in enumerate(calls):
        assert (verify_tree(**one).num_accepted == accepted).all()
        assert_as_cpu(verify_tree, **one)


class TestTheLaunch:
    def test_only_rows_on_the_path_are_streamed(self, machine):
        call = made(6, OPTIONS["race"], requests=3, vocabulary=2048)
        accepted = int(on_cpu(verify_tree, **call).num_accepted.sum())
        found = machine.counted(lambda: verify_tree(**call))
        assert found["bytes_read"] == (3 + accepted) * 2048 * 4

    def test_later_children_are_summed_on_chip(self, machine):
        """All rejected: after the second of them no row is read until the last draw."""
        target, draft = torch.zeros(2, 1, 10, 512)  # four warps: what they hold fits into 99 KB, too
        target[..., :20], draft[..., :20] = -torch.inf, 8.0

        def verify(children):
            tokens, parents = torch.arange(children + 1)[None], torch.tensor([-1] + children * [0])
            rows = slice(children + 1)
            verify_tree(tokens, target[:, rows], draft[:, rows], parents=parents, seed=1, position=0)

        for children in (2, 9):
            found = machine.counted(lambda children=children: verify(children))
            assert found["bytes_read"] == (2 + 2 + 1) * 512 * 4

    def test_a_traversal_too_deep_for_a_small_block_is_refused(self, device):
        """As on a desktop's device: of 99 KB of shared memory a traversal takes 80 bytes for each node of a path."""
        device.play("lone")
        tree = {"requests": 1, "nodes": 1024, "vocabulary": 32}
        deep = tree_call(1, parents=[*range(-1, 1023)], **tree) | {"method": "traversal"}
        with pytest.raises(RuntimeError, match="more shared memory than the device has for it"):
            verify_tree(**deep)
        wide = deep | {"parents": torch.tensor([-1, *range(40), *[40] * 983]), "max_depth": 41}
        assert_as_cpu(verify_tree, **wide)

    def test_where_several_chains_go_on_rows_are_read_once_more(self, machine):
        """For their log-sum-exps, then for the sums by bucket; where one goes on once. The last row is drawn from."""
        rows, tokens = torch.zeros(1, 5, 512), torch.tensor([[-1, 1, 2, 3, 4]])
        tree = {"parents": torch.tensor([-1, 0, 1, 1, 2]), "leaves": torch.tensor([[4, 3]]), "method": "paths"}
        paths = []
        found = machine.counted(
            lambda: paths.append(verify_tree(tokens, rows, rows, **tree, seed=1, position=0).path.tolist())
        )
        assert paths == [[[0, 1, 2, 4]]]
        assert found["launches"] == 1
        assert found["bytes_read"] == (3 * 2 + 2 * 2 + 1) * 512 * 4
