"""`specdec-kernels compare`: every method on a pair of models, as a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch

from specdec_kernels.cli import options

OF_A_LINE = ("plain", "race", "rejection")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels compare`."""
    parser.add_argument("--target", default="embedded:target", help="model directory (default: the embedded target)")
    parser.add_argument("--draft", default="embedded:draft", help="model directory (default: the embedded draft)")
    parser.add_argument("--k", type=options.whole(0, 1023), default=4, help="draft tokens a round (default: 4)")
    parser.add_argument("--tokens", type=options.whole(1), default=256, help="tokens a text (default: 256)")
    parser.add_argument("--texts", type=options.whole(1), default=24, help="texts of each method (default: 24)")
    parser.add_argument("--repeats", type=options.whole(1), default=3,
                        help="runs of each text; the fastest counts (default: 3)")  # fmt: skip
    parser.add_argument("--temperature", type=options.finite, default=1.0, help="0 is greedy (default: 1)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--line", action="store_true", help=f"say {', '.join(OF_A_LINE)} alone, in one line")


def run(args: argparse.Namespace) -> int:
    """Measure and print a row per method; 0."""
    from specdec_kernels.generate import check_vocabularies, load_model
    from specdec_kernels.studies.compare import measure

    torch.set_num_threads(1)
    target, draft = (load_model(name, dtype=args.dtype) for name in (args.target, args.draft))
    check_vocabularies(target, draft)
    records = measure(
        target, draft, k=args.k, tokens=args.tokens, texts=args.texts, repeats=args.repeats,
        temperature=args.temperature, names=OF_A_LINE if args.line else (),
    )  # fmt: skip
    print(json.dumps(records) if args.json else line(records) if args.line else table(records))
    return 0


def cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def line(records: Sequence[dict[str, Any]]) -> str:
    """The records in one line."""
    said = []
    for entry in records:
        text = f"{entry['method']} {entry['tokens_per_second']:.0f} tokens/s of one core, "
        text += f"{entry['tokens'] / entry['tokens_per_call']:.0f} passes of the target"
        if entry["method"] == "race":
            same = entry["texts"] - entry["texts_unlike_plain"]
            text += f", {same} of {entry['texts']} texts the same as plain's"
        said.append(text)
    return f"{records[0]['tokens']} tokens: {'; '.join(said)}"


def table(records: Sequence[dict[str, Any]]) -> str:
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
