"""Parts of engines that were unpacked but cannot be imported: single functions, as they stand in their files."""

import ast
import sysconfig
from pathlib import Path

import pytest

FOLDER = Path(sysconfig.get_path("data")) / "unpacked"


def functions(path, owner=None):
    """The functions of a file's top level, or of a class of it, as syntax."""
    file = FOLDER / path
    if not file.exists():
        pytest.skip(f"{path} is not unpacked")
    body = ast.parse(file.read_text()).body
    if owner is not None:
        (body,) = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


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
