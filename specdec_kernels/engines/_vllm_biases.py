"""Biased and forbidden tokens in vLLM's runners: listed once for a request, and copied when requests change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specdec_kernels.engines._vllm_rows import moved, requests_of

NO_TOKENS: frozenset[int] = frozenset()
NO_LISTS = (0, 0, 0, 0, 0)


class Entries:
    """A request's biases, with -inf for the ends of its bad words: a list for each set of tokens forbidden besides.

    Stop tokens are forbidden after input tokens at positions below ``bound``, unless a grammar may allow them alone.
    """

    def __init__(self, params: Any, prompt: int) -> None:
        words = params.bad_words_token_ids or ()
        self.bias, self.least, self.grammar = params.logit_bias or {}, params.min_tokens, params.structured_outputs
        self.stops, self.bound = frozenset(params.all_stop_token_ids if self.least else ()), prompt + self.least - 1
        self.ends = frozenset(word[0] for word in words if len(word) == 1)
        self.longest = max(map(len, words), default=0)
        self.words: dict[int, list[list[int]]] = {}  # those of several tokens, by their last but one
        for word in words:
            if len(word) > 1:
                self.words.setdefault(word[-2], []).append(word)
        self.used = bool(self.bias or self.stops or words)
        self._lists: dict[frozenset[int], np.ndarray] = {}

    def ended_by(self, text: list[int], end: int) -> frozenset[int]:
        """The tokens that would end a bad word of several tokens after ``text[:end]``."""
        words = self.words.get(text[end - 1], ())
        return frozenset(word[-1] for word in words if text[max(end - len(word) + 1, 0) : end] == word[:-1])

    def listed(self, forbidden: frozenset[int]) -> np.ndarray:
        """int32 [2, n]: rising tokens, and the bits of their float32 biases."""
        if forbidden not in self._lists:
            biases = self.bias | dict.fromkeys(self.ends | forbidden, -np.inf)
            pairs = np.array(sorted(biases.items()), dtype=np.float64).reshape(-1, 2)
            tokens, values = pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.float32)
            self._lists[forbidden] = np.stack((tokens, values.view(np.int32)))
        return self._lists[forbidden]


class Biases:
    """The lists of requests on the device, where rows share them.

    A request has two, with its stop tokens left and forbidden, and two more for each set of ends of bad words that a
    row's text calls for.
    """

    def __init__(self, entries: Sequence[Entries | None], device: torch.device) -> None:
        self.entries, self.device = entries, device
        self._spans: dict[tuple[int, frozenset[int]], tuple[int, int]] = {}
        self._parts: list[np.ndarray] = []
        self._lists: torch.Tensor | None = None  # int32 [2, n]
        self._size = 0
        self._rows = [NO_LISTS if one is None else self._row(request, NO_TOKENS) for request, one in enumerate(entries)]
        self._worded_rows: dict[tuple[int, frozenset[int]], int] = {}  # rows behind those of requests
        self._table: torch.Tensor | None = None  # int32 [rows, 5]
        self._biased = any(one and (one.bias or one.ends) for one in entries)
        self._worded = [request for request, one in enumerate(entries) if one and one.words]
        self.bounded = any(one and one.stops for one in entries)

    def table(self) -> torch.Tensor:
        """int32 [rows, 5]: bounds of lists with stop tokens left, with them forbidden, and until where; by request."""
        if self._table is None:
            self._table = moved(np.array(self._rows, dtype=np.int32), self.device)
        return self._table

    def of_rows(
        self, rows: torch.Tensor, inputs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``LogitEdits.bias`` with a span for each of these ``rows`` [..., 5] of the table.

        ``inputs`` are the positions of input tokens, None where no text is too short to end.
        """
        spans = rows[..., :2]
        if inputs is not None:
            spans = torch.where((inputs < rows[..., 4]).unsqueeze(-1), rows[..., 2:4], spans)
        if self._lists is None:
            self._lists = moved(np.concatenate(self._parts, axis=1), self.device)
        return self._lists[0], self._lists[1].view(torch.float32), spans

    def of_step(self, step: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """`of_rows` for a step of the V1 runner; None where no row has entries."""
        after_texts = self._after_texts(step) if self._worded else None
        if after_texts is None and not step.short and not self._biased:
            return None
        size, count, table = len(step.counts), len(step.inputs), self.table()
        if after_texts is not None:
            rows = table[moved(after_texts, self.device)]
            rows = rows.view(size, -1, 5) if step.even else rows
        elif step.even:
            rows = table[:size].unsqueeze(1).expand(-1, count // size, -1)
        else:
            rows = table[requests_of(step.chains.cu_num_sampled_tokens, count)]
        inputs = step.inputs.view(rows.shape[:-1]) if step.short else None
        return self.of_rows(rows, inputs)

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
                    numbers[begins[request] + end - size] = self._worded_row(request, ends)
                    ended = True
        return numbers if ended else None

    def _worded_row(self, request: int, ends: frozenset[int]) -> int:
        """The table's row of a request's lists with these ends of bad words."""
        key = request, ends
        if key not in self._worded_rows:
            self._worded_rows[key], self._table = len(self._rows), None
            self._rows.append(self._row(request, ends))
        return self._worded_rows[key]

    def _row(self, request: int, ends: frozenset[int]) -> tuple[int, ...]:
        one, spans = self.entries[request], self._span(request, ends)
        if not one.stops or one.grammar:
            return *spans, *spans, 0
        return *spans, *self._span(request, ends | one.stops), one.bound

    def _span(self, request: int, forbidden: frozenset[int]) -> tuple[int, int]:
        key = request, forbidden
        if key not in self._spans:
            part = self.entries[request].listed(forbidden)
            self._parts.append(part)
            self._spans[key] = self._size, self._size + part.shape[1]
            self._size, self._lists = self._size + part.shape[1], None
        return self._spans[key]
