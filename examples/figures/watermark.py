"""How long a text has to be until its watermark is found, as it was written and with some of its tokens replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from examples.figures.curves import PROMPTS
from examples.figures.drawing import Curve, Figure, curve, panel
from specdec_kernels.generate import ModelDrafter, Watermark, generate
from specdec_kernels.watermark import detect

if TYPE_CHECKING:
    from specdec_kernels.generate import LanguageModel

TEXTS = 50  # of each prompt
EDITED = (0.0, 0.1, 0.3)  # shares of the tokens
FALSE_ALARMS = (1e-2, 1e-6)


def figure(target: LanguageModel, draft: LanguageModel, tokens: int) -> Figure:
    """The share of texts that are found, each with a key of its own, by length."""
    keys = list(range(1, TEXTS * len(PROMPTS) + 1))
    written = generate(
        PROMPTS * TEXTS, target, ModelDrafter(draft), method="race", watermark=Watermark(keys), max_new_tokens=tokens,
        eos_token_ids=[],
    )  # fmt: skip
    texts = [generation.tokens for generation in written]
    lengths = [n for n in (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if n <= tokens]
    found = {share: p_values(texts, keys, share, lengths) for share in EDITED}
    return dict(
        title="Detection of the watermark by length",
        generator=f"{len(texts)} texts of {target.name} with drafts of {draft.name}, temperature 1, window 4; "
        "numpy.random.RandomState(0) replaces tokens by others of the texts",
        panels=[
            panel(
                f"p at most {level:g}", "tokens", "share found",
                *(line(share, lengths, found[share] <= level) for share in EDITED),
            )
            for level in FALSE_ALARMS
        ],
    )  # fmt: skip


def p_values(texts: list[list[int]], keys: list[int], share: float, lengths: list[int]) -> np.ndarray:
    """By length and text, with this share of the tokens replaced."""
    random, alphabet = np.random.RandomState(0), np.unique(np.concatenate(texts))
    edited = [np.where(random.rand(len(text)) < share, random.choice(alphabet, len(text)), text) for text in texts]
    return np.array([
        [detect(text[:n].tolist(), key).p_value for text, key in zip(edited, keys, strict=True)] for n in lengths
    ])  # fmt: skip


def line(share: float, lengths: list[int], found: np.ndarray) -> Curve:
    """A curve with its standard errors."""
    mean = found.mean(1)
    label = f"{share:.0%} of the tokens replaced" if share else "as written"
    return curve(label, lengths, mean, error=np.sqrt(mean * (1 - mean) / found.shape[1]), points=True)
