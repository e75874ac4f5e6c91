"""LogitEdits of logits for whole texts: their settings, and the record of each text that penalties read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

import specdec_kernels as specdec
from specdec_kernels import LogitEdits

WORD = 32  # tokens in a word of a mask


class TextEdits(NamedTuple):
    """Edits of the logits of every token of a text, of the target and of its drafts alike (see `LogitEdits`).

    Attributes
    ----------
    repetition : float or list of float
        Number above 0, or one per prompt: logits of tokens of the prompt and the text are divided by it where they are
        positive, else multiplied. 1 is off.
    frequency, presence : float or list of float
        Subtracted from a token's logit once for each occurrence in the text, and once if it occurs.
    bias : dict, optional
        From token id to a number that is added to its logit; -inf forbids it.
    allowed : list of int, optional
        The only tokens that may come.
    """

    repetition: float | Sequence[float] = 1.0
    frequency: float | Sequence[float] = 0.0
    presence: float | Sequence[float] = 0.0
    bias: Mapping[int, float] | None = None
    allowed: Sequence[int] | None = None


class Numbers(NamedTuple):
    """The penalties of each request, float32 [B]."""

    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


class Record:
    """The edits of a batch of unfinished texts, as in `TextEdits` and checked, and the tokens of each so far.

    Drafts are drawn from rows that were edited here, in torch, and the verifier gets these rows as the law of the
    drafts. The ops edit the target's rows. `vocabulary` is the target's.
    """

    def __init__(
        self, numbers: Numbers, bias: Mapping[int, float], allowed: Sequence[int] | None, prompts: list[list[int]],
        vocabulary: int,
    ) -> None:  # fmt: skip
        device, words = numbers.repetition.device, -(-vocabulary // WORD)
        self.numbers, entries = numbers, sorted(bias.items())
        self.bias_tokens = torch.tensor([token for token, _ in entries], dtype=torch.int32, device=device)
        self.bias_values = torch.tensor([value for _, value in entries], dtype=torch.float32, device=device)
        self.allowed = None if allowed is None else mask_of([allowed], words, device)
        self.prompt = mask_of(prompts, words, device)
        self.output = torch.zeros_like(self.prompt)
        self.counts = torch.zeros(len(prompts), vocabulary, dtype=torch.int32, device=device)
        self.penalises = bool((numbers.repetition != 1).any() or numbers.frequency.any() or numbers.presence.any())

    def of_requests(self) -> LogitEdits:
        """For verifications of chains and trees."""
        batch, entries = len(self.counts), len(self.bias_tokens)
        ends = entries * torch.arange(batch + 1, dtype=torch.int32, device=self.counts.device)
        bias = (self.bias_tokens.repeat(batch), self.bias_values.repeat(batch), ends)
        allowed = None if self.allowed is None else self.allowed.expand(batch, -1)
        if not self.penalises:
            return LogitEdits(allowed, bias)
        return LogitEdits(allowed, bias, *self.numbers, self.prompt, self.output, self.counts)

    def of_rows(self, tokens: torch.Tensor) -> LogitEdits:
        """For rows [B, L, V] that decided these tokens [B, L] of each text, one after the other."""
        span = torch.tensor([0, len(self.bias_tokens)], dtype=torch.int32, device=tokens.device)
        bias = (self.bias_tokens, self.bias_values, span.expand(*tokens.shape, 2))
        if not self.penalises:
            return LogitEdits(self.allowed, bias)
        numbers = (number[:, None] for number in self.numbers)
        record = (part[:, None] for part in (self.prompt, self.output, self.counts))
        return LogitEdits(self.allowed, bias, *numbers, *record, pending=before(tokens))

    def edited(self, logits: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        """Float32 rows [B, R, V'] of a model whose vocabulary is the target's first V' tokens, edited by `LogitEdits`.

        `pending` [B, R, J] are the tokens of the text that lie between the record and each row, -1 for none.
        """
        z, columns = logits.float(), slice(logits.shape[-1])
        there = self.bias_tokens < logits.shape[-1]
        z = z.index_add(-1, self.bias_tokens[there], self.bias_values[there].expand(*z.shape[:-1], -1))
        if self.penalises:
            z = self._penalised(z, pending)
        return z if self.allowed is None else torch.where(bits(self.allowed)[:, None, columns], z, -torch.inf)

    def _penalised(self, z: torch.Tensor, pending: torch.Tensor) -> torch.Tensor:
        columns = slice(z.shape[-1])
        counts = self.counts[:, None].expand(*pending.shape[:2], -1).clone()
        counts.scatter_add_(-1, pending.clamp(min=0), (pending >= 0).int())
        counts = counts[..., columns]
        seen = bits(self.prompt)[:, None, columns] | (counts > 0)
        r, f, g = (number[:, None, None] for number in self.numbers)
        z = torch.where(seen, torch.where(z > 0, z * (1 / r), z * r), z)
        z = torch.where(counts > 0, z - f * counts.float(), z)
        return torch.where(counts > 0, z - g, z)

    def left(self) -> torch.Tensor:
        """bool [V]: the tokens that may come."""
        left = torch.ones(self.counts.shape[1], dtype=torch.bool, device=self.counts.device)
        if self.allowed is not None:
            left &= bits(self.allowed)[0, : len(left)]
        left[self.bias_tokens[self.bias_values == -torch.inf]] = False
        return left

    def count(self, tokens: torch.Tensor) -> None:
        """Add the tokens [B, L] of each text, -1 for none; a record without penalties has no use for them."""
        if self.penalises:
            specdec.count_tokens(LogitEdits(output_mask=self.output, output_counts=self.counts), tokens)

    def keep(self, rows: list[int]) -> None:
        """Drop every text but those of index `rows`."""
        self.numbers = Numbers(*(number[rows] for number in self.numbers))
        self.prompt, self.output, self.counts = self.prompt[rows], self.output[rows], self.counts[rows]


def mask_of(lists: Sequence[Sequence[int]], words: int, device: torch.device) -> torch.Tensor:
    """int32 [len(lists), words]: the bits of these tokens."""
    lengths = torch.tensor([len(tokens) for tokens in lists], device=device, dtype=torch.int64)
    rows = [torch.tensor(tokens, dtype=torch.int64, device="cpu") for tokens in lists]
    padded = pad_sequence(rows, batch_first=True).to(device)
    mask = torch.zeros(len(lists), words, dtype=torch.int32, device=device)
    specdec.count_tokens(LogitEdits(prompt_mask=mask), padded, lengths, prompt=True)
    return mask


def bits(mask: torch.Tensor) -> torch.Tensor:
    """bool [..., 32 W] of int32 words [..., W]."""
    each = torch.arange(8, device=mask.device, dtype=torch.uint8)
    return (mask.view(torch.uint8).unsqueeze(-1) >> each & 1).bool().flatten(-2)


def before(tokens: torch.Tensor) -> torch.Tensor:
    """For each of the tokens [B, L] those that stand before it, [B, L, L], -1 in the other columns."""
    count = tokens.shape[1]
    earlier = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril(-1)
    return torch.where(earlier, tokens[:, None], -1)
