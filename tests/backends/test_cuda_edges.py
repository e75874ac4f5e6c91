"""Where a row, a team or an output of the CUDA kernels ends, on the played machine: the CPU backend's bits."""

import pytest
import torch

from specdec_kernels import (
    LogitEdits,
    Sampling,
    cutoff,
    logprobs,
    race_sample,
    race_topk,
    verify_chain,
)
from specdec_kernels.calls.values import Edit, Law
from specdec_kernels.sharded._parts import MASS_TILES, mass_tiles
from tests.backends.host_cuda.played import NEEDS_COMPILER
from tests.support.cases import DTYPES, chain_call, poisoned, seeds
from tests.support.ops import overlap, residual
from tests.support.same_bits import assert_as_cpu, on_cpu

pytestmark = NEEDS_COMPILER


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [2049, 2051])
def test_the_last_token_of_an_aligned_row_may_win(device, dtype, vocabulary):
    """One element behind the last whole vector, and three: in each op that reads rows, whoever shares the row."""
    last = vocabulary - 1
    row = torch.randn(1, 1, vocabulary, generator=torch.Generator().manual_seed(1)).to(dtype)
    row[..., last] = 30.0
    noise, first = {"seed": 1, "position": 0}, torch.zeros(1, 0).long()
    for machine in ("small", "large", "lone"):
        device.play(machine)
        assert race_sample(row, temperature=0.0, **noise) == last
        assert race_sample(row, **noise) == last
        assert race_topk(row, 1, **noise) == last
        assert cutoff(row, sampling=Sampling(top_k=1)).last == last
        assert logprobs(row, torch.tensor([[last]]), top=1).top_tokens == last
        assert verify_chain(first, row, method="race", **noise).tokens == last
        assert verify_chain(first, row, **noise).tokens == last
        assert_as_cpu(residual, row, torch.zeros_like(row))
        assert_as_cpu(mass_tiles, row)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [1, 2])
def test_the_first_and_last_tokens_of_a_shifted_row_may_win(device, dtype, start):
    """Between them are whole vectors that begin on a word, or in the middle of one; around them is poison."""
    device.play("large")
    noise = {"seed": 1, "position": 0}
    for last in (2047, 2048):
        for token in (0, last):
            row = torch.randn(1, 1, last + 1, generator=torch.Generator().manual_seed(1)).to(dtype)
            row[..., token] = 30.0
            row = poisoned(row, start=start)
            assert race_sample(row, temperature=0.0, **noise) == token
            assert race_sample(row, **noise) == token
            assert cutoff(row, sampling=Sampling(top_k=1)).last == token
            assert_as_cpu(mass_tiles, row)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_may_win_than_a_block_lists(device, dtype):
    """Half of each group has weight. Where no group's first arrival does, all of that may win: 128 tokens of a block
    that has 64 threads."""
    rows = torch.full((100, 256), -torch.inf).view(100, 4, 64)
    rows[:, :, :32] = torch.randn(100, 4, 32, generator=torch.Generator().manual_seed(1))
    rows = rows.view(100, 256).to(dtype)
    assert_as_cpu(race_sample, rows, seed=seeds(100), position=1)


def test_a_first_guess_excludes_no_winner(device):
    """Two groups, whose first arrivals come late: a guess that is too high for one excludes the other, which wins."""
    rows = 2 * torch.randn(1000, 128, generator=torch.Generator().manual_seed(1))
    assert_as_cpu(race_sample, rows, seed=seeds(1000), position=1)


@pytest.mark.parametrize("team", [2, 3, 5, 7, 8])
def test_clusters_of_any_size_have_the_bits_of_one_block(device, team):
    """Each tile of a row is one block's: of those before the cluster's size divides them, and of the rest."""
    generator = torch.Generator().manual_seed(team)
    target, draft = torch.randn(2, 2, 2, 19_001, generator=generator)
    device.play("large", team=team)
    for colder in ({}, {"sampling": Sampling(0.0)}, {"draft.sampling": Sampling(0.0)}):  # one row alone needs a sum
        assert_as_cpu(residual, target, draft, **colder)
        assert_as_cpu(overlap, target, draft, **colder)
    call = chain_call(5, requests=2, slots=2, vocabulary=19_001)
    call["edits"] = LogitEdits(allowed=torch.full((2, 594), -1, dtype=torch.int32))
    for options in ({}, {"method": "block"}, {"method": "race", "draft": None}):
        assert_as_cpu(verify_chain, **call | options)


@pytest.mark.parametrize("bad", [0, 69_631])
def test_every_part_of_a_row_tells_what_it_met(device, bad):
    """An H100 shares a lone row among more than a hundred blocks; here 34, or 68 of a filtered one."""
    row = torch.full((1, 1, 69_632), -1.0, dtype=torch.bfloat16)
    row[..., bad] = torch.nan
    device.play("large", multiprocessors=132)
    call = {"draft_tokens": torch.zeros(1, 0).long(), "target": row, "seed": 1, "position": 0}
    for options in ({"method": "race"}, {"method": "race", "sampling": Sampling(top_k=3)}, {}):
        found = []
        assert device.counted(lambda: found.append(verify_chain(**call | options)))["blocks"] > 32  # noqa: B023
        assert found[0].status == 1
    for few_rows in "10":  # without the kernel for few rows blocks store their parts, and the last reads them
        device.play("large", few_rows=few_rows, multiprocessors=132)
        status = torch.zeros(1, 1, dtype=torch.int32)
        race_sample(row, seed=1, position=0, status=status)
        assert status == 1


def test_what_many_blocks_know_of_a_row_is_put_together(device):
    """Sums, ranks with ties and the best tokens of 36 blocks."""
    rows = torch.randn(2, 1, 36_000, generator=torch.Generator().manual_seed(5)).mul(2).round().div(2)
    device.play("large", multiprocessors=132)
    for options in ({"top": 40}, {"top": 3, "sampling": Sampling(top_p=0.9)}, {"temperature": 0.0}):
        call = {"tokens": torch.tensor([20_000])} | options
        assert device.counted(lambda: assert_as_cpu(logprobs, rows[0], **call))["blocks"] > 32  # noqa: B023
    pair = torch.randn(2, 1, 69_632, generator=torch.Generator().manual_seed(6)).bfloat16()
    assert device.counted(lambda: assert_as_cpu(residual, *pair))["blocks"] > 32


def test_warps_are_merged_more_than_once(device):
    """The best 32 of a block's warps, and then the next: who is quick must not write where another one still reads."""
    rows = torch.randn(2, 5000, generator=torch.Generator().manual_seed(4))
    call = {"seed": seeds(2), "position": 1}
    for machine in ("small", "large", "lone"):
        for schedule in range(3):
            device.play(machine, schedule=schedule)
            assert_as_cpu(race_topk, rows, 70, **call)
            assert_as_cpu(logprobs, rows, torch.tensor([7, 8]), top=70)


@pytest.mark.parametrize("vocabulary", [1023, 1024, 1025, 5121])
def test_tiles_end_where_their_output_does(device, vocabulary):
    tiles = -(-vocabulary // 1024)
    room = torch.full((3 * 3 * tiles + 64,), -77, dtype=torch.int32)
    for machine in ("small", "large"):
        device.play(machine)
        for dtype in DTYPES:
            rows = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(2)).to(dtype)
            given = rows[None], None, Law("logits", 1.0), Edit()
            MASS_TILES(*given, room[: 9 * tiles].view(3, 3 * tiles), torch.zeros(3, dtype=torch.int32))
            assert torch.equal(room[: 9 * tiles].view(3, 3, tiles), on_cpu(mass_tiles, rows)[0])
            assert (room[9 * tiles :] == -77).all()


def test_a_filtered_race_waits_for_the_kernel_before(device):
    rows = torch.randn(4, 9000, generator=torch.Generator().manual_seed(3))
    options = {"sampling": Sampling(top_k=40, top_p=0.9), "seed": seeds(4), "position": 0}
    expected = on_cpu(race_sample, rows, **options)
    for machine, few_rows in (("large", "0"), ("lone", "0"), ("large", "1")):
        device.play(machine, few_rows, overlaps=True)
        late = torch.full_like(rows, torch.nan)
        device.write_before(late, rows)
        assert torch.equal(race_sample(late, **options), expected)
