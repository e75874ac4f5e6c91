"""Shared by the plug-ins for vLLM's two runners: bits of masks, and log-probabilities in vLLM's form."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

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


def moved(numbers: Any, device: torch.device) -> torch.Tensor:
    """An array or a tensor of the host, copied to the device from pinned memory, so that nothing waits."""
    numbers = numbers if isinstance(numbers, torch.Tensor) else torch.from_numpy(numbers)
    return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)


def requests_of(ends: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [count]: the request of each row; ``ends`` [B]: the ends of requests' rows."""
    return torch.searchsorted(ends, torch.arange(count, device=ends.device, dtype=ends.dtype), right=True)


def scored(
    rows: torch.Tensor, tokens: torch.Tensor, top: int, sampling: Sampling | None, slots: torch.Tensor | None,
    mode: str, given: torch.Tensor | None = None, ops: Any = specdec,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Ids, scores [N, 1 + top] and ranks [N] of vLLM's logprobs, by `logprobs`: of each row's token and the likeliest.

    ``slots``: the entry of ``sampling`` for each row. A request at temperature 0 has the scores of temperature 1, as in
    vLLM. The tokens of a row in ``given``, int64 [N, G] with -1 for none, replace the likeliest; there are
    1 + max(top, G) columns then. ``ops`` has the `logprobs` that reads these rows.
    """
    laws: dict[str, Any] = {}
    warm: float | torch.Tensor = 1.0
    if sampling is not None:
        if isinstance(sampling.temperature, torch.Tensor):
            warm = sampling.temperature.masked_fill(sampling.temperature == 0, 1.0)
        laws = {"sampling": sampling._replace(temperature=warm)}
        if slots is not None and any(isinstance(number, torch.Tensor) for number in laws["sampling"]):
            laws["request_index"] = slots.int()
    scored = ops.logprobs(rows, tokens, top=top, **laws)
    top_tokens, top_logprobs = scored.top_tokens, scored.top_logprobs
    if given is not None:
        if sampling is not None:  # all tokens of a row share its numbers
            numbers = (x[:, None] if isinstance(x, torch.Tensor) else x for x in laws["sampling"])
            laws["sampling"] = Sampling(*numbers)
        each = ops.logprobs(rows[:, None].expand(-1, given.shape[1], -1), given, **laws).logprob
        more = max(given.shape[1] - top, 0)
        top_tokens, top_logprobs = pad(top_tokens, (0, more), value=-1), pad(top_logprobs, (0, more), value=-torch.inf)
        given, each = (
            pad(x, (0, top_tokens.shape[1] - x.shape[1]), value=y) for x, y in ((given, -1), (each, -torch.inf))
        )
        asked = (given >= 0).any(1, keepdim=True)
        top_tokens, top_logprobs = given.where(asked, top_tokens), each.where(asked, top_logprobs)
    ids = torch.cat((tokens[:, None], top_tokens), dim=1).clamp_(min=0)
    scores = torch.cat((scored.logprob[:, None], top_logprobs), dim=1)
    if mode.endswith("logits"):
        values = rows.gather(1, ids).float()
        if isinstance(warm, torch.Tensor):
            values /= (warm if slots is None else warm[slots])[:, None]
        scores = values.masked_fill_(scores == -torch.inf, -torch.inf)
    return ids, scores, scored.rank.long()
