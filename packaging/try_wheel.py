"""Tries a wheel as a user has it: an environment of its own, no compiler, no source tree.

    python packaging/try_wheel.py dist/specdec_kernels-*.whl           # makes the environment, with this Python
    python packaging/try_wheel.py dist/specdec_kernels-*.whl torch==2.12.0
    python try_wheel.py                                                 # what is installed for this Python, as it is

Imports the package, runs the Python blocks of the quick start, then the tests of `TESTS`, and prints a line of each.
Pip has nothing to compile in the environment; what the tests need besides is of the versions in requirements-dev.txt.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(os.environ.get("SPECDEC_SOURCES", Path(__file__).resolve().parents[1]))
PINNED = re.compile(
    r"^((?:numpy|scipy|transformers|safetensors|rich|pytest|hypothesis)==[^#]*?)(?:  # demo)?$", re.MULTILINE
)
TESTS = "chain_laws tree_laws verify_chain verify_tree race_sample filters edits".split()


def try_in_new_environment(wheel: str, others: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "environment")
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        needs = PINNED.findall((ROOT / "requirements-dev.txt").read_text())
        pip = [place / "bin" / "pip", "install", "-q", "--only-binary", ":all:"]
        subprocess.run([*pip, wheel, *needs, *others], check=True)
        # Of other programs it sees none.
        environment = {"PATH": str(place / "bin"), "HOME": folder, "SPECDEC_SOURCES": str(ROOT)}
        print(f"{Path(wheel).name}: {Path(wheel).stat().st_size / 1e6:.1f} MB", flush=True)
        return subprocess.run([place / "bin" / "python", __file__], env=environment, cwd=folder).returncode


def try_here() -> int:
    import torch

    import specdec_kernels

    if Path(specdec_kernels.__file__).is_relative_to(ROOT / "specdec_kernels"):
        raise SystemExit(f"expected an installed package; got the source tree: {specdec_kernels.__file__}")
    compilers = [name for name in ("cc", "c++", "gcc", "g++", "clang", "nvcc") if shutil.which(name)]
    info = specdec_kernels.build_info()
    print(f"Python {platform.python_version()}, {platform.machine()}, torch {torch.__version__}, compilers {compilers}")
    print(json.dumps({name: info[name] for name in ("isas", "isa", "cuda_archs")}), flush=True)

    begin, page = time.perf_counter(), (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    session = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, session)
    print(f"quick start: {time.perf_counter() - begin:.1f} s", flush=True)

    import pytest

    with tempfile.TemporaryDirectory() as folder:  # of the sources there are the tests alone
        shutil.copytree(ROOT / "tests", Path(folder, "tests"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.chdir(folder)
        sys.path.insert(0, folder)
        files = [f"tests/ops/test_{name}.py" for name in TESTS]
        return pytest.main(["-q", "-p", "no:cacheprovider", "-k", "cpu and not cuda", *files])


if __name__ == "__main__":
    sys.exit(try_in_new_environment(*sys.argv[1:2], sys.argv[2:]) if sys.argv[1:] else try_here())
