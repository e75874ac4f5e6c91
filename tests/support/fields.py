"""The fields of a call that a backend reads: in Python as calls run, in C++ by its syntax."""

import collections
import re
from pathlib import Path

import specdec_kernels.sharded  # noqa: F401  its ops are among OPS
from specdec_kernels.calls.op import OPS

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PYTHON = {"reference": ROOT / "specdec_kernels" / "backends" / "reference", "triton_kernels": ROOT / "triton_kernels"}
CPP = {"cpu": ".cpp", "cuda": ".cu"}


class Recorder:
    """A backend in Python that notes which fields of its calls each op reads: ``read`` has their names by op."""

    def __init__(self, module):
        self.module, self.read = module, collections.defaultdict(set)

    def unavailable(self):
        return None

    def __getattr__(self, op):
        function = getattr(self.module, op)
        return (lambda call: function(self.noted(call))) if op in OPS else function

    def noted(self, call):
        kind, read = type(call), self.read[type(call).__name__]

        class Noted(kind):
            __slots__ = ()

            def __getattribute__(self, name):
                read.add(name)
                return super().__getattribute__(name)

            def __iter__(self):
                read.update(kind._fields)
                return super().__iter__()

            def __getitem__(self, at):
                read.update(kind._fields[at] if isinstance(at, slice) else [kind._fields[at]])
                return super().__getitem__(at)

            def _replace(self, **changes):  # what it copies is not read yet
                return tuple.__new__(Noted, [*map(changes.pop, kind._fields, tuple.__iter__(self))])

        return tuple.__new__(Noted, call)

    def unread(self, op):
        return [name for name in OPS[op].Call._fields if name not in self.read[op]]


def read_in_cpp(backend, op, struct, changed=None):
    """The fields of its parameters ``p`` that an op of a C++ backend reads, in its file and in what it includes."""
    changed = changed or {}
    waiting, seen, found = [CSRC / backend / "ops" / f"{op}{CPP[backend]}"], set(), set()
    while waiting:
        path = waiting.pop()
        if path in seen or path.parent.name == "c" or path.name == "ops.h":
            continue
        seen.add(path)
        text = changed.get(path.name, path.read_text(encoding="utf-8"))
        for name in re.findall(r'^#include "(.+)"', text, re.MULTILINE):
            waiting += [place for place in (path.parent / name, CSRC / "include" / name) if place.exists()]
        if re.search(rf"\b({struct}|Params)\b", text):
            found |= set(re.findall(r"\b(?:p|params)\.(\w+)", text))
    return found | members_read(struct, found)


def members_read(struct, used):
    """The fields that functions of the struct read, of those that are used."""
    bodies = re.findall(r"SPECDEC_MEMBER\([\w:]+ (\w+)\(.*?\) const \{(.*?)\}\)", text_of(struct), re.DOTALL)
    return {word for name, body in bodies if name in used for word in re.findall(r"\b[a-z]\w+", body)}


def structs():
    """op -> C++'s name of its struct, from ops.h."""
    text = (CSRC / "include" / "specdec" / "ops.h").read_text(encoding="utf-8")
    return dict(re.findall(r"^  op\((\w+), (\w+)\)", text, re.MULTILINE))


def text_of(struct):
    """The body of a struct with this name in C++. In C a struct that two ops share has another name."""
    text = "".join(path.read_text(encoding="utf-8") for path in (CSRC / "include" / "specdec" / "c").glob("*.h"))
    name = f"specdec_{next(op for op, name in structs().items() if name == struct)}_params"
    name = dict(map(reversed, re.findall(r"^typedef (\w+) (\w+);", text, re.MULTILINE))).get(name, name)
    return re.search(rf"^typedef struct {name} {{(.*?)^}} {name};", text, re.MULTILINE | re.DOTALL)[1]


def fields_of(struct):
    """The names of its fields in C, in the order of the op's arguments in Python."""
    return re.search(r"SPECDEC_FIELDS\((.*?)\)", text_of(struct), re.DOTALL)[1].replace(",", " ").split()
