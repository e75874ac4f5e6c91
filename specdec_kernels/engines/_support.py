"""The sets of tokens that filters keep, as engines give them to a trainer (DeepSeek-V3.2, arXiv 2512.02556)."""

from __future__ import annotations

import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.ops import Support


def support_of_filters(
    rows: torch.Tensor, tokens: torch.Tensor, sampling: Sampling, slots: torch.Tensor | None = None
) -> Support:
    """The sets of rows [N, V] whose token is not -1. ``slots`` [N]: the entry of ``sampling`` that each row uses."""
    count, vocabulary = rows.shape
    bits_out = torch.empty(count, -(-vocabulary // 32), dtype=torch.int32, device=rows.device)
    support = Support(bits_out, torch.empty_like(bits_out[:, 0]))
    index = None if slots is None else slots.int()
    specdec.logprobs(rows, tokens, sampling=sampling, request_index=index, support=support)
    return support
