"""Launches that go past Triton's own: they take the program and give the arguments that Triton would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _math


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


@pytest.mark.parametrize("grid", [(0,), (0, 4), (3, 0)])
def test_no_programs_are_no_launch(monkeypatch, grid):
    """A device refuses a grid of none. Ops of no rows, requests or pairs leave it to this."""
    monkeypatch.setattr(_launch, "jit_launch", lambda *_: pytest.fail("launched"))
    monkeypatch.setattr(_launch.Programs, "launch", lambda *_: pytest.fail("launched"))
    _launch.launch(_launch.kernel(store_group), grid, 1, {})


def store_group(out):
    tl.store(out, _math.GROUP)


def test_a_constant_of_another_module_is_part_of_the_key(tmp_path, monkeypatch):
    """Triton would find the program that it compiled before the constant changed."""
    package = shutil.copytree(Path(_launch.__file__).parent, tmp_path / "triton_kernels")
    monkeypatch.setattr(_launch, "__file__", str(package / "_launch.py"))
    monkeypatch.setattr(_launch, "text_of_package", _launch.text_of_package.__wrapped__)  # read anew each time
    monkeypatch.setattr(_launch, "INTERPRETED", False)

    def key():
        return _launch.kernel(store_group).cache_key

    before, text = key(), (package / "_math.py").read_text()
    assert key() == before
    (package / "_math.py").write_text(text.replace("GROUP = tl.constexpr(64)", "GROUP = tl.constexpr(128)"))
    assert (package / "_math.py").read_text() != text
    assert key() != before
