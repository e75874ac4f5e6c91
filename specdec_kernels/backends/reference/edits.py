"""From raw logits to edited ones: bias, penalties, grammar. Everything is dense here, [..., V]."""

import torch

from specdec_kernels._constants import LARGEST
from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.calls.values import ALLOWED_BY_ROW, BIAS_BY_ROW

MOST = 2**31 - 1  # counts stop here


class LogitEdits:
    """The edits of a call's target rows.

    Parameters
    ----------
    call
        With ``edits``; in ops on rows each row [A, R] has a list, else each request has.
    active : Requests
    target : Tensor
        The target's rows.

    Attributes
    ----------
    on : bool
        Whether rows change at all.
    bad : Tensor
        bool [n, *inner]: live requests (rows) with a number, a bias entry or a pending token out of range.
    """

    def __init__(self, call, active, target):
        edit = call.edits
        self.on, self._edit, vocabulary = edit.on(), edit, target.shape[-1]
        self._vocabulary = vocabulary
        shape = (len(active.rows), *active.inner)
        self.bad = torch.zeros(shape, dtype=torch.bool, device=target.device)
        if not self.on:
            return

        def by_entry(lists):
            """The lists by request, or by row in ops on rows; chains and trees have one list an entry."""
            return lists[active.entry] if active.inner else lists[active.entry, 0]

        def by_row(lists):
            """The lists by row of the target, in order; ops on rows take the live rows."""
            return lists[active.rows] if active.inner else lists.flatten(0, 1)

        self._allowed = self._bias = None
        self._bad_rows = []  # bool, by row of the target
        if edit.allowed is not None:
            of_rows = edit.by_row & ALLOWED_BY_ROW
            self._allowed, bad = indexed(edit.allowed, edit.allowed_index, by_row if of_rows else by_entry, -1)
            self._report(active, bad, of_rows)
        if edit.bias_tokens is not None:
            of_rows = edit.by_row & BIAS_BY_ROW
            spans = (by_row if of_rows else by_entry)(edit.bias_spans)
            self._bias, bad = dense_bias(edit.bias_tokens, edit.bias_values, spans, vocabulary)
            self._report(active, bad, of_rows)

        self._repetition, self._frequency, self._presence = (
            self._number(active, value, off, least)
            for value, off, least in (
                (edit.repetition, 1.0, 0.0),
                (edit.frequency, 0.0, None),
                (edit.presence, 0.0, None),
            )
        )
        self._counts = torch.zeros(*shape, vocabulary, dtype=torch.int64, device=target.device)

        def seen(lists):
            gathered, bad = indexed(lists, edit.seen_index, by_entry, 0)
            self.bad |= bad
            return gathered

        if edit.output_mask is not None:
            counts = 1 if edit.output_counts is None else seen(edit.output_counts).long().clamp(min=1)
            self._counts += bits(seen(edit.output_mask), vocabulary) * counts
        if edit.pending is not None:
            tokens = by_entry(edit.pending).long()
            valid = (tokens >= 0) & (tokens < vocabulary)
            self._counts.scatter_add_(-1, torch.where(valid, tokens, 0), valid.long())
            self.bad |= (~valid & (tokens != -1)).any(dim=-1)
        self._seen = self._counts > 0
        if edit.prompt_mask is not None:
            self._seen |= bits(seen(edit.prompt_mask), vocabulary)

    def _report(self, active, bad, of_rows):
        """Adds to ``bad`` by request, or defers to rows that set the status only when they are read."""
        if active.inner or not of_rows:
            self.bad |= bad
        else:
            self._bad_rows.append(bad)

    def _number(self, active, value, off, least):
        """float32 by request (row); one that is not finite, or not more than ``least``, is bad and off."""
        value = active.numbers(value, torch.float32)
        good = value.isfinite() if least is None else value.isfinite() & (value > least)
        self.bad |= ~good
        return torch.where(good, value, off).unsqueeze(-1)

    def rows(self, values):
        """The edited logits of rows [n, R, V], in ops on rows; float32."""
        return self._edited(values, slice(None), slice(None)) if self.on else values

    def rows_at(self, values, requests, row_indices, said=None):
        """(edited logits, whether the row's lists are bad) of one row of each of ``requests``."""
        # ``row_indices``: these rows among the target's. ``said`` [n, J] are tokens that are output before these rows
        # and are not counted yet, -1 for none.
        bad = torch.zeros_like(requests, dtype=torch.bool)
        if not self.on:
            return values, bad
        for row_is_bad in self._bad_rows:
            bad = bad | row_is_bad[row_indices]
        return self._edited(values, requests, row_indices, said), bad

    def count(self, requests, tokens):
        """Add one of these tokens to the output of each of ``requests``."""
        if self.on:
            self._counts[requests, tokens] += 1
            self._seen[requests, tokens] = True

    def _edited(self, values, requests, row_indices, said=None):
        z = values.float()
        if self._bias is not None:
            z = z + self._bias[row_indices if self._edit.by_row & BIAS_BY_ROW else requests]
        r, f, g = (x[requests] for x in (self._repetition, self._frequency, self._presence))
        counts, seen = self._counts[requests], self._seen[requests]
        if said is not None:
            counts = counts.scatter_add(-1, said.clamp(min=0), (said >= 0).long())
            seen = seen | (counts > 0)
        counts = counts.clamp(max=MOST)
        z = torch.where(seen, torch.where(z > 0, z * (1 / r), z * r), z)
        z = torch.where(counts > 0, z - f * counts.float(), z)
        z = torch.where(counts > 0, z - g, z)
        if self._allowed is None:
            return z
        words = self._allowed[row_indices if self._edit.by_row & ALLOWED_BY_ROW else requests]
        return torch.where(bits(words, self._vocabulary), z, -torch.inf)


def edited_rows(call):
    """(requests, edited rows [n, R, V] of the live ones, their law, bool [n, R]: a number is out of range) of an op on
    rows.
    """
    batch, inner, _ = call.rows.shape
    active = requests.of(call, batch, call.rows.device, inner=(inner,))
    law, bad = laws.decoded(call.law, active)
    edits = LogitEdits(call, active, call.rows)
    return active, edits.rows(call.rows[active.rows]), law, bad | edits.bad


def indexed(lists, index, select, other):
    """(The lists that ``select`` and an index choose; whether the index is out of range.) -1 chooses a list of
    ``other``."""
    if index is None:
        gathered = select(lists)
        return gathered, torch.zeros(gathered.shape[:-1], dtype=torch.bool, device=gathered.device)
    entry = select(index).squeeze(-1).long()
    inside = (entry >= 0) & (entry < len(lists))
    every = torch.cat([lists[:, 0], torch.full((1, lists.shape[-1]), other, dtype=lists.dtype, device=lists.device)])
    return every[torch.where(inside, entry, len(lists))], ~inside & (entry != -1)


def bits(words, vocabulary):
    """bool [..., vocabulary] from int32 words [..., at least vocabulary / 32]."""
    return (
        (words.unsqueeze(-1) >> torch.arange(32, device=words.device, dtype=torch.int64) & 1)
        .bool()
        .flatten(-2)[..., :vocabulary]
    )


def dense_bias(tokens, values, spans, vocabulary):
    """(float32 [..., vocabulary], bad [...]) of spans [..., 2] of entries. Only entries whose tokens rise count."""
    bias = torch.zeros(*spans.shape[:-1], vocabulary, dtype=torch.float32, device=spans.device)
    bad = torch.zeros(spans.shape[:-1], dtype=torch.bool, device=spans.device)
    values = torch.where(values.isnan(), -torch.inf, values).clamp(max=LARGEST)
    for row_bias, row_is_bad, (begin, end) in zip(
        bias.view(-1, vocabulary), bad.view(-1), spans.reshape(-1, 2).tolist(), strict=True
    ):
        if not 0 <= begin <= end <= len(tokens):
            row_is_bad.fill_(True)
            continue
        last = -1
        for token, value in zip(tokens[begin:end].tolist(), values[begin:end].tolist(), strict=True):
            if last < token < vocabulary:
                row_bias[token], last = value, token
            else:
                row_is_bad.fill_(True)
    return bias, bad
