"""Refuses a Triton that these kernels were not written for."""

import re

import triton

OLDEST, NEWEST_TRIED = (3, 6), (3, 9)

_found = tuple(map(int, re.findall(r"\d+", triton.__version__)[:2]))
if _found < OLDEST:
    raise ImportError(f"triton: expected 3.6 or newer, got {triton.__version__}: pip install 'triton>=3.6'")

# Whether compiled kernels are launched as these versions launch them. Triton's own launch is for all others.
KNOWN_LAUNCH = _found <= NEWEST_TRIED
