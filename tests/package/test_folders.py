"""The folders of csrc/cpu and csrc/cuda: a file includes its own folder and those below it, so no two need each other;
so with ops, backends and calls in Python; and an op has one file of its name in each folder, that of its tests too.
"""

import ast
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
# The lowest first. "" are the files beside the folders.
ORDER = {"cpu": ("", "rows", "race", "walk", "ops"), "cuda": ("", "team", "rows", "tree", "chain", "ops")}
pytestmark = pytest.mark.skipif(not CSRC.exists(), reason="needs the source tree")


def place(path):
    """The folder of csrc that a file is in, and the folder of that one."""
    *folders, _ = path.relative_to(CSRC).parts
    return "".join(folders[:1]), "/".join(folders[1:])


def includes(path):
    """The files that a file names by the way from its own folder; those of csrc/include are found by the compiler."""
    named = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    return [other for other in (Path(os.path.normpath(path.parent / name)) for name in named) if other.exists()]


@pytest.mark.parametrize("backend", ORDER)
def test_a_file_includes_nothing_of_a_folder_above_its_own(backend):
    order = ORDER[backend]
    pairs = [(path, other) for path in (CSRC / backend).rglob("*") if path.is_file() for other in includes(path)]
    assert len(pairs) > 50
    for path, other in pairs:
        owner, folder = place(other)
        if owner in ORDER:
            fits = owner == backend and order.index(folder) <= order.index(place(path)[1])
            fits &= {folder, place(path)[1]} != {"tree", "chain"}  # neither needs the other
            assert fits, f"{path.relative_to(ROOT)} includes {other.relative_to(ROOT)}; the lowest first: {order}"


def test_an_op_has_a_file_of_its_name_in_each_folder():
    listed = (CSRC / "include" / "specdec" / "ops.h").read_text()
    ops = set(re.findall(r"op\((\w+), \w+Params\)", listed))
    assert len(ops) > 20
    for folder, suffix in {"csrc/cpu/ops": "cpp", "csrc/cuda/ops": "cu"}.items():
        assert {path.name for path in (ROOT / folder).iterdir()} == {f"{op}.{suffix}" for op in ops}
    parts = set(re.findall(r"^def (\w+)\(", (ROOT / "specdec_kernels/sharded/_parts.py").read_text(), re.MULTILINE))
    public, reference, triton = (
        {path.stem for path in (ROOT / folder).glob("*.py")}
        for folder in ("specdec_kernels/ops", "specdec_kernels/backends/reference", "triton_kernels")
    )
    assert ops <= triton
    assert ops <= public ^ parts
    assert ops - parts <= reference


def test_the_first_test_of_an_op_is_its_rule_by_hand():
    """tests/ops/test_<op>.py begins with the op's rule on a few tokens, short enough to be read, on every backend."""
    init = ast.parse((ROOT / "specdec_kernels/ops/__init__.py").read_text())
    (exported,) = (ast.literal_eval(node.value) for node in init.body if isinstance(node, ast.Assign))
    ops = [name for name in exported if name.islower()]
    assert len(ops) > 15
    for op in ops:
        body = ast.parse((ROOT / "tests/ops" / f"test_{op}.py").read_text(encoding="utf-8")).body
        first = next(node for node in body if getattr(node, "name", "").lower().startswith("test"))
        assert first.name == "test_rule_by_hand", f"test_{op}.py begins with {first.name}"
        called = {node.func.id for node in ast.walk(first) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
        assert op in called, f"test_{op}.py: its first test does not call {op}"
        lines = first.end_lineno - first.lineno + 1 + len(first.decorator_list)
        assert lines <= 40, f"test_{op}.py: expected a first test of at most 40 lines; got {lines}"
        assert ast.get_docstring(first), f"test_{op}.py: its first test does not say the rule"
        assert [argument.arg for argument in first.args.args] == ["backend"], f"test_{op}.py: not on every backend"


def imports(folder):
    """The modules of the package that the modules of a folder import."""
    for path in (ROOT / folder).rglob("*.py"):
        for module in re.findall(r"^ *from (specdec_kernels[\w.]*) import", path.read_text(), re.MULTILINE):
            yield path.relative_to(ROOT), module


def named_by(tree):
    """The modules that a module imports: also in functions, for types alone, and by ``import_module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            yield from (place.value for place in node.args[:1] if isinstance(place, ast.Constant))


def assert_no_circle(needs):
    """Of {name: the names that it needs}."""
    seen = set()

    def visit(name, path):
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in seen:
            for other in needs[name] & needs.keys():
                visit(other, [*path, name])
            seen.add(name)

    for name in needs:
        visit(name, [])


def test_no_module_imports_one_that_imports_it():
    modules = {}
    for path in (ROOT / "specdec_kernels").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        named = named_by(ast.parse(path.read_text(encoding="utf-8")))
        # A package that names its own parts, as __init__ does, makes no circle.
        modules[name] = {x for x in named if not f"{x}.".startswith(f"{name}.") and not name.startswith(f"{x}.")}
    assert_no_circle(modules)


@pytest.mark.parametrize("backend", ORDER)
def test_no_file_includes_one_that_includes_it(backend):
    """A header and the .cpp of its name are one."""
    needs = {}
    for path in (CSRC / backend).rglob("*"):
        if path.is_file():
            needs.setdefault(path.with_suffix(""), set()).update(other.with_suffix("") for other in includes(path))
    assert_no_circle({name: others - {name} for name, others in needs.items()})


@pytest.mark.parametrize(
    "folder, other",
    [
        ("specdec_kernels/ops", "backends"), ("specdec_kernels/backends", "ops"), ("triton_kernels", "ops"),
        ("specdec_kernels/calls", "ops"), ("specdec_kernels/sharded", "backends"),
    ],
)  # fmt: skip
def test_ops_and_backends_import_what_calls_are_and_not_each_other(folder, other):
    found = list(imports(folder))
    assert found
    for path, module in found:
        assert not module.startswith(f"specdec_kernels.{other}"), f"{path} imports {module}"
