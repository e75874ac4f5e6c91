"""The watermark of requests in an engine: keys by slot, and the seeds of rows from the texts that it keeps."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

import specdec_kernels as specdec
from specdec_kernels import InputPositions, Packing

VARIABLE = "SPECDEC_WATERMARK"
OPTION = "watermark_key"  # of a request
HALF = 2**63


class Asked(NamedTuple):
    """The key of requests that have none of their own, and how many tokens are its context."""

    key: int
    window: int


def asked(method: str) -> Asked | None:
    """What ``SPECDEC_WATERMARK`` asks for, ``KEY`` or ``KEY,WINDOW``; None if it is not there. With a race alone."""
    words = os.environ.get(VARIABLE)
    if not words:
        return None
    try:
        key, window = (*map(int, words.split(",")), 4)[:2]
    except ValueError:
        key, window = 0, 0
    if not 1 <= window <= 8:
        raise ValueError(f"{VARIABLE}: expected KEY or KEY,WINDOW, whole numbers, a window of 1 to 8; got {words!r}")
    if method != "race":
        raise NotImplementedError(
            f"{VARIABLE}: expected the method race; got {method}, whose accept coins are not of the key: either fewer "
            "drafts are accepted, or the watermark is weaker (Hu, Huang 2024)"
        )
    return Asked(signed(key), window)


def signed(key: object) -> int:
    """A key as a signed number of 64 bits."""
    if not isinstance(key, int) or not -HALF <= key < 2 * HALF:
        raise ValueError(f"{OPTION}: expected a whole number of 64 bits; got {key!r}")
    return (key + HALF) % (2 * HALF) - HALF


class Marks:
    """``text`` int32 or int64 [slots, T] holds prompts and output, ``start`` [slots] how long prompts are."""

    def __init__(self, given: Asked, text: torch.Tensor, start: torch.Tensor) -> None:
        self.given, self.text, self.start = given, text, start
        self.keys = torch.full((len(text),), given.key, dtype=torch.int64, device=text.device)

    def begin(self, slot: int, options: dict[str, Any] | None) -> None:
        """A request's own key, 0 for none, or that of all."""
        self.keys[slot] = signed((options or {}).get(OPTION, self.given.key))

    def noise(
        self, drafts: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, seed: torch.Tensor,
        packing: Packing | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What `verify_chain` takes in the place of seeds by slot and of input positions."""
        rows = specdec.context_seeds(
            self.text, drafts, key=self.keys, seed=seed, position=InputPositions(positions), window=self.given.window,
            start=self.start, packing=packing, request_index=slots,
        )  # fmt: skip
        return {"seed": rows, "position": 0}

    def put(self, slots: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write drafts behind these positions, where the next one's context finds them; none of slot -1."""
        rows, there = slots.long().clamp(min=0), slots >= 0
        places = torch.where(there, positions + 1, 0).clamp(max=self.text.shape[1] - 1)
        self.text[rows, places] = torch.where(there, tokens.to(self.text.dtype), self.text[rows, places])
