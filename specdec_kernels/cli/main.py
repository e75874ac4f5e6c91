"""`specdec-kernels`: its commands, and their exit status."""

from __future__ import annotations

import argparse
import codecs
import importlib
import os
import sys
from typing import NoReturn

import specdec_kernels

COMMANDS = {
    "generate": "write text by speculative decoding",
    "info": "versions, devices, backends and build",
    "plan": "the best draft length, drafting probability and tree",
    "compare": "every method on a pair of models: acceptance, tokens a call, tokens a second",
    "watermark": "find the watermark of a key in a text",
    "judge": "does a verifier of package.module:function keep the target's law?",
    "train": "train a byte-level target and distil a draft from it",
}
"""What each command does. Its module here has its name, `add_arguments(parser)` and `run(args)` -> exit status."""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the module of the chosen command is imported."""
    parser = Parser(prog="specdec-kernels", description="Exact verification kernels for speculative decoding.")
    parser.add_argument("--version", action="version", version=f"specdec-kernels {specdec_kernels.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == chosen:
            module = importlib.import_module(f"specdec_kernels.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


PLAIN = {"‹": "<", "›": ">", "«": "<<", "»": ">>", "✓": "*", "×": "x", "–": "-"}
"""Replacements for characters of ours that the output's encoding lacks; any other becomes a question mark."""


def in_plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks: a handler for `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("specdec-plain", in_plain)


def main(arguments: list[str] | None = None) -> int:
    """Run a command: its exit status.

    0 is success; 1 a model that gives no law, or a closed pipe; 2 a bad argument or file, or a backend that cannot do
    it; 130 an interrupt. Errors take one line on stderr. A closed stdout or stderr discards all output.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = "specdec-kernels"
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115, as long as the process
    if getattr(sys.stdout, "errors", None) in ("strict", "surrogateescape"):  # other handlers are the user's choice
        sys.stdout.reconfigure(errors="specdec-plain")
    try:
        args = build_parser(arguments[0] if arguments else None).parse_args(arguments)
        name += f" {args.command}"
        status = args.run(args)
        sys.stdout.flush()  # a full disk fails here, not at exit
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except FloatingPointError as error:
        status, wrong = 1, str(error)
    except ModuleNotFoundError as error:
        status, wrong = 2, f"{error}; pip install specdec-kernels[generate]"
    except (RuntimeError, OSError, ValueError) as error:
        if isinstance(error, RuntimeError) and not is_of_backend(error):
            raise
        status, wrong = 2, str(error).replace("\n", " ")
    finally:
        discard_output()
    print(f"{name}: error: {wrong}", file=sys.stderr)
    return status


def is_of_backend(error: RuntimeError) -> bool:
    """Whether a backend cannot run or cannot do a call. Its module needs torch: without torch no backend ran."""
    backends = sys.modules.get("specdec_kernels.backends")
    return backends is not None and isinstance(error, backends.BackendError)


def discard_output() -> None:
    """Discard buffered output on a full disk or in a broken pipe, which Python would write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
