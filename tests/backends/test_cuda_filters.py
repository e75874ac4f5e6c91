"""Filters and edits in the CUDA kernels on the played machine: rows that random calls lack, and what is read."""

import pytest
import torch

from specdec_kernels import LogitEdits, Sampling, cutoff, logprobs, race_sample, race_topk
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.support.cases import seeds
from tests.support.edits import random_edits
from tests.support.ops import verify_chain, verify_tree
from tests.support.same_bits import assert_as_cpu
from tests.support.trees import tree_call

pytestmark = NEEDS_COMPILER
LISTED = 1472  # cut.cuh


def assert_same_rows(rows, sampling, edits=None):
    """Of every op of single rows: what is kept, which token wins, its figures, the status."""
    status, noise = torch.zeros(len(rows)).int(), {"seed": seeds(len(rows)), "position": 3}
    tokens = rows.float().argsort(-1, descending=True)[:, 3].where(torch.arange(len(rows)) % 3 > 0, -1)
    for op, *arguments, options in (
        (cutoff, {}), (race_sample, noise), (race_topk, 40, noise), (logprobs, tokens, {"top": 40})
    ):  # fmt: skip
        assert_as_cpu(op, rows, *arguments, **options, sampling=sampling, edits=edits, status=status)


class TestTheSameBits:
    @pytest.mark.costly
    def test_of_rows_that_no_list_holds(self, machine):
        """Values that are close to each other, and a boundary among thousands of equal ones; passes over the row read
        edited elements, too."""
        normal = torch.randn(9000, generator=torch.Generator().manual_seed(1))
        tied = torch.full((9000,), -3.0)
        tied[torch.randperm(9000, generator=torch.Generator().manual_seed(2))[:6000]] = 1.0
        numbers = [(3000, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 1e-4), (8000, 0.95, 1e-9), (0, 0.02, 0.0)]
        k, p, mu = (torch.tensor(x) for x in zip(*numbers, strict=True))
        for row in (normal, 1e-4 * normal, tied, torch.zeros(9000), (4 * normal).round() / 4, 40 * normal):
            for rules in ({}, {"top_p_after": ()}, {"ties": "all"}, {"at_temperature": False}):
                edits = None if row is not normal else random_edits(5, vocabulary=9000, seed=3)
                assert_as_cpu(cutoff, row.repeat(5, 1), sampling=Sampling(0.7, k, p, mu, **rules), edits=edits)

    @pytest.mark.costly
    @pytest.mark.parametrize("tied", [LISTED + 1, LISTED])
    def test_of_lists_that_are_full_and_one_over(self, machine, tied):
        rows = torch.full((3, 5000), -3.0)
        rows[:, torch.randperm(5000, generator=torch.Generator().manual_seed(3))[:tied]] = 1.0
        top_p, min_p = torch.tensor([1.0, 0.5, 0.4]), torch.tensor([0.05, 0.5, 0.0])
        for ties in ("first", "all"):
            assert_same_rows(rows, Sampling(1.0, torch.tensor([0, 1000, 0]), top_p, min_p, ties=ties))

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
        assert_same_rows(rows, Sampling(torch.tensor([1.0, 0.7, 0.0]), torch.tensor([0, 30, 0]), 0.8), edits)
        status = torch.zeros(3).int()
        race_sample(rows, seed=seeds(3), position=0, edits=edits, status=status)
        assert status.tolist() == [0, 8, 0]


@pytest.mark.parametrize("vocabulary, multiprocessors, blocks", [(262_144, 1, 1), (201_088, 16, 32)])
def test_trees_of_wide_rows_in_little_memory(device, vocabulary, multiprocessors, blocks):
    """A block has 99 KB. Wider cells take less: one block has room for a row, two share a multiprocessor."""
    call = tree_call(1, requests=1, nodes=3, vocabulary=vocabulary, dtype=torch.bfloat16) | {"temperature": None}
    call |= {"sampling": Sampling(0.8, 5), "draft.sampling": Sampling(top_p=0.3)}
    device.play("lone", multiprocessors=multiprocessors)
    assert device.counted(lambda: assert_as_cpu(verify_tree, **call))["blocks"] == blocks


class TestARaceStreamsItsRowOnce:
    """What few cells hold is read from there, and only what is kept races."""

    @pytest.mark.parametrize(
        "sampling", [Sampling(top_k=50), Sampling(top_k=50, top_p=0.9), Sampling(min_p=0.05),
                     Sampling(0.5, 50, 0.9, top_p_after=())], ids=["top_k", "top_k, top_p", "min_p", "joint"],
    )  # fmt: skip
    def test_filtered(self, machine, sampling):
        rows = 2 * torch.randn(3, 8192, generator=torch.Generator().manual_seed(0)).bfloat16()
        found = machine.counted(lambda: race_sample(rows, seed=seeds(3), position=0, sampling=sampling))
        assert found["bytes_read"] == rows.numel() * 2
        target = rows[None].expand(2, -1, -1)
        call = {"method": "race", "seed": seeds(2), "position": 0, "sampling": sampling}
        found = machine.counted(lambda: verify_chain(torch.zeros(2, 2).long(), target, **call))
        assert found["bytes_read"] <= target.numel() * 2

    @pytest.mark.parametrize("sampling", [None, Sampling(top_k=50, top_p=0.9)], ids=["plain", "filtered"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_edited(self, machine, sampling, dtype):
        """Edited elements are made of those that were loaded. A filter opens the cells of its 50 tokens, at most 50
        of a row's 128; the machine counts that in float32, where four elements are a load of 16 bytes.
        """
        rows = 2 * torch.randn(2, 16_384, generator=torch.Generator().manual_seed(0)).to(dtype)
        edits = random_edits(2, vocabulary=16_384, seed=1)
        call = {"seed": seeds(2), "position": 0, "sampling": sampling, "edits": edits}
        opened = 50 / 128 if sampling and dtype == torch.float32 else 0
        streamed = machine.counted(lambda: race_sample(rows, **call))["bytes_read"] / dtype.itemsize
        assert rows.numel() <= streamed <= rows.numel() * (1 + opened)
