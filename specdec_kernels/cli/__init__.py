"""The command line, `specdec-kernels`: a module a command, each with `add_arguments(parser)` and `run(args)`."""

from specdec_kernels.cli.main import main

__all__ = ["main"]
