"""Launches that go past Triton's own: they take the program and give the arguments that Triton would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_direct_launches_are_those_of_triton():
    """In a process of its own, where kernels are not interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.triton_host"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["mistakes"] == []
    assert found["direct"] == [True, False, False, True]
