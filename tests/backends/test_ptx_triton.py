"""Triton's kernels as Triton compiles them for GPUs that need not be here, on the machine that runs PTX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.ptx.build import no_compiler

pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))]

ROOT = Path(__file__).parents[2]
# One of each kind.
SOME = ("cutoff", "residual", "overlap", "race_sample", "tree_mask", "verify_chain rejection", "verify_tree race")


@pytest.mark.parametrize("arch, calls", [("sm_90", ()), ("sm_100", ()), ("sm_80", SOME)], ids=lambda x: str(x)[:6])
def test_calls_give_the_bits_of_the_cpu(arch, calls, tmp_path):
    """In a process of its own: where kernels are compiled they cannot be interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.backends.ptx.triton", arch, *calls]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-4000:]
    found = {row["call"]: row["wrong"] for row in map(json.loads, run.stdout.splitlines())}
    assert len(found) == len(calls) + 1 if calls else len(found) > 60
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
