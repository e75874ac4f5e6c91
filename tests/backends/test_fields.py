"""Every backend reads each field of each call: one that forgot a new argument would give the verdict without it."""

import re

import pytest

import specdec_kernels.sharded  # noqa: F401  its ops are among OPS
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import Edit, Law
from tests.package.conftest import ROOT
from tests.support import call_types, fields

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")
STRUCTS = fields.structs()
PARTS = (Law, Edit)


@pytest.fixture(scope="module")
def packages():
    return {name: fields.Package(folder) for name, folder in fields.PYTHON.items()}


def unread(package, op):
    """The fields that a backend in Python does not read. One that has no such op says so by name."""
    names = OPS[op].Call._fields
    return [] if (op, op) not in package.defined else [name for name in names if name not in package.read(op, names)]


def unread_in_cpp(backend, op, changed=None):
    names, read = fields.fields_of(STRUCTS[op]), fields.read_in_cpp(backend, op, STRUCTS[op], changed)
    return [name for name in names if name not in read]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", [*fields.PYTHON, *fields.CPP])
def test_every_field_is_read(packages, backend, op):
    assert not (unread(packages[backend], op) if backend in packages else unread_in_cpp(backend, op))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("backend", [*fields.PYTHON, *fields.CPP])
def test_every_part_of_a_value_is_read(packages, backend, part):
    if backend in packages:
        names = packages[backend].attributes()
    else:
        folders = (fields.CSRC / backend, fields.CSRC / "include" / "specdec")
        files = [file for folder in folders for file in folder.rglob("*.*")]
        names = {name for file in files for name in re.findall(r"\.(\w+)", file.read_text(encoding="utf-8"))}
    assert not [name for name in part._fields if name not in names]


@pytest.mark.parametrize(
    ("backend", "op", "file", "taken"),
    [
        ("reference", "verify_chain", "verify_chain", "call.num_passed"),
        ("triton", "verify_chain", "verify_chain", "call.draft_prob"),
        ("cpu", "verify_chain", "chain.h", "p.epsilon"),
        ("cuda", "compact_kv", "compact_kv.cu", "p.prefix_len"),
    ],
)
def test_a_field_that_is_not_read_is_seen(backend, op, file, taken):
    name = taken.split(".")[1]
    if backend in fields.PYTHON:
        folder = fields.PYTHON[backend]
        changed = {file: (folder / f"{file}.py").read_text(encoding="utf-8").replace(taken, "None")}
        assert unread(fields.Package(folder, changed), op) == [name]
    else:
        (path,) = [*fields.CSRC.rglob(file)]
        assert unread_in_cpp(backend, op, {file: path.read_text(encoding="utf-8").replace(taken, "other")}) == [name]


def test_types_of_calls_are_those_of_the_declarations():
    assert call_types.PLACE.read_text(encoding="utf-8") == call_types.text(), "python -m tests.support.call_types"
