"""`specdec-kernels judge`: whether a verifier keeps the target's law."""

from specdec_kernels.conformance.__main__ import add_arguments, judge

run = judge
__all__ = ["add_arguments", "run"]
