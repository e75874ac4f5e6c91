"""The ops on a GPU: our backends and peers, side by side, replayed from CUDA graphs.

    python bench/gpu/bench.py --out DIRECTORY       measures; writes gpu.json and plots
    python bench/gpu/bench.py --out DIRECTORY --seconds 480 --ops race,rejection
    python bench/gpu/bench.py --dry-run             small, on the CPU: the same path, no figure worth anything
    python bench/gpu/bench.py --profile             a few calls for a profiler
    python bench/gpu/bench.py --team cluster4       chains by teams of this kind and size, beside the default ones

bfloat16 logits with a peaked head and a long tail, K = 4: a chain, or a tree of two children, the first of which has
two. *Serving*: a chain as engines have it, packed, with temperatures and seeds in tensors, and an index of requests.
*Cold*: a graph of calls on inputs that together overflow the L2 cache; *warm*: a graph of calls on one. A time is that
of a replay over the number of its calls. *Behind a product*: each call comes after a large matrix product, whose code
and operands drive ours out of the caches; the time is what the calls add to a graph of the products alone. Bytes are
those of the rows that a verification has to read, up to the first rejection, or on the accepted path; the roof is the
best of a large read and a large copy in the same run. A call is checked against the CPU backend before it is timed; one
that differs is recorded and not timed.

Each case is added to cases.jsonl once it is measured. A run with the same directory leaves those out, so that a long
bench can be done in pieces.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
import torch
from peers import available

import specdec_kernels as sd
from specdec_kernels import Packing
from specdec_kernels.ops import TreeVerdict, Verdict

K = 4
PARENTS = (-1, 0, 0, 1, 1)
DEPTH = 2
ROWS = 32  # rows of a pool; an input rotates each by another distance
CALLS, REPLAYS = 20, 25
DRY = {"V": (512, 1000), "B": (1, 3), "cold_bytes": 1 << 16, "read_bytes": 1 << 20, "product": 64}
FULL = {
    "V": (32_000, 64_000, 128_256, 151_936, 262_144), "B": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "cold_bytes": 256 << 20, "read_bytes": 4 << 30, "product": 4096,
}  # fmt: skip


@dataclass
class Inputs:
    tokens: torch.Tensor
    target: torch.Tensor
    draft: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor

    @cached_property
    def ones(self):
        return torch.ones_like(self.seed, dtype=torch.float32)

    @cached_property
    def out(self):
        return Verdict(
            self.seed.new_empty(len(self.seed), K + 1), *self.seed.new_empty(2, len(self.seed), dtype=torch.int32)
        )

    @cached_property
    def tree_out(self):
        tokens = self.seed.new_empty(len(self.seed), DEPTH + 1)
        return TreeVerdict(tokens, tokens.int(), *self.seed.new_empty(2, len(self.seed), dtype=torch.int32))

    @cached_property
    def parents(self):
        return torch.tensor(PARENTS, device=self.seed.device)

    @cached_property
    def token(self):
        return torch.empty_like(self.seed)

    @cached_property
    def served(self):
        """The arguments of a chain as engines have it; the index is the identity."""
        requests, device = len(self.seed), self.seed.device
        bounds = K * torch.arange(requests + 1, device=device, dtype=torch.int32)
        return {
            "draft_tokens": self.tokens.flatten(), "target": self.target.flatten(0, 1), "temperature": self.ones,
            "seed": self.seed, "position": self.position, "packing": Packing(cu_drafts=bounds, max_drafts=K),
            "request_index": torch.arange(requests, device=device, dtype=torch.int32), "out": self.out,
        }  # fmt: skip

    @cached_property
    def vllm_index(self):
        """vLLM's indices of requests: row ``start + i`` verifies ``draft_sampled[start + i + 1]``."""
        requests, device = len(self.seed), self.seed.device
        request = torch.arange(requests, device=device, dtype=torch.int32)
        step = torch.arange(K + 1, device=device)
        return {
            "draft_sampled": torch.nn.functional.pad(self.tokens, (1, 0)).flatten(),
            "cu_num_logits": torch.arange(requests + 1, device=device, dtype=torch.int32) * (K + 1),
            "pos": (self.position[:, None] + step).flatten(),
            "idx_mapping": request,
            "expanded_idx_mapping": request.repeat_interleave(K + 1),
            "expanded_local_pos": step.int().repeat(requests),
        }

    def bytes(self):
        return sum(x.numel() * x.element_size() for x in (self.target, self.draft))

    def on(self, device):
        return Inputs(*(x.to(device) for x in (self.tokens, self.target, self.draft, self.seed, self.position)))


def race_sample(inputs):
    return sd.race_sample(inputs.target[:, 0], seed=inputs.seed, position=inputs.position, out=inputs.token)


def chain(x, **how):
    return sd.verify_chain(x.tokens, x.target, seed=x.seed, position=x.position, out=x.out, **how)


def served(x, **how):
    return sd.verify_chain(**x.served, **how)


def tree(x, **how):
    noise = {"seed": x.seed, "position": x.position}
    return sd.verify_tree(x.tokens, x.target, parents=x.parents, **noise, out=x.tree_out, **how)


def by_both(op):
    """(race, rejection) by one of the functions above."""
    return lambda x: op(x, method="race"), lambda x: op(x, draft=x.draft)


CHAINS = dict(zip(("race_sample", "race", "rejection"), (race_sample, *by_both(chain)), strict=True))
SERVING = dict(zip(("serving race", "serving rejection"), by_both(served), strict=True))
TREES = dict(zip(("tree race", "tree rejection"), by_both(tree), strict=True))
OURS = CHAINS | SERVING | TREES


def make(op, requests, vocabulary, acceptance, number, device):
    """The ``number``-th input: rotated rows of the pool, whose drafts are accepted with probability ``acceptance``."""
    target_pool, draft_pool = pool(vocabulary, device)
    indices = [(number * requests + request) * (K + 1) + row for request in range(requests) for row in range(K + 1)]
    rotated = lambda rows: torch.stack([rows[i % ROWS].roll(7919 * i) for i in indices])  # noqa: E731
    target = rotated(target_pool).view(requests, K + 1, vocabulary)
    draft = rotated(target_pool if acceptance == 1 else draft_pool).view(requests, K + 1, vocabulary)
    draft = draft if op in TREES else draft[:, :K]
    seed = harness.SEED + torch.arange(requests, device=device)
    position = torch.full((requests,), 1000 * number, device=device)
    steps = position[:, None] + torch.arange(K, device=device)
    if op in TREES:
        return Inputs(children(target if op == "tree race" else draft, seed, position), target, draft, seed, position)
    races = op in ("race", "serving race")
    tokens = sd.race_sample(target[:, :K] if races else draft, seed=seed[:, None], position=steps)
    if races:
        uniforms = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(number))
        tokens = (tokens + (uniforms >= acceptance).to(device)) % vocabulary
    elif acceptance == 0:
        target[:, :K].scatter_(-1, tokens[..., None], -1e30)
    return Inputs(tokens, target, draft.contiguous(), seed, position)


def children(law, seed, position):
    """The draft tokens of the tree: the first two arrivals in the rows of its first two nodes."""
    arrivals = [sd.race_topk(law[:, node], 2, seed=seed, position=position + node) for node in (0, 1)]
    return torch.cat([torch.zeros_like(seed)[:, None], *arrivals], dim=1)


_pools = {}


def pool(vocabulary, device):
    if vocabulary not in _pools:
        target = harness.logits("realistic", (ROWS, vocabulary), harness.SEED)
        draft = harness.draft_near(target, 0.7, harness.SEED + 1)
        _pools[vocabulary] = [x.bfloat16().to(device) for x in (target, draft)]
    return _pools[vocabulary]


def inputs_of(op, requests, vocabulary, acceptance, cold, scale, device):
    first = make(op, requests, vocabulary, acceptance, 0, device)
    sets = scale["cold_bytes"] // first.bytes() + 2 if cold else 1
    return [first, *(make(op, requests, vocabulary, acceptance, n, device) for n in range(1, sets))]


def bytes_needed(op, inputs):
    """Mean bytes that a call has to read, by the verdicts of the CPU backend."""
    row = inputs[0].target.shape[-1] * 2
    if op == "race_sample":
        return len(inputs[0].seed) * row
    with sd.backend("cpu"):
        verdicts = [OURS[op](x.on("cpu")) for x in inputs[:8]]
    accepted = torch.cat([verdict.num_accepted for verdict in verdicts]).long()
    rows = accepted + 1
    if op in ("rejection", "serving rejection"):
        rows = rows + rows.clamp(max=K)
    elif op == "tree rejection":
        path = torch.cat([verdict.path for verdict in verdicts])
        rows = rows + torch.isin(path, torch.tensor(PARENTS[1:])).sum(-1)
    return int(rows.sum() / len(inputs[:8])) * row


def same(op, backend, inputs):
    """Whether a backend gives the CPU's results."""
    for x in inputs[:2]:
        with sd.backend("cpu"):
            expected = OURS[op](x.on("cpu"))
        with sd.backend(backend):
            result = OURS[op](x)
        pairs = zip(expected, result, strict=True) if op != "race_sample" else [(expected, result)]
        if not all(torch.equal(one, other.cpu()) for one, other in pairs):
            return False
    return True


def facts(op, contender, call, inputs):
    """Whether a call waits for the device, and what it allocates."""
    torch.cuda.reset_peak_memory_stats()
    before, held = torch.cuda.memory_stats(), torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(inputs[0])
        waits = False
    except RuntimeError:
        waits = True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    count = torch.cuda.memory_stats()["allocation.all.allocated"] - before["allocation.all.allocated"]
    size = torch.cuda.max_memory_allocated() - held
    case = {"op": op, "contender": contender, "B": len(inputs[0].seed), "V": inputs[0].target.shape[-1]}
    return {**case, "waits": waits, "allocations": count, "allocated_bytes": size}


def graph_of(calls):
    """A CUDA graph of calls; None if they cannot be captured."""
    for call in calls:  # so that the capture makes no argument that an input caches
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError:
        return None
    return graph


def replay_time(graph):
    """Seconds of a replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def replayed(call, inputs):
    """Seconds a call in each replay of a graph; None if the calls cannot be captured."""
    turns = [inputs[i % len(inputs)] for i in range(max(CALLS, len(inputs)))]
    graph = graph_of([partial(call, x) for x in turns])
    return graph and [replay_time(graph) / len(turns) for _ in range(REPLAYS + 3)][3:]


def product_of(size, device):
    """A call that multiplies two square matrices."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x = torch.randn(2, size, size, dtype=dtype, device=device)
    y = torch.empty_like(x[0])
    return lambda: torch.mm(x[0], x[1], out=y)


def replayed_behind(product, call, inputs):
    """Seconds that a call adds to a product before it. The two graphs take turns, so that clocks change for both."""
    turns = [inputs[i % len(inputs)] for i in range(CALLS)]
    alone, both = graph_of([product] * CALLS), graph_of([step for x in turns for step in (product, partial(call, x))])
    if both is None:
        return None
    return [(replay_time(both) - replay_time(alone)) / CALLS for _ in range(REPLAYS + 3)][3:]


def called(call, inputs):
    times = []
    for x in inputs:
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return times


def called_behind(product, call, inputs):
    """On a CPU calls do not overlap, so the product runs before the clock starts."""
    times = []
    for x in inputs:
        product()
        times += called(call, [x])
    return times


def timer(device, product=None):
    """What times a call on inputs, behind a product if there is one."""
    alone, behind = (called, called_behind) if device == "cpu" else (replayed, replayed_behind)
    return alone if product is None else partial(behind, product)


def read_roof(scale, device):
    """Bytes per second: the best of a large read and a large copy (which reads and writes)."""
    x = torch.zeros(scale["read_bytes"] // 4, device=device)
    y = torch.empty_like(x)
    best = lambda call: min(timer(device)(lambda _: call(), [None] * 3))  # noqa: E731
    size = x.numel() * 4
    return max(size / best(x.amax), 2 * size / best(lambda: y.copy_(x)))


BEHIND = "behind a product"


def measured(op, case, scale, device, backends):
    """A case's entry: seconds by contender, contenders that differ from the CPU backend, those skipped and why."""
    inputs = inputs_of(op, case["B"], case["V"], case["acceptance"], case["cold"], scale, device)
    timed = timer(device, product_of(scale["product"], device) if case["sweep"] == BEHIND else None)
    peers, skipped = available(op)
    entry = {
        "op": op, "case": case, "bytes": bytes_needed(op, inputs), "seconds": {}, "facts": [], "differs": [],
        "skipped": skipped,
    }  # fmt: skip

    def time_of(name, call):
        times = timed(call, inputs)
        if times is None:
            skipped[name] = "cannot be captured in a graph"
            return
        entry["seconds"][name] = times
        if device != "cpu":
            entry["facts"].append(facts(op, name, call, inputs))

    @contextlib.contextmanager
    def left_out(name):
        """Skips a contender that fails (another version's signature, a kernel that does not compile), and says why."""
        try:
            yield
        except Exception as error:
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]

    for name, backend in backends.items():
        with left_out(name):
            if same(op, backend, inputs):
                with sd.backend(backend):
                    time_of(name, OURS[op])
            else:
                entry["differs"].append(name)
    for name, call in peers.items():
        with left_out(name):
            time_of(name, call)
    return entry


def all_cases(scale, ops, team=None):
    """Pairs of an op and a case."""
    middle, most = scale["V"][len(scale["V"]) // 2], scale["B"][-1]

    def case(sweep, requests, vocabulary=middle, acceptance=0.7, cold=True):
        return {"sweep": sweep, "B": min(requests, most), "V": vocabulary, "acceptance": acceptance, "cold": cold}

    if team:
        by_teams = [case(f"team {team}", b) for b in TEAM_REQUESTS]
        return itertools.product(sorted(set(ops) & set(TEAM_OPS)), by_teams)
    cases = [case("B", b) for b in scale["B"]]
    cases += [case(sweep, b, vocabulary) for sweep, b in (("V", 8), ("V, many", 64)) for vocabulary in scale["V"]]
    cases += [case("acceptance", b, acceptance=a) for b in (1, 64) for a in (0, 1)]
    cases += [case("warm", b, cold=False) for b in (1, 8, 64)] + [case(BEHIND, b) for b in (1, 64)]
    pairs = [
        (op, x) for op, x in itertools.product(ops, cases)
        if op in CHAINS or (x["acceptance"] == 0.7 and (op in TREES or x["sweep"] in ("B", BEHIND)))
    ]  # fmt: skip
    # Cases with a prediction come first, for time on a device may run out.
    return sorted(pairs, key=lambda each: not is_predicted(*each))


def book_of(entries, roof):
    book = harness.Book()
    book.bytes_per_second = roof
    for entry in entries:
        op, case = entry["op"], entry["case"]
        for name, times in entry["seconds"].items():
            book.add(op, name, case, times, entry["bytes"])
        if case["sweep"] in ("B", "V"):
            book.add(op, "read roof", case, [entry["bytes"] / roof], entry["bytes"])
    book.close()
    return book


TEAM_OPS, TEAM_REQUESTS = ("race", "rejection"), (1, 8, 64, 256)
TEAM = r"local|(cluster|grid)[1-9][0-9]*"


def teams(book):
    """Rows of (op, B, times by kind and size of teams), in microseconds; "chosen" is the default team."""
    sweeps = sorted({r.case["sweep"] for r in book.records if r.case["sweep"].startswith("team ")})
    for op in TEAM_OPS:
        for requests in TEAM_REQUESTS if sweeps else ():
            times = {name: book.find(op, harness.OURS, B=requests, sweep=name) for name in sweeps}
            times["chosen"] = book.find(op, harness.OURS, B=requests, V=128_256, sweep="B")
            yield {"op": op, "B": requests, "us": {
                name.removeprefix("team "): round(seconds * 1e6, 2) for name, seconds in times.items() if seconds
            }}  # fmt: skip


# Microseconds of a cold call at V = 128,256 on an H100, by op and B: estimates of docs/cuda.md, section 8.
PREDICTED = {
    "race_sample": {1: 4.5, 8: 5, 64: 9.5},
    "race": {1: 5, 8: 7.5, 64: 24, 256: 66},
    "serving race": {1: 6, 8: 8.5, 64: 27, 256: 68},
    "rejection": {1: 10, 8: 16, 64: 51, 256: 140},
    "serving rejection": {1: 11, 8: 17, 64: 52, 256: 141},
}


def is_predicted(op, case):
    return case["sweep"] in ("B", BEHIND) and case["B"] in PREDICTED.get(op, ())


def predictions(book):
    """Rows of (op, B, microseconds predicted, measured, and measured behind a product)."""
    for op, times in PREDICTED.items():
        for requests, predicted in times.items():
            seconds, behind = (book.find(op, harness.OURS, B=requests, V=128_256, sweep=s) for s in ("B", BEHIND))
            if seconds:
                row = {"op": op, "B": requests, "predicted_us": predicted, "measured_us": round(seconds * 1e6, 2)}
                yield row | {"behind_us": behind and round(behind * 1e6, 2)}


def profile(device, scale):
    """Runs the calls for a profiler: chains of few requests and of many, by either method, behind a product."""
    product, calls = product_of(scale["product"], device), []
    for op in ("race", "rejection", *SERVING):
        for requests in (1, min(64, scale["B"][-1])):
            inputs = inputs_of(op, requests, scale["V"][2 % len(scale["V"])], 0.7, True, scale, device)
            OURS[op](inputs[0])
            calls += [partial(OURS[op], x) for x in inputs[1:3]]
    on_device = device != "cpu"
    if on_device:
        torch.cuda.profiler.start()
    for call in calls:
        product()
        call()
    if on_device:
        torch.cuda.profiler.stop()


def goals():
    def ratio(peer):
        return lambda book: book.ratio("rejection", peer, acceptance=0.7, B=1, sweep="B")

    def roof_share(op):
        def of(book):
            rows = [r for r in book.records if (r.op, r.contender, r.case["sweep"]) == (op, harness.OURS, "B")]
            return next((book.percent_of_roof(r) for r in rows if r.case["B"] == 64), None)

        return of

    def micros(op, sweep):
        return lambda book: (book.find(op, harness.OURS, B=1, sweep=sweep) or 0) * 1e6 or None

    return [
        *(
            harness.Goal(f"{op}, B = 64, cold: % of the read roof", bound, True, roof_share(op))
            for op, bound in (("race", 85), ("rejection", 70))
        ),
        *(
            harness.Goal(f"{op}, B = 1, {heat}: µs", 8, False, micros(op, sweep))
            for op in ("race", "rejection")
            for heat, sweep in (("cold", "B"), ("warm", "warm"))
        ),
        *(
            harness.Goal(f"rejection, B = 1: times faster than {text}", bound, True, ratio(peer))
            for text, bound, peer in (
                ("softmax + FlashInfer", 4, "softmax + flashinfer chain"), ("vLLM V2", 3, "vllm v2"),
            )
        ),
    ]  # fmt: skip


def driver():
    """The driver's version, or None."""
    try:
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return query.stdout.strip().splitlines()[0] if query.stdout.strip() else None


def environment(device):
    env = harness.environment()
    names = ("triton", "flashinfer-python", "vllm")
    env["versions"] |= {name: harness.package_version(name) for name in names}
    if device == "cpu":
        return env
    properties = torch.cuda.get_device_properties(0)
    return env | {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver(),
        "nvcc": sd.build_info()["cuda"],
    }


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def add_line(path, content):
    with path.open("a") as file:
        file.write(json.dumps(content) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the results go (default: bench/results/<device>)")
    parser.add_argument("--ops", type=lambda text: text.split(","), default=list(OURS), help="ops, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after so many seconds")
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU; writes only where --out says")
    parser.add_argument("--profile", action="store_true", help="only run the calls for a profiler")
    parser.add_argument("--team", metavar="KIND", help="local, clusterN or gridN: chains by teams of N blocks")
    chosen = parser.parse_args()
    if chosen.team and not re.fullmatch(TEAM, chosen.team):
        parser.error(f"argument --team: expected local, clusterN or gridN; got {chosen.team}")
    if unknown := set(chosen.ops) - set(OURS):
        parser.error(f"argument --ops: expected some of {', '.join(OURS)}; got {', '.join(sorted(unknown))}")
    if not chosen.dry_run and not torch.cuda.is_available():
        parser.exit(0, "skipped: no CUDA device\n")
    return chosen


def main():
    chosen, begun = arguments(), time.monotonic()
    device, scale = ("cpu", DRY) if chosen.dry_run else ("cuda", FULL)
    if chosen.profile:
        return profile(device, scale)
    contenders = {harness.OURS: "cpu"} if chosen.dry_run else {harness.OURS: "cuda", f"{harness.OURS} triton": "triton"}
    reasons = sd.build_info()["backends"]
    backends = {name: backend for name, backend in contenders.items() if reasons[backend] is None}
    env = environment(device)
    out = chosen.out or (None if chosen.dry_run else harness.folder(env))
    if out:
        out.mkdir(parents=True, exist_ok=True)
    path = out and out / "cases.jsonl"
    entries = lines_of(path)
    measured_cases = [(entry["op"], entry["case"]) for entry in entries]
    if chosen.team:
        os.environ["SPECDEC_CUDA_TEAM"] = chosen.team  # read at the first launch
    for op, case in all_cases(scale, chosen.ops, chosen.team):
        if time.monotonic() - begun > chosen.seconds:
            break
        if (op, case) in measured_cases:
            continue
        entries.append(measured(op, case, scale, device, backends))
        if path:
            add_line(path, entries[-1])
    skipped = {name: reasons[backend] for name, backend in contenders.items() if reasons[backend]}
    report(entries, read_roof(scale, device), env, skipped, len(list(all_cases(scale, OURS))), out)
    return any(entry["differs"] for entry in entries)


def report(entries, roof, env, skipped, cases_in_all, out):
    """Prints tables; writes gpu.json and plots if there is an ``out``."""
    from rich.console import Console

    book = book_of(entries, roof)
    goal_rows = [row for row in (goal.row(book) for goal in goals()) if row]
    harness.print_table(book, goal_rows, env, Console(width=170))
    for entry in entries:
        skipped |= entry["skipped"]
        for name in entry["differs"]:
            print(f"DIFFERS from the CPU backend: {name}, {entry['op']}, {entry['case']}")
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for row in (predicted := list(predictions(book))):
        text = "{op}, B = {B}: predicted {predicted_us} µs, measured {measured_us}, behind a product {behind_us}"
        print(text.format(**row))
    for row in (by_team := list(teams(book))):
        print("{op}, B = {B}, by team: {us}".format(**row))
    print(f"{len(entries)} of {cases_in_all} cases")
    if not out:
        return
    content = {
        "environment": env, "roof_bytes_per_second": roof, "goals": goal_rows, "predictions": predicted,
        "teams": by_team, "skipped": skipped,
        "differs": [[entry["op"], entry["case"], entry["differs"]] for entry in entries if entry["differs"]],
        "facts": [fact for entry in entries for fact in entry["facts"]],
        "records": [asdict(r) for r in book.records],
    }  # fmt: skip
    harness.write_json(out / "gpu.json", content)
    for op, (axis, label) in itertools.product({x["op"] for x in entries}, (("B", "batch"), ("V", "vocabulary"))):
        harness.plot(book, out / f"{op.replace(' ', '_')}_{label}.svg", op, axis, label, sweep=axis)


if __name__ == "__main__":
    sys.exit(main())
