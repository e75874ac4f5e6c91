"""Where the C++ headers are: the same maths as every backend, without torch or Python."""

from pathlib import Path

__all__ = ["get_include"]


def get_include() -> str:
    """The directory to put on a C++ compiler's include path, for ``#include <specdec/chain.h>`` and its neighbours.

    Returns
    -------
    str
        An existing directory that holds ``specdec/``.

    Examples
    --------
    >>> from pathlib import Path
    >>> from specdec_kernels.headers import get_include
    >>> (Path(get_include()) / "specdec" / "philox.h").is_file()
    True
    """
    package = Path(__file__).resolve().parent
    installed, in_tree = package / "include", package.parent / "csrc" / "include"
    return str(installed if installed.is_dir() else in_tree)
