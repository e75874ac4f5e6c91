"""Counts of accepted drafts by position, in engines whose decoding loop is ours: transformers, mlx-lm, llama.cpp.

vLLM and SGLang have such counters, which count our verdicts, too (``vllm:spec_decode_num_accepted_tokens_per_pos``; for
each request ``spec_correct_drafts_histogram``). Here a process counts for each engine, as long as it lives.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

__all__ = ["Counts", "accepted_drafts"]


class Counts(NamedTuple):
    """The figures of an engine's rounds."""

    rounds: int  # verifications of a text that had drafts
    accepted: list[int]  # by position of a chain, or depth of a tree: rounds in which its draft was accepted


_SEEN: dict[str, Counter[int]] = {}
_LOCK = threading.Lock()


def accepted_drafts(engine: str) -> Counts:
    """The counts of "transformers", "mlx-lm" or "llama.cpp" in this process.

    Examples
    --------
    >>> accepted_drafts("an engine that has written nothing")
    Counts(rounds=0, accepted=[])
    """
    with _LOCK:
        lengths = dict(_SEEN.get(engine, {}))  # accepted drafts of a round -> number of such rounds
    most = max(lengths, default=0)
    return Counts(
        sum(lengths.values()), [sum(lengths.get(j, 0) for j in range(i, most + 1)) for i in range(1, most + 1)]
    )


def count(engine: str, drafted: int, accepted: int) -> None:
    """Count a round of this engine, if it had drafts."""
    if drafted:
        with _LOCK:
            _SEEN.setdefault(engine, Counter())[accepted] += 1
