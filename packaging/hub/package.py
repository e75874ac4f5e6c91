"""Kernels that verify speculative decoding: exact, reproducible, without writing anything of the vocabulary's size.

The ops of specdec-kernels in Triton for GPUs, and compiled for CPUs; where nothing compiled fits, in plain torch, slow
and exact. ``backend("reference")``, or another of ``available_backends()``, chooses for a ``with`` block.
"""

from . import ops
from .backends import available_backends, backend
from .layout import InputPositions, OutputFormat, Packing
from .sampling import Draft, LogitEdits, Sampling, draft_map
from .status import Status

_FUNCTIONS = {name: getattr(ops, name) for name in ops.__all__ if name.islower()}
globals().update(_FUNCTIONS)
__all__ = [
    "Draft",
    "LogitEdits",
    "OutputFormat",
    "InputPositions",
    "Packing",
    "Sampling",
    "Status",
    "available_backends",
    "backend",
    "draft_map",
    *_FUNCTIONS,
]
