"""The picture of the page on architecture: ``python docs/_house.py`` writes ``docs/figures/house.svg``."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FILE = Path(__file__).parent / "figures" / "house.svg"
WIDTH, HEIGHT, LINE = 860, 600, 17
STEP, PYTHON = ("#fff3c4", "#9a6700"), ("#d5ecff", "#0969da")  # fill, edge
KERNELS, MATHS = ("#d3f5dc", "#1a7f37"), ("#f1f3f5", "#57606a")

# A box: x, y, width, height, colours, then its lines, the first in bold.
BOXES: list[tuple[Any, ...]] = [
    (20, 40, 185, 92, STEP, "weigh", "rows of p and q become", "maxima and masses", "law.h mass.h bounds.h"),
    (232, 40, 185, 92, STEP, "accept", "each draft: u h q < p?", "along a chain or a tree", "accept.h walk.h"),
    (444, 40, 185, 92, STEP, "sample", "the token after it, from", "p or (p - h q)+, by a race", "race.h residual.h"),
    (656, 40, 185, 92, STEP, "write", "tokens, counts, status", "as the engine keeps them", "VerdictWriter in walk.h"),
    (20, 186, 185, 58, PYTHON, "generate  cli  studies", "public names alone"),
    (232, 186, 185, 58, PYTHON, "engines", "public names alone"),
    (444, 186, 185, 58, PYTHON, "sharded", "slices of the vocabulary"),
    (656, 186, 185, 58, PYTHON, "C and C++ programs", "specdec.h"),
    (20, 272, 609, 58, PYTHON, "ops", "docstring, checks, one call; declared as an Op of calls/"),
    (20, 358, 609, 40, PYTHON, "backends: which of these runs the call"),
    (20, 426, 130, 58, KERNELS, "reference", "torch, float64"),
    (163, 426, 180, 58, KERNELS, "triton_kernels", "its maths: _math.py"),
    (356, 426, 273, 58, KERNELS, "csrc/python", "a call becomes a struct"),
    (656, 426, 185, 58, KERNELS, "csrc/c_api", "checks of the struct"),
    (356, 512, 228, 68, KERNELS, "csrc/cpu", "threads, SIMD"),
    (613, 512, 228, 68, KERNELS, "csrc/cuda", "blocks, warps"),
    (20, 512, 308, 68, MATHS, "csrc/include/specdec", "the maths, once; cpu and cuda include it"),
]  # fmt: skip
ARROWS = [
    (205, 86, 230, 86), (417, 86, 442, 86), (629, 86, 654, 86),
    (112, 244, 112, 270), (324, 244, 324, 270), (536, 244, 536, 270), (748, 244, 748, 424),
    (324, 330, 324, 356), (85, 398, 85, 424), (253, 398, 253, 424), (492, 398, 492, 424),
    (629, 455, 654, 455), (700, 484, 560, 510), (748, 484, 748, 510), (356, 546, 330, 546),
]  # fmt: skip


def text(x: float, y: float, line: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(line)}</text>'


def box(x: int, y: int, width: int, height: int, colours: tuple[str, str], *lines: str) -> list[str]:
    fill, edge = colours
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{edge}"/>'
    heads = ['font-weight="bold"', *[""] * (len(lines) - 1)]
    return [shape, *(text(x + 10, y + 22 + LINE * i, line, heads[i]) for i, line in enumerate(lines) if line)]


def picture() -> str:
    """The four steps of a verification above, the rooms that a call goes through below."""
    body = [line for entry in BOXES for line in box(*entry)]
    body += [f'<path d="M{x} {y} L{u} {v}" stroke="#57606a" marker-end="url(#head)"/>' for x, y, u, v in ARROWS]
    body += [
        text(20, 26, "A verification: four steps for each row, in every backend", 'font-weight="bold"'),
        text(20, 172, "A call, through the rooms", 'font-weight="bold"'),
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>Weigh, accept, sample, write; and the rooms of the code</title>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        '<path d="M0 0 L6 3 L0 6 z" fill="#57606a"/></marker></defs>',
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
        *body,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
