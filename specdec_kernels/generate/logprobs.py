"""The log-probabilities of emitted tokens."""

from __future__ import annotations

import specdec_kernels as specdec
from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Sampling, per_row
from specdec_kernels.generate.protocols import Emitted
from specdec_kernels.generate.results import TokenLogprobs


def logprobs_of(emitted: Emitted, sampling: Sampling, record: Record | None, top: int) -> list[list[TokenLogprobs]]:
    """For every request, the log-probabilities of its tokens, and of the `top` most probable ones beside each."""
    edits = None if record is None else record.of_rows(emitted.tokens)
    scores = specdec.logprobs(emitted.logits, emitted.tokens, sampling=per_row(sampling), edits=edits, top=top)
    rows = zip(emitted.tokens.tolist(), *(part.tolist() for part in scores), strict=True)
    return [
        [named(*figures) for token, *figures in zip(*row, strict=True) if token >= 0]
        for row in rows
    ]  # fmt: skip


def named(logprob: float, rank: int, top_tokens: list[int], top_logprobs: list[float]) -> TokenLogprobs:
    """A TokenLogprobs without the columns that hold no token."""
    count = sum(token >= 0 for token in top_tokens)
    return TokenLogprobs(logprob, rank, top_tokens[:count], top_logprobs[:count])
