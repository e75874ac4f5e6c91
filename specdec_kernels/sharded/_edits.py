"""Edits of rows of which each rank has a slice: those of the slice's tokens, with one place for each row.

The slice's rows are written anew, in float32: the local ops know no token outside of their columns. The formula is that
of the reference backend.
"""

from types import SimpleNamespace

import torch

from specdec_kernels.backends.reference import edits as dense
from specdec_kernels.backends.reference.requests import Requests
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops._declaration import Law
from specdec_kernels.sampling import Edits
from specdec_kernels.status import Status

NUMBERS = Edits._fields[2:5]


def of_rows(edits, shard, rows, how):
    """The Edits of the slice's columns, in ops on rows; ``how`` has what numbers the op is called with."""
    wide, folded, index = _wide(rows, shard), inputs.rows3("rows", rows), how["request_index"]
    numbers = laws.numbers_in(how["temperature"], how["sampling"], how["seed"], how["position"], how["nonce"])
    shape, seen = laws.number_shapes(wide, folded, index, None, *edit.lists(edits), *numbers)
    edit.of_rows(edits, Law(how["space"], 1.0), wide, folded, shape, seen)
    spans = _spans(edits, shape)
    if index is None:
        return _of_slice(edits, shard, rows.shape[-1], spans)
    entry = index.long().clamp(0, shape[0] - 1)

    def at(x, *last):
        return x.expand(*shape, *last)[entry] if isinstance(x, torch.Tensor) else x

    if spans is not None and edits.bias[2].ndim == 1:
        spans = at(spans, 2)
    lists = {name: x for name in Edits._fields[5:] if (x := getattr(edits, name)) is not None}
    edits = edits._replace(**{name: at(x, x.shape[-1]) for name, x in lists.items()})
    edits = edits._replace(**dict(zip(NUMBERS, map(at, edits[2:5]), strict=True)))
    return _of_slice(edits, shard, rows.shape[-1], spans)


def of_chains(edits, shard, chains, requests, target, space):
    """The same of chains: each row has its own, in which the drafts before it are pending."""
    found = edit.of_requests(edits, Law(space, 1.0), _wide(target, shard), requests.entries)
    entry = None if requests.entry is None else requests.entry.clamp(max=requests.entries - 1)

    def of_requests(lists):
        """[B, 1, ...] or, ragged, [rows, ...] of [entries, ...]."""
        if chains.cu_drafts is not None:
            return lists[chains.request if entry is None else entry[chains.request]]
        return (lists if entry is None else lists[entry]).unsqueeze(1)

    def own(lists):
        return None if lists is None else of_requests(lists.expand(requests.entries, lists.shape[-1]))

    allowed, spans, pending = edits.allowed, _spans(edits, (requests.entries,)), None
    if allowed is not None and allowed.ndim != target.ndim:  # a mask of each request
        lead = (requests.entries,) if chains.cu_drafts is None else (requests.entries, 1)
        allowed = of_requests(allowed.expand(*lead, allowed.shape[-1]).flatten(0, -2))
    if spans is not None and edits.bias[2].ndim == 1:
        spans = of_requests(spans).expand(*target.shape[:-1], 2)
    if any(isinstance(x, torch.Tensor) or x != off for x, off in zip(found[4:7], (1, 0, 0), strict=True)):
        pending = _said(chains, shard.vocab)
        if edits.pending is not None:
            earlier = own(edits.pending)
            pending = torch.cat([earlier.expand(*pending.shape[:-1], earlier.shape[-1]), pending], dim=-1)
    masks = (own(x) for x in (edits.prompt_mask, edits.output_mask, edits.output_counts))
    numbers = (requests.of_rows(x) for x in edits[2:5])
    return _of_slice(Edits(allowed, edits.bias, *numbers, *masks, pending), shard, target.shape[-1], spans)


def edited(rows, edits):
    """(rows as they are edited, int32 [...] status); the latter None if no edit is on. Each row has its own place."""
    folded, lead = inputs.rows3("rows", rows), rows.shape[:-1]
    call = SimpleNamespace(edits=edit.of_rows(edits, Law("logits", 1.0), rows, folded, lead, folded.shape[:2]))
    if not call.edits.on():
        return rows, None
    who = Requests(None, len(folded), len(folded), rows.device, inner=folded.shape[1:2])
    every = dense.Edits(call, who, folded)
    return every.rows(folded).view(rows.shape), every.bad.view(lead).int() * Status.PARAMETER


def _wide(rows, shard):
    """Stands for the whole rows where only shapes are looked at."""
    return rows[..., :1].expand(*rows.shape[:-1], shard.vocab)


def _spans(edits, shape):
    """int32 [..., 2]: those of the bias, for each place of ``shape`` or as they are for each row; None without one."""
    if edits.bias is None or 0 in (len(edits.bias[0]), *shape):
        return None
    spans = edits.bias[2]
    return spans.unfold(0, 2, 1).unflatten(0, shape) if spans.ndim == 1 else spans


def _said(chains, vocab):
    """int64, for each row: the drafts before it, -1 in places without."""
    tokens = chains.draft_tokens.long()
    tokens = torch.where(tokens < vocab, tokens, -1).clamp(min=-1)
    if chains.cu_drafts is None:
        slot = torch.arange(tokens.shape[1], device=tokens.device)
        return torch.where(slot < chains.step.unsqueeze(-1), tokens.unsqueeze(1), -1)
    slot = torch.arange(int(chains.slots.max()) if len(tokens) else 0, device=tokens.device)
    place = chains.first_draft[chains.request].unsqueeze(-1) + slot
    return torch.where(slot < chains.step.unsqueeze(-1), tokens[place.clamp(0, max(len(tokens) - 1, 0))], -1)


def _of_slice(edits, shard, size, spans):
    """Edits of the columns from ``first_token`` on."""
    first = shard.first_token
    words, columns = slice(first // edit.WORD, -(-(first + size) // edit.WORD)), slice(first, first + size)

    def cut(lists, own):
        return None if lists is None else lists[..., own]

    pending = edits.pending
    if pending is not None:
        here, outside = (pending >= first) & (pending < first + size), (pending < -1) | (pending >= shard.vocab)
        pending = torch.where(here, pending - first, torch.where(outside, size, -1))
    return edits._replace(
        allowed=cut(edits.allowed, words), prompt_mask=cut(edits.prompt_mask, words),
        output_mask=cut(edits.output_mask, words), output_counts=cut(edits.output_counts, columns), pending=pending,
        bias=None if spans is None else _bias_of_slice(*edits.bias[:2], spans, first, size, shard.vocab),
    )  # fmt: skip


def _bias_of_slice(tokens, values, spans, first, size, vocab):
    """The entries of a slice's tokens. Tokens rise, so they are a part of each span.

    A span with an entry that is not used stays whole, so that every rank tells of it.
    """
    count, spans = len(tokens), spans.long()
    begin, end = spans.unbind(-1)
    whole = (begin >= 0) & (end >= begin) & (end <= count)
    starts = torch.zeros(count + 1, dtype=torch.int64, device=tokens.device)
    starts[begin[whole]] = 1
    of_span = starts.cumsum(0)[:-1] * vocab
    inside = (tokens >= 0) & (tokens < vocab)
    key = of_span + torch.where(inside, tokens, -1)
    used = inside & (key > torch.nn.functional.pad(key.cummax(0).values[:-1], (1, 0), value=-1))

    def among(marked):
        """How many entries of each span are marked."""
        before = torch.nn.functional.pad(marked.long().cumsum(0), (1, 0))
        return before[end.clamp(0, count)] - before[begin.clamp(0, count)]

    own = torch.stack([begin + among(tokens < first), begin + among(tokens < first + size)], dim=-1)
    cut = (whole & (among(~used) == 0)).unsqueeze(-1)
    return torch.where(used, tokens - first, size).int(), values, torch.where(cut, own, spans).int()
