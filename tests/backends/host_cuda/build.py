"""Builds the CUDA sources for the played machine with g++, under ``build/``: each source once, for all libraries that
have it and all processes that test.
"""

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MACHINE = [HERE / "machine.cpp", HERE / "control.cpp"]
# csrc/cuda with its C functions.
KERNELS = [
    *(ROOT / "csrc" / "c_api" / name for name in ("call.cpp", "checks.cpp", "cuda.cpp")),
    *sorted((ROOT / "csrc" / "cuda").glob("*.cu")),
]
WARNINGS = "-Wall -Wextra -Wno-unknown-pragmas".split()
FLAGS = [*"-std=c++17 -DSPECDEC_WITH_CUDA -fPIC -ffp-contract=off -fno-math-errno".split(), *WARNINGS]
SANITIZERS = os.environ.get("SPECDEC_HOST_CUDA_SANITIZE")  # as g++ names them: "address", "address,undefined"
# Unoptimised under sanitizers: to compile takes less than half of the time, and these tests are few.
SANITIZE = f"-O0 -fsanitize={SANITIZERS} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1".split()
MODE = SANITIZE if SANITIZERS else ["-O2"]


def include_flags():
    folders = [HERE / "include", ROOT / "csrc" / "include", Path(sysconfig.get_paths()["include"])]
    try:
        import pybind11
    except ImportError:
        pass
    else:
        folders.append(Path(pybind11.get_include()))
    return [flag for folder in folders for flag in ("-I", str(folder))]


@functools.cache
def compiler_version(cxx):
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def digest(*flags):
    """Of everything that could change an object file, but its own source."""
    h = hashlib.sha256(" ".join([*flags, sys.implementation.cache_tag]).encode())
    csrc = ROOT / "csrc"
    folders = [csrc / part for part in ("", "c_api", "cuda", "include", "include/specdec")]
    texts = {p for folder in (HERE, HERE / "include", *folders) for p in folder.iterdir()}
    for path in sorted(p for p in texts if p.suffix in (".cpp", ".cu", ".cuh", ".h")):
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:16]


def make(path, command, wait=True):
    """Run a command that writes ``path``, unless it is there. False if another process is at it and we do not wait."""
    if path.exists():
        return True
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        if not path.exists():
            fresh = path.with_suffix(".new")
            done = subprocess.run([*command, "-o", str(fresh)], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
            fresh.replace(path)
    return True


def build(name, sources, module=False):
    """The path of ``name``: `sources` and the machine, compiled and linked, or taken from the cache.

    A file that ends in ``.cu`` is compiled as C++, unchanged. ``module`` names the library as Python expects it.
    """
    cxx = os.environ.get("CXX", "g++")
    flags = [*FLAGS, *MODE]
    folder = ROOT / "build" / "host_cuda" / digest(cxx, compiler_version(cxx), *flags)
    folder.mkdir(parents=True, exist_ok=True)

    def compiled(source, wait):
        own = hashlib.sha256(str(source).encode() + source.read_bytes()).hexdigest()[:8]
        path = folder / f"{source.stem}.{own}.o"
        command = [cxx, *flags, *include_flags(), "-x", "c++", "-c", str(source)]
        return path if make(path, command, wait) else None

    units = [*MACHINE, *sources]
    with ThreadPoolExecutor(min(len(units), os.cpu_count() or 1)) as pool:
        # What another process compiles is waited for only when all else is done.
        found = list(pool.map(lambda unit: compiled(unit, wait=False), units))
    objects = [path or compiled(unit, wait=True) for path, unit in zip(found, units, strict=True)]
    whole = hashlib.sha256(" ".join(map(str, objects)).encode()).hexdigest()[:8]
    place = folder / f"{name}-{whole}"
    place.mkdir(exist_ok=True)
    library = place / f"{name}{sysconfig.get_config_var('EXT_SUFFIX') if module else '.so'}"
    make(library, [cxx, "-shared", *MODE, *map(str, objects), "-ldl"])
    return library
