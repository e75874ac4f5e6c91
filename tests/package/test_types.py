"""The public API is annotated: a type checker takes the example, and refuses what the ops would."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import specdec_kernels

ROOT = Path(__file__).resolve().parents[2]
WRONG = """
import torch
import specdec_kernels as sd

rows = torch.zeros(2, 3)
token: int = sd.race_sample(rows, seed=torch.arange(2), position=0)
sd.race_sample(rows, seed=1.5, position=0)
sd.verify_chain(rows, rows, seed=1, position=0, method="gumbel")
sd.uniform(1)
sd.no_such_op(rows)
from specdec_kernels.calls import typed


def uniform(call: "typed.Uniform") -> None:
    print(call.seed, call.noise.seed)
"""


def checked(*files):
    """What mypy says of these files, or of those that pyproject.toml names."""
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", *files]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"})


def test_example_and_public_modules():
    pytest.importorskip("mypy")
    done = checked()
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_calls_are_found(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "wrong.py").write_text(WRONG)
    errors = [line for line in checked(tmp_path / "wrong.py").stdout.splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in errors] == [6, 7, 8, 9, 10, 15], errors


@pytest.mark.parametrize("name", [n for n in specdec_kernels.__all__ if inspect.isroutine(getattr(specdec_kernels, n))])
def test_every_argument_has_a_type(name):
    signature = inspect.signature(getattr(specdec_kernels, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert [p.name for p in signature.parameters.values() if p.annotation is inspect.Parameter.empty] == []


def test_hooks_of_commits_run_what_make_lint_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    commands = [line.strip().removeprefix("$(BIN)/").split(" .")[0] for line in lint.splitlines()[1:]]
    entries = [hook["entry"].removeprefix(".venv/bin/").replace(" --fix", "") for hook in hooks]
    assert entries == [command.replace(" --check", "") for command in commands]


def test_example_runs():
    done = subprocess.run([sys.executable, ROOT / "examples" / "verify.py"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "race: " in done.stdout
