"""Figures as dictionaries (written as JSON), and pictures of them.

A figure has panels of curves, each with x, y and, where it was simulated, the standard error of y.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = dict[str, Any]
Panel = dict[str, Any]
Figure = dict[str, Any]


def curve(
    label: str, x: ArrayLike, y: ArrayLike, *, error: ArrayLike | None = None, points: bool = False,
    colour: str | None = None,
) -> Curve:  # fmt: skip
    """A theory's line or, with `points`, a simulation with the standard error of its means."""
    data = dict(label=label, x=np.asarray(x, float).tolist(), y=np.asarray(y, float).tolist(), points=points)
    data |= {} if error is None else dict(error=np.asarray(error, float).tolist())
    return data if colour is None else data | dict(colour=colour)


def panel(title: str, x: str, y: str, *curves: Curve) -> Panel:
    return dict(title=title, x=x, y=y, curves=list(curves))


def means(samples: Iterable[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and its standard error of each row of samples."""
    samples = [np.asarray(row, float) for row in samples]
    return np.array([s.mean() for s in samples]), np.array([s.std(ddof=1) / np.sqrt(len(s)) for s in samples])


def draw(figure: Figure, path: Path) -> None:
    """Draw a figure's panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    panels = figure["panels"]
    picture = Picture(figsize=(5.2 * len(panels), 4.8), layout="constrained")
    FigureCanvasAgg(picture)
    picture.suptitle(figure["title"])
    for axes, part in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        lines, marks = ([data for data in part["curves"] if data["points"] is kind] for kind in (False, True))
        for index, data in enumerate(lines):
            axes.plot(data["x"], data["y"], label=data["label"], color=data.get("colour", f"C{index}"))
        for index, data in enumerate(marks):
            mark(axes, data, data.get("colour", f"C{index}" if len(marks) == len(lines) else "black"))
        axes.set(title=part["title"], xlabel=part["x"], ylabel=part["y"])
        axes.grid(alpha=0.3)
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one entry for a repeated label
        axes.legend(named.values(), named.keys(), fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    picture.savefig(path, dpi=110, metadata={"Software": None})


def mark(axes: Axes, data: Curve, colour: str) -> None:
    """Simulated points with their errors; as a band where they lie close."""
    x, y, error = (np.array(data.get(key, np.zeros(len(data["x"])))) for key in ("x", "y", "error"))
    if len(x) > 30:
        axes.plot(x, y, "--", color=colour, linewidth=1, label=data["label"])
        axes.fill_between(x, y - error, y + error, color=colour, alpha=0.2)
    else:
        style = dict(fmt="o", markersize=3.5, capsize=2, color=colour, markerfacecolor="white")
        axes.errorbar(x, y, error, label=data["label"], **style)
