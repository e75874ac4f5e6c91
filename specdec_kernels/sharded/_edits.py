"""LogitEdits of a slice of rows: the whole vocabulary's, cut to the slice's tokens, with an entry for each row.

Lists are views of the whole vocabulary's, and an index names each row's list. Tokens are counted from the slice's
first. The local ops apply the edits as they read rows.
"""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import Law
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.sampling import LogitEdits

NUMBERS, SEEN = LogitEdits._fields[2:5], LogitEdits._fields[5:8]  # penalties; the lists of tokens seen


def of_rows(edits, shard, rows, how):
    """The LogitEdits of the slice's columns, in ops on rows; ``how``: the other arguments of the op's call."""
    wide, folded, index = _wide(rows, shard), inputs.rows3("rows", rows), how["request_index"]
    numbers = laws.numbers_in(*(how.get(name) for name in ("temperature", "sampling", "seed", "position", "nonce")))
    shape, seen = laws.number_shapes(wide, folded, index, None, *edit.lists(edits), *numbers)
    edit.of_rows(edits, Law(how.get("space", "logits"), 1.0), wide, folded, shape, seen)
    spans = _spans(edits, shape)
    if index is None:
        return _of_slice(edits, shard, rows.shape[-1], spans)
    entry = index.long().clamp(0, shape[0] - 1)

    def at(x, *last):
        return x.expand(*shape, *last)[entry] if isinstance(x, torch.Tensor) else x

    if spans is not None and edits.bias[2].ndim == 1:
        spans = at(spans, 2)
    entry_of = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=rows.device).view(shape)
    edits = _of_slots(edits, SEEN, "seen_index", shape, lambda x: at(entry_of if x is None else x))
    pending = None if edits.pending is None else at(edits.pending, edits.pending.shape[-1])
    edits = edits._replace(pending=pending, **dict(zip(NUMBERS, map(at, edits[2:5]), strict=True)))
    return _of_slice(edits, shard, rows.shape[-1], spans)


def of_requests(edits, shard, requests, target, space, drafts_before):
    """LogitEdits of a slice with an entry for each row, from those of requests.

    ``drafts_before``: a function of the vocabulary's size that gives each row's drafts before it, which are pending.
    """
    of_call = edit.of_requests(edits, Law(space, 1.0), _wide(target, shard), requests.entries)
    off = (1, 0, 0)  # numbers that penalise nothing
    penalises = any(isinstance(x, torch.Tensor) or x != none for x, none in zip(of_call[4:7], off, strict=True))
    pending = drafts_before(shard.vocab) if penalises else None
    entry, entries = requests.entry_of_row, (requests.entries,)

    def per_row(lists):
        return lists.expand(*entries, *lists.shape[1:])[entry]

    def of_rows(index):
        return entry.int() if index is None else per_row(index)

    edits = _of_slots(edits, SEEN, "seen_index", entries, of_rows)
    if not of_call.by_row & edit.ALLOWED_BY_ROW:
        if edits.allowed is not None and edits.allowed_index is None:
            edits = edits._replace(allowed=edits.allowed.flatten(0, -2))
        if edits.allowed_index is not None:
            edits = edits._replace(allowed_index=edits.allowed_index.flatten())
        edits = _of_slots(edits, ("allowed",), "allowed_index", entries, of_rows)
    spans = _spans(edits, entries)
    if spans is not None and edits.bias[2].ndim == 1:
        spans = per_row(spans)
    if pending is not None and edits.pending is not None:
        pending = torch.cat([per_row(edits.pending).expand(*pending.shape[:-1], -1), pending], dim=-1)
    numbers = dict(zip(NUMBERS, map(requests.of_rows, edits[2:5]), strict=True))
    return _of_slice(edits._replace(pending=pending, **numbers), shard, target.shape[-1], spans)


def _of_slots(edits, names, name, shape, of_rows):
    """LogitEdits whose lists ``names``, [*shape, items], are read through the index ``name``: nothing is gathered."""
    # ``of_rows`` maps an index of requests to rows; None maps to each row's request.
    given = {one: x for one in names if (x := getattr(edits, one)) is not None}
    if not given:
        return edits
    index = of_rows(getattr(edits, name))
    if getattr(edits, name) is None:
        given = {one: x.expand(*shape, x.shape[-1]).flatten(0, -2) for one, x in given.items()}
    return edits._replace(**{name: index}, **given)


def on_paths(draft_tokens, parents, depth, vocab):
    """int64 [B, N, depth]: the drafts on the path from the root to each node, it included, padded with -1."""
    tokens = _inside(draft_tokens, vocab)
    node = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.int64).expand(tokens.shape)
    parents, drafts = parents.long().expand(tokens.shape), []
    for _ in range(int(depth.max()) if depth.numel() else 0):
        drafts.append(torch.where(node > 0, tokens.gather(1, node), -1))
        parent = parents.gather(1, node)
        node = torch.where((parent > 0) & (parent < node), parent, 0)
    return torch.stack(drafts, dim=-1) if drafts else tokens.new_empty(*tokens.shape, 0)


def _wide(rows, shard):
    """A stand-in for the whole rows, which has their shape alone."""
    return rows[..., :1].expand(*rows.shape[:-1], shard.vocab)


def _spans(edits, shape):
    """int32 [..., 2]: the bias spans of each entry of ``shape``, or of each row; None without a bias."""
    if edits.bias is None or 0 in (len(edits.bias[0]), *shape):
        return None
    spans = edits.bias[2]
    return spans.unfold(0, 2, 1).unflatten(0, shape) if spans.ndim == 1 else spans


def _inside(tokens, vocab):
    """int64: these tokens, -1 for what is none of the vocabulary."""
    return torch.where(tokens < vocab, tokens, -1).clamp(min=-1).long()


def said_before(chains, vocab):
    """int64, for each row: the drafts before it, padded with -1."""
    tokens = _inside(chains.draft_tokens, vocab)
    if chains.cu_drafts is None:
        slot = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.int64)
        return torch.where(slot < chains.step.unsqueeze(-1), tokens.unsqueeze(1), -1)
    slot = torch.arange(int(chains.slots.max()) if len(tokens) else 0, device=tokens.device, dtype=torch.int64)
    draft_index = chains.first_draft[chains.request].unsqueeze(-1) + slot
    return torch.where(slot < chains.step.unsqueeze(-1), tokens[draft_index.clamp(0, max(len(tokens) - 1, 0))], -1)


def _of_slice(edits, shard, size, spans):
    """LogitEdits of the columns from ``vocab_start`` on; empty for a rank without tokens."""
    if shard.is_empty:
        return LogitEdits()
    first = shard.vocab_start
    words, columns = slice(first // edit.WORD, -(-(first + size) // edit.WORD)), slice(first, first + size)

    def cut(lists, part):
        return None if lists is None else lists[..., part]

    pending = edits.pending
    if pending is not None:
        in_slice, outside = (pending >= first) & (pending < first + size), (pending < -1) | (pending >= shard.vocab)
        pending = torch.where(in_slice, pending - first, torch.where(outside, size, -1))
    return edits._replace(
        allowed=cut(edits.allowed, words), prompt_mask=cut(edits.prompt_mask, words),
        output_mask=cut(edits.output_mask, words), output_counts=cut(edits.output_counts, columns), pending=pending,
        bias=None if spans is None else _bias_of_slice(*edits.bias[:2], spans, first, size, shard.vocab),
    )  # fmt: skip


def _bias_of_slice(tokens, values, spans, first, size, vocab):
    """The entries of a slice's tokens. Tokens rise, so these are a contiguous part of each span."""
    # A span with an unused entry stays whole, so that every rank reports the same status.
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

    spans_of_slice = torch.stack([begin + among(tokens < first), begin + among(tokens < first + size)], dim=-1)
    cut = (whole & (among(~used) == 0)).unsqueeze(-1)
    return torch.where(used, tokens - first, size).int(), values, torch.where(cut, spans_of_slice, spans).int()
