"""The directories of the headers and the library for engines in C and C++: the same ops, without torch or Python.

Each function gives a directory that exists.

Scripts run ``python -m specdec_kernels.headers --include``, ``--lib``, ``--cmake``, ``--pkgconfig``.
"""

import argparse
from pathlib import Path

__all__ = ["get_cmake_dir", "get_include", "get_library_dir", "get_pkgconfig_dir"]

_PACKAGE = Path(__file__).resolve().parent


def get_include() -> str:
    """The directory to put on a compiler's include path.

    ``#include <specdec.h>``: the ops as C functions. The library is in ``get_library_dir()``.
    ``#include <specdec/chain.h>`` and its neighbours: the maths alone, for C++. They need no library.
    ``#include <specdec/cuda.cuh>``: the parts of the CUDA kernels, for an engine's kernels.

    Examples
    --------
    >>> from pathlib import Path
    >>> from specdec_kernels.headers import get_include
    >>> (Path(get_include()) / "specdec" / "philox.h").is_file()
    True
    """
    installed, in_tree = _PACKAGE / "include", _PACKAGE.parent / "csrc" / "include"
    return str(installed if installed.is_dir() else in_tree)


def get_library_dir() -> str:
    """The directory of ``libspecdec.so``: the ops as C functions, on the CPU, and on CUDA if the build has it.

    The library needs neither Python nor torch. With this directory as ``$library`` and that of ``get_include()`` as
    ``$include``: ``cc -I $include engine.c -L $library -Wl,-rpath,$library -lspecdec``.
    """
    return str(_PACKAGE / "lib")


def get_cmake_dir() -> str:
    """The directory of ``specdec-config.cmake``, for ``cmake -Dspecdec_DIR=...`` and ``find_package(specdec)``.

    The target ``specdec::specdec`` has the ops as C functions, ``specdec::headers`` the maths alone.
    """
    return str(_PACKAGE / "lib" / "cmake" / "specdec")


def get_pkgconfig_dir() -> str:
    """The directory of ``specdec.pc``, for ``PKG_CONFIG_PATH=... pkg-config --cflags --libs specdec``."""
    return str(_PACKAGE / "lib" / "pkgconfig")


_DIRECTORIES = {
    "include": get_include,
    "lib": get_library_dir,
    "cmake": get_cmake_dir,
    "pkgconfig": get_pkgconfig_dir,
}


def main() -> None:
    """Prints the directory that an option names; several options print one a line."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_kernels.headers", description="Print directories for compilers, CMake and pkg-config."
    )
    for name, directory in _DIRECTORIES.items():
        what = f"print {directory.__name__}()"
        parser.add_argument(f"--{name}", dest="wanted", action="append_const", const=directory, help=what)
    wanted = parser.parse_args().wanted
    if not wanted:
        parser.error(f"expected one or more of --{', --'.join(_DIRECTORIES)}; got none")
    for directory in wanted:
        print(directory())


if __name__ == "__main__":
    main()
