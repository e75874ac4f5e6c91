"""What each rule of verification gives on a pair of models, in tokens a round, by draft length and by size of tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from examples.figures.curves import PROMPTS
from examples.figures.drawing import Figure, Panel, curve, panel
from examples.figures.trees import SHAPES
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel, Round

LENGTHS, SIZES = (1, 2, 4, 8, 16), (8, 16, 32)
TURNS = 12  # texts a prompt, each with a seed of its own
ACCEPTANCE = (0.78, 0.09, 0.03, 0.02)  # of the embedded pair by child index, about: docs/figures/trees.json
Z = 1.96  # of a 95 % interval


def figure(
    target: LanguageModel, draft: LanguageModel, tokens: int, lengths: Sequence[int] = LENGTHS,
    sizes: Sequence[int] = SIZES, turns: int = TURNS,
) -> Figure:  # fmt: skip
    """Tokens a round with chains, with optimal trees and with SpecInfer's; bars are 95 % intervals."""

    def played(title: str, x: str, methods: Sequence[str], shapes: dict[int, DraftTree]) -> Panel:
        curves = []
        for method in methods:
            texts = [play(target, draft, method, shape, tokens, turns) for shape in shapes.values()]
            y, error = np.transpose([tokens_a_round(rounds) for rounds in texts])
            curves += [
                curve(method, list(shapes), y),
                curve(method, list(shapes), y, error=error, points=True),
            ]
        return panel(title, x, "tokens a round", *curves)

    by_size = {name: {k: SHAPES[name](k, ACCEPTANCE) for k in sizes} for name in ("optimal", "SpecInfer")}
    of_trees = ("rejection", "race", "traversal")
    return dict(
        title="Rules of verification: tokens a round",
        note=f"temperature 1, {turns * len(PROMPTS)} texts of {tokens} tokens a point; bars are 95 % intervals over "
        f"texts; optimal trees are those for acceptances by child of {', '.join(map(str, ACCEPTANCE))}",
        panels=[
            played(
                "chains", "draft length k", ("rejection", "race", "block"), {k: DraftTree.chain(k) for k in lengths}
            ),
            *(played(f"{name} trees", "drafted tokens", of_trees, shapes) for name, shapes in by_size.items()),
        ],
    )


def play(
    target: LanguageModel, draft: LanguageModel, method: str, shape: DraftTree, tokens: int, turns: int
) -> list[list[Round]]:
    """The rounds of each text in which all of the shape was drafted; a chain is drafted as a chain."""
    from specdec_kernels.generate import ModelDrafter, generate

    how = dict(k=shape.size) if shape == DraftTree.chain(shape.size) and method != "traversal" else dict(tree=shape)
    texts = generate(turns * PROMPTS, target, ModelDrafter(draft), method=method, max_new_tokens=tokens, seed=1, **how)
    return [[entry for entry in text.rounds if entry.drafted == shape.size] for text in texts]


def tokens_a_round(texts: Sequence[Sequence[Round]]) -> tuple[float, float]:
    """Tokens over rounds of all texts, and half of its 95 % interval: texts are independent, their rounds are not."""
    rounds = np.array([len(text) for text in texts], float)
    tokens = np.array([sum(entry.accepted + 1 for entry in text) for text in texts], float)
    mean = tokens.sum() / rounds.sum()
    deviation = np.sqrt(((tokens - mean * rounds) ** 2).sum() * len(texts) / (len(texts) - 1))
    return mean, Z * deviation / rounds.sum()
