"""Checked options: argparse types whose errors have the expected value."""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specdec_kernels import Sampling

# The constructors of Sampling, named by the engines whose rules they have.
PRESETS = tuple(name for name, made in vars(Sampling).items() if isinstance(made, classmethod) and name[0] != "_")


@contextlib.contextmanager
def errors_of(argument: str) -> Iterator[None]:
    """Errors of values name the command's argument, such as `--draft: `."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"argument {argument}{error}") from error


def checked(kind: Callable[[str], Any], expected: str, allowed: Callable[[Any], bool]) -> Callable[[str], Any]:
    """An argparse type: `kind` of the word, if `allowed`."""

    def parse(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"expected {expected}; got {word!r}")
        return value

    return parse


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in a range."""
    span = f">= {least}" if most is None else f"from {least} to {most}"
    return checked(int, f"a whole number {span}", lambda value: least <= value and (most is None or value <= most))


def utf8(word: str) -> str:
    """The word; ValueError for bytes that are not UTF-8."""
    word.encode()
    return word


def writable(kind: str, make: Callable[[Path], None]) -> Callable[[str], Path]:
    """A path that can be written to, made if it is missing, before anything is measured."""

    def parse(word: str) -> Path:
        try:
            make(Path(word))
        except OSError as error:
            wrong = f"expected a {kind} to write to; got {word!r} ({error.strerror})"
            raise argparse.ArgumentTypeError(wrong) from error
        return Path(word)

    return parse


def make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()


def bias(word: str) -> tuple[int, float]:
    """ID:VALUE."""
    token, _, value = word.partition(":")
    return int(token), float(value)


def text_of_file(path: Path, option: str = "--prompt-file") -> str:
    """The text of a file in UTF-8, with its line ends, without a byte-order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"argument {option}: expected a file of text in UTF-8; got {path} ({error})") from error


def token_file(word: str) -> list[int]:
    """The token ids in a file, between spaces, commas or line ends."""
    try:
        parts = Path(word).read_bytes().decode("utf-8-sig").replace(",", " ").split()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"expected a file of token ids; got {word!r} ({error})") from error
    if others := [part for part in parts if not part.isdecimal()]:
        raise argparse.ArgumentTypeError(f"expected a file of token ids; got {word!r}, which has {others[0]!r} in it")
    return list(map(int, parts))


folder = writable("folder", make_folder)
new_file = writable("file", lambda path: path.open("a").close())
text = checked(utf8, "text in UTF-8", lambda value: True)
some_text = checked(utf8, "text in UTF-8 that is not empty", bool)
seed = checked(int, "a whole number", lambda value: True)
key = checked(int, "a whole number other than 0", bool)
probability = checked(float, "a number in [0, 1]", lambda value: 0 <= value <= 1)
finite = checked(float, "a finite number >= 0", lambda value: 0 <= value < math.inf)
fraction = checked(float, "a number between 0 and 1", lambda value: 0 < value < 1)
positive = checked(float, "a finite number above 0", lambda value: 0 < value < math.inf)
signed = checked(float, "a finite number", math.isfinite)
token_bias = checked(
    bias, "ID:VALUE, a token id and a finite number or -inf", lambda value: value[0] >= 0 and value[1] < math.inf
)
