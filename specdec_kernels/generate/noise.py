"""The noise of a round's requests, and the keywords by which ops take noise and sampling.

The loop passes both on as values and does not read them; the ops take them by the keywords of `keywords`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling


class Watermark(NamedTuple):
    """The watermark of texts, by races keyed with their last tokens: `docs/watermark.md`.

    `key` is a secret whole number other than 0, or one per prompt, of which 0 leaves its text without a watermark;
    `window` is as for `context_seeds`.
    """

    key: int | Sequence[int]
    window: int = 4


class Noise(NamedTuple):
    """Each request's position in its noise."""

    seed: torch.Tensor  # both: int64 [B]: the seed of each request, and the position of its next token
    position: torch.Tensor
    # one for all, or int64 [B]; draws under different nonces are independent. It is 0 or, for methods that look
    # ahead, another one in every round
    nonce: int | torch.Tensor = 0
    key: torch.Tensor | None = None  # both: int64 [B]: the key of a watermark, and the lengths of prompts
    start: torch.Tensor | None = None
    window: int = 0


LOOKS_AHEAD = ("block", "traversal", "paths")
"""Methods in which a refused draft affects later tokens: no other draft may be drawn with its noise."""
NODES = 2**16  # nonces of a round, for nodes of one depth; rounds whose nonces overlap by overflow are far apart
Value = TypeVar("Value", Noise, Sampling)


def keywords(noise: Noise, sampling: Sampling, rows: torch.Tensor | None = None) -> dict[str, Any]:
    """Noise and sampling as keywords of the ops; `rows` are seeds of rows, which replace the noise."""
    from_noise = {"seed": noise.seed, "position": noise.position, "nonce": noise.nonce}
    return {**(from_noise if rows is None else {"seed": rows, "position": 0}), "sampling": sampling}


def marked(
    noise: Noise, text: torch.Tensor, drafts: torch.Tensor, parents: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The seeds of these drafts' rows, behind texts that end at the noise's positions; None without a watermark."""
    if noise.key is None:
        return None
    given = {name: getattr(noise, name) for name in ("key", "start", "window", "seed", "position")}
    return specdec.context_seeds(text, drafts, parents=parents, **given)


def at_rows(value: Value, rows: list[int] | torch.Tensor) -> Value:
    """Noise or a sampling for the requests of index `rows` alone."""
    return type(value)(*(field[rows] if isinstance(field, torch.Tensor) else field for field in value))


def per_row(value: Value) -> Value:
    """Noise or a sampling for ops on rows [B, R, V], the same for every row of a request."""
    return type(value)(*(field[:, None] if isinstance(field, torch.Tensor) else field for field in value))


def on_device(sampling: Sampling, device: torch.device) -> Sampling:
    """A sampling with its tensors on a device."""
    return Sampling(*(field.to(device) if isinstance(field, torch.Tensor) else field for field in sampling))


def filtered(sampling: Sampling) -> bool:
    """Whether a filter may be on."""
    return any(
        isinstance(field, torch.Tensor) or field != off
        for field, off in ((sampling.top_k, 0), (sampling.top_p, 1), (sampling.min_p, 0))
    )


def of_round(noise: Noise, method: str, number: int) -> Noise:
    """The noise of this round of a text. Methods that do not look ahead have nonce 0."""
    return noise._replace(nonce=NODES * (number + 1) % 2**32) if method in LOOKS_AHEAD else noise


def of_races(noise: Noise, first: int, count: int) -> Noise:
    """The noise, in the form of `per_row`, of so many races at one depth of a tree, after the `first` ones.

    Methods that look ahead may refuse one branch and go on in another, so each race has another nonce. A walk from the
    root visits one node of a depth: there all share their noise.
    """
    noise = per_row(noise)
    nonces = torch.arange(first, first + count, device=noise.seed.device, dtype=torch.int64)
    return noise._replace(nonce=noise.nonce + nonces) if noise.nonce else noise


def policy_uniform(where: Noise, index: int) -> list[float]:
    """For every request, uniform `index` of those that decide how many tokens it drafts, in [0, 1)."""
    return specdec.uniform(where.seed, where.position, index=index).tolist()
