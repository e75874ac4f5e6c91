"""After a fork the CPU backend runs on one thread: the parent's are not there, and OpenMP would wait for them."""

import subprocess
import sys

import pytest

CHILD = """
import os, signal, sys
import torch
import specdec_kernels as sd

torch.set_num_threads(2)
rows, seeds = torch.randn(64, 50_000), torch.arange(64)
if sys.argv[1] == "ops":
    sd.race_sample(rows, seed=seeds, position=0)
else:  # torch's own ops share OpenMP's threads
    rows.exp().sum()
expected = sd.race_sample(rows, seed=seeds, position=1).tolist() if sys.argv[1] == "ops" else None
child = os.fork()
if child == 0:
    signal.alarm(60)
    found = sd.race_sample(rows, seed=seeds, position=1).tolist()
    sd.verify_chain(torch.zeros(64, 0, dtype=torch.int64), rows[:, None], seed=seeds, position=0)
    sd.overlap(rows, rows)
    os._exit(0 if expected in (None, found) else 1)
assert os.waitpid(child, 0)[1] == 0
assert expected in (None, sd.race_sample(rows, seed=seeds, position=1).tolist())
"""


@pytest.mark.parametrize("parent", ["ops", "torch"])
def test_a_forked_child_does_not_hang(parent):
    done = subprocess.run([sys.executable, "-c", CHILD, parent], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
