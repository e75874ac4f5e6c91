"""Every backend reads each field of each call: one that forgot a new argument would give the verdict without it."""

import importlib
import re
from types import SimpleNamespace

import pytest
import torch

from specdec_kernels import backend, backends
from specdec_kernels.calls.op import OPS
from specdec_kernels.calls.values import Edit, Law
from tests.package.conftest import ROOT
from tests.support import call_types, fields
from tests.support.calls import backends_call, every_call, tree, unsupported
from tests.support.ops import verify_tree

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")
STRUCTS = fields.structs()
PARTS = (Law, Edit)
PATHS = verify_tree, tree(method="paths", leaves=torch.tensor([[2, 3]]).int().expand(3, -1))


@pytest.fixture(scope="module")
def recorders():
    """The backends in Python, after calls of every op. Of Triton's nothing is launched."""
    recorded = {}
    for name in fields.PYTHON:
        with pytest.MonkeyPatch.context() as patch:
            if name == "triton_kernels":
                launcher = pytest.importorskip("specdec_kernels.triton_kernels._launch", reason="no triton here")
                patch.setattr(launcher, "launch", lambda *arguments: None)
            recorded[name] = fields.Recorder(
                importlib.import_module(f"specdec_kernels.backends.{name.removesuffix('_kernels')}")
            )
            backends.register("recorder", recorded[name], ("cpu",))
            for function, arguments in [*every_call().values(), PATHS]:
                if not unsupported(name, function):
                    with backend("recorder"):
                        function(**arguments)
    return recorded


def unread_in_cpp(folder, op, changed=None):
    names, read = fields.fields_of(STRUCTS[op]), fields.read_in_cpp(folder, op, STRUCTS[op], changed)
    return [name for name in names if name not in read]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("folder", [*fields.PYTHON, *fields.CPP])
def test_every_field_is_read(recorders, folder, op):
    if folder in fields.CPP:
        assert not unread_in_cpp(folder, op)
    elif op in recorders[folder].read:
        assert not recorders[folder].unread(op)
    else:  # it says so by name
        assert folder == "reference"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("folder", [*fields.PYTHON, *fields.CPP])
def test_every_part_of_a_value_is_read(folder, part):
    folders = [fields.PYTHON.get(folder, fields.CSRC / folder)]
    folders += [fields.CSRC / "include" / "specdec"] if folder in fields.CPP else []
    files = [file for each in folders for file in each.rglob("*.*") if file.suffix != ".pyc"]
    names = {name for file in files for name in re.findall(r"\.(\w+)", file.read_text(encoding="utf-8"))}
    assert not [name for name in part._fields if name not in names]


def test_a_field_that_is_not_read_is_seen():
    recorder = fields.Recorder(SimpleNamespace(verify_chain=lambda call: (call._replace(target=0).target, call[2:4])))
    assert recorder.verify_chain(backends_call("verify_chain"))[0] == 0
    names = OPS["verify_chain"].Call._fields
    assert recorder.unread("verify_chain") == [name for name in names if name != "target" and name not in names[2:4]]
    for kind, op, file, taken in (
        ("cpu", "verify_chain", "chain.h", "p.epsilon"), ("cuda", "compact_kv", "compact_kv.cu", "p.prefix_len")
    ):  # fmt: skip
        (path,) = [*fields.CSRC.rglob(file)]
        changed = {file: path.read_text(encoding="utf-8").replace(taken, "other")}
        assert unread_in_cpp(kind, op, changed) == [taken.split(".")[1]]


def test_types_of_calls_are_those_of_the_declarations():
    assert call_types.PLACE.read_text(encoding="utf-8") == call_types.text(), "python -m tests.support.call_types"
