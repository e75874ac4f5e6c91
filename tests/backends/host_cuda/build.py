"""Builds the CUDA sources for the played machine with g++, through ninja, under ``build/``: each source once, for all
libraries that have it and all processes that test; again where it or a header of its changed.

    python -m tests.backends.host_cuda.build     all libraries, ahead of the tests
"""

import fcntl
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from setup import NinjaFile, ninja_command, write_if_changed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# csrc/cuda with its C functions.
KERNELS = [
    *(ROOT / "csrc" / "c_api" / name for name in ("call.cpp", "checks.cpp", "cuda.cpp")),
    *sorted((ROOT / "csrc" / "cuda" / "ops").glob("*.cu")),
]
PYTHON = [path for path in sorted((ROOT / "csrc" / "python").glob("*.cpp")) if path.name != "module.cpp"]
MACHINE = [HERE / "machine.cpp", HERE / "control.cpp"]
MODULE = "specdec_host_cuda"
# Library -> what it holds besides the machine. Those that take longest to compile come first.
SOURCES = {
    MODULE: [HERE / "module.cpp", *PYTHON, *KERNELS],
    "specdec_c": KERNELS,
    "row_part": [HERE.parent / "row_part.cpp"],
    "parts": [HERE / "parts.cu"],
    "decisions": [HERE / "decisions.cu"],
    "faults": [HERE / "faults.cu"],
}
WARNINGS = "-Wall -Wextra -Wno-unknown-pragmas".split()
FLAGS = [*"-std=c++17 -DSPECDEC_WITH_CUDA -fPIC -ffp-contract=off -fno-math-errno".split(), *WARNINGS]
SANITIZERS = os.environ.get("SPECDEC_HOST_CUDA_SANITIZE")  # as g++ names them: "address,undefined"
# Unoptimised under sanitizers: to compile takes less than half of the time, and these tests are few.
SANITIZE = f"-O0 -fsanitize={SANITIZERS} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1".split()
MODE = SANITIZE if SANITIZERS else ["-O1"]
# nvcc compiles the inline functions of each .cu with it. The linker would take the first object's for all: what differs
# in another, by a macro or a fault, would not run. What such functions keep between calls stays one for all objects.
OWN_FUNCTIONS = (
    'nm --defined-only $out | awk \'$$2 == "W" {print "--localize-symbol=" $$3} '
    '$$2 == "u" {print "--weaken-symbol=" $$3}\' >$out.symbols && objcopy -R .group @$out.symbols $out'
)
FOLDER = ROOT / "build" / f"host_cuda-{sys.implementation.cache_tag}{'-sanitized' if SANITIZERS else ''}"


def include_flags():
    folders = [HERE / "include", ROOT / "csrc" / "include", Path(sysconfig.get_paths()["include"])]
    try:
        import pybind11
    except ImportError:
        pass
    else:
        folders.append(Path(pybind11.get_include()))
    return [flag for folder in folders for flag in ("-I", str(folder))]


def path_of(name):
    return FOLDER / f"{name}{sysconfig.get_config_var('EXT_SUFFIX') if name == MODULE else '.so'}"


def ninja_file():
    """A file that ends in ``.cu`` is compiled as C++, unchanged."""
    cxx = shlex.join([os.environ.get("CXX", "g++")])
    ninja = NinjaFile(FOLDER)
    flags = [*FLAGS, *MODE, *(ninja.seen(flag) if flag.startswith(str(ROOT)) else flag for flag in include_flags())]
    compile = f"{cxx} -MMD -MF $out.d $flags -x c++ -c $in -o $out"
    ninja.rule("cxx", compile, depfile=True)
    ninja.rule("kernels", f"{compile} && {OWN_FUNCTIONS}", depfile=True)
    ninja.rule("library", f"{cxx} -shared $flags $in -ldl -o $out")
    compiled = {}
    for name, sources in SOURCES.items():
        for source in (*sources, *MACHINE):
            if source not in compiled:
                compiled[source] = ninja.compile("kernels" if source.suffix == ".cu" else "cxx", source, flags)
        ninja.build(path_of(name).name, "library", [compiled[source] for source in (*sources, *MACHINE)], MODE)
    twice = [ninja.compile("kernels", HERE / "twice.cu", [*flags, f"-DWHICH={i}"], variant=f".{i}") for i in (1, 2)]
    ninja.build(path_of("twice").name, "library", twice, MODE)
    return str(ninja)


def run_ninja(folder, text, *targets):
    """Build what this build.ninja says, in its folder. Processes take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_if_changed(folder / "build.ninja", text)
        command = [*ninja_command(), "-C", str(folder), *targets]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def build(name=None):
    """The path of a library, built if it is older than a source; without a name all are."""
    path = path_of(name or MODULE)
    run_ninja(FOLDER, ninja_file(), *([path.name] if name else []))
    return path


if __name__ == "__main__":
    build()
