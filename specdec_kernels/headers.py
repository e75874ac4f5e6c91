"""Where the headers and the library for engines in C and C++ are: the same ops, without torch or Python."""

from pathlib import Path

__all__ = ["get_include", "get_library_dir"]

_PACKAGE = Path(__file__).resolve().parent


def get_include() -> str:
    """The directory to put on a compiler's include path.

    ``#include <specdec.h>``: the ops as C functions. The library is in ``get_library_dir()``.
    ``#include <specdec/chain.h>`` and its neighbours: the maths alone, for C++. They need no library.
    ``#include <specdec/cuda.cuh>``: the parts of the CUDA kernels, for an engine's own kernels.

    Returns
    -------
    str
        An existing directory that holds ``specdec.h`` and ``specdec/``.

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

    Returns
    -------
    str
        An existing directory.

    Examples
    --------
    >>> from pathlib import Path
    >>> from specdec_kernels.headers import get_library_dir
    >>> (Path(get_library_dir()) / "libspecdec.so").is_file()
    True
    """
    return str(_PACKAGE / "lib")
