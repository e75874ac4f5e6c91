"""Biased and forbidden tokens in vLLM's V1 runner: listed once for a request, and copied once for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from specdec_kernels.engines._vllm_rows import moved, requests_of


class Entries:
    """A request's biases, with -inf for the ends of its bad words: a list for each set of tokens forbidden besides."""

    def __init__(self, bias: dict[int, float] | None, stops: Iterable[int], bad_words: Iterable[list[int]]) -> None:
        self.bias, self.stops = bias or {}, frozenset(stops)
        self.ends = frozenset(word[0] for word in bad_words if len(word) == 1)
        self.longest = max(map(len, bad_words), default=0)
        self.after: dict[int, list[tuple[list[int], int]]] = {}  # longer ones, by their last token but one
        for *begin, last in bad_words:
            if begin:
                self.after.setdefault(begin[-1], []).append((begin, last))
        self._lists: dict[frozenset[int], np.ndarray] = {}

    def ended_by(self, text: list[int], end: int) -> frozenset[int]:
        """The tokens that would end a longer bad word after ``text[:end]``."""
        words = self.after[text[end - 1]]
        return frozenset(last for begin, last in words if text[max(end - len(begin), 0) : end] == begin)

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
        self._rows: dict[tuple[int, frozenset[int]], np.ndarray] = {}
        self._parts: list[np.ndarray] = []
        self._lists: torch.Tensor | None = None  # int32 [2, n]
        self._size = 0
        self._host = np.stack([self._row(request, frozenset()) for request in range(len(entries))])
        self._table = moved(self._host, device)
        self._biased = any(one.bias or one.ends for one in entries)
        self._worded = [request for request, one in enumerate(entries) if one.after]

    def of_rows(self, step: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """``LogitEdits.bias`` with a span for each row of a step; None where no row has entries."""
        after_texts = self._after_texts(step) if self._worded else None
        if after_texts is None and not step.short and not self._biased:
            return None
        size, count = len(step.counts), len(step.inputs)
        if after_texts is not None:
            table = moved(after_texts, self.device)
            table = table.view(size, -1, 5) if step.even else table
        elif step.even:
            table = self._table.unsqueeze(1)
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
        """int32 [D + B, 5]: the table's rows where texts may end in the beginning of a bad word; None if none does."""
        outputs, drafts = step.metadata.output_token_ids, step.metadata.spec_token_ids
        rows: dict[tuple[int, int], np.ndarray] = {}
        for request in self._worded:
            one, count = self.entries[request], step.counts[request]
            text = outputs[request][1 - one.longest :]
            size, after = len(text), one.after
            if count:
                text = text + drafts[request][:count]
            for row, token in enumerate(text[size - 1 :] if size else (None, *text)):
                if token in after and (ends := one.ended_by(text, size + row)):
                    rows[request, row] = self._row(request, ends)
        if not rows:
            return None
        many = np.asarray(step.counts) + 1
        table, begins = self._host.repeat(many, axis=0), (np.cumsum(many) - many).tolist()
        table[[begins[request] + row for request, row in rows]] = np.concatenate([*rows.values()]).reshape(-1, 5)
        return table

    def _row(self, request: int, ends: frozenset[int]) -> np.ndarray:
        """int32 [5]: where its lists begin and end, with stop tokens left and forbidden, and the bound for that."""
        row = self._rows.get((request, ends))
        if row is None:
            bound, spans = self.bounds.get(request), self._span(request, ends)
            banned = spans if bound is None else self._span(request, ends | self.entries[request].stops)
            row = np.array((*spans, *banned, bound or 0), dtype=np.int32)
            self._rows[request, ends] = row
        return row

    def _span(self, request: int, forbidden: frozenset[int]) -> tuple[int, int]:
        key = request, forbidden
        if key not in self._spans:
            part = self.entries[request].listed(forbidden)
            self._parts.append(part)
            self._spans[key] = self._size, self._size + part.shape[1]
            self._size, self._lists = self._size + part.shape[1], None
        return self._spans[key]
