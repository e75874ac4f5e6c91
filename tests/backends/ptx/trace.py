"""What a call costs a GPU that is not at hand: which machine code runs for it, how often, and what waits for what.

    python -m tests.backends.ptx.trace race_sample rejection --batch 8     calls of CALLS, as JSON lines
    python -m tests.backends.ptx.trace rejection --stretches               the path, from barrier to barrier
    python -m tests.backends.ptx.trace table [CALL ...]                    writes the committed table, or rows of it

The kernels' PTX runs as in backend.py, with a count before each stretch of it (tracer.h). ptxas compiles the same PTX
with line numbers, so that each of its instructions belongs to a line of the PTX. Both together say which instructions a
warp ran. docs/cuda.md, section 9, says what this can and cannot tell.
"""

import argparse
import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import types
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

import specdec_kernels as sd
from setup import find_nvcc
from specdec_kernels import backends
from specdec_kernels.backends.cuda import HAS
from tests.backends.host_cuda.build import run_ninja
from tests.backends.ptx import build
from tests.backends.ptx.backend import Ptx
from tests.backends.ptx.translate import Kernel, closing, split, statements, translate, without_comments
from tests.support.cuda_aot import TABLE, disassembler, name_of, resources, run
from tests.support.edits import random_edits
from tests.support.same_bits import tensors_of

ROOT = build.ROOT
COMMITTED = TABLE.with_name("traces.json")
FOLDER = ROOT / "build" / f"trace-{sys.implementation.cache_tag}"
H100 = {"multiprocessors": 132, "blocks_in_flight": 264, "capability": 90}

# ---- the model ------------------------------------------------------------------------------------------------------

# In cycles of 1.835 GHz: measured on an H100 (docs/cuda.md, section 8), but for the last two, which are fitted to the
# times of three kernels there.
CYCLES = {"launch": 1820, "cooperative": 360, "barrier": 2250, "cluster": 900, "ticket": 940, "wait": 600}
CYCLES_AN_INSTRUCTION = 4.2
COLD_LINE = 0.030  # microseconds


def modelled(row):
    """Microseconds of a call: its rows cold, and behind a product, when its code is cold, too."""
    cycles = (
        CYCLES["launch"]
        + CYCLES["cooperative"] * (row["grid_barriers"] > 0)
        + CYCLES["barrier"] * row["grid_barriers"]
        + CYCLES["cluster"] * row["cluster_barriers"]
        + CYCLES["ticket"] * row["tickets"]
        + CYCLES["wait"] * row["waits"]
        + CYCLES_AN_INSTRUCTION * row["path"]
    )
    cold = cycles / 1835
    return {"cold_us": round(cold, 1), "behind_product_us": round(cold + COLD_LINE * row["lines"], 1)}


# ---- kernels that count ---------------------------------------------------------------------------------------------

REGISTER = re.compile(r"%[A-Za-z_]\w*")
BARRIER = re.compile(r"(bar|barrier)\.(?!warp)")
SHARED_BY_LANES = ("shfl.", "vote.", "redux.")
LOADS = ("ld.global", "ld.v", "ld.u", "ld.s", "ld.b", "ld.f")  # the others are generic


def plain(text):
    return text and not text.startswith((".", "{", "}")) and not text.endswith(":")


def parsed(text):
    """(guard, form, operands) of an instruction."""
    return re.fullmatch(r"(?:@(!?%?\w+) )?([\w.:]+)(.*)", text).groups()


def ends_stretch(text):
    _, form, _ = parsed(text)
    return form.startswith(("bra", "ret", "exit")) or bool(BARRIER.match(form))


def stretches(ptx):
    """A stretch's first line -> its lines, of all kernels of a text."""
    ptx, found = without_comments(ptx), {}
    for match in re.finditer(r"\.entry\s+([$\w]+)\s*\(([^)]*)\)([^{]*)\{", ptx):
        line, fresh = ptx.count("\n", 0, match.end()) + 1, True
        for offset, text in statements(ptx[match.end() : closing(ptx, match.end())]):
            text = " ".join(text.split())
            if not plain(text):
                fresh |= text.endswith(":")
                continue
            if fresh:
                first = line + offset
            found.setdefault(first, []).append(line + offset)
            fresh = ends_stretch(text)
    return found


class CountingKernel(Kernel):
    """A kernel that tells the tracer what it runs. A register has a depth beside it."""

    fresh = True

    def statement(self, text):
        if not plain(text):
            self.fresh |= text.endswith(":")
            return super().statement(text)
        if self.fresh:
            self.lines.append(f"traced.at({self.line});")
        self.fresh = ends_stretch(text)
        before, behind = self.told(text)
        self.lines += [f"if (traced.warp) {{ {before} }}"] if before else []
        super().statement(text)
        self.lines += [f"if (traced.warp) {{ {behind} }}"] if behind else []

    def depth(self, register):
        name = f"d_{self.variable(register)}"
        self.depths = getattr(self, "depths", set()) | {name}
        return name

    def told(self, text):
        """What the tracer hears before an instruction, and behind it."""
        guard, form, operands = parsed(text)
        operands = split(operands)
        stores = form.startswith(("st.", "bra", "ret", "exit", "bar", "prefetch", "red.", "fence", "grid", "trap"))
        results = [] if stores and not form.startswith("bar.red") else operands[:1]
        names = lambda parts: [name for part in parts for name in REGISTER.findall(part) if self.kind(name)]  # noqa: E731
        sources = [self.depth(name) for name in names([*operands[len(results) :], guard or ""])]
        results = [self.depth(name) for name in names(results)]
        deepest = "0"
        for name in dict.fromkeys(sources):
            deepest = name if deepest == "0" else f"most({deepest}, {name})"
        give = lambda value: " ".join([f"const int d = {value};", *(f"{name} = d;" for name in results)])  # noqa: E731
        if BARRIER.match(form):
            event = "traced.event(2); " if form.startswith("barrier.cluster.wait") else ""
            return f"traced.use({deepest}); {event}traced.barrier();", "traced.met(); " + give("0")
        if form.startswith(SHARED_BY_LANES):
            return f"traced.share({deepest});", give("traced.shared()")
        if form.startswith("ld.acquire"):
            return f"traced.use({deepest}); traced.event(1);", give("0")
        if form.startswith("atom.add.acq_rel"):
            return f"traced.use({deepest}); traced.event(0);", give("0")
        if form.startswith((*LOADS, "atom.global")) and not form.startswith("ld.shared"):
            return give(f"traced.load({deepest})"), ""
        if form.startswith("mov") and results:
            return give(deepest), ""
        return (give(f"traced.use({deepest})") if results else f"traced.use({deepest});") if sources else "", ""

    def text(self, number, most_threads):
        depths = sorted(getattr(self, "depths", ()))
        if depths:
            self.lines.insert(0, f"int {', '.join(f'{name} = 0' for name in depths)};")
        self.lines.insert(0, f'Traced traced("{self.entry}");')
        helper = "" if number else "static int most(int a, int b) { return a > b ? a : b; }\n"
        return helper + super().text(number, most_threads)


def module_of(stem):
    """The path of a module whose kernels of one ``.cu`` count; the others are those of build.py."""
    build.build()
    folder = FOLDER / stem
    ninja, _, _ = build.machine_file(folder)
    python = " ".join(["env", f"PYTHONPATH={ninja.seen(ROOT)}", sys.executable])
    ninja.rule("translate", f"{python} -m tests.backends.ptx.trace translate $in $out")
    ptx = ninja.seen(build.FOLDER / f"ops_{stem}.ptx")
    tables = [ninja.seen(build.HERE / name) for name in ("trace.py", "translate.py", "forms.py")]
    ninja.build(f"{stem}.cpp", "translate", [ptx, *tables])
    ninja.build(f"{stem}.o", "cxx", [f"{stem}.cpp"], [*build.KERNEL_FLAGS, "-I", ninja.seen(build.HERE)])
    tracer = ninja.compile("cxx", build.HERE / "tracer.cpp", ["-std=c++17", "-O1", "-fPIC"])
    linked = re.search(
        rf"^build {re.escape(build.path_of(build.MODULE).name)}: library (.*)$", build.ninja_file(), re.M
    )
    others = [
        ninja.seen((build.FOLDER / name).resolve()) for name in linked[1].split() if name != f"ops_{stem}.o"
    ]  # fmt: skip
    ninja.build("traced.so", "library", [*others, f"{stem}.o", tracer])
    run_ninja(folder, str(ninja), "traced.so")
    return folder / "traced.so"


class Tracer(Ptx):
    """The CUDA ops on an H100, of which one op's kernels count."""

    def __init__(self, stem):
        super().__init__("large", module_of(stem), **H100)
        self._library.ptx_trace.argtypes = [ctypes.c_int64]
        self._library.ptx_last_block.restype = ctypes.c_int64

    def trace(self, call):
        """(kernel, blocks, {(warp, stretch): (depth, events, {line: count})}) of the block that ends last."""
        self._library.ptx_trace(-1)
        call()  # the threads take the same order again
        block = self._library.ptx_last_block()
        self.play("large", **H100)
        self._library.ptx_trace(block)
        call()
        with tempfile.NamedTemporaryFile("r") as file:
            assert self._library.ptx_traced(file.name.encode()) == 0
            (kernel, blocks), *rows = (line.split() for line in file)
        told = {}
        for kind, *numbers in rows:
            warp, stretch, *rest = map(int, numbers)
            if kind == "s":
                told[warp, stretch] = rest[0], rest[1:], {}
            else:
                told[warp, stretch][2][rest[0]] = rest[1]
        return kernel, int(blocks), told


# ---- machine code ---------------------------------------------------------------------------------------------------


def tool(name):
    """A tool beside cuobjdump, or nvcc's."""
    nvcc, _ = find_nvcc()
    found = [folder / name for folder in (Path(nvcc).resolve().parent, Path(disassembler()).parent)]
    wheel = importlib.util.find_spec("triton")
    if wheel:
        found.append(Path(wheel.origin).parent / "backends" / "nvidia" / "bin" / name)
    return next((path for path in found if path.exists()), None)


def text_alone(text):
    """The PTX of what cuobjdump wrote, each line where it stood."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(".version"))
    stop = next((i for i in range(start, len(lines)) if lines[i].startswith("Fatbin")), len(lines))
    return "\n" * start + "\n".join(lines[start:stop]) + "\n"


def machine_code(stem, kernel):
    """(line of the PTX -> addresses of its instructions, bytes, what ptxas says it takes) of a kernel."""
    ptx, folder = build.FOLDER / f"ops_{stem}.ptx", FOLDER / stem
    binary, log = folder / "kernel.cubin", folder / "kernel.log"
    text = text_alone(ptx.read_text())
    made_of = hashlib.sha256(f"{kernel}{text}".encode()).hexdigest()[:16]
    binary, log = folder / f"{made_of}.cubin", folder / f"{made_of}.log"
    if not binary.exists():
        own = folder / f"{made_of}.ptx"
        own.write_text(text)
        flags = "-O3 --fmad false -lineinfo -v -arch=sm_90a -e".split()
        log.write_text(run(tool("ptxas"), *flags, kernel, own, "-o", binary))
    found, line, inside, size, exit, end = defaultdict(list), None, False, 0, 0, None
    for row in run(tool("nvdisasm"), "-gp", "-c", binary).splitlines():
        if ".section" in row:
            inside = f".text.{kernel}" in row
        if inside and (match := re.search(r"//## File .*, line (\d+)", row)):
            line = int(match[1])
        if inside and (match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", row)):
            size = int(match[1], 16) + 16
            found[line].append(size - 16)
            # Behind the last exit before such an instruction stand second copies, for warps whose lanes have parted,
            # and divisions of numbers that are not normal. Neither is counted.
            if "EXIT" in match[2]:
                exit = size
            if "COLLECTIVE" in match[2] and end is None:
                end = exit
        if inside and end is None and "$__internal" in row and row.rstrip().endswith(":"):
            end = size
    end = end or size
    found = {line: [at for at in addresses if at < end] for line, addresses in found.items()}
    return found, size, dict(resources(log.read_text()))[kernel]


class Stretch(NamedTuple):
    """A stretch between two barriers: of its slowest warp, and what all warps run for the first time."""

    instructions: int
    lines: int
    waits: int


def path_of(told, first_lines, code):
    """([Stretch], addresses that ran, events) of what a block did."""
    seen, path, waits, events = set(), [], 0, [0, 0, 0]
    for stretch in sorted({number for _, number in told}):
        slowest, here = 0, set()
        happened = [0, 0, 0]
        for (_, number), (depth, counted, counts) in told.items():
            if number != stretch:
                continue
            happened = [max(pair) for pair in zip(happened, counted, strict=True)]
            waits = max(waits, depth)
            issued = 0
            for first, count in counts.items():
                own = [address for line in first_lines[first] for address in code.get(line, ())]
                issued += count * len(own)
                here.update(own)
            slowest = max(slowest, issued)
        fresh = {address // 128 for address in here} - {address // 128 for address in seen}
        path.append(Stretch(slowest, len(fresh), waits - sum(part.waits for part in path)))
        seen |= here
        # Whoever reads a counter again and again has raised it: a barrier of the grid, not a ticket.
        meets = 1 if happened[1] else 0
        events[0] += max(0, happened[0] - meets)
        events[1] += meets
        events[2] += happened[2]
    return path, seen, events


def traced(name, requests):
    """A row of the table, and the path."""
    stem, make = CALLS[name]
    call = make(requests)
    with sd.backend("cpu"):
        expected = [x.clone() for x in tensors_of(call())]
    tracer = tracer_of(stem)
    with on(tracer):
        found = []
        kernel, blocks, told = tracer.trace(lambda: found.append([x.clone() for x in tensors_of(call())]))
    for result in found:
        if name != "overlap" and not all(map(torch.equal, result, expected)):  # its sums have an order of their own
            raise RuntimeError(f"{name}, B = {requests}: not what the CPU gives")
    code, size, taken = machine_code(stem, kernel)
    ptx = (build.FOLDER / f"ops_{stem}.ptx").read_text()
    path, ran, (tickets, grid_barriers, cluster_barriers) = path_of(told, stretches(ptx), code)
    row = {
        "call": name, "B": requests, "kernel": name_of(kernel), "blocks": blocks, "sass_bytes": size,
        "registers": taken["registers"], "instructions": len(ran), "lines": len({at // 128 for at in ran}),
        "path": sum(part.instructions for part in path), "block_barriers": len(path) - 1,
        "grid_barriers": grid_barriers, "cluster_barriers": cluster_barriers, "tickets": tickets,
        "waits": sum(part.waits for part in path),
    }  # fmt: skip
    return row | modelled(row), path


# ---- calls ----------------------------------------------------------------------------------------------------------

V, K, ACCEPTANCE = 128_256, 4, 0.7
PARENTS = [-1, *(i // 2 for i in range(14))]  # two children each
FILTERS = sd.Sampling(top_k=50, top_p=0.9)


@functools.cache
def bench():
    """bench/gpu/bench.py, which makes the inputs."""
    sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "gpu")]
    return importlib.import_module("bench")


def of_bench(op, **changes):
    """A call of the bench's; ``changes`` of its arguments."""

    def make(requests):
        with sd.backend("cpu"):
            for number in range(10):  # one in which a draft of the first request is refused
                inputs = bench().make(op, requests, V, ACCEPTANCE, number, "cpu")
                if op == "race_sample" or 0 < bench().OURS[op](inputs).num_accepted[0] < K:
                    break
        if not changes:
            return lambda: bench().OURS[op](inputs)
        noise = {"seed": inputs.seed, "position": inputs.position}
        options = {name: value(requests) if callable(value) else value for name, value in changes.items()}
        if op == "race_sample":
            return lambda: sd.race_sample(inputs.target[:, 0], **noise, **options)
        draft = None if op == "race" else inputs.draft
        if op == "race":
            options["method"] = "race"
        return lambda: sd.verify_chain(inputs.tokens, inputs.target, draft, **noise, **options)

    return make


def tree(method):
    def make(requests):
        n = len(PARENTS)
        generator = torch.Generator().manual_seed(bench().harness.SEED)
        shape = (requests * n, V)
        target = bench().harness.logits("realistic", shape, bench().harness.SEED)
        draft = (target + 0.7 * torch.randn(shape, generator=generator)).bfloat16().view(requests, n, V)
        target = target.bfloat16().view(requests, n, V)
        noise = {"seed": torch.arange(requests) + 7, "position": torch.full((requests,), 5)}
        tokens = torch.full((requests, n), -1)
        law = target if method == "race" else draft
        with sd.backend("cpu"):
            for node in range(n // 2):
                tokens[:, 2 * node + 1 : 2 * node + 3] = sd.race_topk(law[:, node], 2, **noise)
        options = {"leaves": torch.arange(n // 2, n).repeat(requests, 1)} if method == "paths" else {}
        return lambda: sd.verify_tree(
            tokens, target, None if method == "race" else draft, parents=torch.tensor(PARENTS), max_depth=3,
            method=method, **noise, **options,
        )  # fmt: skip

    return make


def on_rows(op, **options):
    """A call of an op on rows, with options."""

    def make(requests):
        rows = bench().harness.logits("realistic", (2 * requests, V), bench().harness.SEED).bfloat16()
        rows = rows.view(2, requests, V)
        noise = {"seed": torch.arange(requests) + 7, "position": torch.full((requests,), 5)}
        if op in (sd.residual, sd.overlap):
            return lambda: op(*rows, **options)
        if op is sd.logprobs:
            options["tokens"] = torch.zeros(requests, dtype=torch.long)
        return lambda: op(rows[0], **options, **(noise if op is sd.race_topk else {}))

    return make


def edits(rows):
    return lambda requests: random_edits(requests, *rows, vocabulary=V, seed=1)


CALLS = {
    "race_sample": ("race_sample", of_bench("race_sample")),
    **{op: ("verify_chain", of_bench(op)) for op in ("race", "rejection", "serving race", "serving rejection")},
    "block": ("verify_chain", of_bench("rejection", method="block")),
    **{
        f"tree of 15, {method}": ("verify_tree", tree(method)) for method in ("race", "rejection", "traversal", "paths")
    },
    "race_sample, top-k 50 and top-p 0.9": ("race_sample", of_bench("race_sample", sampling=FILTERS)),
    **{
        f"{op}, top-k 50 and top-p 0.9": ("verify_chain", of_bench(op, sampling=FILTERS))
        for op in ("race", "rejection")
    },
    "block, top-k 50 and top-p 0.9": ("verify_chain", of_bench("rejection", method="block", sampling=FILTERS)),
    "race_sample, edits": ("race_sample", of_bench("race_sample", edits=edits(()))),
    **{f"{op}, edits": ("verify_chain", of_bench(op, edits=edits((K + 1,)))) for op in ("race", "rejection")},
    "race_topk": ("race_topk", on_rows(sd.race_topk, k=4)),
    "residual": ("residual", on_rows(sd.residual)),
    "overlap": ("overlap", on_rows(sd.overlap)),
    "logprobs": ("logprobs", on_rows(sd.logprobs, top=5)),
    "cutoff": ("cutoff", on_rows(sd.cutoff, sampling=FILTERS)),
}
# The serving calls. What the others cost is told where it is asked for.
OF_EIGHT = (*list(CALLS)[:4], *(name for name in CALLS if "top-k" in name))
SERVED = [(name, requests) for requests in (1, 8) for name in (list(CALLS)[:-5] if requests == 1 else OF_EIGHT)]


@functools.cache
def tracer_of(stem):
    return Tracer(stem)


@contextlib.contextmanager
def on(tracer):
    """The backend of this tracer."""
    ops = {op: getattr(tracer, op) for op in HAS}
    backends.register("traced", types.SimpleNamespace(HAS=HAS, unavailable=lambda: None, **ops), ("cpu",))
    with sd.backend("traced"):
        yield


def traced_apart(name, requests):
    """The row, by a process of its own: two libraries with kernels of one name do not get on in one."""
    command = [sys.executable, "-m", "tests.backends.ptx.trace", name, "--batch", str(requests)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}, B = {requests}: {done.stderr}")
    return json.loads(done.stdout)


def write_table(calls):
    """Traces these calls, or all that are served, and keeps the other rows."""
    rows = {(row["call"], row["B"]): row for row in json.loads(COMMITTED.read_text())}
    for case in SERVED:
        if calls and case[0] not in calls:
            continue
        rows[case] = traced_apart(*case)
        lines = ",\n".join(json.dumps(rows[case]) for case in SERVED if case in rows)
        COMMITTED.write_text(f"[\n{lines}\n]\n")


def main():
    if sys.argv[1:2] == ["translate"]:  # by ninja
        source, to = Path(sys.argv[2]), Path(sys.argv[-1])
        to.write_text(translate(source.read_text(), source.name, CountingKernel, ("thread.h", "tracer.h")))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calls", nargs="+", metavar="CALL", help=f"table, or some of: {'; '.join(CALLS)}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--stretches", action="store_true", help="also the path from barrier to barrier")
    arguments = parser.parse_args()
    if arguments.calls[0] == "table":
        write_table(arguments.calls[1:])
        return
    for name in arguments.calls:
        row, path = traced(name, arguments.batch)
        print(json.dumps(row))
        if arguments.stretches:
            print("stretch  instructions  lines that run first  waits")
            for number, part in enumerate(path):
                print(f"{number:7d}  {part.instructions:12d}  {part.lines:20d}  {part.waits:5d}")


if __name__ == "__main__":
    main()
