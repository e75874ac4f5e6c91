"""`specdec-kernels train`: a byte-level target, and drafts distilled from it."""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec_kernels.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels train`."""
    parser.add_argument("textfile", type=Path, help="the text to learn, any encoding: it is read as bytes")
    parser.add_argument("--out", type=options.folder, required=True,
                        help="where target/, draft/ and parallel/ are written")  # fmt: skip
    parser.add_argument("--only", choices=["target", "draft", "parallel"],
                        help="train one of the three; the draft needs OUT/target, the parallel draft both")  # fmt: skip
    parser.add_argument("--seed", type=options.seed, default=0)
    parser.add_argument("--target-steps", type=options.whole(1), default=2700)
    parser.add_argument("--draft-steps", type=options.whole(1), default=2000)
    parser.add_argument("--parallel-steps", type=options.whole(1), default=1000)
    parser.add_argument("--batch", type=options.whole(1), default=6, help="windows a step")
    parser.add_argument("--context", type=options.whole(2), default=512,
                        help="bytes a window, and the models' longest text")  # fmt: skip
    parser.add_argument("--held-out", type=options.fraction, default=0.05,
                        help="fraction at the end that is never trained on")  # fmt: skip
    parser.add_argument("--threads", type=options.whole(1), default=1)


def run(args: argparse.Namespace) -> int:
    """Train as the arguments say; 0."""
    from specdec_kernels.generate.train import train

    train(**{name: value for name, value in vars(args).items() if name not in ("command", "run")})
    return 0
