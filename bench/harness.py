"""The harness of all benches: inputs, environment, the book of records, tables, goals, JSON and plots.

A bench is a pytest-benchmark test that first checks its op on the inputs it is going to time; a failed check ends the
test, so no figure is ever printed for a wrong result. Times are seconds per call; ``ratio`` is peer / ours.
"""

import contextlib
import json
import os
import platform
import re
import statistics
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

import specdec_kernels as sd

RESULTS = Path(__file__).parent / "results"
OURS = "specdec"
ROOF = "numpy.max"
BATCHES, READ = "batches", "torch.sum"  # op and roof of bench_batches.py
DTYPES = ("float32", "bfloat16", "float16")
KINDS = ("normal", "realistic")
VOCABULARY = 128_256
SEED = 20_26


def logits(kind, shape, seed):
    """``normal``: independent N(0, 2²). Others are in random order per row.

    ``zipf``: a tail alone. ``realistic``: that, with noise, behind a head. ``peaked``: 20 tokens have most of the mass.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=generator)
    if kind == "normal":
        return noise * 2
    values = (-1.2 * torch.arange(1, shape[-1] + 1).log()).expand(shape)
    if kind == "realistic":
        values = values + 12 + 0.5 * noise
    elif kind == "peaked":
        values = noise * 1.5
        values[..., :20] += torch.linspace(14, 8, 20)
    return values.gather(-1, torch.rand(shape, generator=generator).argsort(-1))


def row_calls(kind, vocabulary=VOCABULARY):
    """64 calls' rows [1, V], of eight different ones, and positions."""
    rows = logits(kind, (8, 1, vocabulary), SEED)
    return [(rows[i % 8], 1000 + i) for i in range(64)]


def draft_near(target, overlap, seed):
    """Draft logits whose mean overlap Σ min(p, q) with ``target`` is ``overlap``: normal noise, sized by bisection."""
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed))
    low, high = 0.0, 8.0
    for _ in range(20):
        middle = (low + high) / 2
        accept = sd.overlap(target, target + middle * noise).accept.mean().item()
        low, high = (middle, high) if accept > overlap else (low, middle)
    return target + low * noise


@dataclass
class Record:
    op: str
    contender: str
    case: dict
    median: float
    p20: float
    p80: float
    rounds: int
    bytes: int = 0
    ratio: float | None = None  # contender / ours, filled in when the book is closed


@dataclass
class Goal:
    """A bound for ``value(book)``: at most, or at least, ``bound``."""

    text: str
    bound: float
    at_least: bool
    value: object

    def row(self, book):
        value = self.value(book)
        if value is None:
            return None
        reached = value >= self.bound if self.at_least else value <= self.bound
        return {"goal": self.text, "bound": self.bound, "measured": value, "met": reached}


@dataclass
class Book:
    times: dict = field(default_factory=dict)  # both by (op, contender, *case): all seconds
    by_case: dict = field(default_factory=dict)  # their record
    bytes_per_second: float | None = None  # a roof that another bench measured

    def add(self, op, contender, case, times, bytes=0):
        """Adds the seconds of calls to those of the same case."""
        key = (op, contender, *case.items())
        times = self.times[key] = sorted([*self.times.get(key, []), *times])
        at = lambda quantile: times[min(len(times) - 1, int(quantile * len(times)))]  # noqa: E731
        median = statistics.median(times)
        self.by_case[key] = Record(op, contender, case, median, at(0.2), at(0.8), len(times), bytes)

    @property
    def records(self):
        return list(self.by_case.values())

    def has(self, op, contender, case):
        return (op, contender, *case.items()) in self.times

    def find(self, op, contender, **case):
        """The median of the one record that has these values, or None. None matches cases without the key."""
        records = [r for r in self.records if (r.op, r.contender) == (op, contender)]
        records = [r for r in records if all(r.case.get(key) == value for key, value in case.items())]
        return records[0].median if len(records) == 1 else None

    def ratio(self, op, peer, **case):
        ours, theirs = self.find(op, OURS, **case), self.find(op, peer, **case)
        return theirs / ours if ours and theirs else None

    def worst(self, op, peer, kinds=KINDS, **case):
        """The smallest peer / ours over the kinds of logits."""
        ratios = [self.ratio(op, peer, kind=kind, **case) for kind in kinds]
        return None if None in ratios else min(ratios)

    def roof(self, record):
        """Bytes per second of as many threads that only read: from memory for batches, else the row of a bench."""
        if self.bytes_per_second:
            return self.bytes_per_second
        of_batch = [r for r in self.records if r.contender == READ]
        if record.op == BATCHES:
            return of_batch[0].bytes / of_batch[0].median if of_batch else None
        reads = [r for r in self.records if r.contender == ROOF and r.case["V"] == VOCABULARY]
        one = statistics.median(r.bytes / r.median for r in reads) if reads else None
        return one and one * record.case.get("threads", 1)

    def percent_of_roof(self, record):
        """Bytes per second of a record in percent of its roof."""
        roof = self.roof(record)
        return 100 * record.bytes / record.median / roof if roof and record.bytes else None

    def close(self):
        for record in self.records:
            ours = [r for r in self.records if (r.op, r.contender, r.case) == (record.op, OURS, record.case)]
            record.ratio = record.median / ours[0].median if ours else None


def package_version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def environment():
    """Device, versions and build, on which a figure depends; neither paths of the machine nor the date."""
    build = sd.build_info()
    return {
        "device": f"{cpu_name()}, {torch.get_num_threads()} cores",
        "isa": build["isa"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),  # torch's; ATEN_CPU_CAPABILITY chooses
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
        "versions": {name: package_version(name) for name in ("torch", "transformers", "numpy", "specdec-kernels")},
        "compiler": build.get("compiler"),
    }


def folder(env):
    return RESULTS / re.sub(r"[^a-z0-9]+", "-", env["device"].lower()).strip("-")


def shown(seconds):
    return f"{seconds * 1e6:,.1f}"


def rates(record, percent):
    """Megabytes counted, GB/s, and percent of the roof; empty where no bytes are counted."""
    if not record.bytes:
        return ["", "", ""]
    speed = record.bytes / record.median / 1e9
    return [f"{record.bytes / 1e6:.2f}", f"{speed:.1f}", f"{percent:.0f}" if percent else ""]


def print_table(book, goals, env, console):
    from rich.table import Table

    console.print(", ".join(f"{k} {v}" for k, v in env.items() if isinstance(v, str)))
    console.print(", ".join(f"{k} {v}" for k, v in env["versions"].items()))
    for op in dict.fromkeys(r.op for r in book.records):
        records = [r for r in book.records if r.op == op]
        table = Table(title=op)
        keys = list(dict.fromkeys(key for r in records for key in r.case))
        for name in [*keys, "contender", "median µs", "p20", "p80", "rounds", "MB", "GB/s", "% roof", "x ours"]:
            table.add_column(name, justify="right")
        for r in records:
            row = [str(r.case.get(key, "")) for key in keys]
            row += [r.contender, shown(r.median), shown(r.p20), shown(r.p80), str(r.rounds)]
            row += rates(r, book.percent_of_roof(r))
            table.add_row(*row, f"{r.ratio:.2f}" if r.ratio else "")
        console.print(table)
    table = Table("goal", "bound", "measured", "met", title="goals")
    for row in goals:
        bound, measured = f"{row['bound']:g}", f"{row['measured']:.3g}"
        table.add_row(row["goal"], bound, measured, "yes" if row["met"] else "NO")
    console.print(table)


@contextlib.contextmanager
def axes_of(path, width, height):
    """Axes to draw on, which become the SVG at ``path``: the same bytes for the same figures."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.family": "sans-serif"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.subplots()
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def plot(book, path, op, axis, label, **case):
    """Median times of each contender over ``axis``, with the p20 to p80 band; nothing when there are no two points."""
    records = [r for r in book.records if r.op == op and axis in r.case and case.items() <= r.case.items()]
    lines = {}
    for r in records:
        lines.setdefault(r.contender, []).append(r)
    if not any(len(line) > 1 for line in lines.values()):
        return
    with axes_of(path, 6.4, 4.2) as axes:
        for contender, line in lines.items():
            line.sort(key=lambda r: r.case[axis])
            xs = [r.case[axis] for r in line]
            axes.plot(xs, [r.median * 1e6 for r in line], marker="o", label=contender)
            axes.fill_between(xs, [r.p20 * 1e6 for r in line], [r.p80 * 1e6 for r in line], alpha=0.2)
        fixed = "".join(f", {name} {value}" for name, value in case.items() if name != "sweep")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="µs per call")
        axes.set_title(f"{op}{fixed}", loc="left")
        axes.set_xticks(xs, [f"{x:,}" for x in xs], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()


def batches(book):
    """The records of bench_batches.py by type, each a dictionary by call."""
    ours = [r for r in book.records if (r.op, r.contender) == (BATCHES, OURS)]
    return {dtype: {r.case["call"]: r for r in ours if r.case["dtype"] == dtype} for dtype in DTYPES}


def plot_batches(book, path):
    """Plots GB/s of the bytes that each call needs, by dtype, beside a plain sum's."""
    with axes_of(path, 6.4, 6) as axes:
        for number, (dtype, records) in enumerate(batches(book).items()):
            heights = [i + 0.25 * (number - 1) for i in range(len(records))]
            axes.barh(heights, [r.bytes / r.median / 1e9 for r in records.values()], 0.25, label=dtype)
        axes.set_yticks(range(len(records)), records)
        axes.invert_yaxis()
        axes.axvline(book.roof(records[call := next(iter(records))]) / 1e9, color="black", label="a plain sum")
        case = records[call].case
        axes.set_xlabel("GB/s of what the call needs")
        axes.set_title(f"{case['B']} requests, {case['threads']} threads, rows in memory", loc="left")
        axes.legend(loc="lower right")


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_batches(book, env):
    """Writes the records of bench_batches.py, which can run alone."""
    directory = folder(env)
    records = [asdict(r) for r in book.records if r.op == BATCHES]
    write_json(directory / "batches.json", {"environment": env, "records": records})
    plot_batches(book, directory / "batches.svg")
    return directory


def write(book, goals, env):
    path, chosen = folder(env), os.environ.get("SPECDEC_CPU_ISA")
    records = [asdict(r) for r in book.records if r.op != BATCHES]
    content = {"environment": env, "goals": goals, "records": records}
    write_json(path / f"cpu{'-' + chosen if chosen else ''}.json", content)
    if chosen:
        return path
    plot(book, path / "race_sample_vocabulary.svg", "race_sample", "V", "vocabulary", sweep="V")
    for method in ("race", "rejection"):
        plot(book, path / f"verify_chain_{method}_batch.svg", "verify_chain", "B", "batch", sweep="B", method=method)
    return path


@dataclass
class Case:
    """A row of a bench's table: contenders and their inputs, the check of ours, the bytes that have to move.

    ``inputs`` makes a list of argument tuples, which take turns. ``check(call, inputs)`` raises if ours is wrong;
    without one ours has to equal the reference backend. ``bytes`` is a number, or a function of (call, inputs).
    """

    op: str
    case: dict
    contenders: dict
    inputs: object = lambda: [()] * 3
    check: object = None
    bytes: object = 0
    threads: int = 1
    last = None  # (the case that ran last, its inputs)

    def __str__(self):
        return "-".join(map(str, (self.op, *self.case.values(), self.threads)))

    def made(self):
        """The inputs, cached until another case makes its inputs, for contenders of a case run one after the other."""
        if Case.last is None or Case.last[0] is not self:
            Case.last = self, self.inputs()
        return Case.last[1]

    def run(self, measure, contender):
        inputs, ours = self.made(), next(iter(self.contenders.values()))
        count = self.bytes(ours, inputs) if callable(self.bytes) else self.bytes
        check = (lambda call: (self.check or like_reference)(call, inputs)) if contender == OURS else None
        case = self.case | {"threads": self.threads}
        measure(self.op, contender, case, self.contenders[contender], inputs, check, bytes=count)


def like_reference(call, inputs, count=8):
    """Raises if a call differs from the reference backend, or has a status, on the first ``count`` inputs."""
    for arguments in inputs[:count]:
        torch.manual_seed(0)  # for calls that draw numbers by torch
        with sd.backend("reference"):
            expected = [x.clone() for x in outputs_of(call(*arguments))]
        torch.manual_seed(0)
        result = call(*arguments)
        assert all(map(torch.equal, outputs_of(result), expected))
        assert not getattr(result, "status", torch.zeros(1)).any()


def outputs_of(result):
    return result if isinstance(result, (tuple, list)) else [result]


def table(cases):
    """Parametrises a bench by case, contender and threads."""
    rows = [(case, contender, case.threads) for case in cases for contender in case.contenders]
    ids = [f"{case}-{contender}" for case, contender, _ in rows]
    return pytest.mark.parametrize("case, contender, threads", rows, ids=ids, indirect=["threads"])
