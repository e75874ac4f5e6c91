"""What every engine's module keeps to."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_engines_are_imported_when_they_are_used():
    code = (
        "import sys; sys.modules['flashinfer'] = sys.modules['transformers'] = None\n"
        "from specdec_kernels.engines import flashinfer, transformers\n"
        "for engine in flashinfer, transformers:\n"
        "    try: engine.install()\n"
        "    except ImportError: print('none')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "none\nnone\n", done.stderr


@pytest.mark.parametrize("engine", ["flashinfer", "transformers"])
def test_example_runs(engine):
    (example,) = ROOT.glob(f"examples/{engine}_*.py")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout
