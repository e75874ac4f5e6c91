"""Builds what runs nvcc's PTX, through ninja, under ``build/``: nvcc compiles each ``.cu`` to PTX, translate.py makes
C++ of it, and that is linked with the objects of the project's own build, so their host code launches it.

    python -m tests.backends.ptx.build     ahead of the tests
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setup import NVCC_FLAGS, NinjaFile, compiler_cache, find_nvcc, ninja_command, write_if_changed
from tests.backends.host_cuda.build import FLAGS as HOST_FLAGS
from tests.backends.host_cuda.build import HERE as HOST
from tests.backends.host_cuda.build import ROOT, include_flags
from tests.backends.ptx.translate import translate

HERE = Path(__file__).resolve().parent
MODULE = "specdec_ptx"
PROJECT = ROOT / "build" / f"ninja-{sysconfig.get_platform()}-{sys.implementation.cache_tag}"  # as in setup.py
FOLDER = ROOT / "build" / f"ptx-{sys.implementation.cache_tag}"
ARCH = "compute_90"  # with clusters
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
OBJECTS = [
    *(PROJECT / f"c_api_{name}.o" for name in ("call", "checks", "cuda.cuda")),
    *(PROJECT / f"cuda_{name}.cuda.o" for name in ("bindings", *(source.stem for source in SOURCES))),
]
MACHINE = [HERE / "instructions.cpp", HERE / "cudart.cpp", HOST / "machine.cpp", HOST / "control.cpp"]
# Frames of translated kernels are up to 100 KB: without optimisation no variables share a place. To optimise them would
# take four times as long as all their tests. Integers wrap around.
STACK = ["-DHOST_CUDA_STACK=262144"]
KERNEL_FLAGS = "-std=c++17 -O0 -fPIC -fwrapv -ffp-contract=off -w".split()
CXX = shlex.split(os.environ.get("CXX", "g++"))


def no_compiler():
    """Why PTX cannot be run here, or None."""
    return None if shutil.which(CXX[0]) else "no C++ compiler"


def unavailable():
    """Why the kernels' PTX cannot be made and run here, or None."""
    if reason := no_compiler():
        return reason
    nvcc, reason = find_nvcc()
    if nvcc is None:
        return reason
    missing = next((path.name for path in OBJECTS if not path.exists()), None)
    return f"the project is built without CUDA: no {missing}" if missing else None


def machine_file(folder):
    """A ninja file with the rules, and the machine's objects."""
    ninja = NinjaFile(folder)
    cxx = shlex.join([*compiler_cache(CXX[0]), *CXX])
    ninja.rule("cxx", f"{cxx} -MMD -MF $out.d $flags -c $in -o $out", depfile=True)
    ninja.rule("library", f"{shlex.join(CXX)} -shared $in -ldl -o $out")
    flags = [
        *HOST_FLAGS,
        "-O1",
        *STACK,
        *(ninja.seen(flag) if flag.startswith(str(ROOT)) else flag for flag in include_flags()),
    ]
    return ninja, flags, [ninja.compile("cxx", source, flags) for source in MACHINE]


def ninja_file():
    ninja, flags, objects = machine_file(FOLDER)
    nvcc, _ = find_nvcc()
    python = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable])
    ninja.rule(
        "ptx", f"{shlex.join([*compiler_cache(nvcc), nvcc])} -MMD -MF $out.d $flags -ptx $in -o $out", depfile=True
    )
    ninja.rule("translate", f"{python} -m tests.backends.ptx.translate $in $out")
    tables = [ninja.seen(HERE / name) for name in ("translate.py", "forms.py")]
    include = ["-I", ninja.seen(ROOT / "csrc" / "include")]
    for source in sorted(SOURCES, key=lambda source: -source.stat().st_size):
        ninja.build(f"{source.stem}.ptx", "ptx", [ninja.seen(source)], [*NVCC_FLAGS, f"-arch={ARCH}", *include])
        ninja.build(f"{source.stem}.cpp", "translate", [f"{source.stem}.ptx", *tables])
        ninja.build(f"{source.stem}.o", "cxx", [f"{source.stem}.cpp"], [*KERNEL_FLAGS, "-I", ninja.seen(HERE)])
        objects.append(f"{source.stem}.o")
    module = ninja.compile("cxx", HOST / "module.cpp", [*flags, f"-DHOST_CUDA_MODULE={MODULE}"])
    ninja.build(path_of(MODULE).name, "library", [*objects, module, *map(ninja.seen, OBJECTS)])
    return str(ninja)


def path_of(name):
    return FOLDER / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def run_ninja(folder, text, target):
    """Processes take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_if_changed(folder / "build.ninja", text)
        command = [*ninja_command(), "-C", str(folder), target.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return target


def build():
    """The path of the module with all kernels, built if it is older than a source."""
    return run_ninja(FOLDER, ninja_file(), path_of(MODULE))


def build_text(text):
    """The path of a library with the kernels of a PTX text, named by what it holds."""
    source = translate(text, "test.ptx")
    folder = FOLDER / "texts"
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_if_changed(folder / f"{name}.cpp", source)
    ninja, _, objects = machine_file(folder)
    ninja.build(f"{name}.o", "cxx", [f"{name}.cpp"], [*KERNEL_FLAGS, "-I", ninja.seen(HERE)])
    ninja.build(f"{name}.so", "library", [*objects, f"{name}.o"])
    return run_ninja(folder, str(ninja), folder / f"{name}.so")


if __name__ == "__main__":
    if reason := unavailable():
        print(f"tests.backends.ptx: nothing to build ({reason})")
    else:
        build()
