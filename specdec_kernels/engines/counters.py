"""How many drafts were accepted, by position, where the decoding loop is ours: transformers, mlx-lm, llama.cpp.

vLLM and SGLang count by themselves, ours included (``vllm:spec_decode_num_accepted_tokens_per_pos``; of each request
``spec_correct_drafts_histogram``). Here a process counts for each engine, as long as it lives.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

__all__ = ["Counts", "accepted_drafts"]


class Counts(NamedTuple):
    """What the rounds of an engine gave."""

    rounds: int  # verifications of a text that had drafts
    accepted: list[int]  # of each position of a chain, or depth of a tree, in how many of them its draft was accepted


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
        lengths = dict(_SEEN.get(engine, {}))  # how many rounds accepted so many
    most = max(lengths, default=0)
    return Counts(
        sum(lengths.values()), [sum(lengths.get(j, 0) for j in range(i, most + 1)) for i in range(1, most + 1)]
    )


def count(engine: str, drafted: int, accepted: int) -> None:
    """A round of this engine, if it had drafts."""
    if drafted:
        with _LOCK:
            _SEEN.setdefault(engine, Counter())[accepted] += 1
