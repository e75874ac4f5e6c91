"""Faults and mutants turn a test of the quick set red, in a copy of the tree. No test is about what that set lacks."""

import shutil

import pytest

from tests.support import mutants, mutators, planting
from tests.support.faults import FAULTS, tree_of
from tests.support.mutators import mutants_of
from tests.support.planting import Change, Fault, number_of, plant, switched, with_switches

ROOT = planting.ROOT
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")


def changed(source, operator, file="a.h"):
    """What the mutants of one operator make of a source."""
    return [
        source[: mutant.start] + mutant.other + source[mutant.stop :]
        for mutant in mutants_of(file, source).values()
        if mutant.operator == operator
    ]


class TestNamed:
    def test_every_text_stands_once(self):
        """And no two faults of C++, which are all there at once, overlap."""
        by_file = {}
        for name, fault in FAULTS.items():
            source = (ROOT / fault.file).read_text()
            change = fault.change(source)
            assert change.applied(source) != source, name
            by_file.setdefault(fault.file, (source, []))[1].append((number_of(name), change))
        for file, (source, changes) in by_file.items():
            if not file.endswith(".py"):
                with_switches(source, changes)
        assert len(set(map(number_of, FAULTS))) == len(FAULTS) <= 60

    def test_every_test_is_there(self):
        for fault in FAULTS.values():
            assert all((ROOT / path).exists() for path in fault.tests.split() if path.startswith("tests/")), fault


class TestCpp:
    SOURCE = (
        "SPECDEC_BEGIN\n"
        "constexpr float kSlack = 1e-5f;\n"
        "template <class T>\nstruct Pair {\n  SPECDEC_MEMBER(int sum(int p, int q) const { return p + 2 * q; })\n};\n"
        "namespace {\nvoid f(int* p, int low, int high) {\n"
        "  if (low < high && high > 3) g(low, high);\n"
        "  each(low, [&](int i) { p[i] = 0; });\n"
        "  __syncthreads();\n}\n}\n"
    )

    def test_operators(self):
        every = {
            operator: changed(self.SOURCE, operator) for operator in ("compare", "logic", "drop", "barrier", "bound")
        }
        assert [text.splitlines()[8] for text in every["compare"]] == [
            "  if (low <= high && high > 3) g(low, high);",
            "  if (low < high && high >= 3) g(low, high);",
        ]
        assert [text.splitlines()[8] for text in every["logic"]] == [
            "  if (!(low < high && high > 3)) g(low, high);",
            "  if (low < high || high > 3) g(low, high);",
        ]
        assert [text.splitlines()[8:10] for text in every["drop"]] == [
            ["  if (low < high && high > 3) ", "  each(low, [&](int i) { p[i] = 0; });"],
            ["  if (low < high && high > 3) g(low, high);", "  "],
            ["  if (low < high && high > 3) g(low, high);", "  each(low, [&](int i) {  });"],
        ]
        assert [text.splitlines()[10] for text in every["barrier"]] == ["  "]
        assert [text.splitlines()[1] for text in every["bound"]] == ["constexpr float kSlack = 0.0f;"]

    def test_swaps_and_numbers(self):
        swaps, numbers = changed(self.SOURCE, "swap"), changed(self.SOURCE, "one")
        assert "return q + 2 * p;" in swaps[0]
        assert any("g(high, low)" in text for text in swaps)
        assert "return p + (2 + 1) * q;" in numbers[0]
        assert "return p + (2 - 1) * q;" in numbers[1]

    def test_an_address_does_not_know_names_of_variables(self):
        renamed = self.SOURCE.replace("int i)", "int other)").replace("p[i]", "p[other]")
        assert [*mutants_of("a.h", renamed)] == [*mutants_of("a.h", self.SOURCE)]
        assert "a.h:f:drop:3" in mutants_of("a.h", renamed)

    def test_all_of_a_source_at_once(self):
        """One within another, and the compiler's errors lead to those that they are about."""
        changes = {
            a: Change("a.h", x.start, x.stop, x.other, x.form, "") for a, x in mutants_of("a.h", self.SOURCE).items()
        }
        text = with_switches(self.SOURCE, [(number_of(name), change) for name, change in changes.items()])
        assert text.count("SPECDEC_FAULT(") == len(changes)
        line = text[: text.index("g(high, low)")].count("\n") + 1
        (blamed,) = mutants.refused(f"csrc/a.h: In function 'f':\ncsrc/a.h:{line}:3: error: no\n", Tree(text), changes)
        assert changes[blamed].other == "g(high, low);"


class Tree:
    """A folder of one source with switches, as `refused` reads it."""

    def __init__(self, text):
        self.text = planting.DECLARED + text

    def __truediv__(self, file):
        return self

    def exists(self):
        return True

    def read_text(self):
        return self.text


class TestPython:
    SOURCE = (
        '"""Text 1."""\n\n\ndef f(p, q):\n    if p < q and p is not None:\n        raise ValueError("1")\n'
        "    p = g(p, q) + 2\n    h(p, where(q, 1.0, 1e-6), sem='acq_rel')\n    return p\n"
    )

    def test_operators(self):
        lines = {
            operator: [
                next(line for line, old in zip(text.splitlines(), self.SOURCE.splitlines(), strict=True) if line != old)
                for text in changed(self.SOURCE, operator, "a.py")
            ]
            for operator in ("compare", "logic", "drop", "one", "bound", "barrier", "swap")
        }
        assert lines["compare"] == ["    if p <= q and p is not None:", "    if p < q and p is None:"]
        assert lines["logic"] == ["    if (not (p < q and p is not None)):", "    if p < q or p is not None:"]
        assert lines["drop"] == ["    pass", "    pass"]
        assert lines["one"] == ["    p = g(p, q) + (2 + 1)", "    p = g(p, q) + (2 - 1)"]
        assert lines["bound"] == ["    h(p, where(q, 1.0, 0.0), sem='acq_rel')"]
        assert lines["barrier"] == ['    h(p, where(q, 1.0, 1e-6), sem="relaxed")']
        assert "    p = g(q, p) + 2" in lines["swap"]
        assert "    h(p, where(q, 1e-6, 1.0), sem='acq_rel')" in lines["swap"]

    def test_functions_get_their_changed_code(self, tmp_path):
        path = tmp_path / "value.py"
        source = "def value():\n    return 1\n"
        scope = {}
        exec(compile(source, str(path), "exec"), scope)
        path.write_text(source.replace("1", "2"))
        assert planting.exchange(path, source)
        assert scope["value"]() == 2
        path.write_text("VALUE = 1\n" + source)
        assert not planting.exchange(path, source)  # one more line: only an import runs it


class TestTable:
    def test_every_file_has_tests_and_every_address_is_there(self):
        every = {address: mutant for each in mutants.all_mutants().values() for address, mutant in each.items()}
        assert len(every) > 20_000
        assert len(set(map(number_of, every))) > len(every) - 5  # of 31 bits: what is tried at once is a thousandth
        for file in {address.partition(":")[0] for address in every}:
            assert all("tests/" in tests for tests in mutants.tests_of(file)), file
        known = mutants.survivors()
        assert {kind for kind, _ in known.values()} <= {"equivalent", "gap"}
        assert not known.keys() - every.keys()

    def test_a_draw_is_of_all_folders_and_operators(self):
        drawn = mutants.draw(50, 1, mutants.FOLDERS)
        assert len(drawn) == 50
        assert {mutant.operator for mutant in drawn.values()} >= {"drop", "compare", "logic", "one", "swap"}
        assert {*mutators.COMPARED} == {*mutators.COMPARED.values()}


def test_a_text_and_another_behind_a_switch():
    def one_line(*arguments):
        return " ".join(switched(*arguments).split())

    assert one_line("a + b", 7, "a", "expression") == "(SPECDEC_FAULT(7) ? ( a ) : (a + b))"
    assert one_line("f(a);", 7, "", "statement") == "{ if (SPECDEC_FAULT(7)) { } else { f(a); } }"
    assert "operator float() const { return SPECDEC_FAULT(7) ? 0.0f : 1.0f; }" in one_line(
        "constexpr float kOne = 1.0f;", 7, "constexpr float kOne = 0.0f;", "constant"
    )
    assert Fault("", "if («a») b", "c", "").change("if (a) b;")[1:5] == (4, 5, "c", "expression")
    with pytest.raises(ValueError, match="stands 2 times"):
        Fault("", "a", "b", "").change("a + a")
    overlapping = [(7, Change("", 0, 3, "", "expression", "")), (8, Change("", 2, 5, "", "expression", ""))]
    with pytest.raises(ValueError, match="overlaps"):
        with_switches("a + b", overlapping)


def tree_of_one_value(path):
    """A tree with a value, and tests of it."""
    (path / "value.py").write_text("import os\n\nVALUE = 1\n\n\ndef value():\n    return VALUE\n")
    support = path / "tests" / "support"
    support.mkdir(parents=True)
    for folder in (support.parent, support):
        (folder / "__init__.py").touch()
    shutil.copy(planting.__file__, support)
    (support.parent / "test_it.py").write_text(
        "import value\n\n\ndef test_first():\n    pass\n\n\ndef test_value():\n    assert value.value() == 1\n\n\n"
        "def test_broken():\n    assert value.value() == 3\n"
    )
    return (path / "value.py").read_text()


def test_who_sees_what(tmp_path):
    """Also who ends the process, or never ends; a test that fails without a fault, too, sees nothing."""
    source = tree_of_one_value(tmp_path)
    where, tests = "value.py", "tests/test_it.py -k 'first or test_value'"
    faults = {
        "seen": Fault(where, "VALUE = 1", "VALUE = 2", tests),
        "ends": Fault(where, "return VALUE", "os._exit(0)", tests),
        "hangs": Fault(where, "return VALUE", "return os.read(os.pipe()[0], 1)", tests),
        "not seen": Fault(where, "VALUE = 1", "VALUE = 1 + 0", tests),
        "none": Fault(where, "VALUE = 1", "VALUE = 2", "tests/test_it.py -k nothing"),
        "broken": Fault(where, "VALUE = 1", "VALUE = 2", "tests/test_it.py -k broken"),
    }
    seen = dict(plant({name: fault.change(source) for name, fault in faults.items()}, tmp_path, longest=1))
    by = "tests/test_it.py::test_value"
    assert [seen[name].test for name in ("seen", "ends", "hangs", "not seen", "none")] == [by, by, by, None, None]
    assert seen["hangs"].wrong == "time"
    assert "no test ran" in seen["none"].wrong
    assert "without the fault" in seen["broken"].wrong
    assert (tmp_path / "value.py").read_text() == source


def test_in_one_process(tmp_path):
    """Where functions get the code of the changed source: what only an import runs is not taken for a survivor."""
    source = tree_of_one_value(tmp_path)
    tests = "tests/test_it.py -k 'first or test_value'"
    changes = {
        "seen": Fault("value.py", "return VALUE", "return VALUE + 1", tests).change(source),
        "not seen": Fault("value.py", "return VALUE", "return VALUE + 0", tests).change(source),
        "import": Fault("value.py", "VALUE = 1", "VALUE = 2", tests).change(source),
    }
    seen = dict(plant(changes, tmp_path, fresh=False))
    by = "tests/test_it.py::test_value"
    assert [seen[name].test for name in changes] == [by, None, None]
    assert seen["import"].wrong == "import"


@pytest.mark.slow
@pytest.mark.parametrize("kind", planting.KINDS)
def test_every_planted_fault_is_seen(kind):
    faults = {name: fault.change() for name, fault in FAULTS.items()}
    faults = {name: change for name, change in faults.items() if change.kind == kind}
    seen = dict(plant(faults, tree_of(kind)))
    assert seen.keys() == faults.keys()
    assert not {name: one.wrong or "every test passes" for name, one in seen.items() if one.test is None or one.wrong}
