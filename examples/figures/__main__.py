"""Draws the figures of the documentation, each as JSON and as a picture: ``python -m examples.figures [NAME...]``."""

from __future__ import annotations

import argparse
import importlib
import json

from examples.figures import drawing, methods, trees, watermark
from examples.figures.curves import FIGURES, PAIR
from specdec_kernels.cli import options

PLAYED = {"trees": trees, "methods": methods, "watermark": watermark}  # by a pair of models of the user's choice
NAMES = (*FIGURES, *PLAYED)


def figure_name(word: str) -> str:
    """A checked name of a figure."""
    if word not in NAMES:
        raise argparse.ArgumentTypeError(f"expected {', '.join(NAMES)}; got {word!r}")
    return word


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m examples.figures", description=__doc__)
    parser.add_argument("names", nargs="*", type=figure_name, metavar="FIGURE",
                        help=f"what to draw: {', '.join(NAMES)} (default: all)")  # fmt: skip
    parser.add_argument("--out", type=options.folder, default="docs/figures", help="folder (default: docs/figures)")
    parser.add_argument("--runs", type=options.whole(100), default=5000, help="simulated runs a point (default: 5000)")
    parser.add_argument("--no-svg", action="store_true", help="write the JSON only, which needs no matplotlib")
    parser.add_argument("--redraw", action="store_true", help="draw the JSON that the folder has, and simulate nothing")
    played = parser.add_argument_group("trees, methods, watermark: of a pair of models")
    played.add_argument("--target", default=PAIR[0], help="model directory (default: the embedded target)")
    played.add_argument("--draft", default=PAIR[1], help="model directory (default: the embedded draft)")
    played.add_argument(
        "--tokens", type=options.whole(50), default=250, help="tokens a point and prompt (default: 250)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Make the figures."""
    args = parsed(arguments)
    if not args.no_svg:
        importlib.import_module("matplotlib")
    if args.redraw:
        for path in [args.out / f"{name}.json" for name in args.names] or sorted(args.out.glob("*.json")):
            drawing.draw(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".svg"))
        return
    for name in args.names or NAMES:
        figure = figure_of_a_pair(name, args) if name in PLAYED else FIGURES[name](args.runs)
        (args.out / f"{name}.json").write_text(json.dumps(figure, indent=1) + "\n")
        if not args.no_svg:
            drawing.draw(figure, args.out / f"{name}.svg")
        print(args.out / f"{name}.json")


def figure_of_a_pair(name: str, args: argparse.Namespace) -> dict:
    """A figure that plays a pair of models of the user's choice."""
    from specdec_kernels.generate import load_model

    return PLAYED[name].figure(load_model(args.target), load_model(args.draft), args.tokens)


if __name__ == "__main__":
    main()
