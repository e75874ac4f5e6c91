"""Refuses a Triton that these kernels were not written for."""

import re

import triton

OLDEST, NEWEST_TRIED = (3, 6), (3, 9)

_version = tuple(map(int, re.findall(r"\d+", triton.__version__)[:2]))
if _version < OLDEST:
    raise ImportError(f"triton: expected 3.6 or newer, got {triton.__version__}: pip install 'triton>=3.6'")

# Whether compiled programs are launched directly, as in these versions. Newer ones use Triton's launch.
DIRECT_LAUNCH = _version <= NEWEST_TRIED
