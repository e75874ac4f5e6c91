"""Plants the faults of `support.faults` in a copy of the tree, one at a time, and says which test sees each.

All faults of C++ are compiled at once, each behind a switch: one build serves them all. Modules that take long are
imported once. A process that has them is forked for each set of tests, and collects it. For each fault it is forked
again: the child turns the fault on, and ends at the first test that fails.

A test that sees a fault must pass without it: at the end each of these runs once more.
"""

import contextlib
import ctypes
import importlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "faults"  # of the copies; what was compiled stays there
KINDS = ("python", "cpu", "cuda")
# Of each source that has faults. A process reads the variable when it loads a library, and may write the number later.
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
LONGEST = 300  # seconds that a fault's tests may take; whoever needs more hangs
COPIED = ("bench", "csrc", "docs", "examples", "packaging", "specdec_kernels", "tests", "triton_kernels")


class Fault(NamedTuple):
    """``text`` stands once in ``file``, and ``other`` in its place: or in that of the part that stands in « ».

    In C++ that is an expression, whole statements, or the definition of a constant. ``tests`` are arguments of pytest.
    """

    file: str
    text: str
    other: str
    tests: str

    @property
    def kind(self):
        if self.file.endswith(".py"):
            return "python"
        return "cuda" if re.search("(?<!not )cuda", self.tests, re.IGNORECASE) else "cpu"

    def in_two(self):
        """The text that is looked for, and what is replaced of it, as a slice."""
        before, mark, rest = self.text.partition("«")
        if not mark:
            return self.text, slice(0, len(self.text))
        inner, _, after = rest.partition("»")
        return before + inner + after, slice(len(before), len(before) + len(inner))

    def place(self, source):
        """The part of a source that is replaced."""
        text, part = self.in_two()
        if source.count(text) != 1:
            raise ValueError(f"{self.file}: stands {source.count(text)} times, not once: {text}")
        at = source.index(text)
        return slice(at + part.start, at + part.stop)


def number_of(name):
    """Of a fault: its own, whatever others there are. So what was compiled stays as it is where others are added."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF or 1


def replaced(source, fault):
    place = fault.place(source)
    return source[: place.start] + fault.other + source[place.stop :]


def switched(text, number, other):
    """C++ that is ``text``, or ``other`` if the fault of this number is on."""
    if constant := re.fullmatch(r"constexpr (\w+) (\w+) = .*?;", text):
        type, name = constant.groups()
        other, text = (re.fullmatch(r"constexpr \w+ \w+ = (.*?);", x)[1] for x in (other, text))
        return (
            f"constexpr struct {{ SPECDEC_HD operator {type}() const "
            f"{{ return {VARIABLE}({number}) ? {other} : {text}; }} }} {name}{{}};"
        )
    if text.rstrip().endswith(";"):
        return f"{{ if ({VARIABLE}({number})) {{ {other} }} else {{ {text} }} }}"
    return f"({VARIABLE}({number}) ? ({other}) : ({text}))"


def with_switches(source, faults):
    """A source of C++ with all of these faults, which are [(number, fault)]. Several may be of one place, none of two
    that overlap."""
    places = {}
    for number, fault in faults:
        place = fault.place(source)
        places.setdefault((place.start, place.stop), []).append((number, fault))
    end = len(source)
    for start, stop in sorted(places, reverse=True):
        if stop > end:
            raise ValueError(f"overlaps another fault: {places[start, stop][0][1]}")
        text = source[start:stop]
        for number, fault in places[start, stop]:
            text = switched(text, number, fault.other)
        source = source[:start] + text + source[stop:]
        end = start
    return source


# ---- the copy --------------------------------------------------------------------------------------------------------


def make_tree(kind, faults, root=ROOT):
    """A copy of what is built and tested, with all faults of C++ in it, for a kind of tests, built. A file that is the
    same is left alone, so that nothing is built again."""
    tree = PLACE / kind
    sources = [path for name in COPIED for path in sorted((root / name).rglob("*")) if path.is_file()]
    sources += [path for path in root.iterdir() if path.is_file()]
    names = set()
    for path in sources:
        name = path.relative_to(root).as_posix()
        if "__pycache__" in name or (kind == "cpu" and path.suffix == ".so"):
            continue
        names.add(name)
        content = path.read_bytes()
        here = [(number_of(key), fault) for key, fault in faults.items() if fault.file == name]
        if kind != "python" and here and name.startswith("csrc"):
            content = (DECLARED + with_switches(content.decode(), here)).encode()
        target = tree / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in [path for name in COPIED for path in (tree / name).rglob("*") if path.is_file()]:
        if path.relative_to(tree).as_posix() not in names and path.suffix != ".so" and "lib" not in path.parts:
            path.unlink()
    installed = tree / "specdec_kernels" / "triton_kernels"
    if not installed.exists():  # else the installed one is found
        installed.symlink_to(tree / "triton_kernels")
    commands = {
        "cpu": ("setup.py -q build_ext --inplace", "-m tests.backends.cpu_parts"),
        "cuda": ("-m tests.backends.host_cuda.build specdec_host_cuda",),
    }
    for command in commands.get(kind, ()):
        command = [sys.executable, *command.split()]
        built = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True)
        if built.returncode:
            raise RuntimeError(f"{built.stdout[-6000:]}{built.stderr[-6000:]}")
    return tree


def environment(tree):
    return {**os.environ, "PYTHONPATH": str(tree), "SPECDEC_CUDA": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# ---- who sees a fault ------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """``test``: the first that fails; None where all pass. ``wrong``: what else is to be said."""

    test: str | None
    seconds: float
    wrong: str = ""


def plant(faults, tree):
    """Yields the name of each fault, and a Seen, as soon as it is known."""
    command = [sys.executable, "-m", "tests.support.planting"]
    jobs = json.dumps([[name, *fault] for name, fault in faults.items()])
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


def planted(faults, chosen):
    """Plants those that are chosen, prints what sees each, and returns how many nothing sees."""
    unseen = 0
    for kind in KINDS:
        of_kind = {name: fault for name, fault in chosen.items() if fault.kind == kind}
        for name, seen in plant(of_kind, make_tree(kind, faults)) if of_kind else ():
            unseen += seen.test is None or bool(seen.wrong)
            print(f"{seen.seconds:6.1f}  {name}\n        {seen.test or 'NOT SEEN'} {seen.wrong}", flush=True)
    return unseen


def table(faults):
    """Which tests must see each fault."""
    return "\n".join(f"{name}\n    {fault.file}: pytest {fault.tests}" for name, fault in faults.items())


def in_child(work, longest=LONGEST):
    """Runs work(say) in a fork. Returns all that was said, how the child ended, and the seconds that it took."""
    begin, (read, write) = time.monotonic(), os.pipe()
    status = None
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
    said = b""
    while True:  # who was forked by a test, and lives, has the pipe, too: so its end is not waited for
        while select.select([read], [], [], 0.02)[0] and (more := os.read(read, 65536)):
            said += more
        if status is not None:
            break
        if time.monotonic() - begin > longest:
            os.kill(child, signal.SIGKILL)
        ended, word = os.waitpid(child, os.WNOHANG)
        status = word if ended else None
    os.close(read)
    return [json.loads(line) for line in said.splitlines()], os.waitstatus_to_exitcode(status), time.monotonic() - begin


def turn_on(number, tree):
    """In all libraries of this process, and in those that it will load."""
    os.environ[VARIABLE] = str(number)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    for path in loaded:
        if path.startswith(str(tree)):
            with contextlib.suppress(ValueError):
                ctypes.c_int.in_dll(ctypes.CDLL(path), SWITCH).value = number


class Plants:
    """A plugin of pytest. What is collected runs in a child for each fault; without faults each test runs alone."""

    def __init__(self, names, tree, say):
        self.names, self.tree, self.say = names, tree, say
        self.tell = None  # in a child

    def run(self, items, number):
        """What fails first, the seconds, and what else is to be said."""

        def work(say):
            turn_on(number, self.tree)
            self.tell = say
            for item, after in zip(items, [*items[1:], None][: len(items)], strict=True):
                say("runs", item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            say("end")

        said, code, seconds = in_child(work)
        failed = [words[1] for words in said if words[0] == "failed"]
        running = next((words[1] for words in reversed(said) if words[0] == "runs"), "?")
        if not failed and seconds > LONGEST:
            return None, seconds, f"not decided: {running} was stopped"
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
        for name in self.names:
            self.say(name, *self.run(session.items, number_of(name)))
        for item in () if self.names else session.items:
            self.say(item.nodeid, *self.run([item], 0))
        return True


def run_pytest(arguments, names, tree):
    """What the plugin says: by the name of a fault; without names by that of a test."""

    def work(say):
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
        say("", pytest.main(options, plugins=[Plants(names, tree, say)]))

    said, code, seconds = in_child(work, LONGEST * (2 + len(names)))
    told = {name: words for name, *words in said}
    return {name: told.get(name, [None, seconds, f"no test ran: {code}, {said[-1:]}"]) for name in names or told}


@contextlib.contextmanager
def changed_for_a_while(path, fault):
    """Python knows a compiled module by its source's size and second: the changed one has a second of its own."""
    source, before = path.read_text(), path.stat()
    try:
        path.write_text(replaced(source, fault))
        os.utime(path, (before.st_mtime, before.st_mtime + 1 + zlib.crc32(repr(fault).encode()) % 10**6))
        yield
    finally:
        path.write_text(source)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def run_jobs(jobs, tree):
    """For each fault a line of output: its name and its Seen; and one more at the end if that has to be taken back."""
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
    groups, found = {}, {}
    for name, *fault in jobs:
        fault = Fault(*fault)
        groups.setdefault((name if fault.kind == "python" else None, fault.tests), {})[name] = fault

    def tell(name):
        print(json.dumps([name, *found[name]]), file=out, flush=True)

    for (changed, tests), faults in groups.items():
        path = tree / faults[changed].file if changed else None
        with changed_for_a_while(path, faults[changed]) if changed else contextlib.nullcontext():
            found |= run_pytest(shlex.split(tests), list(faults), tree)
        for name in faults:
            tell(name)
    seeing = sorted({test for test, *_ in found.values() if test})
    sound = run_pytest(seeing, [], tree) if seeing else {}
    for name, (test, seconds, _) in found.items():
        if test and sound.get(test, ["?"])[0] is not None:
            found[name] = [test, seconds, "fails without the fault, too"]
            tell(name)


if __name__ == "__main__":
    run_jobs(json.loads(sys.stdin.read()), Path.cwd())
