"""Parts of engines that were unpacked but cannot be imported: single functions, as they stand in their files."""

import ast
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(sysconfig.get_path("data")) / "unpacked"


def text_of(path):
    file = FOLDER / path
    if not file.exists():
        pytest.skip(f"{path} is not unpacked")
    return file.read_text()


def body_of(path, owner=None):
    """What a file has at its top level, or a class of it, as syntax."""
    body = ast.parse(text_of(path)).body
    if owner is not None:
        (body,) = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    return body


def functions(path, owner=None):
    """The functions of a file's top level, or of a class of it, as syntax."""
    return {node.name: node for node in body_of(path, owner) if isinstance(node, ast.FunctionDef)}


KINDS = {"str": str, "int": int, "bool": bool, "float": float, "torch.Tensor": torch.Tensor}


def fields(path, owner):
    """What the fields and properties of a class are said to be: the annotation, and the dtype that a comment names."""
    lines, found = text_of(path).splitlines(), {}
    for node in body_of(path, owner):
        if isinstance(node, ast.AnnAssign):
            comment = re.search(r"# shape: .*\b(int32|int64|float32|bool)$", lines[node.end_lineno - 1])
            found[node.target.id] = ast.unparse(node.annotation), comment and comment[1]
        elif isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list):
            found[node.name] = ast.unparse(node.returns), None
    return found


def strangers(stand_in, known):
    """Attributes of a stand-in that are no `fields`, or are said to be something else there."""
    for name, value in vars(stand_in).items():
        annotation, dtype = known.get(name, ("no field", None))
        bare = re.sub(r"^(?:A|Optional)\[([\w.]+)\b.*", r"\1", annotation, flags=re.DOTALL)  # A says the help, too
        if name not in known or not (value is None or isinstance(value, KINDS.get(bare, object))):
            yield f"{name}: {type(value).__name__} in the place of {annotation}"
        elif dtype and value.dtype != getattr(torch, dtype):
            yield f"{name}: {value.dtype} in the place of {dtype}"


def differences(stand_in, theirs, path=""):
    """Attributes of a stand-in that the engine's object lacks, or has of another type: for tensors, dtype and rank."""
    for name, ours in vars(stand_in).items():
        at = f"{path}.{name}"
        if not hasattr(theirs, name):
            yield f"{at} is not there"
            continue
        other = getattr(theirs, name)
        if isinstance(ours, (torch.Tensor, np.ndarray)):
            found, wanted = ((type(x), x.dtype, x.ndim) if hasattr(x, "dtype") else type(x) for x in (ours, other))
        elif isinstance(ours, list):
            found, wanted = ([type(x).__name__ for x in items] for items in (ours, other))
            for one, item in zip(ours, other, strict=False):
                yield from differences(one, item, f"{at}[{type(one).__name__}]")
        elif hasattr(ours, "__dict__") and not callable(ours):
            found = wanted = None
            yield from differences(ours, other, at)
        else:
            found, wanted = callable(ours) or type(ours), callable(other) or type(other)
        if found != wanted:
            yield f"{at}: {found} in the place of {wanted}"


def made(path, name, scope):
    """A function that needs no more than `scope`, without its decorators."""
    function = functions(path)[name]
    function.decorator_list = []
    exec(compile(ast.Module([function], []), path, "exec"), scope)
    return scope[name]


def signature(function):
    """Names of arguments, * before those by keyword alone; defaults as text."""
    given = function.args
    names = [argument.arg for argument in given.posonlyargs + given.args]
    defaults = [None] * (len(names) - len(given.defaults)) + [ast.unparse(node) for node in given.defaults]
    return list(zip(names, defaults, strict=True)), [argument.arg for argument in given.kwonlyargs]
