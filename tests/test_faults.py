"""Planted faults turn a test of the quick set red, in a copy of the tree. What that set leaves out is not missed."""

import collections
import shutil

import pytest

from tests.support import planting
from tests.support.faults import FAULTS
from tests.support.planting import Fault, number_of, plant, replaced, switched, with_switches

ROOT = planting.ROOT
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")


def test_every_text_stands_once():
    """And no two faults of C++, which are all there at once, overlap."""
    by_file = collections.defaultdict(list)
    for name, fault in FAULTS.items():
        by_file[fault.file].append((number_of(name), fault))
    for file, faults in by_file.items():
        source = (ROOT / file).read_text()
        if file.endswith(".py"):
            assert all(replaced(source, fault) != source for _, fault in faults)
        else:
            with_switches(source, faults)
    assert len(set(map(number_of, FAULTS))) == len(FAULTS)
    kinds = {fault.tests: fault.kind for fault in FAULTS.values() if fault.file == "csrc/python/direct.cpp"}
    assert {*kinds.values()} == {"cpu"}, kinds  # its calls are of the module of the CPU


def test_every_test_is_there():
    for fault in FAULTS.values():
        assert all((ROOT / path).exists() for path in fault.tests.split() if path.startswith("tests/")), fault


def test_a_text_and_another_behind_a_switch():
    assert switched("a + b", 7, "a") == "(SPECDEC_FAULT(7) ? (a) : (a + b))"
    assert switched("f(a);", 7, "") == "{ if (SPECDEC_FAULT(7)) {  } else { f(a); } }"
    assert "operator float() const { return SPECDEC_FAULT(7) ? 0.0f : 1.0f; }" in switched(
        "constexpr float kOne = 1.0f;", 7, "constexpr float kOne = 0.0f;"
    )
    faults = [(7, Fault("", "if («a») b", "c", "")), (8, Fault("", "if («a») b", "d", ""))]  # of one place
    assert with_switches("if (a) b;", faults) == ("if ((SPECDEC_FAULT(8) ? (d) : ((SPECDEC_FAULT(7) ? (c) : (a))))) b;")
    with pytest.raises(ValueError, match="stands 2 times"):
        with_switches("a + a", [(7, Fault("", "a", "b", ""))])
    with pytest.raises(ValueError, match="overlaps"):
        with_switches("a + b", [(7, Fault("", "a +", "b", "")), (8, Fault("", "+ b", "a", ""))])


def test_who_sees_what(tmp_path):
    """Also who ends the process, or never ends; a test that fails without a fault, too, sees nothing."""
    (tmp_path / "value.py").write_text("import os\n\nVALUE = 1\n\n\ndef value():\n    return VALUE\n")
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    for folder in (support.parent, support):
        (folder / "__init__.py").touch()
    shutil.copy(planting.__file__, support)
    (support.parent / "test_it.py").write_text(
        "import value\n\n\ndef test_first():\n    pass\n\n\ndef test_value():\n    assert value.value() == 1\n\n\n"
        "def test_broken():\n    assert value.value() == 3\n"
    )
    where, tests = "value.py", "tests/test_it.py -k 'first or test_value'"
    seen = dict(
        plant(
            {
                "seen": Fault(where, "VALUE = 1", "VALUE = 2", tests),
                "ends": Fault(where, "return VALUE", "os._exit(0)", tests),
                "not seen": Fault(where, "VALUE = 1", "VALUE = 1 + 0", tests),
                "none": Fault(where, "VALUE = 1", "VALUE = 2", "tests/test_it.py -k nothing"),
                "broken": Fault(where, "VALUE = 1", "VALUE = 2", "tests/test_it.py -k broken"),
            },
            tmp_path,
        )
    )
    by = "tests/test_it.py::test_value"
    assert [seen[name].test for name in ("seen", "ends", "not seen", "none")] == [by, by, None, None]
    assert "no test ran" in seen["none"].wrong
    assert "without the fault" in seen["broken"].wrong
    assert (tmp_path / "value.py").read_text().count("VALUE = 1\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", planting.KINDS)
def test_every_planted_fault_is_seen(kind):
    faults = {name: fault for name, fault in FAULTS.items() if fault.kind == kind}
    seen = dict(plant(faults, planting.make_tree(kind, FAULTS)))
    assert seen.keys() == faults.keys()
    assert not {name: one.wrong or "every test passes" for name, one in seen.items() if one.test is None or one.wrong}
