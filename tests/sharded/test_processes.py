"""Ranks in processes of their own, over gloo."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def played(ranks, tmp_path, case):
    """What each rank printed, by lines."""
    command = [sys.executable, "-m", "tests.sharded.worker"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(tmp_path / "store"), case], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outputs
    return [out.strip().split("\n") for out, _ in outputs]


@pytest.mark.costly
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_verdicts_are_those_of_one_process(tmp_path, ranks):
    assert played(ranks, tmp_path, "same") == [["same"]] * ranks


@pytest.mark.costly
def test_ranks_of_nothing(tmp_path):
    assert played(3, tmp_path, "nothing") == [["same"]] * 3


def test_a_killed_rank_is_noticed_by_all(tmp_path):
    """By chains and trees, killed before the first round and between two."""
    told = played(3, tmp_path, "lost")
    assert told[1] == ["killed"] * 5
    for rank in (0, 2):
        wanted = f"rank {rank} of 3 that share a vocabulary has lost another one, or has waited for it past the timeout"
        assert len(told[rank]) == 5
        assert all(line.startswith(wanted) for line in told[rank])
