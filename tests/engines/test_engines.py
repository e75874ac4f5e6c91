"""What every engine's module keeps to."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_kernels.engines._replace import hide_checkout

ROOT = Path(__file__).resolve().parents[2]


def test_engines_are_imported_when_they_are_used():
    code = (
        "import os, sys\n"
        "for name in 'flashinfer', 'sglang', 'transformers', 'vllm': sys.modules[name] = None\n"
        "from specdec_kernels.engines import flashinfer, sglang, transformers, vllm, vllm_v1\n"
        "sglang.register(), vllm.register()\n"
        "os.environ['SPECDEC_SGLANG'] = os.environ['SPECDEC_VLLM'] = 'race'\n"
        "for start in flashinfer.install, transformers.install, vllm.register, sglang.register:\n"
        "    try: start()\n"
        "    except ImportError: print('none')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "none\n" * 4, done.stderr


@pytest.mark.parametrize("whose", ["ours", "of another project"])
def test_a_checkout_on_the_path_is_not_another_project(monkeypatch, tmp_path, whose):
    """Engines look for a package triton_kernels; that of a checkout is none of theirs."""
    monkeypatch.delitem(sys.modules, "triton_kernels", raising=False)
    monkeypatch.syspath_prepend(ROOT)
    if whose != "ours":
        (tmp_path / "triton_kernels.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    hide_checkout()
    assert (importlib.util.find_spec("triton_kernels") is None) == (whose == "ours")
    sys.modules.pop("triton_kernels", None)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_plug_ins_are_found_by_their_engines(engine):
    project = (ROOT / "pyproject.toml").read_text()
    group = {"sglang": "sglang.srt.plugins", "vllm": "vllm.general_plugins"}[engine]
    lines = project.split(f'[project.entry-points."{group}"]')[1].splitlines()
    name, value = lines[1].split(" = ")
    module, function = value.strip('"').split(":")
    assert name == "specdec"
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.costly
@pytest.mark.parametrize("engine", ["flashinfer", "sglang", "transformers", "vllm"])
def test_example_runs(engine):
    (example,) = ROOT.glob(f"examples/{engine}_*.py")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout
