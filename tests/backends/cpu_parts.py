"""What the CPU knows of rows, parts and pairs, for tests: the package's own objects behind a few functions of C.

python -m tests.backends.cpu_parts     builds it, after the package
"""

import ctypes
import os
import sys

from setup import NinjaFile, build_folder
from tests.backends.host_cuda.build import FLAGS, ROOT, run_ninja
from tests.support import planting

HERE, COMPILER = ROOT / "tests" / "backends", os.environ.get("CXX", "g++")
SOURCES = [HERE / "cpu_sums.cpp", HERE / "row_part.cpp"]
OBJECTS = "rows_edited_row rows_filtered_row rows_law_row race_race_row walk_pair_sums ops_race_sample ops_race_topk"


def compiled(name="cpu_parts"):
    """A library, built where a source changed: that of parts, or "bounds", which needs headers alone."""
    ninja = NinjaFile(ROOT / "build" / f"bounds-{sys.implementation.cache_tag}")
    ninja.rule("cxx", f"{COMPILER} -MMD -MF $out.d $flags -c $in -o $out", depfile=True)
    ninja.rule("library", f"{COMPILER} -shared $flags $in -o $out")
    flags = [*FLAGS, "-O1", "-pthread", "-DSPECDEC_ISA=scalar", "-I", ninja.seen(ROOT / "csrc" / "include")]
    own = [ninja.compile("cxx", source, flags) for source in SOURCES]
    of_package = [f"{name}.scalar" for name in OBJECTS.split()] + ["cpu_threads"]
    objects = [*own, *(ninja.seen(build_folder() / f"{name}.o") for name in of_package)]
    ninja.build("cpu_parts.so", "library", objects, ["-pthread"])
    ninja.build("bounds.so", "library", [ninja.compile("cxx", HERE / "bounds.cpp", flags)], ["-pthread"])
    library = ninja.folder / f"{name}.so"
    if planting.VARIABLE not in os.environ or not library.exists():  # with a fault in C++: built before
        run_ninja(ninja.folder, str(ninja), library.name)
    return ctypes.CDLL(str(library))


if __name__ == "__main__":
    compiled(), compiled("bounds")
