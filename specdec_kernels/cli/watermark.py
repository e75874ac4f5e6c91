"""`specdec-kernels watermark`: whether a text carries the watermark of a key."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specdec_kernels.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels watermark`."""
    parser.add_argument("--key", type=options.key, required=True, help="the secret number")
    parser.add_argument("--window", type=options.whole(1, 8), default=4, metavar="N",
                        help="by how many tokens before each (default: 4)")  # fmt: skip
    parser.add_argument("--set", action="store_true", help="their order does not count")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--text-file", type=Path, metavar="FILE", help="the text (default: what comes on stdin)")
    given.add_argument("--ids", type=options.token_file, metavar="FILE", help="token ids in its place")
    parser.add_argument("--target", default="embedded:target",
                        help="the model whose tokenizer wrote it (default: the embedded target)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what the text says of the key; 0."""
    from specdec_kernels.watermark import detect

    found = detect(tokens_of(args), args.key, window=args.window, ordered=not args.set)
    if args.json:
        print(json.dumps(found._asdict()))
    else:
        print(f"p = {found.p_value:.3g}: {found.statistic:.1f} from {found.count} tokens, {found.count} expected")
    return 0


def tokens_of(args: argparse.Namespace) -> list[int]:
    """The token ids, as they were given or by the model's tokenizer."""
    if args.ids is not None:
        return list(args.ids)
    from specdec_kernels.generate import load_model

    try:
        text = sys.stdin.read() if args.text_file is None else options.text_of_file(args.text_file)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"argument --text-file: expected a file of text in UTF-8; got {error}") from error
    target = load_model(args.target)
    if target.tokenizer is None:
        raise ValueError(f"argument --target: expected a model with a tokenizer, or --ids; got {args.target}")
    return list(target.tokenizer.encode(text, add_special_tokens=False))
