"""The common part of rounds with chains and with trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specdec_kernels.generate.edits import Record
from specdec_kernels.generate.noise import Noise, Sampling
from specdec_kernels.generate.protocols import Emitted, Law, Outcome
from specdec_kernels.generate.results import Round

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel

PENDING = 16  # accepted tokens that are read again in front of drafts, at most, without an estimate of the cost


class Stopwatch:
    """Seconds by part; on a GPU it waits for the device at each part's end, for kernels are asynchronous."""

    def __init__(self, device: torch.device, timer: Callable[[], float]) -> None:
        self.device, self.timer, self.last = device, timer, timer()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """End a part: the time since the last lap is its."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = self.timer()
        self.seconds[part], self.last = now - self.last, now


class Rounds(ABC):
    """A round's steps: with chains or with trees, verified by a method of `verify_chain` or `verify_tree`."""

    max_pending: int | None = None  # for a target with recurrent layers; None: `PENDING`, or an estimate

    def __init__(self, target: LanguageModel, drafter: Any, method: str, policy: Any) -> None:
        self.target, self.drafter, self.method, self.policy = target, drafter, method, policy

    @abstractmethod
    def room(self, limit: int) -> int:
        """Positions past a text's end that drafts may take in rounds of at most `limit` drafts."""

    def start(self, batch: int, capacity: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens, drafts included."""
        self.reader = self.target.reader(batch, capacity)
        if self.drafter is not None:
            self.drafter.start(batch, capacity, self.target.config.vocab_size)

    def read(self, text: torch.Tensor, end: list[int]) -> None:
        """Make the target read text[b, :end[b]], before any round."""
        self.reader.read(text, end, rows=1)
        self.reader.roll_back(end)  # all of it is final

    @abstractmethod
    def play(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None, watch: Stopwatch,
    ) -> Outcome:  # fmt: skip
        """A round of texts of length[b] tokens that can use at most limit[b] drafts."""

    @abstractmethod
    def laws_of(self, row: int) -> Iterator[Law]:
        """The logits of a text in the last round's verification."""

    @abstractmethod
    def emitted(self) -> Emitted:
        """The tokens of the last round."""

    @abstractmethod
    def settle(self, rounds: Sequence[Round]) -> None:
        """Update estimates by the round that has ended, and remove its rejected drafts."""

    def keep(self, rows: list[int]) -> None:
        """Drop all texts but those of indices `rows`."""
        self.reader.keep(rows)
        if self.drafter is not None:
            self.drafter.keep(rows)
