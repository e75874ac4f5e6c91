"""The watermark of requests in an engine: keys by slot, and the seeds of rows from their texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels.generate.arguments import spread
from specdec_kernels.generate.noise import Watermark
from specdec_kernels.watermark import check_race

VARIABLE, OPTION = "SPECDEC_WATERMARK", "watermark_key"  # for all requests, and for one


def requested_watermark(method: str) -> Watermark | None:
    """The setting ``SPECDEC_WATERMARK``, ``KEY`` or ``KEY,WINDOW``; None without it. With a race alone."""
    words = os.environ.get(VARIABLE)
    if not words:
        return None
    try:
        key, *rest = map(int, words.split(","))
        (window,) = rest or (4,)
    except ValueError:
        key, window = 0, 0
    if not 1 <= window <= 8:
        raise ValueError(f"{VARIABLE}: expected KEY or KEY,WINDOW, whole numbers, a window of 1 to 8; got {words!r}")
    check_race(VARIABLE, method)
    return Watermark(key, window)


class Marks:
    """``text`` int32 or int64 [slots, T] holds prompts and output, ``start`` [slots] the lengths of prompts."""

    def __init__(self, given: Watermark, text: torch.Tensor, start: torch.Tensor | None = None) -> None:
        self.given, self.text = given, text
        self.keys = torch.zeros(len(text), dtype=torch.int64, device=text.device)
        self.start = torch.zeros_like(self.keys) if start is None else start

    def begin(
        self, slot: int, options: dict[str, Any] | None, start: int | None = None, output: Sequence[int] = ()
    ) -> None:
        """Set a request's key, 0 for none, or the key of all; and its text, where the engine stores none."""
        self.keys[slot : slot + 1] = spread(OPTION, [(options or {}).get(OPTION, self.given.key)], 1)
        if start is not None:
            self.start[slot] = start
            self.text[slot, start : start + len(output)] = torch.tensor(output, dtype=self.text.dtype, device="cpu")

    def noise(
        self, drafts: torch.Tensor, position: torch.Tensor, slots: torch.Tensor, seed: torch.Tensor, **layout: Any
    ) -> dict[str, Any]:
        """Seeds and positions of verifications, which replace the requests'."""
        rows = specdec.context_seeds(
            self.text, drafts, key=self.keys, start=self.start, seed=seed, position=position,
            window=self.given.window, request_index=slots, **layout,
        )  # fmt: skip
        return {"seed": rows, "position": 0, "nonce": 0}

    def put(self, slots: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write tokens into texts; slot -1 is skipped, and so are positions behind a text's end."""
        there = (slots >= 0) & (positions < self.text.shape[1])
        slots, positions = torch.where(there, slots, 0).long(), torch.where(there, positions, 0).long()
        self.text[slots, positions] = torch.where(there, tokens.to(self.text.dtype), self.text[slots, positions])
