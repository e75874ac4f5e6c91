"""`specdec-kernels train`: a byte-level target, and a draft distilled from it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels train`."""
    parser.add_argument("textfile", type=Path, help="the text to learn, any encoding: it is read as bytes")
    parser.add_argument("--out", type=Path, required=True, help="where target/ and draft/ are written")
    parser.add_argument("--only", choices=["target", "draft"], help="train one of the two; the draft needs OUT/target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-steps", type=int, default=2700)
    parser.add_argument("--draft-steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=6, help="windows a step")
    parser.add_argument("--context", type=int, default=512, help="bytes a window, and the models' longest text")
    parser.add_argument("--held-out", type=float, default=0.05, help="fraction at the end that is never trained on")
    parser.add_argument("--threads", type=int, default=1)


def run(args: argparse.Namespace) -> int:
    """Train as the arguments say; 0."""
    from specdec_kernels.generate.train import train

    options = {name: value for name, value in vars(args).items() if name not in ("command", "run")}
    train(**options)
    return 0
