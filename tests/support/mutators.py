"""Mutants by syntax: which parts of a source can be changed, and into what.

A mutant's address is its file, function, operator and number, which counts the mutants of that operator in all
functions of that name. So an address stays when a local variable gets another name. Operators:

    drop      a statement is left out                        one    a whole number is one more or one less
    compare   `<` for `<=`, `==` for `!=`, min for max       swap   p for q, or one argument of a call for the next
    logic     `&&` for `||`, a condition for its opposite    bound  a small slack is 0, a factor near 1 is 1
    barrier   a barrier or a fence is left out

C++ is read by its tokens. A mutant takes the place of a statement or of an expression, so that a switch can choose
between it and the original. Python is read by `ast`.
"""

import ast
import collections
import itertools
import re
from typing import NamedTuple

COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
JOINED = {"&&": "||", "||": "&&"}
PAIRS = ("p q", "target draft", "low high", "first last", "least most", "begin end", "row column", "from to")
NAMES = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}
EXTREMES = "min max, minimum maximum, amin amax, greater at_least"
CALLS = {a: b for pair in EXTREMES.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
COMMUTES = {*CALLS, "add", "mul", "equal", "logical_and", "logical_or", "fma"} - {"greater", "at_least"}
BARRIERS = re.compile(
    r"__sync(threads|warp)|__threadfence\w*|fence_cluster|sync_cluster|wait_for_kernel_before|wait_for|debug_barrier"
)
WEAKER = {
    "add_acquire_release": "atomicAdd",
    "memory_order_acquire": "memory_order_relaxed",
    "memory_order_release": "memory_order_relaxed",
    "memory_order_acq_rel": "memory_order_relaxed",
    "__syncthreads_or": "",
}


class Mutant(NamedTuple):
    """``source[start:stop]`` becomes ``other``; in C++ it is one of the forms that ``planting.switched`` knows."""

    function: str
    operator: str
    start: int
    stop: int
    other: str
    form: str
    shown: str  # what the change is, for people
    file: str = ""
    number: int = 0

    @property
    def address(self):
        return f"{self.file}:{self.function}:{self.operator}:{self.number}"


def mutants_of(file, text):
    """All mutants of a file, by address."""
    found = PythonSource(text).found if file.endswith(".py") else CppSource(text).found
    counts, mutants, seen = collections.Counter(), {}, set()
    for mutant in sorted(found, key=lambda each: (each.start, each.stop)):
        counts[mutant.function, mutant.operator] += 1
        mutant = mutant._replace(file=file, number=counts[mutant.function, mutant.operator])
        if (mutant.start, mutant.stop, mutant.other) not in seen:  # two operators may come to the same text
            mutants[mutant.address] = mutant
        seen.add((mutant.start, mutant.stop, mutant.other))
    return mutants


def nearby(number):
    """What a small slack, or a factor near 1, becomes."""
    suffix = "f" if number.endswith("f") else ""
    value = float.fromhex(number.rstrip("f")) if number.startswith("0x") else float(number.rstrip("fF"))
    if 0 < abs(value) < 1e-2:
        return "0.0" + suffix
    return "1.0" + suffix if 0.98 < value < 1.02 and value != 1 else None


# ---- C++ -------------------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""(?P<line>^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)|(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>(?:u8|[LuU])?R"(?P<mark_>[^(\s]*)\(.*?\)(?P=mark_)"|(?:u8|[LuU])?"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+')
    |(?P<number>\.?\d(?:[eEpP][+-](?=\d)|[\w.'])*)|(?P<name>[A-Za-z_]\w*)
    |(?P<mark><<=|>>=|->|\+\+|--|&&|\|\||<=|>=|==|!=|[-+*/%&|^]=|::|\.\.\.|<<|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
CLOSES = {"(": ")", "[": "]", "{": "}"}
RECORDS = {"struct", "class", "union"}
TYPES = {"const", "static", "constexpr", "auto", "thread_local", "typename"}  # the names of types are names
PASSED_OVER = {"using", "static_assert", "asm", "extern", "throw"}
NOT_A_NAME = {"__attribute__", "__launch_bounds__"}


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    stop: int


class CppSource:
    """Functions are found by their heads, statements by what ends them."""

    def __init__(self, text):
        self.text, self.found, self.lines = text, [], []
        self.tokens = []
        for match in TOKEN.finditer(text):
            if match.lastgroup == "line":
                self.lines.append(match.start())
            elif match.lastgroup != "skip":
                kind = "string" if match.lastgroup == "mark_" else match.lastgroup
                self.tokens.append(Token(kind, match[0], match.start(), match.end()))
        self.closing, stack = {}, []
        for i, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text in CLOSES:
                stack.append(i)
            elif token.kind == "mark" and token.text in CLOSES.values():
                opened = stack.pop()
                if CLOSES[self.tokens[opened].text] != token.text:
                    raise ValueError(f"line {text.count(chr(10), 0, token.start) + 1}: a bracket without the other one")
                self.closing[opened] = i
        self.function, self.types = "", {}  # name -> what it was last declared as
        self.declarations(0, len(self.tokens))

    def at(self, i):
        return self.tokens[i].text if i < len(self.tokens) else ""

    def over(self, i):
        """The token after this one, or after what it opens."""
        return self.closing.get(i, i) + 1

    def angles(self, i):
        """The token after template arguments that begin at i; i if they are none."""
        depth, j = 0, i
        while j < len(self.tokens) and self.at(j) not in (";", "{", "&&", "||"):
            depth += (self.at(j) == "<") - (self.at(j) == ">")
            j = self.over(j)
            if not depth:
                return j
        return i

    def spaced(self, i):
        """A comparison has spaces around it; the arguments of a template have none."""
        token = self.tokens[i]
        return self.text[token.start - 1].isspace() and self.text[token.stop : token.stop + 1].isspace()

    # What is outside of functions.

    def declarations(self, i, end):
        while i < end:
            i = self.declaration(i, end)

    def declaration(self, i, end):
        j = i
        if self.at(i) in ("SPECDEC_BEGIN", "SPECDEC_END"):
            return i + 1
        while self.at(j) == "template" and self.at(j + 1) == "<":
            i = j = self.angles(j + 1)
        head = []  # indices of tokens outside of brackets
        while j < end:
            text = self.at(j)
            if text == ";":
                if head and "constexpr" in map(self.at, head):
                    self.constant(i, j)
                return j + 1
            if text == "(" and self.at(j - 1) == "SPECDEC_MEMBER":
                self.declarations(j + 1, self.closing[j])
                return self.closing[j] + 1
            if text == "{":
                texts = [self.at(k) for k in head]
                if "namespace" in texts or texts[:1] == ["extern"] or (RECORDS & {*texts[:2]} and "=" not in texts):
                    self.declarations(j + 1, self.closing[j])
                    return self.closing[j] + 1
                parameters = next((k for k in head if self.at(k) == "(" and self.at(k - 1) not in NOT_A_NAME), None)
                begins_member = ":" in texts and self.tokens[j - 1].kind == "name" and self.at(j - 1) not in (
                    "const", "override", "noexcept")  # fmt: skip
                if "enum" in texts or parameters is None or ("=" in texts and "operator" not in texts) or begins_member:
                    head.append(j)
                    j = self.closing[j] + 1
                    continue
                outer, self.function = self.function, self.name_before(parameters)
                self.take_types(parameters)
                self.initialisers(self.closing[parameters] + 1, j)
                self.statements(j + 1, self.closing[j])
                self.function = outer
                return self.closing[j] + 1
            head.append(j)
            j = self.over(j)
        return end

    def take_types(self, opened):
        """Of the parameters in these brackets."""
        for i, end in self.parts(opened):
            end = next((k for k in range(i, end) if self.at(k) == "="), end)
            if end - i > 1 and self.tokens[end - 1].kind == "name":
                self.types[self.at(end - 1)] = self.type_text(i, end - 1)

    def type_text(self, i, end):
        return " ".join(self.at(k) for k in range(i, end) if self.at(k) not in ("const", "&", "&&", "auto"))

    def name_before(self, i):
        if self.at(i - 1) == "operator":  # operator()
            return "operator()"
        if self.tokens[i - 1].kind == "mark":
            return "operator" + self.at(i - 1)
        return self.at(i - 1)

    def initialisers(self, i, end):
        """Of the members of a constructor."""
        while i < end and self.at(i) != ":":
            i = self.over(i)
        while i < end:
            if self.at(i) == "(" and self.tokens[i - 1].kind == "name":
                self.arguments(i)
            i = self.over(i)

    def constant(self, i, end):
        """``constexpr float kName = ...;``"""
        texts = [self.at(k) for k in range(i, end)]
        if "=" in texts and texts.index("=") >= 3 and not {"[", "{", "<"} & {*texts[: texts.index("=")]}:
            begin = i + texts.index("=")
            if texts[begin - i - 3] == "constexpr" and self.at(begin + 1) != "{":
                self.unit(begin + 1, end, "constant", (i, begin))

    # What is in functions.

    def statements(self, i, end):
        while i < end:
            i = self.statement(i)

    def statement(self, i):
        """Returns the token after this statement."""
        text = self.at(i)
        if text == "{":
            self.statements(i + 1, self.closing[i])
            return self.closing[i] + 1
        if text in ("if", "while", "switch"):
            fixed = self.at(i + 1) == "constexpr"
            opened = i + 1 + fixed
            inside = {self.at(k) for k in range(opened, self.closing[opened])}
            if not fixed and text != "switch" and not {";", "="} & inside:
                self.unit(opened + 1, self.closing[opened], "condition")
            i = self.statement(self.closing[opened] + 1)
            return self.statement(i + 1) if text == "if" and self.at(i) == "else" else i
        if text == "for":
            end = self.closing[i + 1]
            ends = [k for k in self.top(i + 2, end) if self.at(k) == ";"]
            if len(ends) == 2:
                self.simple(i + 2, ends[0], may_drop=False)
                if ends[0] + 1 < ends[1]:
                    self.unit(ends[0] + 1, ends[1], "condition")
                if ends[1] + 1 < end:
                    self.unit(ends[1] + 1, end, "expression")
            return self.statement(end + 1)
        if text == "do":
            i = self.statement(i + 1)
            self.unit(i + 2, self.closing[i + 1], "condition")
            return self.closing[i + 1] + 2
        if text in ("case", "default"):
            while self.at(i) != ":":
                i = self.over(i)
            return i + 1
        if text in ("try", "else"):
            return self.statement(i + 1)
        if text == "catch":
            return self.statement(self.closing[i + 1] + 1)
        if text in RECORDS | {"enum", "template"}:
            return self.declaration(i, len(self.tokens))
        end = next((k for k in self.top(i, len(self.tokens)) if self.at(k) in (";", "}")), len(self.tokens))
        if self.at(end) != ";":  # a macro without a semicolon
            return end
        if text not in PASSED_OVER:
            self.simple(i, end)
        self.lambdas(i, end)
        return end + 1

    def top(self, i, end):
        """The tokens that stand in no bracket."""
        while i < end:
            yield i
            i = self.over(i)

    def lambdas(self, i, end):
        for k in range(i, end):
            if self.is_body(k) and not any(j < k < self.closing[j] for j in range(i, k) if self.is_body(j)):
                self.statements(k + 1, self.closing[k])

    def is_body(self, i):
        return self.at(i) == "{" and (
            self.at(i - 1) in (")", "]", "mutable") or (self.at(i - 2) == "->" and self.at(i - 1) != "{")
        )

    def declares(self, i, end):
        """Where the declared name stands, if this is a declaration."""
        if self.at(i) in TYPES:
            k = i
            while self.at(k) in TYPES or self.at(k) in ("*", "&", "&&"):
                k += 1
            if self.at(k) == "[" or (
                self.tokens[k].kind == "name" and self.at(k + 1) in ("=", "{", ";", "[", "(", ",")
            ):
                return k
            i = k
        if self.tokens[i].kind != "name":
            return None
        k = self.over(i + 1) if self.at(i) == "decltype" else i + 1
        while k < end:
            if self.at(k) == "::" and self.tokens[k + 1].kind == "name":
                k += 2
            elif self.at(k) == "<" and not self.spaced(k) and self.angles(k) > k:
                k = self.angles(k)
            else:
                break
        while self.at(k) in ("*", "&", "&&", "const"):
            k += 1
        if k < end and self.tokens[k].kind == "name" and self.at(k + 1) in ("=", "(", "{", ";", "[", ",", ":"):
            return k
        return None

    def simple(self, i, end, may_drop=True):
        """A statement that a semicolon ends."""
        if i >= end:
            return
        has_lambda = any(self.is_body(k) for k in range(i, end))
        if self.at(i) in ("return", "break", "continue"):
            if not has_lambda:
                self.unit(i, end, "statement", drops=end == i + 1)
            return
        name = self.declares(i, end)
        if name is None:
            called = self.at(i + 1) == "(" and self.closing.get(i + 1) == end - 1
            if not (called and self.at(i).isupper()):  # a macro may declare
                self.unit(i, end, "statement" if may_drop else "expression", drops=may_drop, only_drop=has_lambda)
            return
        self.types[self.at(name)] = self.type_text(i, name)
        if has_lambda or "static" in map(self.at, range(i, name)):
            return
        if "constexpr" in map(self.at, range(i, name)):
            return self.constant(i, end)
        begin = next((k for k in self.top(name, end) if self.at(k) == "="), None)
        while begin is not None:
            stop, following = self.expression_end(begin + 1, end), None
            if self.at(begin + 1) == "{":
                self.arguments(begin + 1)
            else:
                self.unit(begin + 1, stop, "expression")
            begin = next((k for k in self.top(stop, end) if self.at(k) == "="), following)
        if self.at(name + 1) in ("(", "{"):
            self.arguments(name + 1)

    def expression_end(self, i, end):
        """Where an expression ends: at a comma outside of brackets and of template arguments."""
        while i < end and self.at(i) != ",":
            past = self.angles(i) if self.at(i) == "<" and not self.spaced(i) else i
            i = past if past > i else self.over(i)
        return min(i, end)

    def parts(self, opened):
        """The arguments in these brackets: (begin, end) of each."""
        i, end = opened + 1, self.closing[opened]
        while i < end:
            stop = self.expression_end(i, end)
            yield i, stop
            i = stop + 1

    def arguments(self, opened):
        for i, stop in self.parts(opened):
            if not any(self.at(k) == "{" for k in range(i, stop)):
                self.unit(i, stop, "expression")

    # A unit: what a switch chooses.

    def unit(self, i, end, form, whole=None, drops=False, only_drop=False):
        """``whole``: of a constant, where its declaration begins, and its `=`."""
        if i >= end:
            return
        start = self.tokens[i].start
        stop = self.tokens[end].stop if form in ("statement", "constant") else self.tokens[end - 1].stop
        if any(start < line < stop for line in self.lines):
            return
        head = ""
        if form == "constant":
            start = self.tokens[whole[0]].start
            head = self.text[start : self.tokens[i].start]

        def add(operator, other, shown):
            self.found.append(Mutant(self.function, operator, start, stop, other, form, shown))

        def change(operator, *edits, shown=None):
            """LogitEdits: (start, stop, text), in order."""
            other, at = [], start
            for begin, end, text in edits:
                other += [self.text[at:begin], text]
                at = end
            old = " ".join(self.text[edits[0][0] : edits[-1][1]].split())
            shown = shown or f"{old} -> {edits[0][2]}"
            add(operator, "".join([*other, self.text[at:stop]]), shown)

        if drops:
            name = next((self.at(k) for k in range(i, end) if self.tokens[k].kind == "name"), "")
            text = " ".join(self.text[start:stop].split())
            add("barrier" if BARRIERS.fullmatch(name) else "drop", "", f"without {text[:80]}")
        if only_drop:
            return
        if form == "condition":
            add("logic", f"!({self.text[start:stop]})", "the opposite")
        names = {token.text for token in self.tokens[i:end]}
        for a, b in (pair.split() for pair in PAIRS):
            if a in names or b in names:
                edits = [
                    (t.start, t.stop, NAMES[t.text])
                    for t in self.tokens[i:end]
                    if t.kind == "name" and t.text in (a, b)
                ]
                if self.known_in_function(i, b if a in names else a) or {a, b} <= names:
                    change("swap", *edits, shown=f"{a} <-> {b}")
        for k in range(i, end):
            self.change_token(k, change, head)

    def known_in_function(self, i, name):
        """Whether a name stands in the lines around: what is not there does not compile."""
        near = self.tokens[max(0, i - 150) : i + 50]
        return any(token.text == name for token in near)

    def change_token(self, k, change, head):
        token, after = self.tokens[k], self.at(k + 1)
        if token.kind == "mark" and token.text in COMPARED and self.spaced(k):
            change("compare", (token.start, token.stop, COMPARED[token.text]))
        elif token.text in JOINED and self.spaced(k):
            change("logic", (token.start, token.stop, JOINED[token.text]))
        elif token.kind == "number":
            angle = (self.at(k - 1) == "<" and not self.spaced(k - 1)) or (after == ">" and not self.spaced(k + 1))
            if re.fullmatch(r"\d{1,4}[uUlL]*", token.text) and not angle:
                change("one", (token.start, token.stop, f"({token.text} + 1)"))
                if int(token.text.rstrip("uUlL")):
                    change("one", (token.start, token.stop, f"({token.text} - 1)"))
            elif re.search(r"[.e]|0x.*p", token.text) and (other := nearby(token.text)):
                change("bound", (token.start, token.stop, other))
        elif token.kind == "name" and token.text in WEAKER:
            change("barrier", (token.start, token.stop, WEAKER[token.text]))
        elif token.kind == "name" and after == "(" and not token.text.startswith(("_mm", "__")):
            parts = list(self.parts(k + 1))
            if token.text in CALLS and len(parts) > 1:
                change("compare", (token.start, token.stop, CALLS[token.text]))
            for (a, b), (c, d) in itertools.pairwise(parts):
                one, other = (self.text[self.tokens[x].start : self.tokens[y - 1].stop] for x, y in ((a, b), (c, d)))
                if one != other and token.text not in COMMUTES and self.alike(a, b, c, d):
                    change("swap", (self.tokens[a].start, self.tokens[d - 1].stop, f"{other}, {one}"))

    def alike(self, a, b, c, d):
        """Whether two arguments may be of a type: both are names, both are calls."""
        types = [self.types.get(self.at(x), "") if y == x + 1 else "" for x, y in ((a, b), (c, d))]
        if all(types) and types[0] != types[1]:
            return False
        kinds = [
            (
                self.tokens[x].kind,
                any(self.at(k) == "(" for k in range(x, y)),
                any(self.at(k) == "{" for k in range(x, y)),
            )
            for x, y in ((a, b), (c, d))
        ]
        return kinds[0] == kinds[1] and not kinds[0][2]


# ---- Python ----------------------------------------------------------------------------------------------------------

OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip


class PythonSource:
    """Of docstrings, annotations, texts of errors and imports nothing is changed."""

    def __init__(self, text):
        self.text, self.found = text, []
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.wide = not text.isascii()
        self.rows = text.splitlines(keepends=True)
        self.bound = set()  # names in this function that have a value
        self.visit(ast.parse(text), "<module>")

    def place(self, line, column):
        if self.wide:
            column = len(self.rows[line - 1].encode()[:column].decode())
        return self.starts[line - 1] + column

    def span(self, node):
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def source(self, node):
        start, stop = self.span(node)
        return self.text[start:stop]

    def add(self, function, operator, start, stop, other, shown=None):
        old = self.text[start:stop]
        other += "\n" * (old.count("\n") - other.count("\n")) if other == "pass" else ""
        shown = shown or f"{' '.join(old.split())[:60]} -> {' '.join(other.split())[:60]}"
        self.found.append(Mutant(function, operator, start, stop, other, "text", shown))

    def visit(self, node, function):
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Assert)):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            outer, self.bound = (
                self.bound,
                {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)},
            )
            for child in [*node.args.defaults, *node.args.kw_defaults, *node.body]:
                if child is not None:
                    self.visit(child, node.name)
            self.bound = outer
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value, function)
            return
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                self.visit(child, node.name if function == "<module>" else function)
            return
        self.change(node, function)
        for child in ast.iter_child_nodes(node):
            self.visit(child, function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.bound.add(node.id)

    def change(self, node, function):
        method = getattr(self, f"change_{type(node).__name__.lower()}", None)
        if method:
            method(node, function)
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            start, stop = self.span(node.test)
            self.add(function, "logic", start, stop, f"(not ({self.text[start:stop]}))")
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) and function != "<module>":
            self.swap_names(node, function)

    def change_expr(self, node, function):
        if isinstance(node.value, ast.Call) and function != "<module>":
            name = ast.unparse(node.value.func).split(".")[-1]
            self.add(function, "barrier" if BARRIERS.fullmatch(name) else "drop", *self.span(node), "pass")

    def change_augassign(self, node, function):
        self.add(function, "drop", *self.span(node), "pass")

    def change_assign(self, node, function):
        names = [each for target in node.targets for each in ast.walk(target)]
        stored = {each.id for each in names if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        if stored <= self.bound and function != "<module>":  # else a name has no value
            self.add(function, "drop", *self.span(node), "pass")

    def change_break(self, node, function):
        self.add(function, "drop", *self.span(node), "pass")

    change_continue = change_break

    def change_compare(self, node, function):
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            start, stop = self.span(left)[1], self.span(right)[0]
            operator = re.search(r"not in|is not|[<>=!]=|[<>]|\bin\b|\bis\b", self.text[start:stop])
            start, stop = start + operator.start(), start + operator.end()
            self.add(function, "compare", start, stop, OPERATORS[operator[0]])

    def change_boolop(self, node, function):
        start, stop = self.span(node.values[0])[1], self.span(node.values[1])[0]
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        at = self.text.index(old, start, stop)
        self.add(function, "logic", at, at + len(old), new)

    def change_binop(self, node, function):
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            old, new = "&|" if isinstance(node.op, ast.BitAnd) else "|&"
            start, stop = self.span(node.left)[1], self.span(node.right)[0]
            at = self.text.index(old, start, stop)
            self.add(function, "logic", at, at + 1, new)

    def change_unaryop(self, node, function):
        if isinstance(node.op, (ast.Not, ast.Invert)):
            self.add(function, "logic", *self.span(node), f"({self.source(node.operand)})")

    def change_constant(self, node, function):
        if type(node.value) is int and node.value < 10_000:
            self.add(function, "one", *self.span(node), f"({node.value} + 1)")
            if node.value:
                self.add(function, "one", *self.span(node), f"({node.value} - 1)")
        elif type(node.value) is float and (other := nearby(repr(node.value))):
            self.add(function, "bound", *self.span(node), other)

    def change_keyword(self, node, function):
        weaker = {"sem": '"relaxed"', "cache_modifier": '""'}.get(node.arg)
        if weaker and isinstance(node.value, ast.Constant) and self.source(node.value) != weaker:
            self.add(function, "barrier", *self.span(node.value), weaker)

    def change_call(self, node, function):
        name = ast.unparse(node.func).split(".")[-1]
        if name in CALLS:
            stop = self.span(node.func)[1]
            self.add(function, "compare", stop - len(name), stop, CALLS[name])
        for i, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
            alike = type(one) is type(other) and not isinstance(one, ast.Starred)
            if name in COMMUTES or not (alike or (name == "where" and i == 1)):
                continue
            (start, middle), (again, stop) = self.span(one), self.span(other)
            if self.text[start:middle] != self.text[again:stop]:
                text = self.text[again:stop] + self.text[middle:again] + self.text[start:middle]
                self.add(function, "swap", start, stop, text)

    def swap_names(self, node, function):
        """In a whole statement."""
        spans = collections.defaultdict(list)
        for each in ast.walk(node.value) if node.value else ():
            if isinstance(each, ast.Name) and each.id in NAMES:
                spans[frozenset((each.id, NAMES[each.id]))].append((*self.span(each), NAMES[each.id]))
        for pair, edits in spans.items():
            if pair <= self.bound | {self.text[a:b] for a, b, _ in edits}:
                start, stop = self.span(node)
                text = self.text[start:stop]
                for a, b, name in sorted(edits, reverse=True):
                    text = text[: a - start] + name + text[b - start :]
                self.add(function, "swap", start, stop, text, " and ".join(sorted(pair)))
