"""What the plug-ins for vLLM's two runners share: bits of masks, and log-probabilities as vLLM wants them."""

from __future__ import annotations

from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling

PROCESSED = ("processed_logprobs", "processed_logits")
GATHER_BITS = 0x0102040810204080  # times eight bytes of 0 or 1: their bits, lowest byte first, in the highest byte


def bits(seen: torch.Tensor) -> torch.Tensor:
    """int32 [B, ceil(V / 32)]: bit i of a row is 1 where bool [B, V] is true."""
    batch, vocabulary = seen.shape
    words = -(-vocabulary // 32)
    padded = torch.zeros(batch, 32 * words, dtype=torch.bool, device=seen.device)
    padded[:, :vocabulary] = seen
    return ((padded.view(torch.int64) * GATHER_BITS) >> 56).to(torch.uint8).view(torch.int32)


def scored(
    rows: torch.Tensor, tokens: torch.Tensor, top: int, sampling: Sampling | None, slots: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, scores [N, 1 + top] and ranks [N] of vLLM's logprobs, by `logprobs`: of each row's token and the likeliest.

    ``slots`` says which numbers of ``sampling`` each row has. A request at temperature 0 has the scores of temperature
    1, as in vLLM.
    """
    laws: dict[str, Any] = {}
    warm: float | torch.Tensor = 1.0
    if sampling is not None:
        if isinstance(sampling.temperature, torch.Tensor):
            warm = sampling.temperature.masked_fill(sampling.temperature == 0, 1.0)
        laws = {"sampling": sampling._replace(temperature=warm)}
        if slots is not None and any(isinstance(number, torch.Tensor) for number in laws["sampling"]):
            laws["request_index"] = slots.int()
    found = specdec.logprobs(rows, tokens, top=top, **laws)
    ids = torch.cat((tokens[:, None], found.top_tokens), dim=1).clamp_(min=0)
    scores = torch.cat((found.logprob[:, None], found.top_logprobs), dim=1)
    if mode.endswith("logits"):
        values = rows.gather(1, ids).float()
        if isinstance(warm, torch.Tensor):
            values /= (warm if slots is None else warm[slots])[:, None]
        scores = values.masked_fill_(scores == -torch.inf, -torch.inf)
    return ids, scores, found.rank.long()
