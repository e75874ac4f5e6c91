"""`specdec-kernels watermark`: whether a text carries the watermark of a key."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdec_kernels.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels watermark`."""
    parser.add_argument("--key", type=options.key, required=True, help="the secret number")
    parser.add_argument("--window", type=options.whole(1, 8), default=4, metavar="N",
                        help="by how many tokens before each (default: 4)")  # fmt: skip
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--text-file", type=Path, metavar="FILE", help="the text (default: what comes on stdin)")
    given.add_argument("--ids", type=options.token_file, metavar="FILE", help="token ids instead")
    parser.add_argument("--target", default="embedded:target",
                        help="the model whose tokenizer wrote it (default: the embedded target)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the evidence for the key; 0."""
    from specdec_kernels.generate import load_model
    from specdec_kernels.watermark import detect

    if args.ids is None:
        tokenizer = load_model(args.target).tokenizer
        if tokenizer is None:
            raise ValueError(f"argument --target: expected a model with a tokenizer, or --ids; got {args.target}")
        file = args.text_file
        text = sys.stdin.read() if file is None else options.text_of_file(file, "--text-file")
        args.ids = tokenizer.encode(text, add_special_tokens=False)
    detection = detect(args.ids, args.key, window=args.window)
    print(
        f"p = {detection.p_value:.3g}: {detection.statistic:.1f} from {detection.count} tokens, "
        f"{detection.count} expected"
    )
    return 0
