"""What rounds with chains and with trees share; the loop plays them."""

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

PENDING = 16  # tokens that are read again in front of drafts, at most, where nothing says what that costs


class Stopwatch:
    """Seconds by part; on a GPU it waits for the device, or the parts would be told apart wrongly."""

    def __init__(self, device: torch.device, timer: Callable[[], float]) -> None:
        self.device, self.timer, self.last = device, timer, timer()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """End a part: what passed since the last one is its time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = self.timer()
        self.seconds[part], self.last = now - self.last, now


class Rounds(ABC):
    """How a round is played: with chains or with trees, verified by a method of `verify_chain` or `verify_tree`."""

    max_pending: int | None = None  # of a target with recurrent layers; None: `PENDING`, or learned

    def __init__(self, target: LanguageModel, drafter: Any, method: str, policy: Any) -> None:
        self.target, self.drafter, self.method, self.policy = target, drafter, method, policy

    @abstractmethod
    def room(self, limit: int) -> int:
        """Positions past a text's end that the drafts of rounds may take that can use `limit` at most."""

    def start(self, batch: int, capacity: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens, drafts included."""
        self.reader = self.target.reader(batch, capacity)
        if self.drafter is not None:
            self.drafter.start(batch, capacity, self.target.config.vocab_size)

    def read(self, text: torch.Tensor, end: list[int]) -> None:
        """Have the target read text[b, :end[b]], before any round."""
        self.reader.read(text, end, rows=1)
        self.reader.roll_back(end)  # nothing of it will be taken back

    @abstractmethod
    def play(
        self, text: torch.Tensor, length: list[int], limit: list[int], noise: Noise, sampling: Sampling,
        record: Record | None, watch: Stopwatch,
    ) -> Outcome:  # fmt: skip
        """A round of texts of length[b] tokens that can use at most limit[b] drafts."""

    @abstractmethod
    def laws_of(self, row: int) -> Iterator[Law]:
        """The logits that the last round's verification had of a text."""

    @abstractmethod
    def emitted(self) -> Emitted:
        """What the last round emitted."""

    @abstractmethod
    def settle(self, rounds: Sequence[Round]) -> None:
        """Learn from the round that has ended, and forget its rejected drafts."""

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.reader.keep(rows)
        if self.drafter is not None:
            self.drafter.keep(rows)
