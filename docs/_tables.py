"""The tables of measured figures in these pages, made from their JSON: ``python docs/_tables.py`` writes them all.

In a page a table stands between ``<!-- table: name -->`` and ``<!-- end -->``; here it is the function of that name.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->)(?:(?!<!-- ).)*(<!-- end -->)", re.DOTALL)
EPYC, H100 = "bench/results/amd-epyc-2-cores", "bench/results/nvidia-h100-80gb-hbm3"

Table = list[Sequence[str]]
TABLES: dict[str, Callable[[], Table]] = {}


def table(function: Callable[[], Table]) -> Callable[[], Table]:
    """A table by its name in the pages."""
    TABLES[function.__name__.replace("_", "-")] = function
    return function


@functools.cache
def data(path: str) -> Any:
    """A committed JSON file."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def figure(name: str) -> Any:
    return data(f"docs/figures/{name}.json")


def written(page: str) -> str:
    """A page with all of its tables made anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n\n{markdown(TABLES[place[2]]())}\n\n{place[3]}", page)


def markdown(rows: Table) -> str:
    """The first row is the head."""
    lines = [re.sub("  +", " ", "| " + " | ".join(row) + " |") for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def number(value: float) -> str:
    """Two digits below ten, whole numbers from there on."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def spread(values: Sequence[Any], text: Callable[[Any], str] = number) -> str:
    """The least and the most, or one where they read alike."""
    least, most = text(min(values)), text(max(values))
    return least if least == most else f"{least} to {most}"


# Tokens a round, and what is accepted: docs/figures.


def points(name: str, panel: str) -> dict[str, dict[int, tuple[float, float]]]:
    """Simulated curves of a panel: by label and x the mean and its error."""
    (part,) = (part for part in figure(name)["panels"] if part["title"] == panel)
    drawn = [curve for curve in part["curves"] if curve["points"]]
    return {
        curve["label"]: {int(x): (y, error) for x, y, error in zip(curve["x"], curve["y"], curve["error"], strict=True)}
        for curve in drawn
    }


def with_error(mean: float, error: float) -> str:
    return f"{mean:.2f} ± {error:.2f}"


@table
def chains() -> Table:
    curves, lengths = points("methods", "chains"), (1, 2, 4, 8, 16)
    head = ["k", *map(str, lengths)]
    return [head, *([rule, *(with_error(*by_k[k]) for k in lengths)] for rule, by_k in curves.items())]


@table
def trees() -> Table:
    """Sizes of both shapes."""
    shapes, sizes = [points("methods", f"{shape} trees") for shape in ("optimal", "SpecInfer")], (8, 16, 32)
    rules = shapes[0]
    head = ["drafted tokens", "best, 8", "16", "32", "SpecInfer, 8", "16", "32"]
    return [head, *([rule, *(with_error(*shape[rule][k]) for shape in shapes for k in sizes)] for rule in rules)]


@table
def sampled() -> Table:
    rows = {
        "comparison: independent drafts": ("drawn with noise of its own", "Σ p q"),
        "comparison: greedy drafts": ("the draft's likeliest token", "p(argmax q)"),
        "race: shared noise": ("drawn with the target's noise: a race", "Σᵢ 1/Σⱼ max(pⱼ/pᵢ, qⱼ/qᵢ)"),
        "rejection": ("decided by rejection, for comparison", "Σ min(p, q)"),
    }
    (panel,) = figure("sampled")["panels"]
    lines = {
        curve["label"]: dict(zip(curve["x"], curve["y"], strict=True))
        for curve in panel["curves"]
        if not curve["points"]
    }
    head = ["the draft is", "it is accepted with probability", "embedded pair, temperature 0.5", "1", "1.5"]
    return [head, *([*said, *(f"{lines[name][at]:.2f}" for at in (0.5, 1.0, 1.5))] for name, said in rows.items())]


@table
def paths() -> Table:
    shapes = {(2, 4): "2 chains of 4", (4, 4): "4 of 4", (8, 4): "8 of 4", (2, 8): "2 of 8", (4, 8): "4 of 8"}
    (panel,) = (part for part in figure("paths")["panels"] if part["title"] == "temperature 1")

    def row(label: str) -> dict[tuple[int, int], tuple[float, float, float]]:
        """By chains and length: drafts that are read, tokens a round, half of the interval."""
        lines = [curve for curve in panel["curves"] if curve["points"] and curve["label"] == label]
        return {
            (2**at, length): (line["x"][at], line["y"][at], line["error"][at])
            for length, line in zip((4, 8), lines, strict=True)
            for at in range(len(line["x"]))
        }

    def rule(label: str) -> list[str]:
        return [with_error(*row(label)[shape][1:]) for shape in shapes]

    def over(kind: str) -> list[str]:
        less = figure("paths")["over_traversal"][kind]
        return [with_error(*less[f"{chains} chains of {length}"]) for chains, length in shapes]

    return [
        ["temperature 1, but where said", *shapes.values()],
        ["drafts that are read", *(f"{row('paths')[shape][0]:.1f}" for shape in shapes)],
        ["traversal, with replacement", *rule("traversal, with replacement")],
        ["greedy multi-path", *rule("greedy multi-path")],
        ["`paths`", *rule("paths")],
        ["`paths` less traversal, with replacement", *over("temperature 1")],
        ["`paths` less traversal, temperature 0.6", *over("temperature 0.6")],
        ["`paths` less traversal, top-p 0.9", *over("temperature 1, top-p 0.9")],
        ["traversal, without, of n · k drafts", *rule("traversal, without")],
    ]


@table
def optimum() -> Table:
    rows = {
        "optimum": "the optimum",
        "paths": "`paths`",
        "exact order of p/q": "its rule in the exact order of p/q",
        "rejection, traversal": "traversal or rejection, draft by draft",
        "greedy multi-path": "greedy multi-path: the best of all drafts",
    }
    (panel,) = (part for part in figure("optimum")["panels"] if part["title"] == "one place of the embedded pair")
    lines = {curve["label"]: dict(zip(curve["x"], curve["y"], strict=True)) for curve in panel["curves"]}
    return [
        ["n", "1", "2", "4", "8"],
        *([said, *(f"{lines[name][n]:.3f}" for n in (1, 2, 4, 8))] for name, said in rows.items()),
    ]


@table
def optimum_small() -> Table:
    laws = {
        "2 chains of 2, 6 tokens": "2 chains of 2, V = 6", "3 chains of 2, 4 tokens": "3 of 2, V = 4",
        "4 chains of 2, 3 tokens": "4 of 2, V = 3", "2 chains of 3, 3 tokens": "2 of 3, V = 3",
    }  # fmt: skip
    rows = {
        "block, one chain": "",
        "greedy multi-path": "",
        "traversal": "",
        "paths": "`paths`",
        "optimum": "the optimum",
    }
    means = figure("optimum")["small_laws"]
    return [
        ["", *laws.values()],
        *([said or rule, *(f"{means[law][rule]:.3f}" for law in laws)] for rule, said in rows.items()),
    ]


# Times on a CPU: bench/results.


def records(file: str, op: str, **case: Any) -> dict[str, list[dict[str, Any]]]:
    """The records of an op in such a case, by contender."""
    by_contender: dict[str, list[dict[str, Any]]] = {}
    for record in data(f"{EPYC}/{file}.json")["records"]:
        if record["op"] == op and all(record["case"].get(key) == value for key, value in case.items()):
            by_contender.setdefault(record["contender"], []).append(record)
    return by_contender


def times(parts: list[dict[str, Any]]) -> str:
    """Microseconds."""
    return spread([1e6 * record["median"] for record in parts], micro)


def micro(value: float) -> str:
    """Three digits at most, but whole from ten on."""
    return f"{value:.1f}" if value < 10 else f"{round(value, -1 if value >= 1000 else 0):,.0f}"


def ratios(parts: list[dict[str, Any]]) -> str:
    return spread([record["ratio"] for record in parts]) + " ×"


def peers(method: str, **case: Any) -> dict[str, list[dict[str, Any]]]:
    return records("cpu", "verify_chain", sweep="peers", method=method, **case)


def of_processor(file: str) -> list[tuple[list[dict[str, Any]], list[str]]]:
    """The rows of the table below by a processor's instructions: our records, and how many times as long peers take."""

    def row(by_contender: dict[str, list[dict[str, Any]]], *peers: str) -> tuple[list[dict[str, Any]], list[str]]:
        return by_contender["specdec"], [ratios(by_contender[peer]) for peer in peers]

    def chain(method: str) -> dict[str, list[dict[str, Any]]]:
        return records(file, "verify_chain", sweep="peers", method=method, acceptance=0.7)

    walked = [records(file, "verify_tree", method=method) for method in ("rejection", "traversal", "race")]
    hosts = records(file, "host_cost")["specdec"]
    small = ("race_sample", "verify_chain(race)", "verify_chain(rejection)")
    return [
        row(records(file, "race_sample", sweep="peers", threads=1), "torch.argmax", "softmax+multinomial"),
        row(records(file, "race_topk", k=4), "torch.topk"),
        *(row(chain(method), "transformers") for method in ("rejection", "block", "race")),
        *(row({name.split(",")[0]: parts for name, parts in walk.items()}, "torch.argmax") for walk in walked),
        *(row(records(file, "overlap", gradients=asked), "torch") for asked in (None, True)),
        *(row(records(file, op), "torch") for op in ("residual", "tree_mask", "compact_kv")),
        ([part for part in hosts if part["case"]["call"] in small], []),
    ]


@table
def cpu() -> Table:
    said = {
        "`race_sample`, a row": "`torch.argmax` {} as long; `softmax` + `multinomial` {}",
        "`race_topk`, a row, k = 4": "`torch.topk` {}",
        "`verify_chain`, `rejection`": "transformers' speculative sampling {}",
        "`verify_chain`, `block`": "the same {}",
        "`verify_chain`, `race`": "the same {}",
        "`verify_tree`, `rejection`": "`torch.argmax` of all its rows {}",
        "`verify_tree`, `traversal`": "the same {}",
        "`verify_tree`, `race`": "the same {}",
        "`overlap`, a pair of rows": "the same in torch {}",
        "`overlap` and its gradient": "autograd of the same {}",
        "`residual`, a pair of rows": "the same in torch {}",
        "`tree_mask`, 16 requests, 64 nodes, prefix 1,024": "the same in torch {}",
        "`compact_kv`, 4 requests, 32 tensors, path of 5": "the same in torch {}",
        "a call with next to nothing to do (below)": "",
    }
    wide, avx2 = of_processor("cpu"), of_processor("cpu-avx2")
    rows = [
        [name, times(ours), told.format(*by), times(ours_avx2), "; ".join(by_avx2)]
        for (name, told), (ours, by), (ours_avx2, by_avx2) in zip(said.items(), wide, avx2, strict=True)
    ]
    return [["", "AVX-512, µs", "peers, on the same rows", "AVX2, µs", "peers"], *rows]


@table
def avx2_goals() -> Table:
    goals = data(f"{EPYC}/cpu-avx2.json")["goals"]
    return [
        ["with AVX2", "goal", "measured"],
        *([goal["goal"], number(goal["bound"]), number(goal["measured"])] for goal in goals),
    ]


@table
def filter_goals() -> Table:
    said = {
        "top_k 50, with top_p or without: share of unfiltered, normal and Zipf rows":
            "`top_k` 50, with `top_p` or without, normal and Zipf rows",
        "top_k 50, with top_p or without, min_p: share of unfiltered, any row": "the same and `min_p`, any row",
    }  # fmt: skip
    goals = {goal["goal"]: goal for goal in data(f"{EPYC}/cpu.json")["goals"]}
    rows = [[text, f"{goals[name]['bound']}", f"{goals[name]['measured']:.2f} at most"] for name, text in said.items()]
    return [["goal", "share", "measured"], *rows]


@table
def time_of_a_call() -> Table:
    shares = (0, 0.7, 1)
    rows = [
        [f"`{rule}`", *(times(peers(rule, acceptance=share)["specdec"]) for share in shares)]
        for rule in ("rejection", "block", "race")
    ]
    theirs = [
        times(
            [part for rule in ("rejection", "block", "race") for part in peers(rule, acceptance=share)["transformers"]]
        )
        for share in shares
    ]
    return [["acceptance of a draft", *map(str, shares)], *rows, ["transformers' speculative sampling", *theirs]]


@table
def paths_cost() -> Table:
    calls = records("cpu", "paths")
    over = {part["case"]["kind"]: 1 / part["ratio"] for part in calls["traversal"]}
    return [
        ["verification of four chains of five, V = 128,256, one thread", "×"],
        ["`paths` over `traversal` of that tree",
         f"{over['normal']:.1f} (normal), {over['realistic']:.1f} (peaked logits)"],
        ["transformers' speculative sampling of each chain, over `paths`",
         spread([part["ratio"] for part in calls["transformers, each chain"]])],
    ]  # fmt: skip


@table
def batches() -> Table:
    """The share is what a call reads a second, of what a plain sum does."""
    parts = data(f"{EPYC}/batches.json")["records"]
    (roof,) = (part["bytes"] / part["median"] for part in parts if part["contender"] == "torch.sum")
    rows: dict[str, list[str]] = {}
    for part in parts:
        if part["contender"] == "specdec" and part["case"]["dtype"] != "float16":
            share = part["bytes"] / part["median"] / roof
            rows.setdefault(part["case"]["call"], []).extend([f"{1e3 * part['median']:.2f}", f"{100 * share:.0f}"])
    return [
        ["", "float32, ms", "%", "bfloat16, ms", "%"],
        *([call, *row] for call, row in rows.items()),
    ]


@table
def busy() -> Table:
    columns: dict[str, dict[int, str]] = {}
    for part in data(f"{EPYC}/busy.json")["records"]:
        name = f"{part['call']}, {part['threads']} thread{'s' if part['threads'] > 1 else ''}"
        columns.setdefault(name, {})[part["rivals"]] = f"{part['mean']:,.0f}"
    rivals = sorted({count for column in columns.values() for count in column})
    return [
        ["rivals a core", *columns],
        *([str(count), *(column[count] for column in columns.values())] for count in rivals),
    ]


@table
def adapters() -> Table:
    ours, bare = (records("cpu", "adapter")[contender] for contender in ("specdec", "bare op"))
    calls = [[f"`{part['case']['call']}`", times([part]), times([op])] for part, op in zip(ours, bare, strict=True)]
    return [["call", "adapter", "bare op"], *calls]


@table
def field() -> Table:
    packages = data("bench/results/field.json")
    dates = [result["date"] for result in packages.values()]
    rows: Table = [["package", "what was run", "total variation", "what was seen, " + spread(dates, str)]]
    for package, result in packages.items():
        name, why = f"{package} {result['version']}", ""
        for case in result["cases"]:
            distance, ways = case["distance"], re.search(r"by (\d+) ways", case["said"])
            if case["verdict"] == "inconclusive":
                shown, seen = "not known", case["said"] + "."
            elif distance is None:
                caught = f"one of {case['catches']:.1%} would have been seen 9 times of 10"
                shown = "none counted" if case["verdict"] == "passed" else "counted"
                seen = f"p = {case['p_value']:.2g}; {caught}."
            else:
                shown = "exact" if case["verdict"] == "passed" else f"{distance:.2g}"
                seen = f"{ways[1] if ways else '0'} ways"
            if case["verdict"] == "failed":
                text = re.search(r"(\([\d, ]+\)|\(\(.*?\)\)) ([\d.e-]+) for ([\d.e-]+)", case["said"])
                reason = "For the same reason." if case["why"] and case["why"] == why else case["why"]
                why = case["why"]
                differs = f"{text[1]} has {text[2]} for {text[3]}. {reason}".strip() if text else case["said"]
                seen = differs if distance is not None else f"p = {case['p_value']:.2g}. {differs}"
            rows.append([name, case["what"], shown, seen])
            name = ""
    return rows


# Bytes that a shard sends.


@table
def shard_bytes() -> Table:
    parts = [part for part in data(f"{EPYC}/sharded.json") if part["B"] == 1]
    return [
        ["ranks", "method", "bytes a request", "gathered", "times fewer"],
        *([str(part["ranks"]), part["method"], *(f"{part[key]:,.0f}" for key in ("bytes", "gathered bytes", "fewer"))]
          for part in parts),
    ]  # fmt: skip


# A step in whole engines, as `make bench-engines` measured it.

WHOLE_KINDS = ("temperature 1", "top-k 50, top-p 0.9", "greedy", "bias of 300", "penalties")
VOCABULARY, SMALL = 151_936, 128


def cells(engine: str, **wanted: Any) -> list[dict[str, Any]]:
    """The cells of an engine that have these settings."""
    every = data("bench/results/whole_engines.json")[engine]["cells"]
    return [cell for cell in every if all(cell[name] == value for name, value in wanted.items())]


def step(cell: dict[str, Any]) -> str:
    """Milliseconds of a step, or that the engine stops there."""
    return number(sum(cell["ms"].values())) if "ms" in cell else "stops"


def steps(engine: str) -> Table:
    """A row for each way to verify, a column for each kind of request; times by the number of requests."""
    timed = [cell for cell in cells(engine, vocabulary=VOCABULARY) if "peak_mb" not in cell]
    batches = [str(size) for size in sorted({cell["requests"] for cell in timed})]
    kinds = [kind for kind in WHOLE_KINDS if any(cell["kind"] == kind for cell in timed)]
    requests = "one request" if batches == ["1"] else f"{' · '.join(batches)} requests"
    rows: Table = [[f"a step, ms, of {requests}", "verification", *kinds]]
    for drafts, verification in dict.fromkeys((cell["drafts"], cell["verification"]) for cell in timed):
        of_row = [cell for cell in timed if (cell["drafts"], cell["verification"]) == (drafts, verification)]
        columns = [[step(cell) for cell in of_row if cell["kind"] == kind] for kind in kinds]
        rows.append(
            [drafts, verification, *("stops" if {*each} == {"stops"} else " · ".join(each) for each in columns)]
        )
    return rows


@table
def vllm_steps() -> Table:
    return steps("vllm")


@table
def sglang_steps() -> Table:
    return steps("sglang")


@table
def transformers_steps() -> Table:
    return steps("transformers")


@table
def llamacpp_steps() -> Table:
    return steps("llamacpp")


@table
def mlx_lm_steps() -> Table:
    return steps("mlx_lm")


SAMPLED = ("ops", "adapter", "sampling")  # parts of a step that sample, verify and draw


def columns_of_parts(engine: str, name: str) -> Table:
    """The parts of a step of 32 requests, and what does not depend on the machine."""
    parts = {
        "forwards": "forwards", "ops": "our ops", "adapter": "our Python", "sampling": f"{name}'s sampling",
        "drafting": "its proposer", "engine": "the rest",
    }  # fmt: skip
    timed = [cell for cell in cells(engine, kind="temperature 1", requests=32, vocabulary=VOCABULARY) if "ms" in cell]
    peaks = [cell for cell in cells(engine, kind="temperature 1", vocabulary=VOCABULARY) if "peak_mb" in cell]
    rows: Table = [["temperature 1", "verification", *(f"{part}, ms" for part in parts.values()),
                    *(["memory, MB"] if peaks else []), "host at V = 128, µs", *COUNTS]]  # fmt: skip
    for cell in timed:
        of_row = [cell["drafts"], cell["verification"]]
        memory = [str(each["peak_mb"]) for each in peaks if [each["drafts"], each["verification"]] == of_row]
        small = counted_cell(engine, *of_row)
        host = number(1e3 * sum(small["ms"].get(part, 0) for part in SAMPLED))
        times = [number(cell["ms"][part]) if part in cell["ms"] else "" for part in parts]
        rows.append([*of_row, *times, *memory, host, *counts(small)])
    return rows


COUNTS = ("launches", "copies", "waits")


def counted_cell(engine: str, drafts: str, verification: str) -> dict[str, Any]:
    """The cell of 8 requests, at temperature 1, whose launches were counted."""
    (cell,) = cells(
        engine, kind="temperature 1", requests=8, vocabulary=SMALL, drafts=drafts, verification=verification
    )
    return cell


def counts(cell: dict[str, Any]) -> list[str]:
    """Launches, copies and waits of what samples, verifies and draws."""
    return [f"{sum(cell[name].get(part, 0) for part in SAMPLED):.0f}" for name in COUNTS]


@table
def vllm_parts() -> Table:
    return columns_of_parts("vllm", "vLLM")


@table
def vllm_v2() -> Table:
    """Launches, copies and waits of a step of 8 requests by the V2 runner, and the host's time without kernels."""
    head = ["drafts", "verification", *COUNTS, "launches with top-k, top-p", "launches with penalties", "host, µs"]
    rows: Table = [head]
    for drafts, verification in dict.fromkeys((cell["drafts"], cell["verification"]) for cell in cells("vllm_v2")):
        plain, *more = (
            cells("vllm_v2", drafts=drafts, verification=verification, kind=kind)
            for kind in ("temperature 1", "top-k 50, top-p 0.9", "penalties")
        )
        host = number(1e3 * sum(plain[0]["ms"].get(part, 0) for part in SAMPLED))
        launches = [counts(cell[0])[0] if cell and "ms" in cell[0] else "" for cell in more]
        rows.append([drafts, verification, *counts(plain[0]), *launches, host])
    return rows


@table
def sglang_parts() -> Table:
    return columns_of_parts("sglang", "SGLang")


# Beside the engines themselves: what `make test-engines` printed.

ENGINES = {
    "transformers-rates": "transformers: 3 texts",
    "recurrent-passes": "transformers: a tiny Qwen3-Next",
    "mlx-lm-rates": "mlx-lm: 4 texts",
    "llamacpp-rates": "llama.cpp: 4 texts",
    "llamacpp-draws": "llama.cpp: a draw",
    "sglang-functions": "SGLang: its Triton code",
    "sglang-texts": "SGLang, whole: texts",
    "sglang-laws": "SGLang, whole: laws",
    "sglang-rates": "SGLang, whole: 4 texts",
    "sglang-rank-texts": "SGLang, two ranks: texts",
    "sglang-rank-laws": "SGLang, two ranks: laws",
    "sglang-rank-bytes": "SGLang, two ranks: 128,256",
    "transformers-parameters": "transformers: sampling parameters",
    "sglang-parameters": "SGLang, whole: sampling parameters",
    "llamacpp-parameters": "llama.cpp's server: sampling",
    "mlx-lm-parameters": "mlx-lm's server: sampling",
    "vllm-parameters": "vLLM .*: sampling parameters",
    "vllm-functions": "vLLM: its Triton code",
    "vllm-texts": "vLLM .*: texts",
    "vllm-laws": "vLLM .*: laws",
    "vllm-ranks": "vLLM .*: two ranks",
}


def engine(title: str) -> Table:
    """The tables whose titles begin so; of vLLM's two runners, one below the other."""
    rows = []
    for name, found in data("bench/results/engines.json").items():
        if re.match(title, name):
            runner = re.search(r"V\d(?= runner)", name)
            rows += [{**({"runner": runner[0]} if runner else {}), **row} for row in found]
    return [[*rows[0]], *([*row.values()] for row in rows)]


def each(listed: Sequence[str]) -> str:
    """Several runs of which each has what their row says; what ends all of their names is said once."""
    if len(listed) == 1:
        return listed[0]
    ends = [listed[0][mark.start() :] for mark in re.finditer(", |: ", listed[0])]
    end = next((end for end in ends if all(text.endswith(end) for text in listed)), "")
    return f"each of{end and f' ({end[2:]})'}: " + "; ".join(text.removesuffix(end) for text in listed)


# The column whose values share a row where all else is the same, by the last part of a table's name.
SHARED: dict[str, tuple[str, Callable[[Sequence[str]], str]]] = {
    "parameters": ("parameter", ", ".join), "texts": ("texts", each), "functions": ("what", each),
    "ranks": ("what", each), "laws": ("verification", each),
}  # fmt: skip
# Columns that a page leaves out: they have one value, follow from another column, or are parts of a law in the last.
OMITTED = {"laws": ("second and third",), "ranks": ("runner", "texts"), "draws": ("ours, C++, ×",)}


def joined(rows: Table, column: int, text: Callable[[Sequence[str]], str] = ", ".join) -> Table:
    """Rows that differ in one column alone become one row, which lists that column's values."""
    values: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        values.setdefault((*row[:column], *row[column + 1 :]), []).append(row[column])
    return [[*rest[:column], text(listed), *rest[column:]] for rest, listed in values.items()]


def engine_table(name: str) -> Table:
    """An engine's table as a page has it: rows that say the same are one; an error that a row repeats is named once."""
    kind = name.rpartition("-")[2]
    head, *rows = without(engine(ENGINES[name]), OMITTED.get(kind, ()))
    if head[0] == "runner":
        rows = joined(rows, 0)
    column, text = SHARED.get(kind, ("", each))
    if column in head:
        rows = joined(rows, head.index(column), text)
    if kind == "parameters":
        rows = [[*row[:-2], *repeats(*row[-3:])] for row in rows]
    return [head, *rows]


def without(rows: Table, columns: Sequence[str]) -> Table:
    """All columns but these."""
    stays = [name not in columns for name in rows[0]]
    return [[*itertools.compress(row, stays)] for row in rows]


def repeats(plain: str, theirs: str, ours: str) -> tuple[str, str]:
    """The answers with drafts; in short where one repeats an error."""
    of_ours = "the same" if ours == theirs != "taken" else "as without drafts" if ours == plain != "taken" else ours
    return "the same" if theirs == plain != "taken" else theirs, of_ours


TABLES |= {name: functools.partial(engine_table, name) for name in ENGINES}


@table
def vllm_rates() -> Table:
    """Of both runners, side by side."""
    rows: dict[tuple[str, str], list[str]] = {}
    for _, drafts, verification, *rates in sorted(engine("vLLM .*: four texts")[1:], key=lambda row: row[0]):
        rows.setdefault((drafts, verification), []).extend(rates)
    head = ["drafts", "verification", "V1: accepted of 4", "tokens/s", "V2: accepted of 4", "tokens/s"]
    return [head, *([*drafted, *rates] for drafted, rates in rows.items())]


@table
def llamacpp_recurrent() -> Table:
    """Passes of the target a text, by two models."""
    passes: dict[tuple[str, str], list[str]] = {}
    for model in ("lfm2", "mamba"):
        for row in data("bench/results/engines.json")[f"llama.cpp: {model}, three texts of 120 tokens, K = 4"]:
            key = row["pending at most"], row["method"]
            passes.setdefault(key, []).append(row["passes of the target a text"])
    bounds, methods = (dict.fromkeys(key[part] for key in passes) for part in (0, 1))
    return [
        ["pending at most", *methods],
        *([bound, *("; ".join(passes[bound, method]) for method in methods)] for bound in bounds),
    ]


@table
def vllm_refused() -> Table:
    """The sampling parameters that some column of a runner of vLLM refuses; both runners, where none is named."""
    head, *rows = engine(ENGINES["vllm-parameters"])
    refused: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for runner, name, *answers in rows:
        said = tuple("taken" if answer == "taken" else "refused" for answer in answers)
        if "refused" in said:
            refused.setdefault((name, said), []).append(runner)
    by_answers: dict[tuple[str, ...], list[str]] = {}
    for (name, said), runners in refused.items():
        by_answers.setdefault(said, []).append(name if len(runners) > 1 else f"{name} ({runners[0]})")
    return [["parameter", *head[2:]], *([", ".join(names), *said] for said, names in by_answers.items())]


# Families of transformers beside the generator: what `make test-models` wrote.


def ours(name: str, entry: dict[str, str]) -> str:
    """What the generator makes of a family; of one that it refuses, what that lacks."""
    if entry["ours"] == "right":
        return f"right, {entry['reading']}"
    why = re.sub(rf"^\w+: +({name}: )?(expected .*; got \w+, )?", "", entry["why"]).split(". ")[0]
    return f"{entry['ours']}: " + why.replace("which ", "it ", 1).replace("whose ", "its ", 1)


@table
def families() -> Table:
    columns = "crop", "tree masks"
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, entry in data("bench/results/families.json")["families"].items():
        shown = *(entry.get(column, "") for column in columns), ours(name, entry)
        groups.setdefault(shown, []).append(name)
    rows = sorted(groups.items(), key=lambda group: (not group[0][-1].startswith("right"), -len(group[1])))
    return [
        ["families", *columns, "ours", "which"],
        *([str(len(names)), *shown, ", ".join(names)] for shown, names in rows),
    ]


# Times on an H100: gpu.json.


def gpu(op: str, contender: str, sweep: str, batch: int) -> str:
    """Microseconds."""
    (record,) = (
        record
        for record in data(f"{H100}/gpu.json")["records"]
        if (record["op"], record["contender"]) == (op, contender)
        and (record["case"]["sweep"], record["case"]["B"], record["case"]["V"]) == (sweep, batch, 128256)
    )
    value = 1e6 * record["median"]
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


@table
def h100() -> Table:
    sizes = (1, 8, 64, 256)
    predicted = {
        (part["op"], part["B"]): f"{part['predicted_us']:g}" for part in data(f"{H100}/gpu.json")["predictions"]
    }
    peer = {"race_sample": ("vllm gumbel", "vLLM's Gumbel kernel"),
            "race": ("vllm gumbel", "vLLM's Gumbel kernel on all rows"),
            "rejection": ("vllm v2", "vLLM's second runner, four kernels")}  # fmt: skip
    rows: Table = [["", *(f"B = {size}" if size == 1 else str(size) for size in sizes)]]
    for op, (contender, said) in peer.items():
        rows += [
            [f"`{op}`: predicted" if op == "race_sample" else f"`verify_chain({op})`: predicted",
             *(predicted.get((op, size), "") for size in sizes)],
            ["ours", *(f"**{gpu(op, 'specdec', 'B', size)}**" for size in sizes)],
            ["ours, Triton", *(gpu(op, "specdec triton", "B", size) for size in sizes)],
            [said, *(gpu(op, contender, "B", size) for size in sizes)],
            ["a plain read of these rows", *(gpu(op, "read roof", "B", size) for size in sizes)],
        ]  # fmt: skip
    return rows


@table
def h100_behind() -> Table:
    rows = {"race_sample": ("`race_sample`", "vllm gumbel"), "race": ("`race`", "vllm gumbel"),
            "serving race": ("`race`, in the serving form", "vllm gumbel"), "rejection": ("`rejection`", "vllm v2"),
            "serving rejection": ("`rejection`, in the serving form", "vllm v2")}  # fmt: skip
    return [["", "ours", "ours, Triton", "vLLM"], *(
        [said, *("; ".join(gpu(op, contender, "behind a product", size) for size in (1, 64))
                 for contender in ("specdec", "specdec triton", peer))]
        for op, (said, peer) in rows.items())]  # fmt: skip


# The 16-byte loads that a lane has in flight, by kernels; `…` stands for any that go on so.
NEXT, MASSES = "8, of the next chunk", "8; for masses 8 of 8 bytes for 16-bit rows"
LOADS = {
    "race_sample": NEXT, "tree residual overlap logprobs": MASSES,
    "chain_… sample_few_rows": "8; of 8 bytes for 16-bit rows, less in a draw",
    "filtered_sample filtered_chain": "3, then of a few cells",
    "race_topk verify_linked_tree residual_race": "8", "cutoff shaped_…": "8; of 8 bytes for 16-bit rows",
    "residual_sums mass_tiles count_at_least": "8; of 8 bytes for 16-bit rows",
    "mask_logits store_rows": "four at once", "compact_kv": "8, of a cache", "…": "none",
}  # fmt: skip


@table
def registers() -> Table:
    """Of sm_90a's kernels."""
    compiled = [row for row in data("bench/results/compiled/cuda.json") if row["arch"] == "sm_90a"]
    left, rows = {row["kernel"]: row["registers"] for row in compiled}, []
    for names, loads in LOADS.items():
        kernels = [f"{name}_kernel" for name in names.split()] if names != "…" else [*left]
        found = [left.pop(x) for name in kernels for x in [*left] if fullmatch(name, x)]
        said = ", ".join(map(str, found)) if "…" not in names else f"{min(found)} to {max(found)}"
        if found:
            rows.append(["all others" if names == "…" else ", ".join(f"`{name}`" for name in kernels), said, loads])
    return [("kernel", "registers", "16-byte loads in flight a lane"), *rows]


@table
def traced_calls() -> Table:
    """What one request takes, and the path of eight, by the tracer."""
    traced = {(row["call"], row["B"]): row for row in data("bench/results/compiled/traces.json")}
    head = ["call", "path, instructions", "of eight", "lines that run", "registers", "waits",
            "model, cold; behind a product, µs"]  # fmt: skip
    rows: Table = [head]
    for (call, requests), row in traced.items():
        if requests == 1:
            of_eight = f"{traced[call, 8]['path']:,}" if (call, 8) in traced else ""
            counted = (f"{row[key]:,}" for key in ("lines", "registers", "waits"))
            name = call.replace("top-k 50 and top-p 0.9", "filtered")
            rows.append([name, f"{row['path']:,}", of_eight, *counted, modelled(row)])
    return rows


def modelled(row: dict[str, Any]) -> str:
    """The model's times of a call that it covers: one request, not by `paths`."""
    return "–" if "paths" in row["call"] else f"{row['cold_us']}; {row['behind_product_us']}"


@table
def triton_registers() -> Table:
    """Kernels of sm_90 that spill 100 bytes or more by one of two Tritons."""
    by_version: list[dict[str, Any]] = []
    for file in ("triton", "triton_newest"):
        rows = data(f"bench/results/compiled/{file}.json")
        rows = [row for row in rows if (row["arch"], row["dtype"], row["space"]) == ("sm_90", "bfloat16", "logits")]
        by_version.append({row["kernel"]: row for row in rows})
    old, new = by_version
    head = ["kernel", *(next(iter(rows.values()))["compiler"].replace("t", "T", 1) for rows in by_version)]
    said = [[f"`{name}`", *(f"{rows[name]['registers']}, {rows[name]['spill_bytes']:,}" for rows in by_version)]
            for name in old
            if name in new and max(rows[name]["spill_bytes"] for rows in by_version) >= 100]  # fmt: skip
    return [head, *said]


@table
def logarithms() -> Table:
    worst = data("bench/results/noise.json")
    return [
        ("function", "arguments", "largest error, in units of the last place"),
        ("`log`", "every float32 in [½, 2), every 97th other normal one", f"{worst['log']:.2f}"),
        ("`−log1p(−u)`", "every float32 in [2⁻⁷, 1), every 13th in [2⁻⁵⁸, 2⁻⁷)", f"{worst['neg_log1p_neg']:.2f}"),
    ]


@table
def draft_filters() -> Table:
    rules = ("race", "rejection", "block")
    head = ["filter", *(text for rule in rules for text in (f"{rule}, without", "with"))]
    names = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    return [head] + [
        [" ".join(f"{names[name]} {value}" for name, value in row["filter"].items())]
        + [f"{tokens:.2f}" for rule in rules for tokens in row[rule]]
        for row in data("bench/results/draft_filters.json")
    ]


@table
def masses() -> Table:
    worst = data("bench/results/noise.json")
    single, of_rows = worst["exponential"], worst["mass"]
    return [
        ("what", "relative error, at most", "seen"),
        ("q·2⁻³¹⁻ⁿ against exp: w and W before they are cut to whole units", "4·10⁻⁷ + 1.4·10⁻⁸·\\|d\\|",
         f"{scientific(single['error'])} at d = {minus(single['d'])}"),
        ("Z: a token loses less than 2⁻³⁰ of its tile's maximum", "1.3·10⁻⁶",
         f"{scientific(of_rows['peaks'])} with one peak a tile, {scientific(of_rows['normal'])} on normal rows"),
        ("Σ W", "4·10⁻⁷", scientific(worst["sum"])),
    ]  # fmt: skip


def scientific(value: float) -> str:
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def minus(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def fullmatch(name: str, kernel: str) -> bool:
    return re.fullmatch(name.replace("…", r"\w*"), kernel) is not None


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if written(text) != text:
            page.write_text(written(text), encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
