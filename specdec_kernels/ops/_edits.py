"""Checks of ``edits=``: from a caller's ``LogitEdits`` to the ``Edit`` of a call."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.values import ALLOWED_BY_ROW, BIAS_BY_ROW, Edit
from specdec_kernels.sampling import LogitEdits

NONE = Edit()
WORD = 32  # tokens in a word of a mask


def lists(edits, target=None):
    """The tensors of a LogitEdits that have an item for each entry, without the lists' dimension; ``target``: that of
    chains and trees."""
    if not isinstance(edits, LogitEdits):
        return []
    tensors = [edits.pending]
    if edits.seen_index is None:
        tensors += [edits.prompt_mask, edits.output_mask, edits.output_counts]
    of_requests = target is not None and not _allowed_by_row(edits, target)
    if of_requests and edits.allowed_index is None:
        tensors.append(edits.allowed)
    tensors = [x[..., 0] for x in tensors if isinstance(x, torch.Tensor) and x.ndim and x.shape[-1]]
    tensors += [edits.seen_index, edits.allowed_index if of_requests else None]
    spans = edits.bias[2] if isinstance(edits.bias, (tuple, list)) and len(edits.bias) == 3 else None
    if target is not None and isinstance(spans, torch.Tensor) and spans.ndim == 1:
        tensors.append(spans[:-1])
    return [*tensors, edits.repetition, edits.frequency, edits.presence]


def of_rows(edits, law, target, rows, shape, seen):
    """The Edit of rows ``target`` and numbers of ``shape``; backends get them as ``rows`` [A, R, V] and ``seen``."""
    if edits is None:
        return NONE
    return _edit(edits, law, target, shape, seen, seen, rows.shape[:2], by_row=True)


def of_requests(edits, law, target, requests):
    """The Edit of chains or trees: ``target`` has all rows, ``requests`` entries have the numbers."""
    if edits is None:
        return NONE
    rows = target.shape[:2] if target.ndim == 3 else (1, target.shape[0])
    if isinstance(edits, LogitEdits) and edits.allowed_index is None and _is_flat(edits.allowed, target, requests):
        edits = edits._replace(allowed=edits.allowed.unflatten(0, rows))
    return _edit(edits, law, target, (requests,), (requests, 1), None, rows, by_row=False)


def _edit(edits, law, target, shape, seen, numbers_seen, rows, by_row):
    """``by_row``: whether masks of allowed tokens are always one a row."""
    inputs.check_type("edits", edits, LogitEdits)
    vocab, lead, device = target.shape[-1], target.shape[:-1], target.device
    words = -(-vocab // WORD)
    entries = (shape, seen)

    def mask(name, shapes):
        return _lists(name, getattr(edits, name), (torch.int32,), *shapes, device, words, f"{words} words or more")

    allowed_by_row = by_row or _allowed_by_row(edits, target)
    shared = entries if target.ndim == 3 else ((*shape, 1), seen)
    allowed_shapes = (lead, rows) if allowed_by_row else shared
    allowed_index, allowed_shapes = _index(edits, "allowed_index", allowed_shapes, device, "allowed")
    allowed = mask("allowed", allowed_shapes)
    tokens, values, spans, bias_by_row = _bias(edits.bias, shape, seen, lead, rows, device)

    if not isinstance(edits.repetition, torch.Tensor) and edits.repetition == 0:
        raise ValueError("edits.repetition: expected a number more than 0; got 0")
    repetition, frequency, presence = (
        kinds.EDITS.kinds[name].taken(f"edits.{name}", getattr(edits, name), shape, device, numbers_seen)
        for name in ("repetition", "frequency", "presence")
    )
    seen_index, of_seen = _index(edits, "seen_index", entries, device, "prompt_mask", "output_mask", "output_counts")
    prompt_mask, output_mask = mask("prompt_mask", of_seen), mask("output_mask", of_seen)
    counts = _lists(
        "output_counts", edits.output_counts, (torch.int32,), *of_seen, device, vocab, f"{vocab} counts", most=vocab
    )
    pending = _lists("pending", edits.pending, inputs.TOKEN_DTYPES, *entries, device, 0, "any number of tokens")
    if counts is not None and output_mask is None:
        raise ValueError("edits.output_mask: expected a mask beside output_counts, whose counts it turns on; got None")
    counting = isinstance(frequency, torch.Tensor) or frequency != 0
    if counting and output_mask is not None and counts is None:
        raise ValueError("edits.output_counts: expected counts beside output_mask and frequency; got None")

    # Lists that no penalty reads are dropped.
    repeating = isinstance(repetition, torch.Tensor) or repetition != 1
    penalised = counting or repeating or isinstance(presence, torch.Tensor) or presence != 0
    edit = Edit(
        allowed, tokens, values, spans, repetition, frequency, presence,
        prompt_mask if repeating else None,
        output_mask if penalised else None,
        counts if counting else None,
        pending if penalised else None,
        (ALLOWED_BY_ROW if allowed is not None and allowed_by_row else 0) | (BIAS_BY_ROW if bias_by_row else 0),
        seen_index if (penalised and output_mask is not None) or (repeating and prompt_mask is not None) else None,
        allowed_index,
    )  # fmt: skip
    if law.space == "probs" and edit.on():
        raise ValueError("edits: expected None with space='probs', whose laws are final; got a LogitEdits")
    return edit


def _is_flat(allowed, target, requests):
    """Whether masks [B N, words] are those of rows [B, N, V], one after the other; never with entries."""
    flat = isinstance(allowed, torch.Tensor) and allowed.ndim == 2 and target.ndim == 3
    return flat and allowed.shape[0] == target.shape[:2].numel() != requests == target.shape[0]


def _allowed_by_row(edits, target):
    """Whether ``allowed``, or its index, has an item for each row of the target: as many dimensions as rows have."""
    if isinstance(edits.allowed_index, torch.Tensor):
        return edits.allowed_index.ndim == target.ndim - 1
    return isinstance(edits.allowed, torch.Tensor) and edits.allowed.ndim == target.ndim


def _index(edits, name, shapes, device, *names):
    """(The index from an entry to its item of the lists ``names``, or None; the shapes of these lists.)"""
    x = getattr(edits, name)
    if x is None:
        return None, shapes
    shape, seen = shapes
    inputs.check_tensor(f"edits.{name}", x, (torch.int32,), None)
    inputs.check_device(f"edits.{name}", x, device)
    sizes = [len(y) for y in (getattr(edits, one) for one in names) if isinstance(y, torch.Tensor) and y.ndim]
    if not sizes:
        raise ValueError(f"edits.{names[0]}: expected masks beside {name}; got None")
    inputs.check_shape(f"edits.{name}", x, torch.Size(shape))
    entries = max(sizes)
    return x.reshape(*seen, 1), ((entries,), (entries, 1))


def _lists(name, x, dtypes, shape, seen, device, least, sizes, most=None):
    """Lists of at least ``least`` items each, one for each of ``shape``, reshaped to ``seen`` for the backends."""
    if x is None:
        return None
    name = f"edits.{name}"
    inputs.check_tensor(name, x, dtypes, None)
    inputs.check_device(name, x, device)
    if x.ndim == 0 or x.shape[-1] < least or (most is not None and x.shape[-1] > most):
        raise ValueError(f"{name}: expected {sizes} in the last dimension; got {inputs.shown(x)}")
    inputs.check_step(name, x, "the last dimension")
    size = x.shape[-1]
    try:
        return x.expand(*shape, size).reshape(*seen, size)
    except RuntimeError:
        raise ValueError(f"{name}: expected shape {[*shape, size]}; got {inputs.shown(x)}") from None


def _bias(bias, shape, seen, lead, rows, device):
    """(tokens, values, spans, whether there is a span for each row); all None without entries."""
    if bias is None:
        return None, None, None, False
    if not isinstance(bias, (tuple, list)) or len(bias) != 3:
        raise TypeError(f"edits.bias: expected (tokens, values, cu); got {inputs.shown(bias)}")
    tokens, values, spans = bias
    inputs.check_tensor("edits.bias[0]", tokens, (torch.int32,), 1)
    inputs.check_tensor("edits.bias[1]", values, (torch.float32,), 1)
    inputs.check_tensor("edits.bias[2]", spans, (torch.int32,), None)
    inputs.check_shape("edits.bias[1]", values, tokens.shape)
    for i, x in enumerate(bias):
        inputs.check_device(f"edits.bias[{i}]", x, device)
        if x.ndim:
            inputs.check_step(f"edits.bias[{i}]", x, "the last dimension")
    by_row, count = spans.ndim != 1, torch.Size(shape).numel()
    if spans.shape != ((*lead, 2) if by_row else (count + 1,)):
        raise ValueError(f"edits.bias[2]: expected shape [{count + 1}] or {[*lead, 2]}; got {inputs.shown(spans)}")
    if by_row:
        spans = spans.reshape(*rows, 2)
    else:
        spans = spans.unfold(0, 2, 1).unflatten(0, seen) if count else None
    if tokens.shape[0] == 0 or spans is None:
        return None, None, None, False
    return tokens, values, spans, by_row
