"""Where draft tokens come from (drafters) and how many to ask for (draft plans)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

import specdec_kernels as specdec
from specdec_kernels.backends.reference import noise
from specdec_kernels.generate.models import LanguageModel
from specdec_kernels.generate.policy import POLICIES
from specdec_kernels.ops import Noise


class Clock(NamedTuple):
    """What a round's noise depends on: every request's seed, position of its next token (int64) and temperature."""

    seed: torch.Tensor
    position: torch.Tensor
    temperature: torch.Tensor


class ModelDrafter:
    """Drafts by sampling from a language model with the noise the target's race will use.

    `laws` says that it gives the logits its tokens were drawn from, which `rejection` needs.
    """

    laws = True

    def __init__(self, language_model: LanguageModel):
        self.language_model = language_model

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        """Begin a batch of texts of at most `capacity` tokens whose target knows `vocabulary` tokens."""
        self.reader, self.vocabulary = self.language_model.reader(batch, capacity), vocabulary

    def propose(self, text: torch.Tensor, length: list[int], count: list[int], slots: int, clock: Clock):
        """Write drafts to text[b, length[b]:]; return them, int64 [B, slots] with -1 from count[b] on, and logits.

        Logits are given for all `slots`: a request that drafts less still needs the law of its first undrafted slot.
        """
        rows, starts = torch.arange(len(length), device=text.device), clock.position
        drafts, laws = torch.full((len(length), slots), -1, device=text.device), []
        counts = torch.tensor(count, device=text.device)
        for slot in range(slots):
            logits = self.reader.read(text, [end + slot for end in length], rows=1)[:, 0, : self.vocabulary]
            laws.append(logits)
            if slot < max(count):
                token = specdec.race_sample(
                    logits, seed=clock.seed, position=starts + slot, temperature=clock.temperature
                )
                text[rows, starts + slot] = token
                drafts[:, slot] = torch.where(slot < counts, token, -1)
        return drafts, torch.stack(laws, dim=1) if laws else None

    def roll_back(self, length: list[int]) -> None:
        """Forget the drafts at positions length[b] and beyond."""
        self.reader.roll_back(length)

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.reader.keep(rows)


class NgramDrafter:
    """Drafts what followed the last earlier occurrence of the text's longest suffix of at most `longest` tokens.

    Prompt look-up: deterministic, so that its law is one-hot and no draft law is passed to the verifier.
    """

    laws = False

    def __init__(self, longest: int = 4, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest = longest, shortest

    def start(self, batch: int, capacity: int, vocabulary: int) -> None:
        pass

    def follow(self, text: list[int], count: int) -> list[int]:
        """At most `count` tokens that followed where the text's end was seen before.

        >>> NgramDrafter(longest=2).follow([7, 1, 2, 3, 4, 1, 2], 3)
        [3, 4, 1]
        """
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            suffix = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == suffix:
                    return text[start + size : start + size + count]
        return []

    def propose(self, text: torch.Tensor, length: list[int], count: list[int], slots: int, clock: Clock):
        drafts = torch.full((len(length), slots), -1)
        for row, (end, wanted) in enumerate(zip(length, count, strict=True)):
            tokens = self.follow(text[row, :end].tolist(), wanted)
            drafts[row, : len(tokens)] = torch.tensor(tokens)
            text[row, end : end + len(tokens)] = drafts[row, : len(tokens)].to(text.device)
        return drafts.to(text.device), None

    def roll_back(self, length: list[int]) -> None:
        pass

    def keep(self, rows: list[int]) -> None:
        pass


class DraftPlan(NamedTuple):
    """How far each request drafts in a round, decided before any of its tokens is seen.

    count : list of B ints
        Tokens to draft, at most what the loop allows.
    draft_prob : 1.0 or float32 tensor [B, max_k]
        h_j, the probability that slot j was to be drafted given that the slots before it are accepted.
    """

    count: list[int]
    draft_prob: float | torch.Tensor


class FixedLength:
    """Always k draft tokens.

    A draft policy has these names: `max_k`; `randomised` (some h_j < 1, so that it needs draft laws and the method
    "rejection"); `plan`; `look` and `observe`, which are shown every round that ended and may learn from it.
    """

    randomised = False

    def __init__(self, k: int):
        if k < 0:
            raise ValueError(f"k: expected a number of draft tokens >= 0, got {k}")
        self.max_k = k

    def plan(self, seed: torch.Tensor, position: torch.Tensor, limit: list[int]) -> DraftPlan:
        """Plan a round for requests that decide `position` next and can use at most limit[b] drafts."""
        return DraftPlan([min(self.max_k, most) for most in limit], 1.0)

    def look(self, drafts, target_logits, draft_logits, temperature) -> None:
        """Not look at what was drafted."""

    def observe(self, rounds) -> None:
        """Learn nothing."""


class RandomLength(FixedLength):
    """Draft a random number of tokens, at most k, as a scheme of `specdec_kernels.generate.policy` says.

    Parameters
    ----------
    k : the most tokens to draft
    draft_prob : the scheme's probability a
    scheme : "chain" (k tokens or none, by one coin), "token" (a coin for every token) or "uniform"
    """

    randomised = True

    def __init__(self, k: int, draft_prob: float, scheme: str = "chain"):
        super().__init__(k)
        if not 0 <= draft_prob <= 1:
            raise ValueError(f"draft_prob: expected a probability, got {draft_prob}")
        if scheme not in POLICIES:
            raise ValueError(f"scheme: expected one of {', '.join(POLICIES)}, got {scheme!r}")
        self.draft_prob, self.scheme = draft_prob, POLICIES[scheme]

    def plan(self, seed: torch.Tensor, position: torch.Tensor, limit: list[int]) -> DraftPlan:
        @cache
        def coins(index: int) -> list[float]:
            return noise.coins(Noise(seed, position, torch.zeros_like(seed)), noise.POLICY, index).tolist()

        coin_of = [lambda index, row=row: coins(index)[row] for row in range(len(limit))]
        drafts = [self.scheme(self.max_k, self.draft_prob, coin) for coin in coin_of]
        h = torch.tensor([entry.h for entry in drafts], dtype=torch.float32, device=seed.device)
        return DraftPlan([min(entry.count, most) for entry, most in zip(drafts, limit, strict=True)], h)
