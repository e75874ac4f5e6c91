"""What draft trees bring on a pair of models, beside what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from examples.figures.curves import PROMPTS
from examples.figures.drawing import Figure, Panel, curve, means, panel
from specdec_kernels import theory
from specdec_kernels.trees import DraftTree

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel, Round

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHILDREN = 16
TURNS = 3  # texts a prompt
SHAPES = {
    "sequence": lambda k, acceptance: DraftTree.chain(k),
    "batch": lambda k, acceptance: DraftTree.alternatives(k),
    "SpecInfer": lambda k, acceptance: DraftTree.specinfer((1, 1, 3, *[1] * k)).first(k),
    "optimal": lambda k, acceptance: DraftTree.optimal(acceptance, k),
}
METHODS = ("rejection", "race")


def figure(target: LanguageModel, draft: LanguageModel, tokens: int, sizes: Sequence[int] = SIZES) -> Figure:
    """Kobus, Gündüz 2025, Figures 3 and 4: tokens a round by shape and size, and acceptance by child."""
    batch = DraftTree.alternatives(CHILDREN)
    accepted = {method: by_child(play(target, draft, method, batch, tokens, turns=8)) for method in METHODS}
    return dict(
        title="Kobus, Gündüz 2025, Figures 3 and 4: trees of drafts",
        note=f"temperature 1, {TURNS * len(PROMPTS)} texts of {tokens} tokens a point; lines assume that acceptance "
        "depends on the child index alone, as measured on batches, and so does the bound, Lemma 4.2 at its best m",
        panels=[
            *(tokens_by_size(target, draft, method, accepted[method][0], tokens, sizes) for method in METHODS),
            panel(
                "acceptance by child", "child index", "accepted, given its node was reached",
                *(curve(method, range(CHILDREN), rate, error=error, points=True)
                  for method, (rate, error) in accepted.items()),
            ),
        ],
    )  # fmt: skip


def play(
    target: LanguageModel, draft: LanguageModel, method: str, tree: DraftTree, tokens: int, turns: int = TURNS
) -> list[Round]:
    """Rounds in which the whole tree was drafted, of texts that begin with the prompts in turn."""
    from specdec_kernels.generate import ModelDrafter, generate

    options = dict(method=method, tree=tree, max_new_tokens=tokens, seed=1)
    texts = generate(turns * PROMPTS, target, ModelDrafter(draft), **options)
    return [entry for text in texts for entry in text.rounds if entry.tree.shape == tree]


def by_child(rounds: Sequence[Round]) -> tuple[np.ndarray, np.ndarray]:
    """Share of nodes reached at which child i was accepted, and its standard error, for every i."""
    taken = [accepted for entry in rounds for _, accepted in entry.tree.offers()[:1]]
    return means([[accepted == child for accepted in taken] for child in range(CHILDREN)])


def tokens_by_size(
    target: LanguageModel, draft: LanguageModel, method: str, rates: np.ndarray, tokens: int, sizes: Sequence[int]
) -> Panel:
    """Tokens a round of every shape: by the measured acceptance, as played, and the bound on all shapes."""
    acceptance = np.sort(rates)[::-1]  # rare children would rise by their noise
    grid, lines, points = range(1, max(sizes) + 1), [], []
    for name, shape in SHAPES.items():
        expected = [shape(k, acceptance).expected_tokens(acceptance) for k in grid]
        lines.append(curve(name, grid, expected))
        y, error = means(
            [len(entry.tree.path) for entry in play(target, draft, method, shape(k, acceptance), tokens)] for k in sizes
        )
        points.append(curve(f"{name}, played", sizes, y, error=error, points=True))
    bound = curve("bound on every tree", grid, [theory.tree_bound(acceptance, k) for k in grid])
    return panel(method, "drafted tokens k", "tokens a round", *lines, bound, *points)
