"""The fields of a call that a backend reads, by its syntax."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PYTHON = {"reference": ROOT / "specdec_kernels" / "backends" / "reference", "triton": ROOT / "triton_kernels"}
CPP = {"cpu": ".cpp", "cuda": ".cu"}


class Package:
    """The modules of a backend in Python. ``changed`` has texts that replace some of them."""

    def __init__(self, folder, changed=None):
        changed = changed or {}
        self.modules = {
            path.stem: ast.parse(changed.get(path.stem, path.read_text(encoding="utf-8")))
            for path in folder.glob("*.py")
        }
        self.defined = {
            (module, node.name): node
            for module, tree in self.modules.items()
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        self.named = {module: self._names(tree) for module, tree in self.modules.items()}

    def _names(self, tree):
        """The names that a module imports from its package: name -> (module, name in there or None)."""
        names = {}
        for node in tree.body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                source = node.module.rsplit(".", 1)[-1]
                if alias.name in self.modules:
                    names[alias.asname or alias.name] = alias.name, None
                elif source in self.modules:
                    names[alias.asname or alias.name] = source, alias.name
        return names

    def place(self, module, function):
        """The (module, function) that defines a called name, or None."""
        if isinstance(function, ast.Name):
            other, name = self.named[module].get(function.id, (module, function.id))
            return (other, name or function.id) if (other, name or function.id) in self.defined else None
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            other, name = self.named[module].get(function.value.id, (None, None))
            return (other, function.attr) if name is None and (other, function.attr) in self.defined else None
        return None

    def read(self, op, fields):
        """The fields that the function of an op reads, and all functions that get its call."""
        found, seen, waiting = set(), set(), [((op, op), "call")]
        while waiting:
            place, name = waiting.pop()
            if (place, name) in seen:
                continue
            seen.add((place, name))
            node = self.defined[place]
            for child in ast.walk(node):
                found |= reads_of(child, name, fields, node)
                if isinstance(child, ast.Call) and (called := self.place(place[0], child.func)):
                    given = [*enumerate(child.args), *((keyword.arg, keyword.value) for keyword in child.keywords)]
                    parameters = parameters_of(self.defined[called])
                    for at, value in given:
                        if is_call(value, name):
                            waiting.append((called, parameters[at] if isinstance(at, int) else at))
        return found

    def attributes(self):
        """All attribute names."""
        return {
            node.attr for tree in self.modules.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        }


def is_call(node, name):
    """Whether this is the call, as a local name or as a field of ``self``."""
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self"
    return isinstance(node, ast.Name) and node.id == name


def reads_of(node, name, fields, function):
    if isinstance(node, ast.Attribute) and is_call(node.value, name):
        return {node.attr}
    if isinstance(node, ast.Subscript) and is_call(node.value, name):
        return {*fields[slice(*(ast.literal_eval(end) for end in (node.slice.lower, node.slice.upper)))]}
    if isinstance(node, (ast.For, ast.comprehension)) and any(is_call(x, name) for x in ast.walk(node.iter)):
        return {*fields}
    if isinstance(node, ast.Assign) and is_call(node.value, name) and isinstance(node.targets[0], ast.Tuple):
        return {field for field, target in zip(fields, node.targets[0].elts, strict=True) if target.id != "_"}
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and is_call(node.args[0], name):
        if isinstance(node.args[1], ast.Constant):
            return {node.args[1].value}
        return {x.value for x in ast.walk(function) if isinstance(x, ast.Constant) and x.value in fields}
    return set()


def parameters_of(node):
    """Names of a function's or a class's positional parameters; a class without a function keeps its fields."""
    if isinstance(node, ast.ClassDef):
        made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if not made:
            return [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
        return [parameter.arg for parameter in made[0].args.args[1:]]
    return [parameter.arg for parameter in node.args.args]


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
