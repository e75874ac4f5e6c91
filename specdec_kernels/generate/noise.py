"""What a round is drawn with: the noise of its requests and how their logits become laws.

The loop passes both on as values and asks nothing of them; the ops take them by the keywords of `keywords`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch

from specdec_kernels import ops
from specdec_kernels.backends.reference import noise


class Noise(NamedTuple):
    """Where in its noise every request stands.

    seed, position : int64 [B], the seed of each request and the position of its next token
    nonce : int or int64 [B]; what is drawn under another nonce is independent
    """

    seed: torch.Tensor
    position: torch.Tensor
    nonce: int | torch.Tensor = 0


class Sampling(NamedTuple):
    """How logits become the law that tokens are drawn from: temperature, float32 [B]."""

    temperature: torch.Tensor


Value = TypeVar("Value", Noise, Sampling)


def keywords(noise: Noise, sampling: Sampling) -> dict[str, Any]:
    """Both as the ops take them."""
    return {**noise._asdict(), **sampling._asdict()}


def kept(value: Value, rows: list[int]) -> Value:
    """The same for the requests of index `rows` alone."""
    return type(value)(*(field[rows] if isinstance(field, torch.Tensor) else field for field in value))


def per_row(value: Value) -> Value:
    """The same for ops on rows [B, R, V], every row of a request alike."""
    return type(value)(*(field[:, None] if isinstance(field, torch.Tensor) else field for field in value))


def policy_coin(where: Noise, index: int) -> list[float]:
    """For every request, coin `index` of those that decide how far it drafts: uniform in [0, 1)."""
    place = ops.Noise(where.seed, where.position, torch.zeros_like(where.seed))
    return noise.coins(place, noise.POLICY, index).tolist()
