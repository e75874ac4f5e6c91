"""Rounds as a picture: chains and trees of tokens in boxes of their colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from specdec_kernels.generate import Generation, Round

# Pixels: a character, a box's height, a row of boxes, between two, around all, for a round's number, a line of rounds.
CELL, HEIGHT, ROW, GAP, MARGIN, NUMBER, WIDTH = 8, 22, 28, 12, 16, 28, 860
COLOURS = {  # by kind of box: its background, its edge and its text
    "accepted": ("#d3f5dc", "#1a7f37", "#0b3d1a"),
    "replaced": ("#ffdfdc", "#cf222e", "#5c0d13"),
    "bonus": ("#d5ecff", "#0969da", "#06305f"),
    "rejected": ("#f1f3f5", "#c4cad0", "#8a929a"),
    "known": ("#ffffff", "#57606a", "#24292f"),
}
LEGEND = ("accepted", "rejected", "replaced", "bonus")


class Box(NamedTuple):
    """A token: its text, its kind, and the index of the box before it, -1 for one that begins the round."""

    text: str
    kind: str
    parent: int


def picture(generations: Sequence[Generation], text_of: Callable[[int], str]) -> str:
    """An SVG of all rounds, side by side in lines; `text_of` gives the text of a token."""
    body, x, y = [], MARGIN, MARGIN
    for kind in LEGEND:
        body.append(box(x, y, kind, kind))
        x += width(kind) + GAP
    right, y = x, y + ROW + GAP
    for index, generation in enumerate(generations):
        if len(generations) > 1:
            body.append(label(MARGIN, y, f"prompt {index}"))
            y += ROW
        x, tallest = MARGIN, 0
        for number, entry in enumerate(generation.rounds, start=1):
            drawn, wide, high = boxes(boxes_of(entry, text_of), NUMBER)
            if x > MARGIN and x + wide > WIDTH - MARGIN:
                x, y, tallest = MARGIN, y + tallest + GAP, 0
            body += [f'<g transform="translate({x} {y})">', label(0, 0, str(number)), *drawn, "</g>"]
            x, tallest, right = x + wide + 2 * GAP, max(tallest, high), max(right, x + wide)
        y += tallest + GAP
    size = f'width="{right + MARGIN}" height="{y}" viewBox="0 0 {right + MARGIN} {y}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="ui-monospace, Menlo, Consolas, monospace" '
        'font-size="13">',
        "<title>Rounds of speculative decoding</title>",
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
        *body,
        "</svg>\n",
    ])  # fmt: skip


def boxes_of(entry: Round, text_of: Callable[[int], str]) -> list[Box]:
    """The boxes of a round, parents first. A chain's rejected drafts are a row below the replacement."""
    last = entry.pieces[-1][0]
    if entry.tree is None:
        kinds = ["accepted"] * min(entry.accepted, len(entry.tokens))
        kinds += [last] * (len(entry.tokens) - len(kinds))
        chain = [
            Box(text_of(token), kind, at - 1) for at, (token, kind) in enumerate(zip(entry.tokens, kinds, strict=True))
        ]
        rejected = (entry.chain or [])[entry.accepted :] if len(entry.tokens) > entry.accepted else []
        after = [entry.accepted - 1, *range(len(chain), len(chain) + len(rejected))]
        return chain + [Box(text_of(token), "rejected", at) for token, at in zip(rejected, after, strict=False)]
    shape, tokens, path = entry.tree.shape, entry.tree.tokens, entry.tree.path
    box_of, boxes = {}, []
    for node, parent in enumerate(shape.parents):
        if node == 0 or tokens[node] >= 0:
            box_of[node] = len(boxes)
            kind = "known" if node == 0 else "accepted" if node in path else "rejected"
            boxes.append(Box(text_of(tokens[node]), kind, box_of.get(parent, -1)))
    if len(entry.tokens) > entry.accepted:
        boxes.append(Box(text_of(entry.tokens[-1]), last, box_of[path[-1]]))
    return boxes


def boxes(tree: Sequence[Box], x: int) -> tuple[list[str], int, int]:
    """The drawing of a round's boxes from x on, its right end, and its height."""
    below: dict[int, list[int]] = {index: [] for index in range(-1, len(tree))}
    column, wide = [0] * len(tree), [0] * len(tree)  # of each box; of each column
    for index, entry in enumerate(tree):
        below[entry.parent].append(index)
        column[index] = column[entry.parent] + 1 if entry.parent >= 0 else 0
        wide[column[index]] = max(wide[column[index]], width(entry.text))
    left = [x + sum(wide[:at]) + GAP * at for at in range(max(column) + 2)]
    row, rows = [0] * len(tree), 0
    waiting = below[-1][::-1]
    while waiting:  # depth first: a box lies beside its first child, each further child begins a row
        index = waiting.pop()
        parent = tree[index].parent
        first = below[parent][0] == index
        rows += not first
        row[index] = rows if not first or parent < 0 else row[parent]
        waiting += reversed(below[index])
    order = sorted(range(len(tree)), key=lambda index: tree[index].kind != "rejected")  # colours above grey
    drawn = [edge(tree, column, row, left, index) for index in order if tree[index].parent >= 0]
    drawn += [box(left[column[at]], row[at] * ROW, entry.text, entry.kind) for at, entry in enumerate(tree)]
    return drawn, left[-1] - GAP, rows * ROW + HEIGHT


def edge(tree: Sequence[Box], column: Sequence[int], row: Sequence[int], left: Sequence[int], index: int) -> str:
    """The line from a box's parent to it."""
    parent, (_, colour, _) = tree[index].parent, COLOURS[tree[index].kind]
    begin, end = left[column[parent]] + width(tree[parent].text), left[column[index]]
    above, under = (row[at] * ROW + HEIGHT // 2 for at in (parent, index))
    middle = end - GAP // 2
    thick = 1 if tree[index].kind == "rejected" else 2
    way = f"M{begin} {above}H{end}" if above == under else f"M{begin} {above}H{middle}V{under}H{end}"
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="{thick}"/>'


def box(x: int, y: int, text: str, kind: str) -> str:
    """A token."""
    ground, line, colour = COLOURS[kind]
    frame = f'<rect x="{x}" y="{y}" width="{width(text)}" height="{HEIGHT}" rx="4" fill="{ground}" stroke="{line}"/>'
    return f'{frame}<text x="{x + CELL // 2}" y="{y + 15}" fill="{colour}">{escape(shown(text))}</text>'


def label(x: int, y: int, text: str) -> str:
    """A round's number, or a prompt's."""
    return f'<text x="{x}" y="{y + 15}" fill="#57606a">{escape(text)}</text>'


def width(text: str) -> int:
    """The pixels of a box: wide characters take two cells, a box two at least."""
    cells = sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in shown(text))
    return CELL * (max(cells, 1) + 1)


def shown(text: str) -> str:
    """A text with visible spaces and line ends, without characters that XML forbids."""
    seen = text.replace("\r", "").replace("\n", "↵").replace("\t", "→").replace(" ", "·")
    return "".join(each if each.isprintable() else "�" for each in seen)
