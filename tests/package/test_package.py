"""The build report, and what an installed package, a wheel and an sdist contain."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import specdec_kernels
from specdec_kernels.headers import get_include, get_library_dir
from tests.backends.host_cuda.build import include_flags
from tests.package.conftest import ROOT, run

# What a build may take: CUDA kernels for one architecture; bytes of the library, without CUDA and for one architecture.
# Rows of `race_sample` have two kinds of kernels until a GPU has said which is quicker.
MOST_KERNELS, MOST_BYTES, MOST_BYTES_WITH_CUDA, MOST_BYTES_WITH_PTX = 44, 6_000_000, 12_600_000, 14_300_000
CMAKE = ("config", "config-version")
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")


def sources(folder, *patterns):
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in (ROOT / folder).rglob(pattern)}


def test_build_info_reports_flags_and_instruction_sets():
    info = specdec_kernels.build_info()
    assert "-ffp-contract=off" in info["flags"]
    assert "-ffast-math" not in info["flags"]
    assert info["isas"][0] == "scalar"
    assert info["compiler"]
    assert info["cuda_reason"]
    assert bool(info["cuda"]) == bool(info["cuda_archs"])


def test_a_build_takes_no_more_than_it_may():
    """The table is what the build compiles to: tests/backends/test_cuda_compiled.py."""
    table = json.loads((ROOT / "bench" / "results" / "compiled" / "cuda.json").read_text())
    assert sum(row["arch"] == "sm_90a" for row in table) <= MOST_KERNELS
    archs = specdec_kernels.build_info()["cuda_archs"]
    if len(archs) < 2:
        size = Path(get_library_dir(), "libspecdec.so").stat().st_size
        with_cuda = MOST_BYTES_WITH_PTX if archs and archs[0].endswith("+PTX") else MOST_BYTES_WITH_CUDA
        assert size <= (with_cuda if archs else MOST_BYTES)


def test_include_directory_holds_the_headers():
    assert (Path(get_include()) / "specdec" / "philox.h").is_file()


def test_wheel_holds_the_whole_package_and_nothing_else(distribution):
    names = set(zipfile.ZipFile(distribution[0]).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"specdec_kernels"}
    expected = sources("specdec_kernels", "*.py", "*.pyi", "py.typed", "*.safetensors", "*.json")
    expected |= {f"specdec_kernels/{name}" for name in sources("triton_kernels", "*.py")}
    headers = sources("csrc/include", "*.h", "*.cuh") | sources("csrc/cuda", "*.h", "*.cuh")
    expected |= {name.replace("csrc", "specdec_kernels", 1) for name in headers}
    libraries = ["libspecdec.so", "pkgconfig/specdec.pc", *(f"cmake/specdec/specdec-{n}.cmake" for n in CMAKE)]
    expected |= {f"specdec_kernels/lib/{name}" for name in libraries}
    assert not expected - names
    assert any(name.startswith("specdec_kernels/_C.") and name.endswith(".so") for name in names)


def test_unpacked_wheel_runs_on_its_own(distribution, tmp_path):
    zipfile.ZipFile(distribution[0]).extractall(tmp_path)
    script = """
import importlib.util, torch, specdec_kernels as sd, specdec_kernels._C as compiled
triton = importlib.util.find_spec("specdec_kernels.triton_kernels").origin
print(sd.__file__, compiled.__file__, sd.headers.get_include(), sd.headers.get_library_dir(), triton)
assert sd.race_sample(torch.tensor([[0.0, 9e9]]), seed=1, position=0).tolist() == [1]
"""
    places = run([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}).split()
    assert len(places) == 5
    assert all(place.startswith(str(tmp_path)) for place in places), places


def test_unpacked_wheel_serves_engines_in_c_and_cuda(distribution, tmp_path):
    zipfile.ZipFile(distribution[0]).extractall(tmp_path)
    include, library = tmp_path / "specdec_kernels" / "include", tmp_path / "specdec_kernels" / "lib"
    flags = ["-I", include, f"-L{library}", f"-Wl,-rpath,{library}"]
    run(["gcc", "-std=c11", ROOT / "examples" / "c_api.c", *flags, "-lspecdec", "-o", tmp_path / "c_api"])
    assert run([tmp_path / "c_api"]).startswith("drafted")
    played = [flag for flag in include_flags() if flag not in ("-I", get_include())]
    flags = ["-std=c++17", "-I", include, *(part for folder in played for part in ("-I", folder))]
    run(["g++", *flags, "-fsyntax-only", "-x", "c++", "-"], input="#include <specdec/cuda.cuh>\n")


def test_sdist_holds_every_source(distribution):
    with tarfile.open(distribution[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    expected = sources("specdec_kernels", "*.py", "*.pyi", "py.typed", "*.safetensors", "*.json")
    expected |= sources("triton_kernels", "*.py") | sources("examples", "*.py", "*.c", "*.cpp")
    expected |= sources("csrc", "*.h", "*.cuh", "*.cpp", "*.cu")
    expected |= sources("tests", "*.py", "*.c", "*.cpp", "*.h", "*.cu")
    expected |= sources("packaging", "*.in", "*.yaml", "*.md") | sources("docs", "*.md", "*.svg", "*.json")
    expected |= {"CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "Makefile"}
    expected |= {"pyproject.toml", "requirements-dev.txt", "setup.py"}
    assert not expected - names


def test_importing_the_kernels_under_a_foreign_name_is_refused():
    """``triton_kernels`` is another project's import name; with the source tree on the path ours must not answer."""
    script = "import triton_kernels"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode != 0
    assert "specdec_kernels.triton_kernels" in finished.stderr
