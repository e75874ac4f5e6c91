"""Every method on a pair of models: acceptance, tokens a call, tokens a second, and whether race equals plain.

Texts are written one at a time, by all methods in turn, several times over; the fastest run of each counts. Seconds are
processor time of one thread, which other processes of the machine do not change. Texts of a race that differ from
plain sampling (forwards of different shapes round differently) are counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec_kernels.generate import Generation, LanguageModel, ModelDrafter, NgramDrafter, generate
from specdec_kernels.trees import USUAL_ACCEPTANCE, DraftTree

PROMPTS = [
    "ROMEO:\n", "JULIET:\nO, ", "KING HENRY:\nMy lords, ", "First Citizen:\n", "What is the ", "LADY ANNE:\n", "Enter ",
    "DUKE VINCENTIO:\nGood ",
]  # fmt: skip


def contenders(draft: LanguageModel, k: int) -> dict[str, dict]:
    """Arguments of `generate` by the name of a row. Trees have k nodes, and the shape for usual acceptances."""
    tree = DraftTree.optimal(USUAL_ACCEPTANCE, k)
    return {
        "plain": dict(drafter=None, method="plain"),
        "rejection": dict(drafter=ModelDrafter(draft), method="rejection", k=k),
        "block": dict(drafter=ModelDrafter(draft), method="block", k=k),
        "race": dict(drafter=ModelDrafter(draft), method="race", k=k),
        "race, n-gram": dict(drafter=NgramDrafter(), method="race", k=k),
        "rejection, tree": dict(drafter=ModelDrafter(draft), method="rejection", tree=tree),
        "traversal, tree": dict(drafter=ModelDrafter(draft), method="traversal", tree=tree),
    }


def measure(
    target: LanguageModel, draft: LanguageModel, *, k: int, tokens: int, texts: int, repeats: int, temperature: float,
    names: Sequence[str] = (),
) -> list[dict]:  # fmt: skip
    """A record for each contender, or for these names. Races that differ from plain sampling are counted."""
    rows = contenders(draft, k)
    rows = {name: rows[name] for name in names or rows}
    results = {name: [] for name in rows}
    seconds = {name: [] for name in rows}
    for index in range(-1, texts):
        prompt, text, fastest = PROMPTS[index % len(PROMPTS)], {}, dict.fromkeys(rows, math.inf)
        for _ in range(repeats):
            for name, options in rows.items():
                begun = time.process_time()
                (text[name],) = generate(
                    [prompt], target, seed=index, max_new_tokens=tokens, temperature=temperature, **options
                )
                fastest[name] = min(fastest[name], time.process_time() - begun)
        for name in rows:
            results[name].append(text[name])
            seconds[name].append(fastest[name])
    # The first text is a warm-up.
    return [record(name, results[name][1:], results["plain"][1:], seconds[name][1:]) for name in rows]


def record(
    name: str, generations: Sequence[Generation], plain: Sequence[Generation], seconds: Sequence[float]
) -> dict[str, Any]:
    """Figures over texts; `seconds` are the fastest run of each."""
    written = sum(len(generation.tokens) for generation in generations)
    tested = sum(entry.tested for generation in generations for entry in generation.rounds)
    speeds = [len(generation.tokens) / each for generation, each in zip(generations, seconds, strict=True)]
    p20, median, p80 = np.quantile(speeds, [0.2, 0.5, 0.8]).tolist()
    unlike = sum(ours.tokens != theirs.tokens for ours, theirs in zip(generations, plain, strict=True))
    return {
        "method": name,
        "texts": len(generations),
        "tokens": written,
        "acceptance": sum(generation.accepted for generation in generations) / tested if tested else None,
        "tokens_per_call": written / sum(generation.target_calls for generation in generations),
        "tokens_per_second": median,
        "p20": p20,
        "p80": p80,
        "texts_unlike_plain": unlike if name.startswith(("plain", "race")) else None,
    }
