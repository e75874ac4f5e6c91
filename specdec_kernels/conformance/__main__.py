"""Judges a verifier: python -m specdec_kernels.conformance package.module:function"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_kernels.conformance import CHECKS, EXACT, check, exact, per_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="package.module:function", help="verify(batch) -> tokens [B, K + 1]")
    parser.add_argument("--per-request", action="store_true", help="it is verify(drafts, target, draft) -> tokens")
    parser.add_argument("--logits", action="store_true", help="with --per-request: the target is logits")
    parser.add_argument("--count", action="store_true", help="count tokens instead of enumerating random choices")
    parser.add_argument(
        "--checks", default="chain", metavar="NAMES", help=f"all, or of {','.join(CHECKS)}; default: chain"
    )
    parser.add_argument("--redraws", action="store_true", help="an accepted token need not be the draft")
    parser.add_argument("--ways", type=int, default=100_000, help="enumeration: runs of each kind of requests")
    parser.add_argument("--seconds", type=float, default=300.0, help="enumeration: time of each kind of requests")
    parser.add_argument(
        "--smallest", type=float, default=0.005, help="counting: the fault that is caught 9 times of 10"
    )
    parser.add_argument("--trials", type=int, help="counting: requests of each kind")
    parser.add_argument("--json", metavar="FILE", help="the report as JSON; - for standard output")


def judge(options: argparse.Namespace) -> int:
    """Prints the report; 0 for a verifier that passed, 1 for one that failed, 2 where nothing can be said."""
    module, _, name = options.function.partition(":")
    if not name:
        print(f"function: expected package.module:function; got {options.function}", file=sys.stderr)
        return 2
    sys.path.insert(0, os.getcwd())
    verify: Any = importlib.import_module(module)
    for part in name.split("."):
        verify = getattr(verify, part)
    if options.per_request:
        verify = per_request(verify, logits=options.logits)
    every = CHECKS if options.count else EXACT
    checks = every if options.checks == "all" else options.checks.split(",")
    if options.count:
        report = check(verify, checks, redraws=options.redraws, smallest=options.smallest, trials=options.trials)
    else:
        report = exact(verify, checks, redraws=options.redraws, ways=options.ways, seconds=options.seconds)
    if options.json != "-":
        print(report)
    if options.json:
        rule = {"false_alarm": report.false_alarm, "threshold": report.threshold, "bound": report.bound}
        findings = [x._asdict() for x in report.findings]
        text = json.dumps(
            {"function": options.function, "passed": report.passed, **rule, "findings": findings}, indent=1
        )
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n")
    return 0 if report.passed else 1 if any(x.verdict == "failed" for x in report.findings) else 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specdec_kernels.conformance", description=__doc__)
    add_arguments(parser)
    return judge(parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
