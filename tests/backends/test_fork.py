"""A forked child has none of its parent's threads: its calls start their own. And threads that nobody asked for."""

import subprocess
import sys

CHILD = """
import os, signal, time
import torch
import specdec_kernels as sd
from specdec_kernels.backends import cpu

torch.set_num_threads(2)
rows, seeds = torch.randn(64, 50_000), torch.arange(64)
rows.exp().sum()  # torch's threads, too, are there before the fork
calls = lambda: sd.race_sample(rows, seed=seeds, position=1).tolist()
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
cpu._C.use_threads(torch.get_num_threads, 2, 1)  # two threads that nobody asked for count as one
expected = [calls() for _ in range(50)][0]
assert threads() == before
cpu._C.use_threads(torch.get_num_threads, 3, 1)
while threads() == before:
    assert calls() == expected
if os.fork() == 0:
    signal.alarm(60)
    assert threads() == 1
    while threads() == 1:
        assert calls() == expected
        sd.verify_chain(torch.zeros(64, 0, dtype=torch.int64), rows[:, None], seed=seeds, position=0)
        sd.overlap(rows, rows)
    os._exit(0)
assert os.wait()[1] == 0
assert calls() == expected
"""


def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
