"""Planted faults turn a test of the quick set red, in a copy of the tree. What that set leaves out is not missed."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A copy of what is built and what is tested; nothing of it has to be built again."""
    place = tmp_path_factory.mktemp("tree")
    left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "compiled", "*-sanitized", "__pycache__")
    shutil.copytree(ROOT, place, ignore=left_out, symlinks=True, dirs_exist_ok=True)
    if not (place / "specdec_kernels" / "triton_kernels").exists():  # else the installed one is found
        (place / "specdec_kernels" / "triton_kernels").symlink_to(place / "triton_kernels")
    return place


def run(tree, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(tree), "SPECDEC_CUDA": "0", "SPECDEC_ISAS": "scalar"}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)


def test_every_text_stands_once():
    for name, fault in FAULTS.items():
        assert (ROOT / fault.file).read_text().count(fault.text) == 1, name


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name, tree):
    fault = FAULTS[name]
    path = tree / fault.file
    source = path.read_text()
    try:
        path.write_text(source.replace(fault.text, fault.other))
        if fault.file.startswith("csrc") and not fault.file.startswith("csrc/cuda"):  # the played machine builds itself
            built = run(tree, "setup.py", "-q", "build_ext", "--inplace")
            assert built.returncode == 0, built.stdout[-3000:]
        done = run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(fault.tests))
    finally:
        path.write_text(source)
    seen = done.returncode == 1 or done.returncode < 0  # tests ran, and one failed or died
    assert seen, f"{done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.slow
def test_it_is_the_copy_that_runs(tree):
    names = ("specdec_kernels", "specdec_kernels._C", "specdec_kernels.triton_kernels", "tests.support.faults")
    found = run(tree, "-c", f"import sys, {', '.join(names)}; print(*(sys.modules[name].__file__ for name in {names}))")
    places = found.stdout.split()
    assert len(places) == len(names), found.stderr
    assert all(Path(place).is_relative_to(tree) for place in places), places
