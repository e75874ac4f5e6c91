"""Biased and forbidden tokens in vLLM's V1 runner: listed once for a request, and copied once for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from specdec_kernels.engines._vllm_rows import moved, requests_of

NO_TOKENS: frozenset[int] = frozenset()


class Entries:
    """A request's biases, with -inf for the ends of its bad words: a list for each set of tokens forbidden besides."""

    def __init__(self, bias: dict[int, float] | None, stops: Iterable[int], bad_words: Iterable[list[int]]) -> None:
        self.bias, self.stops = bias or {}, frozenset(stops)
        self.ends = frozenset(word[0] for word in bad_words if len(word) == 1)
        self.longest = max(map(len, bad_words), default=0)
        after: dict[int, list[list[int]]] = {}
        for word in bad_words:
            if len(word) > 1:
                after.setdefault(word[-2], []).append(word)
        # The last tokens of words of two tokens by the first, and longer words by their last token but one.
        self.after_one = {
            token: frozenset(word[1] for word in words if len(word) == 2) for token, words in after.items()
        }
        self.after_more = {token: [word for word in words if len(word) > 2] for token, words in after.items()}
        self._lists: dict[frozenset[int], np.ndarray] = {}

    def ended_by(self, text: list[int], end: int) -> frozenset[int]:
        """The tokens that would end a bad word of two or more tokens after ``text[:end]``."""
        token = text[end - 1]
        words = self.after_more.get(token)
        if words is None:
            return NO_TOKENS
        more = [word[-1] for word in words if text[max(end - len(word) + 1, 0) : end] == word[:-1]]
        return self.after_one[token].union(more) if more else self.after_one[token]

    def listed(self, forbidden: frozenset[int]) -> np.ndarray:
        """int32 [2, n]: rising tokens, and the bits of their float32 biases."""
        if forbidden not in self._lists:
            biases = self.bias | dict.fromkeys(self.ends | forbidden, -np.inf)
            pairs = np.array(sorted(biases.items()), dtype=np.float64).reshape(-1, 2)
            tokens, values = pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.float32)
            self._lists[forbidden] = np.stack((tokens, values.view(np.int32)))
        return self._lists[forbidden]


class Biases:
    """The lists of a batch's requests on the device, where rows share them.

    ``bounds`` of requests: stop tokens are forbidden after input tokens at positions below it. A request has two lists
    for that, and two more for each set of ends of bad words that a row's text calls for.
    """

    def __init__(self, entries: Sequence[Entries], bounds: dict[int, int], device: torch.device) -> None:
        self.entries, self.bounds, self.device = entries, bounds, device
        self._spans: dict[tuple[int, frozenset[int]], tuple[int, int]] = {}
        self._parts: list[np.ndarray] = []
        self._lists: torch.Tensor | None = None  # int32 [2, n]
        self._size = 0
        self._numbers: dict[tuple[int, frozenset[int]], int] = {}  # of the table's rows, requests' without words first
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._table: torch.Tensor | None = None  # int32 [rows, 5]
        for request in range(len(entries)):
            self._number(request, NO_TOKENS)
        self._biased = any(one.bias or one.ends for one in entries)
        self._worded = [request for request, one in enumerate(entries) if one.after_one]

    def of_rows(self, step: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """``LogitEdits.bias`` with a span for each row of a step; None where no row has entries."""
        after_texts = self._after_texts(step) if self._worded else None
        if after_texts is None and not step.short and not self._biased:
            return None
        size, count = len(step.counts), len(step.inputs)
        if self._table is None:
            self._table = moved(np.array(self._rows, dtype=np.int32), self.device)
        if after_texts is not None:
            table = self._table[moved(after_texts, self.device)]
            table = table.view(size, -1, 5) if step.even else table
        elif step.even:
            table = self._table[:size].unsqueeze(1)
        else:
            table = self._table[requests_of(step.chains.cu_num_sampled_tokens, count)]
        if step.short:
            inputs = step.inputs.view(size, -1) if step.even else step.inputs
            spans = torch.where((inputs < table[..., 4]).unsqueeze(-1), table[..., 2:4], table[..., :2])
        else:
            spans = table[..., :2].expand(size, count // size, 2) if step.even else table[..., :2]
        if self._lists is None:
            self._lists = moved(np.concatenate(self._parts, axis=1), self.device)
        return self._lists[0], self._lists[1].view(torch.float32), spans

    def _after_texts(self, step: Any) -> np.ndarray | None:
        """int64 [D + B]: the table's row for each row of a step; None where no text ends in the beginning of a word."""
        outputs, drafts = step.metadata.output_token_ids, step.metadata.spec_token_ids
        many = np.asarray(step.counts) + 1
        begins, numbers, ended = (np.cumsum(many) - many).tolist(), np.arange(len(many)).repeat(many), False
        for request in self._worded:
            one, count = self.entries[request], step.counts[request]
            text = outputs[request][1 - one.longest :]
            size = len(text)
            if count:
                text = text + drafts[request][:count]
            for end in range(size or 1, len(text) + 1):
                if ends := one.ended_by(text, end):
                    numbers[begins[request] + end - size] = self._number(request, ends)
                    ended = True
        return numbers if ended else None

    def _number(self, request: int, ends: frozenset[int]) -> int:
        """The table's row of a request's lists: their bounds, with stop tokens left and forbidden, and until where."""
        key = request, ends
        if key not in self._numbers:
            bound, spans = self.bounds.get(request), self._span(request, ends)
            banned = spans if bound is None else self._span(request, ends | self.entries[request].stops)
            self._numbers[key], self._table = len(self._rows), None
            self._rows.append((*spans, *banned, bound or 0))
        return self._numbers[key]

    def _span(self, request: int, forbidden: frozenset[int]) -> tuple[int, int]:
        key = request, forbidden
        if key not in self._spans:
            part = self.entries[request].listed(forbidden)
            self._parts.append(part)
            self._spans[key] = self._size, self._size + part.shape[1]
            self._size, self._lists = self._size + part.shape[1], None
        return self._spans[key]
