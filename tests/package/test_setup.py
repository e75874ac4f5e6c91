"""What a build takes in: what this machine can use, and what it is asked for."""

import os
import sys

import pytest

import setup
from specdec_kernels import _C
from tests.package.conftest import ROOT, run

NVCC = "printf 'compute_80\\ncompute_90\\ncompute_100\\n'"
ASKING = ("SPECDEC_CUDA", "SPECDEC_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST", "SPECDEC_ISAS", "SPECDEC_LABEL", "CUDA_HOME")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine with these GPUs, with nvcc or without, and these variables."""

    def make(gpus="", nvcc=NVCC, **environment):
        for name, script in {"nvidia-smi": f"printf '{gpus}'", "nvcc": nvcc}.items():
            if script:
                (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
                (tmp_path / name).chmod(0o755)
        for name in ASKING:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), "/usr/bin", "/bin")) if nvcc else str(tmp_path))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return make


@pytest.mark.parametrize(
    ("gpus", "environment", "archs"),
    [
        ("9.0\\n9.0\\n", {}, ["90"]),
        ("10.0\\n8.0\\n", {}, ["80", "100"]),
        ("12.1\\n", {}, ["100+PTX"]),  # newer than nvcc
        ("", {"SPECDEC_CUDA": "1"}, ["80", "90+PTX", "100"]),
        ("9.0\\n", {"SPECDEC_CUDA": "1"}, ["90"]),
        ("9.0\\n", {"SPECDEC_CUDA_ARCHS": "80; 90a;"}, ["80", "90a"]),
        ("", {"TORCH_CUDA_ARCH_LIST": "7.5 8.0 9.0a;10.0+PTX"}, ["80", "90a", "100+PTX"]),
        ("", {"TORCH_CUDA_ARCH_LIST": "9.0", "SPECDEC_CUDA_ARCHS": "80"}, ["80"]),
    ],
)
def test_cuda_is_built_for_the_gpus_seen_or_asked_for(machine, gpus, environment, archs):
    machine(gpus, **environment)
    nvcc, reason = setup.cuda_toolkit()
    assert reason == f"{nvcc} found"
    assert setup.cuda_archs(nvcc) == archs


@pytest.mark.parametrize(
    ("gpus", "nvcc", "environment", "reason"),
    [
        ("", NVCC, {}, "nvcc found, but no GPU: SPECDEC_CUDA=1 or SPECDEC_CUDA_ARCHS=90 builds it nevertheless"),
        ("7.5\\n", NVCC, {}, "nvcc found, but no GPU: SPECDEC_CUDA=1 or SPECDEC_CUDA_ARCHS=90 builds it nevertheless"),
        ("", NVCC, {"TORCH_CUDA_ARCH_LIST": "7.5"}, "nvcc found, but no GPU: SPECDEC_CUDA=1 or"),
        ("9.0\\n", "", {}, "nvcc not found: install CUDA's toolkit, or set CUDA_HOME"),
        ("9.0\\n", NVCC, {"SPECDEC_CUDA": "0"}, "SPECDEC_CUDA=0"),
    ],
)
def test_without_cuda_the_reason_says_how_to_get_it(machine, gpus, nvcc, environment, reason):
    machine(gpus, nvcc, **environment)
    found, told = setup.cuda_toolkit()
    assert found is None
    assert told.startswith(reason)


def test_the_baseline_and_the_best_instruction_set_are_built(machine):
    machine()
    chosen, others = setup.isas(["g++"])
    assert chosen == ["scalar", *_C.isas()[1:][-1:]]
    assert len(chosen + others) == (3 if setup.MACHINE == "x86_64" else 1)


@pytest.mark.skipif(setup.MACHINE != "x86_64", reason="one instruction set")
def test_instruction_sets_that_are_asked_for(machine):
    for asked, chosen in {"all": "scalar avx2 avx512", "avx2": "scalar avx2", "scalar": "scalar"}.items():
        machine(SPECDEC_ISAS=asked)
        assert setup.isas(["g++"])[0] == chosen.split()


def test_what_the_linker_of_macos_is_asked_for(tmp_path):
    code = f"import setup, setuptools; folder = setup.Path({str(tmp_path)!r})"
    code += "; setup.NinjaBuild(setuptools.Distribution()).write_ninja(folder)"
    environment = {**os.environ, "SPECDEC_CUDA": "0", "_PYTHON_HOST_PLATFORM": "macosx-11.0-arm64"}
    run([sys.executable, "-c", code], cwd=ROOT, env=environment)
    written = (tmp_path / "build.ninja").read_text().splitlines()
    linked = [line for line in written if line.startswith("  flags") and ("-Wl," in line or "-Xlinker" in line)]
    library, module = (line.replace("-Xlinker ", "").split()[2:] for line in linked)
    assert library == ["-pthread", "-install_name", "@rpath/libspecdec.dylib"]
    assert module == ["-Wl,-rpath,@loader_path/lib", "-Wl,-undefined,dynamic_lookup"]


def test_a_label_says_what_a_wheel_has(machine, monkeypatch):
    machine(nvcc="echo 'Cuda compilation tools, release 13.0, V13.0.88'", SPECDEC_LABEL="1", SPECDEC_CUDA="1")
    assert setup.label() == "+cu130"
    monkeypatch.setenv("SPECDEC_CUDA", "0")
    assert setup.label() == "+cpu"
    monkeypatch.setattr("sys.argv", ["setup.py", "sdist"])
    assert setup.label() == ""
    machine()
    assert setup.label() == ""


@pytest.mark.parametrize(
    ("environment", "call", "error"),
    [
        ({"SPECDEC_CUDA": "yes"}, setup.cuda_toolkit, "SPECDEC_CUDA: expected auto, 0 or 1, got 'yes'"),
        ({"SPECDEC_CUDA_ARCHS": "9.0"}, setup.asked_archs, "SPECDEC_CUDA_ARCHS: expected a list like 80;90.PTX, got"),
        ({"TORCH_CUDA_ARCH_LIST": "Hopper"}, setup.asked_archs, "TORCH_CUDA_ARCH_LIST: expected .* got 'Hopper'"),
        ({"SPECDEC_ISAS": "sse"}, lambda: setup.isas(["g++"]), "SPECDEC_ISAS: expected all, or some of .* got 'sse'"),
    ],
)
def test_a_choice_that_cannot_be(machine, environment, call, error):
    machine(**environment)
    with pytest.raises(SystemExit, match=error):
        call()
