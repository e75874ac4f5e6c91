"""A target whose LM head is split over processes writes what one process writes."""

import json
import subprocess
import sys

import pytest

WRITE = (
    "generate --prompt Once --method race --k 3 --max-new-tokens 12 --seed 5 --dtype float64 --json".split()
)  # fmt: skip


def written(*launcher):
    done = subprocess.run([sys.executable, *launcher], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_write_the_text_of_one():
    cli = ["-m", "specdec_kernels.cli"]
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    both = written(*launcher, *cli, *WRITE, "--tensor-parallel", "2")
    text, alone = (json.loads(lines) for lines in (both, written(*cli, *WRITE)))
    assert text["tokens"] == alone["tokens"]
    assert text["text"] == alone["text"]
