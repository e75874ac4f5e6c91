"""PTX to C++: a kernel becomes a function, a label stays one, a branch becomes a ``goto``.

What each instruction means stands in forms.py; here are registers, symbols and operands.

    python -m tests.backends.ptx.translate kernels.ptx kernels.cpp
"""

import re
import struct
import sys
from pathlib import Path

from tests.backends.ptx.forms import BITS, C_TYPES, MEANINGS

SPECIAL = {
    f"%{name}.{axis}": f"place(k{name.capitalize()}, {i})"
    for name in ("tid", "ntid", "ctaid", "nctaid")
    for i, axis in enumerate("xyz")
} | {
    "%laneid": "lane()", "%cluster_ctarank": "rank_in_cluster()", "%cluster_nctarank": "blocks_in_cluster()",
    "%lanemask_lt": "((1u << lane()) - 1)", "WARP_SZ": "32",
}  # fmt: skip
ARRAY = re.compile(r"(?:\.align (\d+) )?\.(\w+) ([$\w]+)(?:\[(\d*)\])?$")


class Untranslatable(Exception):
    """What the tables lack, with its line."""


def aligned(offset, align):
    return -(-offset // align) * align


def split(text):
    """Operands; a comma within braces or brackets is part of one."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^]]*\]|[^,{\[])+", text) if part.strip()]


def closing(text, start):
    """Where the brace is closed within which ``start`` stands."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    raise Untranslatable("a kernel without an end")


def array(text):
    """The name, alignment and bytes of a variable; of one that the launch sizes there are no bytes."""
    match = ARRAY.search(" ".join(text.split()))
    if not match:
        raise Untranslatable(text)
    align, kind, name, count = match.groups()
    size = BITS[kind] // 8
    return name, int(align or size), None if count == "" else size * int(count or 1)


STATEMENT = re.compile(r"\s*(\{(?=\s)|\}|[$\w]+:|\.(?:loc|file)\b[^\n]*|[^;{}]*(?:\{[^}]*\}[^;{}]*)*;)")


def statements(body):
    """(line, text) of each statement, label and brace of scope."""
    line, seen, body = 0, 0, body.rstrip()
    while seen < len(body):
        match = STATEMENT.match(body, seen)
        if not match:
            raise Untranslatable(f"no statement: {body[seen : seen + 80]!r}")
        line += body.count("\n", seen, match.start(1))
        yield line, match[1].rstrip(";").strip()
        line += body.count("\n", match.start(1), match.end())
        seen = match.end()


def literal(value, kind):
    """A number as a value of this type, in as few words as C++ takes: most of the compiler's time goes into reading."""
    bits = BITS[kind]
    value &= (1 << bits) - 1
    if kind[0] != "s":
        return f"{value}{'u' * (bits >= 32)}{'ll' * (bits > 32)}"
    value -= (value >> (bits - 1)) << bits
    least = value == -(1 << (bits - 1))
    return f"({value + least}{'ll' * (bits > 32)}{' - 1' * least})" if value < 0 else f"{value}{'ll' * (bits > 32)}"


def short_lives(found):
    """register -> the last statement that has it; None of one that lives in more than one stretch between labels.

    Where a stretch is a loop, what it hands from one round to the next has a value before it, too.
    """
    lives, stretches, stretch = {}, {}, 0
    for index, (_, text) in enumerate(found):
        stretch += text.endswith(":")
        for name in () if text.startswith(".") else re.findall(r"%[A-Za-z_]\w*", text):
            short = lives.get(name, 0) is not None and stretches.setdefault(name, stretch) == stretch
            lives[name] = index if short else None
    return lives


class Kernel:
    """One .entry, translated: ``text``."""

    def __init__(self, name, parameters, body, line, shared):
        self.known_shared = dict(shared)  # name -> (align, bytes)
        self.placed = {}  # name -> address in C++
        self.shared_bytes, self.scopes, self.local = 0, [{}], {}
        self.parameters, self.parameter_bytes = {}, 0
        for parameter in filter(None, split(parameters)):
            parameter = re.sub(r"\.ptr\b( \.global)?( \.align \d+)?", "", parameter)
            name_, align, size = array(parameter)
            self.parameters[name_] = aligned(self.parameter_bytes, align)
            self.parameter_bytes = self.parameters[name_] + size
        self.lines = []
        found = [(line + offset, " ".join(text.split())) for offset, text in statements(body)]
        self.lives, self.slots, self.free, self.most = short_lives(found), {}, {}, {}
        for index, (self.line, text) in enumerate(found):
            try:
                self.statement(text)
            except (KeyError, Untranslatable) as error:
                raise Untranslatable(f"line {self.line}: {text}: {error}") from error
            for register in [name for name in self.slots if self.lives[name] == index]:
                self.free.setdefault(self.kind(register), []).append(self.slots.pop(register))
        self.entry = name

    def variable(self, register):
        """Its variable. Those of short lives take turns: a frame that held all would be 100 KB, for each thread."""
        if register in self.slots:
            return self.slots[register]
        if self.lives.get(register) is None:
            return f"{register.replace('%', '')}_"
        kind = self.kind(register)
        free = self.free.setdefault(kind, [])
        if not free:
            self.most[kind] = self.most.get(kind, 0) + 1
            free.append(f"{kind}_{self.most[kind]}")
        self.slots[register] = free.pop()
        return self.slots[register]

    def statement(self, text):
        if text == "{":
            self.scopes.append({})
            self.lines.append("{")
        elif text == "}":
            self.scopes.pop()
            self.lines.append("}")
        elif text.endswith(":"):
            self.lines.append(f"{self.label(text[:-1])}:;")
        elif text.startswith(".reg"):
            self.registers(text)
        elif text.startswith((".shared", ".local")):
            name, align, size = array(text)
            if text.startswith(".shared"):
                self.known_shared[name] = align, size
            elif self.local:
                raise Untranslatable("a second array in local memory")
            else:
                self.local[name] = align, size
        elif text and not text.startswith((".pragma", ".loc", ".file")):
            guard, form, operands = re.fullmatch(r"(?:@(!?%?\w+) )?([\w.:]+)(.*)", text).groups()
            code = self.instruction(form, split(operands))
            condition = f"if ({'!' * (guard[0] == '!')}{self.variable(guard.lstrip('!'))}) " if guard else ""
            self.lines.append(f"{condition}{{ {code}; }}" if ";" in code else f"{condition}{code};")

    def registers(self, text):
        kind, names = re.fullmatch(r"\.reg \.(\w+) (.*)", text).groups()
        declared = []
        for name in split(names):
            many = re.fullmatch(r"(%\w+)<(\d+)>", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                self.scopes[-1][one] = kind
                if self.lives.get(one, 0) is None or not one.startswith("%"):
                    declared.append(self.variable(one))
        if declared:
            self.lines.append(f"{self.ctype(kind)} {', '.join(declared)};")

    @staticmethod
    def ctype(kind):
        return "bool" if kind == "pred" else f"R{BITS[kind]}"

    def kind(self, register):
        for scope in reversed(self.scopes):
            if register in scope:
                return scope[register]
        return None

    @staticmethod
    def label(name):
        return name.replace("$", "_")

    def symbol(self, name):
        """The address of a parameter or variable."""
        if name in self.parameters:
            return f"((uint64_t)param + {self.parameters[name]})"
        if name in self.local:
            return "(uint64_t)local"
        if name not in self.known_shared:
            raise Untranslatable(f"no such name: {name}")
        if name not in self.placed:
            align, size = self.known_shared[name]
            if size is None:
                self.placed[name] = "(window + kDeclared)"
            else:
                at = aligned(self.shared_bytes, align)
                self.placed[name] = f"(window + {at})"
                self.shared_bytes = at + size
        return self.placed[name]

    def read(self, operand, kind):
        """The operand as a value of this type."""
        if kind == "*":
            base, offset = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand).groups()
            register = self.kind(base)
            address = f"{self.variable(base)}.u{BITS[register]}" if register else self.symbol(base)
            # Arithmetic of a 32-bit address has 32 bits.
            return f"({address} + {int(offset or 0)})"
        if kind == "quad":
            return f"Quad{{{', '.join(self.read(part, 'b32') for part in split(operand.strip('{}')))}}}"
        ctype = C_TYPES[kind]
        if operand in SPECIAL:
            return f"(({ctype}){SPECIAL[operand]})"
        if register := self.kind(operand):
            return self.variable(operand) + ("" if register == "pred" else f".{kind}")
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            if kind == "f32":
                value = struct.unpack("<f", struct.pack("<I", int(match[1], 16)))[0]
                return f"({value.hex()}f)" if abs(value) < float("inf") else f"R32{{0x{match[1]}u}}.f32"
            return f"0x{match[1]}u"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            return literal(int(operand.rstrip("U"), 0), kind)
        match = re.fullmatch(r"([$\w]+)(?:\+(-?\d+))?", operand)
        if not match:
            raise Untranslatable(f"no such operand: {operand}")
        return f"(({ctype})({self.symbol(match[1])} + {int(match[2] or 0)}))"

    def write(self, operand, kind, value):
        """A register gets a value of this type; a wider one is filled by its sign or zeros."""
        if operand == "_":
            return f"(void)({value})"
        register = self.kind(operand)
        if register is None:
            raise Untranslatable(f"no such register: {operand}")
        name = self.variable(operand)
        if register == "pred" or BITS[register] == BITS[kind]:
            return f"{name}{'' if register == 'pred' else '.' + kind} = {value}"
        if BITS[kind] > BITS[register]:
            raise Untranslatable(f"{operand} is too narrow for {kind}")
        return f"{name}.{'s' if kind[0] == 's' else 'u'}{BITS[register]} = ({C_TYPES[kind]})({value})"

    def instruction(self, form, operands):
        if form in ("bra", "bra.uni"):
            return f"goto {self.label(operands[0])}"
        if form in ("ret", "exit"):
            return "return"
        if form.startswith("mov.b") and "{" in "".join(operands):
            return self.packed(form, operands)
        count = 1
        if vector := re.fullmatch(r"((?:ld|st)\..*)\.v([24])(\.\w+)|((?:ld|st))\.v([24])(\.\w+)", form):
            head, number, tail = vector.groups()[:3] if vector[1] else vector.groups()[3:]
            form, count = head + tail, int(number)
        if form not in MEANINGS:
            raise Untranslatable(f"no such form: {form}")
        meaning = MEANINGS[form]
        if form.startswith(("max.", "min.")) and len(operands) == 4:  # sm_100: of three
            nested = re.sub(r"\b[ab]\b", lambda match: meaning.text if match[0] == "a" else "c", meaning.text)
            meaning = meaning._replace(operands=(*meaning.operands, meaning.operands[-1]), text=nested)
        destinations = []
        if meaning.result != "-":
            destinations, operands = operands[0].strip("{}").split("|"), operands[1:]
        if len(operands) != len(meaning.operands) or len(destinations) > (2 if form.startswith("shfl") else 1):
            raise Untranslatable(f"{form} with {len(operands)} operands and {len(destinations)} results")
        if form.startswith(("ld.", "st.", "atom.")):
            return self.memory(form, meaning, destinations, operands, count)
        sources = dict(zip("abcd", map(self.read, operands, meaning.operands), strict=False))
        value = self.filled(meaning.text, sources)
        if not destinations:
            return value
        code = self.write(destinations[0], meaning.result, value)
        if form.startswith("shfl"):
            second = self.write(destinations[1], "pred", "second") if len(destinations) > 1 else ""
            return f"bool second; {code}; {second}"
        return code

    def filled(self, text, sources):
        at = f"At{{kFile, {self.line}}}"
        return re.sub(r"\b([abcd]|AT)\b", lambda match: at if match[0] == "AT" else sources[match[0]], text)

    def memory(self, form, meaning, destinations, operands, count):
        kind = form.rpartition(".")[2]
        ctype = C_TYPES[kind]
        where, _, change = meaning.text.replace("SIZE", str(BITS[kind] // 8 * count)).partition(";")
        place = next(operand for operand, kind_ in zip(operands, meaning.operands, strict=True) if kind_ == "*")
        pointer = self.filled(where, {"a": self.read(place, "*")})
        begin = f"auto p = ({ctype}*){pointer}"
        if form.startswith("ld"):
            names = split(destinations[0].strip("{}"))
            steps = [self.write(name, kind, f"p[{i}]") for i, name in enumerate(names)]
        elif form.startswith("st"):
            names = split(operands[1].strip("{}"))
            steps = [f"p[{i}] = {self.read(name, kind)}" for i, name in enumerate(names)]
            if form.startswith("st.shared"):
                values = ", ".join(self.read(name, kind) for name in names)
                there = f"is_there({self.read(place, '*')}, v, sizeof v)"
                begin = f"{ctype} v[] = {{{values}}}; auto p = {there} ? v : ({ctype}*){pointer}"
        else:
            names = [None]
            steps = [
                f"const {ctype} old = *p",
                f"*p = {self.filled(change.strip(), {'b': self.read(operands[1], kind)})}",
                self.write(destinations[0], kind, "old"),
            ]
        if len(names) != count:
            raise Untranslatable(f"{form}: {len(names)} elements, expected {count}")
        return "; ".join([begin, *steps])

    def packed(self, form, operands):
        """A register to or from its parts, the lowest first."""
        whole = form.removeprefix("mov.")
        to, source = operands
        names = split((to if to.startswith("{") else source).strip("{}"))
        part = f"b{BITS[whole] // len(names)}"
        if f"b{BITS[part]}" not in C_TYPES or form not in MEANINGS:
            raise Untranslatable(f"no such form: {form} of {len(names)} parts")
        shifts = [i * BITS[part] for i in range(len(names))]
        if to.startswith("{"):
            value = f"const {C_TYPES[whole]} v = {self.read(source, whole)}"
            parts = [self.write(name, part, f"v >> {by}") for name, by in zip(names, shifts, strict=True)]
            return "; ".join([value, *parts])
        value = " | ".join(
            f"({C_TYPES[whole]}){self.read(name, part)} << {by}" for name, by in zip(names, shifts, strict=True)
        )
        return self.write(to, whole, value)

    def text(self, number, most_threads):
        local = "char* const local = nullptr; constexpr unsigned local_bytes = 0; "
        for align, size in self.local.values():
            local = (
                f"alignas({max(align, 16)}) char local[{size}]; constexpr unsigned local_bytes = {size}; "
                f"__builtin_memset(local, 0xff, {size}); "
            )
        declared = aligned(self.shared_bytes, 16)
        for kind, count in self.most.items():
            self.lines.insert(0, f"{self.ctype(kind)} {', '.join(f'{kind}_{i + 1}' for i in range(count))};")
        body = "\n".join(self.lines)
        return (
            f"static void kernel{number}(const char* param) {{\n"
            f"constexpr unsigned param_bytes = {self.parameter_bytes}, kDeclared = {declared};\n"
            f"const uint64_t window = shared_window();\n{local}\nbool arrived = false;\n{body}\n}}\n"
            f'static Kernel known{number}("{self.entry}", kernel{number}, {self.parameter_bytes}, {declared}, '
            f"{most_threads});\n"
        )


def without_comments(text):
    return re.sub(
        r"//[^\n]*", "", re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    )


def translate(text, file, kind=Kernel, headers=("thread.h",)):
    """The C++ of all kernels of a PTX text, each by a ``kind``; ``file`` is what errors call it."""
    text, shared = without_comments(text), {}
    for match in re.finditer(r"^\s*(?:\.extern |\.visible )?\.shared ([^;]*);", text, re.MULTILINE):
        name, align, size = array(match[1])
        shared[name] = align, size
    parts = [*(f'#include "{name}"\n' for name in headers), "using namespace ptx;\n"]
    parts.append(f'static const char kFile[] = "{file}";\n')
    for number, match in enumerate(re.finditer(r"\.entry\s+([$\w]+)\s*\(([^)]*)\)([^{]*)\{", text)):
        name, parameters, directives = match.groups()
        end = closing(text, match.end())
        line = text.count("\n", 0, match.end()) + 1
        threads = re.search(r"\.maxntid (\d+)", directives)
        kernel = kind(name, parameters, text[match.end() : end], line, shared)
        parts.append(kernel.text(number, int(threads[1]) if threads else 1024))
    return "".join(parts)


if __name__ == "__main__":
    source, *_, to = map(Path, sys.argv[1:])  # between them what the build depends on
    to.write_text(translate(source.read_text(), source.name))
