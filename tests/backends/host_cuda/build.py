"""Builds the CUDA sources for the played machine with g++: a shared library per content hash under ``build/``."""

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
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1".split()


def include_flags():
    folders = [HERE / "include", ROOT / "csrc" / "include", Path(sysconfig.get_paths()["include"])]
    try:
        import pybind11
    except ImportError:
        pass
    else:
        folders.append(Path(pybind11.get_include()))
    return [flag for folder in folders for flag in ("-I", str(folder))]


def compiler_version(cxx):
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout


def digest(flags, cxx, sources):
    """Of everything that could change the library."""
    h = hashlib.sha256(" ".join([*flags, cxx, compiler_version(cxx), sys.implementation.cache_tag]).encode())
    csrc = ROOT / "csrc"
    folders = [csrc / part for part in ("", "c_api", "cuda", "include", "include/specdec")]
    texts = {p for folder in (HERE, HERE / "include", *folders) for p in folder.iterdir()}
    read = {p for p in texts if p.suffix in (".cpp", ".cu", ".cuh", ".h")}
    for path in sorted(read.union(sources)):
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:16]


def build(name, sources, sanitize=False, module=False):
    """The path of ``name``: `sources` and the machine, compiled and linked, or taken from the cache.

    A file that ends in ``.cu`` is compiled as C++, unchanged. ``module`` names the library as Python expects it.
    """
    cxx = os.environ.get("CXX", "g++")
    flags = [*FLAGS, "-O1" if sanitize else "-O2", *(SANITIZE if sanitize else []), f"-DSPECDEC_HOST_MODULE={name}"]
    suffix = sysconfig.get_config_var("EXT_SUFFIX") if module else ".so"
    folder = ROOT / "build" / "host_cuda" / digest([*flags, name, *map(str, sources)], cxx, sources)
    library = folder / f"{name}{suffix}"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    units = [*MACHINE, *sources]

    def compile_one(source):
        output = folder / f"{source.parent.name}_{source.stem}.{os.getpid()}.o"
        command = [cxx, *flags, *include_flags(), "-x", "c++", "-c", str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        return output

    with ThreadPoolExecutor(min(len(units), os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compile_one, units))
    fresh = library.with_suffix(f".{os.getpid()}.new")
    sanitizers = ["-fsanitize=address,undefined"] if sanitize else []
    subprocess.run([cxx, "-shared", *sanitizers, *map(str, objects), "-ldl", "-o", str(fresh)], check=True)
    fresh.replace(library)
    for path in objects:
        path.unlink()
    return library
