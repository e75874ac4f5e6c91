"""Measure a pair of models: acceptance, tokens a call, tokens a second of every method, and whether race equals plain.

    python -m specdec_kernels.generate.report

Texts are written one at a time, by all methods in turn, `--repeats` times over; the fastest run of each counts. Seconds
are processor time of one thread: what an idle core takes, whatever else the machine does. Texts of a race that differ
from plain sampling (forwards of different shapes round differently) are counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

import numpy as np
import torch

from specdec_kernels.generate import ModelDrafter, NgramDrafter, check_vocabularies, generate, load_model

PROMPTS = [
    "ROMEO:\n", "JULIET:\nO, ", "KING HENRY:\nMy lords, ", "First Citizen:\n", "What is the ", "LADY ANNE:\n", "Enter ",
    "DUKE VINCENTIO:\nGood ",
]  # fmt: skip


def contenders(target, draft, k: int) -> dict[str, dict]:
    """Arguments of `generate` by the name of a row."""
    return {
        "plain": dict(drafter=None, method="plain"),
        "rejection": dict(drafter=ModelDrafter(draft), method="rejection", k=k),
        "race": dict(drafter=ModelDrafter(draft), method="race", k=k),
        "race, n-gram": dict(drafter=NgramDrafter(), method="race", k=k),
    }


def measure(target, draft, *, k: int, tokens: int, texts: int, repeats: int, temperature: float) -> list[dict]:
    """One record per contender; races that differ from plain sampling are counted, not hidden."""
    rows = contenders(target, draft, k)
    results = {name: [] for name in rows}
    seconds = {name: [] for name in rows}
    for index in range(-1, texts):
        prompt, text, fastest = PROMPTS[index % len(PROMPTS)], {}, dict.fromkeys(rows, math.inf)
        for _ in range(repeats):
            for name, options in rows.items():
                begun = time.process_time()
                (text[name],) = generate(
                    [prompt], target, seed=index, max_new_tokens=tokens, temperature=temperature, **options
                )
                fastest[name] = min(fastest[name], time.process_time() - begun)
        for name in rows:
            results[name].append(text[name])
            seconds[name].append(fastest[name])
    # The first text warmed up.
    return [record(name, results[name][1:], results["plain"][1:], seconds[name][1:]) for name in rows]


def record(name, generations, plain, seconds) -> dict:
    """Figures over texts; `seconds` are the fastest run of each."""
    written = sum(len(generation.tokens) for generation in generations)
    tested = sum(entry.tested for generation in generations for entry in generation.rounds)
    speeds = [len(generation.tokens) / each for generation, each in zip(generations, seconds, strict=True)]
    p20, median, p80 = np.quantile(speeds, [0.2, 0.5, 0.8]).tolist()
    unlike = sum(ours.tokens != theirs.tokens for ours, theirs in zip(generations, plain, strict=True))
    return {
        "method": name,
        "tokens": written,
        "acceptance": sum(generation.accepted for generation in generations) / tested if tested else None,
        "tokens_per_call": written / sum(generation.target_calls for generation in generations),
        "tokens_per_second": median,
        "p20": p20,
        "p80": p80,
        "texts_unlike_plain": None if name == "rejection" else unlike,
    }


def cell(value, form: str) -> str:
    return "–" if value is None else format(value, form)


def table(records) -> str:
    """The records as a Markdown table."""
    lines = [
        "| method | acceptance | tokens a call | tokens/s of one core (p20 to p80) | × plain | texts unlike plain |",
        "|---|---|---|---|---|---|",
    ]
    for entry in records:
        lines.append(
            f"| {entry['method']} | {cell(entry['acceptance'], '.3f')} | {entry['tokens_per_call']:.2f} "
            f"| {entry['tokens_per_second']:.0f} ({entry['p20']:.0f} to {entry['p80']:.0f}) "
            f"| {entry['tokens_per_second'] / records[0]['tokens_per_second']:.2f} "
            f"| {cell(entry['texts_unlike_plain'], 'd')} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m specdec_kernels.generate.report", description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="embedded:target")
    parser.add_argument("--draft", default="embedded:draft")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="tokens a text")
    parser.add_argument("--texts", type=int, default=3 * len(PROMPTS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each text")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        target, draft = (load_model(name, dtype=args.dtype) for name in (args.target, args.draft))
        check_vocabularies(target, draft)
        records = measure(
            target, draft, k=args.k, tokens=args.tokens, texts=args.texts, repeats=args.repeats,
            temperature=args.temperature,
        )  # fmt: skip
    except ValueError as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(records) if args.json else table(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
