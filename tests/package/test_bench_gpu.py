"""The benches for a GPU, as far as they go without one: their path on the CPU, and the scripts' syntax."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

GPU = Path(__file__).parents[2] / "bench" / "gpu"


def test_dry_run_goes_all_the_way(tmp_path):
    command = [sys.executable, GPU / "bench.py", "--dry-run", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads((tmp_path / "gpu.json").read_text())
    contenders = {(record["op"], record["contender"]) for record in written["records"]}
    assert {
        (op, name)
        for op in ("race_sample", "race", "rejection", "tree race", "tree rejection")
        for name in ("specdec", "read roof")
    } <= contenders
    assert ("race_sample", "softmax + multinomial") in contenders
    assert all(record["median"] > 0 for record in written["records"])
    assert all((tmp_path / f"{op}_{by}.png").exists() for op in ("race", "rejection") for by in ("batch", "vocabulary"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, GPU / "bench.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "skipped: no CUDA device\n")


@pytest.mark.parametrize("script", ["run.sh", "sanitize.sh"])
def test_scripts_parse(script):
    assert subprocess.run(["sh", "-n", GPU / script]).returncode == 0


def test_an_unknown_step_is_refused(tmp_path):
    command = ["sh", GPU / "run.sh", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, env={"OUT": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (2, "unknown step: tests\n")
