"""Judges a verifier: python -m specdec_kernels.conformance package.module:function"""

from __future__ import annotations

import argparse
import importlib
import json
import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_kernels.conformance import CHECKS, EXACT, check, exact, per_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, of = parser.add_argument, f"all, or of {','.join(CHECKS)}; default: chain"
    add("function", metavar="package.module:function", help="verify(batch) -> tokens [B, K + 1]")
    add("--per-request", action="store_true", help="it is verify(drafts, target, draft) -> tokens")
    add("--logits", action="store_true", help="with --per-request: the target is logits")
    add("--count", action="store_true", help="count tokens instead of enumerating random choices")
    add("--checks", default="chain", metavar="NAMES", help=of)
    add("--redraws", action="store_true", help="an accepted token need not be the draft")
    add("--ways", type=int, default=100_000, help="enumeration: runs of each kind of requests")
    add("--seconds", type=float, default=300.0, help="enumeration: time of each kind of requests")
    add("--smallest", type=float, default=0.005, help="counting: the fault that is caught 9 times of 10")
    add("--trials", type=int, help="counting: requests of each kind")
    add("--json", metavar="FILE", help="the report as JSON; - for standard output")


def judge(options: argparse.Namespace) -> int:
    """Prints the report; 0 for a verifier that passed, 1 for one that failed, 2 where nothing can be said."""
    module, _, name = options.function.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        verify: Any = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"function: expected package.module:function; got {options.function}: {error}") from error
    verify = per_request(verify, logits=options.logits) if options.per_request else verify
    names = ("redraws", *(("smallest", "trials") if options.count else ("ways", "seconds")))
    every, run = (CHECKS, check) if options.count else (EXACT, exact)
    checks = every if options.checks == "all" else options.checks.split(",")
    report = run(verify, checks, **{x: getattr(options, x) for x in names})
    said = {"function": options.function, "passed": report.passed, **report._asdict()}
    text = json.dumps(said | {"findings": [x._asdict() for x in report.findings]}, indent=1)
    print(text if options.json == "-" else report)
    if options.json and options.json != "-":
        Path(options.json).write_text(text + "\n")
    return 0 if report.passed else 1 if any(x.verdict == "failed" for x in report.findings) else 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specdec_kernels.conformance", description=__doc__)
    add_arguments(parser)
    try:
        return judge(parser.parse_args(arguments))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    raise SystemExit(main())
