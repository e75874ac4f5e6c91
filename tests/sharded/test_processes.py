"""Ranks in processes of their own, over gloo."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def played(ranks, tmp_path, case):
    """(exit status, last line) of each rank."""
    command = [sys.executable, "-m", "tests.sharded.worker"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(tmp_path / "store"), case], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert all(rank.returncode in (0, 3) for rank in ranks), outputs
    return [(rank.returncode, out.strip().split("\n")[-1]) for rank, (out, _) in zip(ranks, outputs, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_verdicts_are_those_of_one_process(tmp_path, ranks):
    assert played(ranks, tmp_path, "same") == [(0, "same")] * ranks


def test_a_lost_rank_is_noticed_by_all(tmp_path):
    told = played(3, tmp_path, "lost")
    assert told[1] == (3, "")
    for rank in (0, 2):
        wanted = f"rank {rank} of 3 that share a vocabulary has lost another one, or has waited for it past the timeout"
        assert told[rank][1].startswith(wanted)
