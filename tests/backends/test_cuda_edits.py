"""LogitEdits in the CUDA kernels on the played machine: the CPU backend's bits, however many blocks share a row."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import LogitEdits, Sampling, cutoff, race_sample
from tests.backends import test_cuda_ops
from tests.backends.test_cuda_filters import CHAINS, TREES, assert_same_rows, sampling_of, with_status, without
from tests.backends.test_cuda_ops import assert_same, assert_same_figures, called, on_cpu, rows_of
from tests.support.cases import DTYPES, chain_call, ragged, seeds
from tests.support.edits import bits_of, random_edits
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

pytestmark = test_cuda_ops.pytestmark


class TestTheSameBits:
    @pytest.mark.parametrize("size", [1, 65, 2500])
    def test_of_odd_rows(self, machine, size):
        """Every other row greedy, and with filters of all kinds."""
        rows = rows_of(size, DTYPES[size % 3])
        edits = random_edits(len(rows), vocabulary=size, seed=size, bias_by_row=size == 65)
        for sampling in (Sampling(seeds(len(rows)) % 2 * 0.9), sampling_of(len(rows), {})):
            assert_same_rows(rows, sampling, k=9, edits=edits)

    @pytest.mark.parametrize("wrong", ["falls", "outside", "repeats"])
    def test_of_a_bias_out_of_order(self, machine, wrong):
        """Entries that do not count are left out, wherever a block meets them; the others of the span are found."""
        generator = torch.Generator().manual_seed(1)
        tokens = torch.rand(3, 1500, generator=generator).topk(90, -1).indices.sort(-1).values.int()
        if wrong == "falls":
            tokens[1] = tokens[1].roll(45)
        elif wrong == "outside":
            tokens[1, ::7], tokens[1, 3::7] = -5, 1500
        else:
            tokens[1, 1::2] = tokens[1, ::2]
        cu = 90 * torch.arange(4, dtype=torch.int32)
        edits = LogitEdits(bias=(tokens.flatten(), 3 * torch.randn(270, generator=generator), cu))
        rows = 2 * torch.randn(3, 1500, generator=generator).bfloat16()
        assert_same_rows(rows, Sampling(torch.tensor([1.0, 0.7, 0.0]), torch.tensor([0, 30, 0]), 0.8), k=9, edits=edits)
        status = with_status(race_sample, rows, seed=seeds(3), position=0, edits=edits)[-1]
        assert status.tolist() == [0, 8, 0]

    def test_of_rows_that_no_list_holds(self, machine):
        """Passes over the row read edited elements, too."""
        rows = torch.randn(3, 4500, generator=torch.Generator().manual_seed(1))
        edits = random_edits(3, vocabulary=4500, seed=3)
        numbers = Sampling(0.7, torch.tensor([3000, 0, 4200]), torch.tensor([1.0, 0.8, 0.95]))
        for rules in ({"top_p_after": ()}, {"at_temperature": False}):
            call = {"sampling": numbers._replace(**rules), "edits": edits}
            assert_same(called(cutoff, rows, **call), on_cpu(cutoff, rows, **call))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_of_rows_that_begin_anywhere(self, machine, dtype):
        rows = torch.randn(2, 607, generator=torch.Generator().manual_seed(1)).to(dtype)[:, 3:-4]
        assert_same_rows(rows, Sampling(1.0), k=9, edits=random_edits(2, vocabulary=600, seed=5))


class TestTheSameVerdict:
    @pytest.mark.parametrize("by_row, options", list(enumerate(CHAINS.values())), ids=CHAINS)
    def test_of_chains(self, machine, by_row, options):
        dtype = DTYPES[by_row % 3]
        call = without(chain_call(1, requests=7, slots=3, vocabulary=1100, dtype=dtype) | options, "temperature")
        edits = random_edits(7, 4, vocabulary=1100, seed=2, bias_by_row=by_row % 2 == 1)
        edits = edits._replace(pending=torch.cat([call["draft_tokens"][:, :1], edits.pending], -1))
        for law in ({"temperature": 0.8}, {"sampling": sampling_of(7, {}), "draft.sampling": sampling_of(7, {}, 5)}):
            if call["draft"] is None:
                law.pop("draft.sampling", None)
            assert_same(verify_chain(**call, **law, edits=edits), on_cpu(verify_chain, **call, **law, edits=edits))

    @pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
    def test_of_ragged_chains(self, machine, options):
        counts = torch.tensor([0, 3, 1, 2])
        edits = random_edits(4, 4, vocabulary=300, seed=3)
        call = ragged(chain_call(2, requests=4, slots=3, vocabulary=300), counts) | options
        allowed = torch.cat([own[: n + 1] for own, n in zip(edits.allowed, counts, strict=True)])
        call |= {"edits": edits._replace(allowed=allowed)}
        assert_same(verify_chain(**call), on_cpu(verify_chain, **call))

    @pytest.mark.parametrize("options", TREES.values(), ids=TREES)
    def test_of_trees(self, machine, options):
        call = tree_call(1, replacement=options.get("replacement", False), requests=5, nodes=9, vocabulary=300)
        edits = random_edits(5, 9, vocabulary=300, seed=4, bias_by_row=True)._replace(presence=1.5)
        for law in ({}, {"temperature": None, "sampling": sampling_of(5, {})}):
            one = call | options | law | {"edits": edits}
            assert_same(verify_tree(**one), on_cpu(verify_tree, **one))


def test_figures_of_pairs(machine):
    rows = 2 * torch.randn(2, 5, 1100, generator=torch.Generator().manual_seed(0)).bfloat16()
    edits = random_edits(5, vocabulary=1100, seed=6)
    for law in ({}, {"sampling": sampling_of(5, {}, 6)}):
        for op, options in ((residual, {"draft_prob": 0.9}), (overlap, {})):
            found, expected = (run(op, *rows, **law, **options, edits=edits) for run in (called, on_cpu))
            assert_same_figures(op, found, expected)


def every_op():
    """Calls of each op, small and odd, against the CPU backend; gives how many calls that were."""
    with specdec_kernels.backend("cuda-host"):
        rows = rows_of(333, torch.bfloat16)
        edits = random_edits(len(rows), vocabulary=333, seed=1, bias_by_row=True)
        count = assert_same_rows(rows, sampling_of(len(rows), {}), k=3, edits=edits)
        chain, tree = chain_call(3, requests=3, slots=2, vocabulary=1100), tree_call(5, 3, nodes=7, vocabulary=300)
        for op, call, slots in ((verify_chain, chain, 3), (verify_tree, tree, 7)):
            own = {"edits": random_edits(3, slots, vocabulary=call["target"].shape[-1], seed=2)}
            for one in (call | own, call | own | CHAINS["race"]):
                assert_same(op(**one), on_cpu(op, **one))
        residual(rows, rows.roll(1, 0), edits=edits)
        overlap(rows, rows.roll(1, 0), edits=edits)
        return count + 6


class TestTheLaunch:
    @pytest.mark.parametrize("sampling", [None, Sampling(top_k=50, top_p=0.9)], ids=["plain", "filtered"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_race_streams_its_row_once(self, machine, sampling, dtype):
        """Edited elements are made of those that were loaded. A filter opens the cells of its 50 tokens, at most 50
        of a row's 128; the machine counts that in float32, where four elements are a load of 16 bytes.
        """
        rows = 2 * torch.randn(2, 16_384, generator=torch.Generator().manual_seed(0)).to(dtype)
        edits = random_edits(2, vocabulary=16_384, seed=1)
        call = {"seed": seeds(2), "position": 0, "sampling": sampling, "edits": edits}
        opened = 50 / 128 if sampling and dtype == torch.float32 else 0
        streamed = machine.counted(lambda: race_sample(rows, **call))["bytes_read"] / dtype.itemsize
        assert rows.numel() <= streamed <= rows.numel() * (1 + opened)

    @pytest.mark.parametrize("rows, vocabulary", [(1, 128_256), (100, 2500), (265, 300)])
    def test_no_block_comes_late(self, device, rows, vocabulary):
        device.play("large", multiprocessors=132)
        logits = torch.zeros(vocabulary, dtype=torch.bfloat16).expand(rows, -1)
        edits = LogitEdits(allowed=bits_of([range(9)], vocabulary))
        found = device.counted(lambda: race_sample(logits, seed=seeds(rows), position=0, edits=edits))
        assert found["blocks"] <= max(264, rows)
