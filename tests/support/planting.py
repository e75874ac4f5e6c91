"""Plants changes in a copy of the tree, one at a time, and says which test sees each.

A change is a named fault (`support.faults`) or a mutant (`support.mutants`). All changes of C++ are compiled at once,
each behind a switch: one build serves them all. A process imports what takes long, is forked for each set of tests, and
collects it. For each change it is forked again: the child turns the change on, and ends at the first test that fails.
Functions of Python get the code of the changed source in the child.

A test that sees a fault must pass without it: at the end each of these tests runs once more.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import linecache
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import traceback
import types
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIES = ROOT / "build" / "faults"  # what was compiled stays there
KINDS = ("python", "cpu", "cuda")
# In each source that has changes. A process reads the variable when it loads a library, and may write the number later.
SWITCH, VARIABLE = "specdec_fault", "SPECDEC_FAULT"
DECLARED = f"""#if defined(__cplusplus) && !defined({VARIABLE})
#include <cstdlib>
extern "C++" {{
inline int specdec_fault_asked(const char* number) {{ return number ? std::atoi(number) : 0; }}
__attribute__((visibility("default"))) inline int {SWITCH} = specdec_fault_asked(std::getenv("{VARIABLE}"));
}}
#define {VARIABLE}(number) __builtin_expect({SWITCH} == number, 0)
#endif
#line 1
"""
# Imported before the first fork. The first is a plugin of pytest, which every tree has.
HEAVY = (
    "hypothesis",
    "torch",
    "torch._dynamo",
    "torch.utils._pytree",
    "triton",
    "numpy",
    "scipy.stats",
    "transformers",
)
LONGEST = 120  # seconds of the processor for one test; and seconds in which it neither runs nor waits for a processor
UNSOUND = "fails without the fault, too"
COPIED = ("bench", "csrc", "docs", "examples", "packaging", "specdec_kernels", "tests", "triton_kernels")
BUILDS = {
    "cpu": ("setup.py -q build_ext --inplace", "-m tests.backends.cpu_parts"),
    "cuda": ("-m tests.backends.host_cuda.build specdec_host_cuda",),
}


class Change(NamedTuple):
    """``source[start:stop]`` of ``file`` becomes ``other``. ``form``: what stands there, if it is C++: an "expression",
    a "condition", a "statement" or a "constant". ``tests`` are arguments of pytest."""

    file: str
    start: int
    stop: int
    other: str
    form: str
    tests: str

    @property
    def kind(self):
        if self.file.endswith(".py"):
            return "python"
        return "cuda" if re.search("(?<!not )cuda", self.tests, re.IGNORECASE) else "cpu"

    def applied(self, source):
        return source[: self.start] + self.other + source[self.stop :]


class Fault(NamedTuple):
    """``text`` stands once in ``file``, and ``other`` in its place: or in that of the part that stands in « ».

    In C++ that is an expression, whole statements, or the definition of a constant. ``tests`` are arguments of pytest.
    """

    file: str
    text: str
    other: str
    tests: str

    def change(self, source=None):
        source = (ROOT / self.file).read_text() if source is None else source
        before, mark, rest = self.text.partition("«")
        inner, _, after = rest.partition("»")
        text, inner = before + inner + after, inner if mark else self.text
        if source.count(text) != 1:
            raise ValueError(f"{self.file}: stands {source.count(text)} times, not once: {text}")
        start = source.index(text) + (len(before) if mark else 0)
        form = "statement" if inner.rstrip().endswith(";") else "expression"
        if re.fullmatch(r"constexpr (\w+) (\w+) = .*?;", inner):
            form = "constant"
        return Change(self.file, start, start + len(inner), self.other, form, self.tests)


def number_of(name):
    """A change's own number, whatever other changes there are. So what was compiled stays where others are added."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF or 1


def switched(text, number, other, form):
    """C++ that is ``text``, or ``other`` if the change of this number is on. ``other`` has lines of its own, to which
    the compiler's errors lead."""
    if form == "constant":
        pattern = r"(?:static |inline )*constexpr (\w+) (\w+) = (.*?);"
        (type, name, other), text = (
            re.fullmatch(pattern, other, re.DOTALL).groups(),
            re.fullmatch(pattern, text, re.DOTALL)[3],
        )
        return (
            f"constexpr struct {{ SPECDEC_HD operator {type}() const "
            f"{{ return {VARIABLE}({number}) ?\n{other}\n: {text}; }} }} {name}{{}};"
        )
    if form == "statement":
        return f"{{ if ({VARIABLE}({number})) {{\n{other}\n}} else {{ {text} }} }}"
    if form == "condition":
        return f"({VARIABLE}({number}) ? static_cast<bool>(\n{other}\n) : static_cast<bool>({text}))"
    return f"({VARIABLE}({number}) ? (\n{other}\n) : ({text}))"


def with_switches(source, changes):
    """A source of C++ with all of these changes, which are [(number, change)]. Several may be of one place, and one may
    lie within another, which then has none of it."""
    places = {}
    for number, change in changes:
        places.setdefault((change.start, change.stop), []).append((number, change))

    def render(start, stop, inner):
        """``inner``: the places in source[start:stop], by start, the longer first."""
        parts, at = [], start
        while inner:
            (begin, end), *rest = inner
            if begin < at or end > stop:
                raise ValueError(f"overlaps another change: {places[begin, end][0][1]}")
            parts += [source[at:begin], place(begin, end, [each for each in rest if each[0] < end])]
            at, inner = end, [each for each in rest if each[0] >= end]
        return "".join([*parts, source[at:stop]])

    def place(begin, end, inner):
        text = render(begin, end, inner)
        for number, change in places[begin, end]:
            text = switched(text, number, change.other, change.form)
        return text

    return render(0, len(source), sorted(places, key=lambda each: (each[0], -each[1])))


# ---- the copy --------------------------------------------------------------------------------------------------------


def make_tree(kind, changes, root=ROOT, name=None):
    """A copy of what is built and tested, with these changes of C++ in it, for a kind of tests. A file that is the same
    is left alone, so that nothing is built again."""
    tree = COPIES / (name or kind)
    sources = [path for folder in COPIED for path in sorted((root / folder).rglob("*")) if path.is_file()]
    sources += [path for path in root.iterdir() if path.is_file()]
    names, by_file = set(), {}
    for key, change in changes.items():
        by_file.setdefault(change.file, []).append((number_of(key), change))
    for path in sources:
        file = path.relative_to(root).as_posix()
        if "__pycache__" in file or (kind == "cpu" and path.suffix == ".so"):
            continue
        names.add(file)
        content = path.read_bytes()
        if kind != "python" and file in by_file and file.startswith("csrc"):
            content = (DECLARED + with_switches(content.decode(), by_file[file])).encode()
        target = tree / file
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in [path for folder in COPIED for path in (tree / folder).rglob("*") if path.is_file()]:
        if path.relative_to(tree).as_posix() not in names and path.suffix != ".so" and "lib" not in path.parts:
            path.unlink()
    installed = tree / "specdec_kernels" / "triton_kernels"
    if not installed.exists():  # else the installed one is found
        installed.symlink_to(tree / "triton_kernels")
    return tree


def build(kind, tree):
    """What the compiler says if it fails; an empty text else."""
    for command in BUILDS.get(kind, ()):
        command = [sys.executable, *command.split()]
        built = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True)
        if built.returncode:
            return built.stdout + built.stderr
    return ""


def environment(tree):
    return {**os.environ, "PYTHONPATH": str(tree), "SPECDEC_CUDA": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# ---- who sees a change -----------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """``test``: the first that fails; None where all pass. ``wrong``: what else is to be said."""

    test: str | None
    seconds: float
    wrong: str = ""


def plant(changes, tree, fresh=True, longest=LONGEST):
    """Yields the name of each change, and a Seen, as soon as it is there. ``fresh``: a process imports the package for
    each change of Python. The name of a change comes again if the test that sees it fails without it, too."""
    command = [sys.executable, "-m", "tests.support.planting", str(longest), *["fresh"] * fresh]
    jobs = json.dumps([[name, *change] for name, change in changes.items()])
    with subprocess.Popen(
        command, cwd=tree, env=environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(jobs)
        process.stdin.close()
        for line in process.stdout:
            name, *seen = json.loads(line)
            yield name, Seen(*seen)
    if process.returncode:
        raise RuntimeError(f"ended with {process.returncode}")


def time_of(process):
    """Seconds for which the threads of a process ran, and for which they waited for a processor."""
    ran = waited = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            one, other, _ = path.read_text().split()
            ran, waited = ran + int(one) / 1e9, waited + int(other) / 1e9
    return ran, waited


def in_child(work, longest=LONGEST):
    """Runs work(say) in a fork. Returns all that was said, how the child ended, and the seconds that it took. The child
    is stopped once it says nothing for too long: ``longest`` seconds of the processor, or of doing nothing."""
    begin, (read, write) = time.monotonic(), os.pipe()
    status, stopped = None, False
    child = os.fork()
    if not child:
        os.close(read)
        try:
            work(lambda *words: os.write(write, (json.dumps(words) + "\n").encode()))
        except BaseException:
            os.write(write, (json.dumps(["error", traceback.format_exc()]) + "\n").encode())
            os._exit(3)
        os._exit(0)
    os.close(write)
    said, since, ran, waited = b"", begin, 0.0, 0.0
    while True:  # who was forked by a test, and lives, has the pipe, too: so its end is not waited for
        while select.select([read], [], [], 0.02)[0] and (more := os.read(read, 65536)):
            said, since = said + more, time.monotonic()
            ran, waited = time_of(child)
        if status is not None:
            break
        if time.monotonic() - since > longest:
            now_ran, now_waited = time_of(child)
            if now_ran - ran > longest or now_ran + now_waited - ran - waited < 1:
                os.kill(child, signal.SIGKILL)
                stopped = True
        ended, word = os.waitpid(child, os.WNOHANG)
        status = word if ended else None
    os.close(read)
    lines = [json.loads(line) for line in said.splitlines()] + [["stopped"]] * stopped
    return lines, os.waitstatus_to_exitcode(status), time.monotonic() - begin


def turn_on(number, tree):
    """In all libraries of this process, and in those that it will load."""
    os.environ[VARIABLE] = str(number)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    for path in loaded:
        if path.startswith(str(tree)):
            with contextlib.suppress(ValueError):
                ctypes.c_int.in_dll(ctypes.CDLL(path), SWITCH).value = number


def exchange(path, before):
    """Gives this process's functions of a file the code that it has now. False where only an import would."""
    old = [compile(before, str(path), "exec", dont_inherit=True)]
    new = [compile(path.read_text(), str(path), "exec", dont_inherit=True)]
    codes = {}
    while old:
        one, other = old.pop(), new.pop()
        if (one.co_name, one.co_freevars) != (other.co_name, other.co_freevars):
            return False
        if one != other:
            codes[one] = other
        inner = [[code for code in each.co_consts if isinstance(code, types.CodeType)] for each in (one, other)]
        if len(inner[0]) != len(inner[1]):
            return False
        old, new = old + inner[0], new + inner[1]
    gc.unfreeze()
    functions = [each for each in gc.get_objects() if type(each) is types.FunctionType and each.__code__ in codes]
    for function in functions:
        function.__code__ = codes[function.__code__]
    linecache.clearcache()  # Triton reads sources
    if "triton.runtime.interpreter" in sys.modules:
        sys.modules["triton.runtime.interpreter"].InterpretedFunction.rewritten_fn.clear()
    return bool(functions)


class Plants:
    """A plugin of pytest. What is collected runs in a child for each change; without changes each test runs alone."""

    def __init__(self, changes, tree, say, fresh, longest):
        self.changes, self.tree, self.say, self.fresh, self.longest = changes, tree, say, fresh, longest
        self.tell = None  # in a child

    def run(self, items, number, path=None, before=""):
        """What fails first, the seconds, and what else is to be said."""

        def work(say):
            if path and not exchange(path, before):
                return say("import")
            turn_on(number, self.tree)
            self.tell = say
            for item, after in zip(items, [*items[1:], None][: len(items)], strict=True):
                say("runs", item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            say("end")

        said, code, seconds = in_child(work, self.longest)
        failed = [words[1] for words in said if words[0] == "failed"]
        running = next((words[1] for words in reversed(said) if words[0] == "runs"), "?")
        if ["import"] in said:
            return None, seconds, "import"
        if not failed and said[-1:] == [["stopped"]]:
            return running, seconds, "time"
        if not failed and (code or said[-1:] != [["end"]]):  # it died, or ended
            failed = [running]
        passed = any(words[0] == "passed" for words in said)
        return failed[0] if failed else None, seconds, "" if failed or passed else "no test ran"

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.tell("failed", report.nodeid)
            os._exit(0)
        if report.when == "call" and report.passed:
            self.tell("passed", report.nodeid)

    def pytest_runtestloop(self, session):
        if session.testsfailed:
            return None  # an error of collection, which pytest tells of
        for name, module in sorted(sys.modules.items()):
            ours = re.match(r"(specdec_kernels|tests)(\.|$)", name) and getattr(module, "__file__", None)
            assert not ours or Path(module.__file__).is_relative_to(self.tree), module
        for name, change in self.changes.items():
            path = self.tree / change.file if change.kind == "python" and not self.fresh else None
            before = path.read_text() if path else ""
            with changed_for_a_while(path, change) if path else contextlib.nullcontext():
                self.say(name, *self.run(session.items, number_of(name), path, before))
        for item in () if self.changes else session.items:
            self.say(item.nodeid, *self.run([item], 0))
        return True


def run_pytest(arguments, changes, tree, fresh, longest):
    """What the plugin says: by the name of a change; without changes by that of a test."""

    def work(say):
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
        say("", pytest.main(options, plugins=[Plants(changes, tree, say, fresh, longest)]))

    said, code, seconds = in_child(work, 100 * LONGEST)
    told = {name: words for name, *words in said}
    return {name: told.get(name, [None, seconds, f"no test ran: {code}, {said[-1:]}"]) for name in changes or told}


@contextlib.contextmanager
def changed_for_a_while(path, change):
    """Python knows a compiled module by its source's size and second: the changed one has a second of its own."""
    source, before = path.read_text(), path.stat()
    try:
        path.write_text(change.applied(source))
        os.utime(path, (before.st_mtime, before.st_mtime + 1 + zlib.crc32(repr(change).encode()) % 10**6))
        yield
    finally:
        path.write_text(source)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def run_jobs(jobs, tree, longest, fresh):
    """For each change a line of output: its name and its Seen; and one more at the end if that has to be taken back."""
    out = os.fdopen(os.dup(1), "w")
    (tree / "build").mkdir(exist_ok=True)
    log = os.open(tree / "build" / "faults.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    for name in HEAVY if (tree / "specdec_kernels").exists() else HEAVY[:1]:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            if name == "torch" and not module.cuda.is_available():  # before Triton is there, as in tests/conftest.py
                os.environ.setdefault("TRITON_INTERPRET", "1")
    pytest.main(["--markers", "-c", os.devnull, "--noconftest"])  # plugins take a second
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    sys.path.insert(0, str(tree))
    groups, seen = {}, {}
    for name, *change in jobs:
        change = Change(*change)
        groups.setdefault((name if change.kind == "python" and fresh else None, change.tests), {})[name] = change

    def tell(name):
        print(json.dumps([name, *seen[name]]), file=out, flush=True)

    for (changed, tests), changes in groups.items():
        path = tree / changes[changed].file if changed else None
        with changed_for_a_while(path, changes[changed]) if changed else contextlib.nullcontext():
            seen |= run_pytest(shlex.split(tests), changes, tree, fresh, longest)
        for name in changes:
            tell(name)
    seeing = sorted({test for test, *_ in seen.values() if test})
    alone = run_pytest(seeing, {}, tree, True, longest) if seeing else {}
    for name, (test, seconds, _) in seen.items():
        if test and alone.get(test, ["?"])[0] is not None:
            seen[name] = [test, seconds, UNSOUND]
            tell(name)


if __name__ == "__main__":
    run_jobs(json.loads(sys.stdin.read()), Path.cwd(), float(sys.argv[1]), "fresh" in sys.argv)
