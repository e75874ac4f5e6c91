"""Figures as dictionaries (written as JSON), and pictures of them.

A figure has panels of curves, each with x, y and, where it was simulated, the standard error of y.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = dict[str, Any]
Panel = dict[str, Any]
Figure = dict[str, Any]


# A rule has its colour in every picture, and nothing else has it.
RULES = {
    "rejection": "#1f77b4", "race": "#ff7f0e", "block": "#2ca02c", "traversal": "#d62728", "paths": "#9467bd",
    "greedy multi-path": "#8c564b",
}  # fmt: skip
OTHERS = ("#17becf", "#bcbd22", "#e377c2", "#7f7f7f")
LINES, MARKS = ("-", "--", ":", "-."), "osD^"  # of the curves of one rule that a panel has


def curve(label: str, x: ArrayLike, y: ArrayLike, *, error: ArrayLike | None = None, points: bool = False) -> Curve:
    """A theory's line or, with `points`, a simulation with the standard error of its means."""
    data = dict(label=label, x=np.asarray(x, float).tolist(), y=np.asarray(y, float).tolist(), points=points)
    return data if error is None else data | dict(error=np.asarray(error, float).tolist())


def panel(title: str, x: str, y: str, *curves: Curve) -> Panel:
    return dict(title=title, x=x, y=y, curves=list(curves))


def means(samples: Iterable[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and its standard error of each row of samples."""
    samples = [np.asarray(row, float) for row in samples]
    return np.array([s.mean() for s in samples]), np.array([s.std(ddof=1) / np.sqrt(len(s)) for s in samples])


def rule_of(label: str) -> str | None:
    """The rule of verification that a curve is of."""
    return next((rule for rule in RULES if label == rule or label.startswith((f"{rule},", f"{rule}:"))), None)


def looks(curves: Sequence[Curve]) -> dict[str, tuple[str, int]]:
    """By what is drawn: its colour, and its place among those of that colour. Bounds and optima are black."""
    found: dict[str, tuple[str, int]] = {}
    colours: list[str] = []
    others = itertools.cycle(OTHERS)
    for label in dict.fromkeys(subject(data["label"]) for data in curves):
        rule = rule_of(label)
        colour = RULES[rule] if rule else "black" if label.startswith(("bound", "optimum")) else next(others)
        found[label] = colour, colours.count(colour)
        colours.append(colour)
    return found


def subject(label: str) -> str:
    """What a curve is about, simulated or not."""
    return label.removesuffix(", played")


def draw(figure: Figure, path: Path) -> None:
    """Draw a figure's panels side by side, as SVG. Axes of y begin at 0, and say so where they do not."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Picture

    panels = figure["panels"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.family": "sans-serif"}):
        picture = Picture(figsize=(5.2 * len(panels), 4.8), layout="constrained")
        FigureCanvasSVG(picture)
        picture.suptitle(figure["title"], x=0.01, ha="left")
        for axes, part in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw_panel(axes, part)
        picture.savefig(path, metadata={"Date": None, "Creator": None})


def draw_panel(axes: Axes, part: Panel) -> None:
    lines, marks = ([data for data in part["curves"] if data["points"] is kind] for kind in (False, True))
    own = looks([data for data in part["curves"] if not data["label"].startswith("kernels")])
    beside = iter(lines)
    for data in lines:
        colour, place = own[subject(data["label"])]
        axes.plot(data["x"], data["y"], LINES[place % 4], label=data["label"], color=colour)
    for data in marks:
        label = subject(data["label"])
        if label not in own:  # the kernels, beside the lines of what they simulate if each has its points
            label = subject(next(beside)["label"]) if len(marks) == len(lines) else ""
        mark(axes, data, *own.get(label, ("black", 0)))
    axes.set_title(part["title"], loc="left", fontsize="medium")
    least, most = (end([end(data["y"]) for data in part["curves"]]) for end in (min, max))
    flat = most - least < most / 8
    axes.set(xlabel=part["x"], ylabel=part["y"] + (" (not from 0)" if flat else ""))
    if not flat:
        axes.set_ylim(bottom=min(0, least))
    axes.grid(alpha=0.3)
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one entry for a repeated label
    axes.legend(
        named.values(), named.keys(), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2,
        frameon=False,
    )  # fmt: skip


def mark(axes: Axes, data: Curve, colour: str, place: int) -> None:
    """Simulated points with their errors; as a band where they lie close."""
    x, y, error = (np.array(data.get(key, np.zeros(len(data["x"])))) for key in ("x", "y", "error"))
    if len(x) > 30:
        axes.plot(x, y, "--", color=colour, linewidth=1, label=data["label"])
        axes.fill_between(x, y - error, y + error, color=colour, alpha=0.2)
    else:
        style = dict(fmt=MARKS[place % 4], markersize=3.5, capsize=2, color=colour, markerfacecolor="white")
        axes.errorbar(x, y, error, label=data["label"], **style)
