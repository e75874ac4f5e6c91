"""Every argument of a public op, and every field of the values that go into one, has a caller beside tests and benches.

Callers are the engines, the generator, what shards and studies and the command line do, examples, and the documents
that show a use. Found are keywords, places, and ``**`` of dicts that the text writes out.
"""

import ast
import collections
import inspect
import re

import pytest

from specdec_kernels import Draft, InputPositions, LogitEdits, OutputFormat, Packing, Sampling, ops
from tests.package.conftest import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")

PACKAGES = ("engines", "generate", "sharded", "studies", "theory", "cli")
DOCUMENTS = ("README.md", "docs/quick-start.md", "docs/recipes.md")
EVERY_OPS = {"out", "status", "check", "seed", "position", "nonce"}
VALUES = {value.__name__: value for value in (Draft, LogitEdits, OutputFormat, InputPositions, Packing, Sampling)}
OPS = {name: f for name in ops.__all__ if inspect.isfunction(f := getattr(ops, name))}
NAMES = {name: list(inspect.signature(f).parameters) for name, f in OPS.items()}
NAMES |= {name: list(value._fields) for name, value in VALUES.items()}
MODULES = ("specdec_kernels", "specdec_kernels.ops")


def sources():
    """(file, tree of its Python)."""
    files = [ROOT / "specdec_kernels" / name for name in ("sampling.py", "watermark.py")]
    files += (ROOT / "examples").rglob("*.py")
    files += [file for package in PACKAGES for file in (ROOT / "specdec_kernels" / package).rglob("*.py")]
    texts = [(file, file.read_text()) for file in sorted(files)]
    texts += [(ROOT / name, "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)))
              for name in DOCUMENTS]  # fmt: skip
    return [(str(file.relative_to(ROOT)), ast.parse(text)) for file, text in texts]


def name_of(call):
    """The last name of what is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


class Keys:
    """The keys of dicts, as far as the text writes them."""

    def __init__(self, trees):
        self.functions, self.passed = collections.defaultdict(list), collections.defaultdict(set)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    self.functions[node.name].append(node)
                elif isinstance(node, ast.Call):
                    self.passed[name_of(node)] |= {keyword.arg for keyword in node.keywords}

    def of(self, value, scope, depth=0):
        """Of an expression in a function or module."""
        if depth > 4:
            return set()

        def inner(part):
            return self.of(part, scope, depth + 1)

        if isinstance(value, ast.Dict):
            pairs = zip(value.keys, value.values, strict=True)
            return set().union(*({key.value} if isinstance(key, ast.Constant) else inner(part) for key, part in pairs
                                 if key is None or isinstance(key, ast.Constant)))  # fmt: skip
        if isinstance(value, ast.BinOp):
            return inner(value.left) | inner(value.right)
        if isinstance(value, ast.IfExp):
            return inner(value.body) | inner(value.orelse)
        if isinstance(value, ast.Call):
            if name_of(value) == "dict":
                return {keyword.arg for keyword in value.keywords}
            found = set()
            for function in self.functions[name_of(value)]:
                returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
                found |= set().union(*(self.of(each, function, depth + 1) for each in returned))
            return found
        if isinstance(value, (ast.Name, ast.Attribute)):
            return self.of_name(ast.unparse(value), scope, depth)
        return set()

    def of_name(self, name, scope, depth):
        """Of a variable: what is assigned to it, or, if it is ``**name`` of the function, what callers pass there."""
        found = set()
        for node in ast.walk(scope):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value:
                for target in targets:
                    if ast.unparse(target) == name:
                        found |= self.of(node.value, scope, depth + 1)
                    elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
                        found |= {target.slice.value} if isinstance(target.slice, ast.Constant) else set()
        if isinstance(scope, ast.FunctionDef) and scope.args.kwarg and scope.args.kwarg.arg == name:
            found |= self.passed[scope.name]
        return found


def named(tree):
    """The names under which a module knows the ops and values: {name: op}, and those of our modules."""
    functions, modules = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec_kernels"):
            if node.module.startswith(("specdec_kernels.engines", "specdec_kernels.sharded")):
                continue
            for alias in node.names:
                if alias.name in NAMES:
                    functions[alias.asname or alias.name] = alias.name
                elif f"{node.module}.{alias.name}" in MODULES:
                    modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):  # the package, or what has its names
            modules |= {ast.unparse(x) for x in node.targets if ast.unparse(node.value.body) in modules}
        elif isinstance(node, ast.ClassDef) and node.name in VALUES:  # which makes itself, by its class methods
            makes = any(isinstance(call, ast.Call) and name_of(call) == "cls" for call in ast.walk(node))
            functions |= {"cls": node.name} if makes else {}
    return functions, modules


def targets_of(call, functions, modules):
    """[(op or value that a call goes to, how many of its places come first)]."""
    function = call.func
    if isinstance(function, ast.Name) and function.id in functions:
        return [(functions[function.id], 0)]
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) in modules and function.attr in NAMES:
        return [(function.attr, 0)]
    if isinstance(function, ast.Attribute) and function.attr == "_replace":
        return [(name, 0) for name in VALUES]
    by_name = [(place, x.value) for place, x in enumerate(call.args) if isinstance(x, ast.Constant) and x.value in OPS]
    return [(name, None) for place, name in by_name]  # a function that gets the op's name passes its keywords on


def by_place(name, call):
    """The arguments that a call gives by place. ``*list`` of an op gives those that it must have."""
    places = [place for place, value in enumerate(call.args) if isinstance(value, ast.Starred)]
    needed = [] if name in VALUES else [
        parameter.name for parameter in inspect.signature(OPS[name]).parameters.values()
        if parameter.default is parameter.empty
    ]  # fmt: skip
    return NAMES[name][: places[0]] + needed if places else NAMES[name][: len(call.args)]


def callers():
    """{(op or value, argument): files}."""
    found, files = collections.defaultdict(set), sources()
    keys = Keys([tree for _, tree in files])
    for file, tree in files:
        functions, modules = named(tree)
        scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]
        for scope in scopes:
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                given = {keyword.arg for keyword in call.keywords if keyword.arg}
                given |= set().union(*(keys.of(keyword.value, scope) for keyword in call.keywords if not keyword.arg))
                for name, first in targets_of(call, functions, modules):
                    places = [] if first is None else by_place(name, call)
                    for argument in (given | set(places)) & set(NAMES[name]):
                        found[name, argument].add(file)
    return found


@pytest.fixture(scope="module")
def found():
    return callers()


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_has_a_caller(found, name):
    unused = [argument for argument in NAMES[name] if not found[name, argument] and argument not in EVERY_OPS]
    assert not unused, f"{name} has arguments that nobody passes: {', '.join(unused)}"
