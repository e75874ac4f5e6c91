"""What can be imported without torch, and that every public name comes when it is asked for."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import specdec_kernels
from specdec_kernels import ops

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it is an error
import specdec_kernels
from specdec_kernels import headers, theory, Status
assert theory.acceptance([0.5, 0.5], [0.9, 0.1]) == 0.6
assert theory.best_draft_length(0.8, 0.1) == 6
assert headers.get_include()
assert specdec_kernels.__version__ and Status(5)
for module in ("chains", "checks", "races", "randomised", "trees"):
    assert theory.__name__ + "." + module in sys.modules
from specdec_kernels import cli
try:
    cli.main(["--version"])
except SystemExit as end:
    assert end.code == 0
try:
    specdec_kernels.verify_chain
except ImportError:
    print("without torch")
"""


def test_theory_and_headers_need_no_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.stdout.endswith("without torch\n"), done.stderr


def test_public_names():
    functions = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
    assert functions < set(specdec_kernels.__all__) <= set(dir(specdec_kernels))
    assert len(set(specdec_kernels.__all__) - functions) <= 12
    code = "from specdec_kernels import *; import specdec_kernels as s; print(all(n in globals() for n in s.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with pytest.raises(AttributeError, match="module 'specdec_kernels' has no attribute 'no_such_op'"):
        specdec_kernels.no_such_op  # noqa: B018
    assert specdec_kernels.ops is ops


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a Python with its lock")
def test_the_lock_stays_off():
    assert not sys._is_gil_enabled()


@pytest.mark.parametrize(("lacks", "name"), [("*.so", "_C"), ("*.none", "triton_kernels")])
def test_parts_of_two_places_are_refused(tmp_path, lacks, name):
    """A checkout on PYTHONPATH that was not built, or that has no kernels of Triton's: an installation has them."""
    package = Path(specdec_kernels.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns(lacks, "triton_kernels", "models"))
    code = "import specdec_kernels.backends.triton"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    error = done.stderr.splitlines()[-1]
    if "No module named" in error or "cannot import name" in error:
        pytest.skip("nothing is installed that could fill it")
    assert re.match(rf"ImportError: specdec_kernels\.{name}: expected it beside {tmp_path}.*; got ", error), error
    assert str(package.parent) in error
