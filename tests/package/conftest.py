"""A wheel and an sdist, made once for all tests that look into them."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import specdec_kernels

ROOT = Path(__file__).resolve().parents[2]


def run(command, **kwargs):
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, **kwargs)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="session")
def distribution(tmp_path_factory):
    """A wheel from the incremental build and an sdist, made without touching the source tree; their paths."""
    scratch = tmp_path_factory.mktemp("distribution")
    egg_info = ["egg_info", "--egg-base", scratch]
    folders = ["build", "--build-base", scratch / "build", "bdist_wheel", "--bdist-dir", scratch / "bdist"]
    built = specdec_kernels.build_info()  # the same choices, so that nothing is compiled again
    choices = {"SPECDEC_CUDA": str(int(bool(built["cuda"])))}
    choices |= {f"SPECDEC_{name.upper()}": ";".join(built[name]) for name in ("cuda_archs", "isas")}
    environment = {**os.environ, **choices, "PYTHONWARNINGS": "ignore", "MAX_JOBS": "1"}
    # Test workers take turns: an sdist is laid out in the source tree, and every build is in one folder.
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "distribution.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for commands in ([*folders, "--dist-dir", scratch], ["sdist", "--dist-dir", scratch]):
            run([sys.executable, "setup.py", "-q", *egg_info, *commands], cwd=ROOT, env=environment)
    (wheel,), (sdist,) = scratch.glob("*.whl"), scratch.glob("*.tar.gz")
    return wheel, sdist
