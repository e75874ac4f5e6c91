"""LogitEdits of the target's rows (csrc/include/specdec/edit.h): bias, penalties, and what a grammar allows.

Values are edited right after they are loaded (``_rows.load_tile``, ``load_masses``, ``value_at``), so only
code that makes laws handles edits. A kernel takes them as one argument, a ``LogitEdits``. A field that is None compiles
to nothing, so a kernel without edits is the same code as if edits did not exist.
"""

import operator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _math

from specdec_kernels.calls.values import ALLOWED_BY_ROW, BIAS_BY_ROW, Edit

MOST = tl.constexpr(2**31 - 1)  # counts saturate
BLOCK = tl.constexpr(128)  # entries of a list loaded together
BY_ROW_ALLOWED, BY_ROW_BIAS = tl.constexpr(ALLOWED_BY_ROW), tl.constexpr(BIAS_BY_ROW)


class LogitEdits(NamedTuple):
    """A call's ``Edit``, as kernels take it. Lists have a row for each entry, or for each row of the target."""

    allowed: _arguments.Steps = _arguments.NO_STEPS  # int32 [..., ceil(V / 32)]: bits of allowed tokens
    allowed_index: _arguments.Steps = _arguments.NO_STEPS  # which list of ``allowed`` a row uses
    allowed_size: int = None
    bias_tokens: tl.tensor = None  # [bias_size]
    bias_values: tl.tensor = None  # [bias_size]
    bias_size: int = None
    bias_spans: _arguments.Steps = _arguments.NO_STEPS  # [..., 2]: begin and end of a list in the two above
    repetition: _arguments.Number = _arguments.NO_NUMBER
    frequency: _arguments.Number = _arguments.NO_NUMBER
    presence: _arguments.Number = _arguments.NO_NUMBER
    penalises: tl.tensor = None  # None if there are no penalties at all
    prompt_mask: _arguments.Steps = _arguments.NO_STEPS  # int32 [..., ceil(V / 32)]
    output_mask: _arguments.Steps = _arguments.NO_STEPS  # int32 [..., ceil(V / 32)]
    output_counts: _arguments.Steps = _arguments.NO_STEPS  # int32 [..., V]
    pending: _arguments.Steps = _arguments.NO_STEPS  # [..., pending_size]: tokens after those of the masks
    pending_size: int = None
    seen_index: _arguments.Steps = _arguments.NO_STEPS  # which row of masks and counts an entry uses
    seen_size: int = None
    tokens: _arguments.Steps = _arguments.NO_STEPS  # the draft's, along which penalties count
    parents: _arguments.Steps = _arguments.NO_STEPS
    by_row: int = None  # None if there are no edits


class RowEdits(NamedTuple):
    """The edits of one row of the target: offsets of its lists from the pointers of a ``LogitEdits``, and its
    numbers."""

    allowed_at: tl.tensor
    begin: tl.tensor  # its bias is entries [begin, end) of bias_tokens
    end: tl.tensor
    rising: tl.tensor  # whether these rise, all in the vocabulary
    columns: tl.tensor
    repetition: tl.tensor
    inverse: tl.tensor
    frequency: tl.tensor
    presence: tl.tensor
    prompt_at: tl.tensor
    output_at: tl.tensor
    counts_at: tl.tensor
    pending_at: tl.tensor
    pendings: tl.tensor
    tokens_at: tl.tensor
    parents_at: tl.tensor
    node: tl.tensor  # how many drafts precede the row; in a tree its node


# Loading the edits of a row


@triton.jit
def finite_or(off, x):
    """(x, or ``off`` if it is not finite; whether it is)."""
    good = tl.abs(x) < _math.INFINITY
    return tl.where(good, x, off), good


@triton.jit
def load_penalties(edits, entry, row, live):
    """(repetition, its inverse, frequency, presence, status) of an entry; a number out of range is off."""
    r = _arguments.number(edits.repetition, entry, row, live)
    f, good_f = finite_or(0.0, _arguments.number(edits.frequency, entry, row, live))
    g, good_g = finite_or(0.0, _arguments.number(edits.presence, entry, row, live))
    good_r = (r > 0.0) & (r < _math.INFINITY)
    r = tl.where(good_r, r, 1.0)
    return r, tl.div_rn(1.0, r), f, g, tl.where(good_r & good_f & good_g, 0, _math.PARAMETER)


@triton.jit
def check_rising(tokens, begin, end, columns):
    """Whether entries [begin, end) of a list rise and are all in the vocabulary."""
    bad = begin < 0
    for base in range(begin, end, BLOCK):
        entry = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + entry, mask=entry < end, other=0)
        before = tl.load(tokens + entry - 1, mask=(entry < end) & (entry > begin), other=-1)
        bad = bad | (_math.any_of((entry < end) & ((token <= before) | (token >= columns))) > 0)
    return bad == 0


@triton.jit
def load_span(edits, outer, inner, live, columns):
    """(begin, end, whether the entries rise, status) of the bias list at (``outer``, ``inner``)."""
    span = _arguments.at(edits.bias_spans, outer, inner)
    begin, end = tl.load(span, mask=live, other=0), tl.load(span + 1, mask=live, other=0)
    good = (begin >= 0) & (end >= begin) & (end <= edits.bias_size)
    begin, end = tl.where(good, begin, 0), tl.where(good, end, 0)
    rising = check_rising(edits.bias_tokens, begin, end, columns)
    return begin, end, rising, tl.where(good & rising, 0, _math.PARAMETER)


@triton.jit
def load_list_index(index, size, outer, inner, live):
    """(index of one of ``size`` lists, -1 for none; status)."""
    list_index = tl.load(_arguments.at(index, outer, inner), mask=live, other=-1)
    inside = (list_index >= 0) & (list_index < size)
    return tl.where(inside, list_index, -1).to(tl.int64), tl.where(inside | (list_index == -1), 0, _math.PARAMETER)


@triton.jit
def is_by_row(edits, BIT: tl.constexpr):
    """Whether the lists of this kind are indexed by the target's rows."""
    return (edits.by_row & BIT) != 0


@triton.jit
def load_row_edits(edits, entry, row, target, target_row, node, first, live, columns):
    """(the ``RowEdits`` of a row, the status of its bias and of its indices)."""
    # Numbers and lists of its request are at (``entry``, ``row``), lists of the row at (``target``, ``target_row``).
    # The offset of a list that the row does not have is negative. ``first`` is the index of the request's first draft
    # token.
    allowed_at, begin, end, rising, bad = 0, 0, 0, 0, 0
    repetition, inverse, frequency, presence = 1.0, 1.0, 0.0, 0.0
    prompt_at, output_at, counts_at, pending_at, pendings, tokens_at, parents_at = 0, 0, 0, 0, 0, 0, 0
    if edits.allowed.data is not None:
        by_row = is_by_row(edits, BY_ROW_ALLOWED)
        outer, inner = tl.where(by_row, target, entry), tl.where(by_row, target_row, row)
        if edits.allowed_index.data is not None:
            outer, bad = load_list_index(edits.allowed_index, edits.allowed_size, outer, inner, live)
            inner = 0
        allowed_at = _arguments.offset_at(edits.allowed, outer, inner)
        if edits.allowed_index.data is not None:
            allowed_at = tl.where(outer < 0, -1, allowed_at)
    if edits.bias_tokens is not None:
        by_row = is_by_row(edits, BY_ROW_BIAS)
        outer, inner = tl.where(by_row, target, entry), tl.where(by_row, target_row, row)
        begin, end, rising, bad_bias = load_span(edits, outer, inner, live, columns)
        bad |= bad_bias
    if edits.penalises is not None:
        repetition, inverse, frequency, presence, _ = load_penalties(edits, entry, row, live)
        seen, seen_row = entry, row
        if edits.seen_index.data is not None:
            seen, bad_seen = load_list_index(edits.seen_index, edits.seen_size, entry, row, live)
            seen_row = 0
            bad |= bad_seen
        if edits.prompt_mask.data is not None:
            prompt_at = _arguments.offset_at(edits.prompt_mask, seen, seen_row)
        if edits.output_mask.data is not None:
            output_at = _arguments.offset_at(edits.output_mask, seen, seen_row)
        if edits.output_counts.data is not None:
            counts_at = _arguments.offset_at(edits.output_counts, seen, seen_row)
        if edits.seen_index.data is not None:
            prompt_at, output_at = tl.where(seen < 0, -1, prompt_at), tl.where(seen < 0, -1, output_at)
        if edits.pending.data is not None:
            pending_at = _arguments.offset_at(edits.pending, entry, row)
            pendings = tl.where(live, tl.cast(edits.pending_size, tl.int32), 0)
        if edits.tokens.data is not None:
            tokens_at = _arguments.offset_at(edits.tokens, target, first)
        if edits.parents.data is not None:
            parents_at = target * edits.parents.outer
    return RowEdits(
        allowed_at, begin, end, rising, columns, repetition, inverse, frequency, presence, prompt_at, output_at,
        counts_at, pending_at, pendings, tokens_at, parents_at, tl.cast(node, tl.int32),
    ), bad  # fmt: skip


class RequestEdits(NamedTuple):
    """A call's ``LogitEdits``, for one request: its entry, and the indices of its first target row and draft token.

    ``bonus_node`` is the node without a row, since the token after it is given; or None.
    """

    edits: LogitEdits
    entry: tl.tensor
    request: tl.tensor
    live: tl.tensor
    first_row: tl.tensor = 0
    first_draft: tl.tensor = 0
    bonus_node: tl.tensor = None


@triton.jit
def load_node_edits(request, node, live, columns):
    """(the ``RowEdits`` of a node's row, the status of its bias and of its indices)."""
    there = live
    if request.bonus_node is not None:
        there = there & (node != request.bonus_node)
    return load_row_edits(
        request.edits, request.entry, 0, request.request, request.first_row + node, node, request.first_draft, there,
        columns,
    )  # fmt: skip


@triton.jit
def request_status(edits, entry, row, live, columns):
    """The status of the edits that all rows of a request share: numbers, pending tokens, bias."""
    status = 0
    if edits.bias_tokens is not None:  # noqa: SIM102  the outer `if` is constexpr
        if is_by_row(edits, BY_ROW_BIAS) == 0:
            _begin, _end, _rising, bad = load_span(edits, entry, row, live, columns)
            status |= bad
    if edits.penalises is not None:
        _r, _inverse, _f, _g, bad = load_penalties(edits, entry, row, live)
        status |= bad
        if edits.pending.data is not None:
            pending = _arguments.at(edits.pending, entry, row)
            size = tl.where(live, tl.cast(edits.pending_size, tl.int32), 0)
            for base in range(0, size, BLOCK):
                at = base + tl.arange(0, BLOCK)
                token = tl.load(pending + at, mask=at < size, other=-1)
                status |= _math.any_of((token < -1) | (token >= columns)) * _math.PARAMETER
    return tl.where(live, status, 0)


# Editing a row's values


@triton.jit
def clean_bias(value):
    """A bias value: NaN becomes -inf, which forbids the token, and +inf the largest finite number."""
    return tl.where(value == value, tl.minimum(value, _math.LARGEST), -_math.INFINITY)


@triton.jit
def biased(x, tokens, start, end, law):
    """Values of tokens in [start, end) after their bias. An entry that does not rise is skipped."""
    entry, last = law.row_edits.begin, -1
    if law.row_edits.rising & (entry < law.row_edits.end):
        entry = _math.first_not_below(law.edits.bias_tokens, entry, law.row_edits.end - entry, tl.cast(start, tl.int32))
    more = entry < law.row_edits.end
    while more:
        token = tl.load(law.edits.bias_tokens + entry)
        value = clean_bias(tl.load(law.edits.bias_values + entry))
        counts = (token > last) & (token < law.row_edits.columns)
        x = tl.where((tokens == token) & counts, x + value, x)
        last = tl.where(counts, token, last)
        entry += 1
        more = (entry < law.row_edits.end) & ((law.row_edits.rising == 0) | (token < end - 1))
    return x


@triton.jit
def bits_at(bits, tokens, there):
    """The bits of tokens in a mask; 0 where not ``there``."""
    word = tl.load(bits + (tokens >> 5), mask=there, other=0)
    return (word >> (tokens & 31).to(tl.int32)) & 1


@triton.jit
def one_more(count, tokens, token, columns):
    """Counts after one more token; a token out of range does not count."""
    token = tl.where((token >= 0) & (token < columns), token, -1).to(tl.int32)
    return count + ((tokens == token) & (count < MOST)).to(tl.int32)


@triton.jit
def count_output(tokens, there, law):
    """How often each of ``tokens`` precedes the row: in the output, in pending tokens, and in drafts."""
    count = (tokens * 0).to(tl.int32)
    if law.edits.output_mask.data is not None:
        if law.edits.seen_index.data is not None:
            there = _math.both(there, law.row_edits.output_at >= 0)
        count = bits_at(law.edits.output_mask.data + law.row_edits.output_at, tokens, there)
        if law.edits.output_counts.data is not None:
            seen = count > 0
            counted = tl.load(law.edits.output_counts.data + law.row_edits.counts_at + tokens, mask=seen, other=0)
            count = tl.where(seen, tl.maximum(counted, 1), 0)
    if law.edits.pending.data is not None:
        for i in range(0, law.row_edits.pendings):
            count = one_more(
                count, tokens, tl.load(law.edits.pending.data + law.row_edits.pending_at + i), law.row_edits.columns
            )
    if law.edits.tokens.data is not None:
        drafted, step = law.edits.tokens.data + law.row_edits.tokens_at, law.edits.tokens.inner
        if law.edits.parents.data is None:
            for i in range(0, law.row_edits.node):
                count = one_more(count, tokens, tl.load(drafted + i * step), law.row_edits.columns)
        else:
            parents, step_up = law.edits.parents.data + law.row_edits.parents_at, law.edits.parents.inner
            node = law.row_edits.node + 0
            while node > 0:
                count = one_more(count, tokens, tl.load(drafted + node * step), law.row_edits.columns)
                parent = tl.load(parents + node * step_up).to(tl.int32)
                node = tl.where((parent > 0) & (parent < node), parent, 0)
    return count


@triton.jit
def penalised(z, tokens, there, law):
    """Logits after the penalties of tokens that the prompt or the output has."""
    count = count_output(tokens, there, law)
    counted = count > 0
    seen = counted
    if law.edits.prompt_mask.data is not None:
        if law.edits.seen_index.data is not None:
            there = _math.both(there, law.row_edits.prompt_at >= 0)
        seen = seen | (bits_at(law.edits.prompt_mask.data + law.row_edits.prompt_at, tokens, there) > 0)
    z = tl.where(seen, tl.where(z > 0.0, z * law.row_edits.inverse, z * law.row_edits.repetition), z)
    return tl.where(counted, (z - law.row_edits.frequency * count.to(tl.float32)) - law.row_edits.presence, z)


@triton.jit
def edited(x, tokens, there, start, end, law):
    """The logits of ``tokens`` after all edits, where ``there``; ``tokens`` lie in [start, end)."""
    if law.edited is not None:
        if law.edits.bias_tokens is not None:
            x = biased(x, tokens, start, end, law)
        if law.edits.penalises is not None:  # noqa: SIM102  the outer `if` is constexpr
            if (law.row_edits.repetition != 1.0) | (law.row_edits.frequency != 0.0) | (law.row_edits.presence != 0.0):
                x = penalised(x, tokens, there, law)
        if law.edits.allowed.data is not None:
            if law.edits.allowed_index.data is not None:
                there = _math.both(there, law.row_edits.allowed_at >= 0)
            may = bits_at(law.edits.allowed.data + law.row_edits.allowed_at, tokens, there) > 0
            if law.edits.allowed_index.data is not None:
                may = may | (law.row_edits.allowed_at < 0)
            x = tl.where(may, x, -_math.INFINITY)
    return x


# Host side

LogitEdits.OFF = LogitEdits()
OFF = {"edits": LogitEdits.OFF}
_NO_EDIT = Edit()


def is_on(edit):
    """Whether there are edits."""
    return any(map(operator.is_not, edit, _NO_EDIT)) and edit.on()


def steps_of(tensor, packed=False):
    """The steps of lists; ``packed`` ones lie in one row for all requests."""
    inner = tensor.stride(1) if tensor.ndim > 1 and tensor.shape[1] > 1 else 0
    return _arguments.Steps(tensor, 0 if packed else tensor.stride(0), inner)


def arguments(call, tokens=None, parents=None, ragged=False):
    """The argument ``edits`` of a call whose penalties count along the draft's ``tokens``."""
    edit = call.edits
    if not is_on(edit):
        return OFF
    fields = {}
    packed = ragged and edit.by_row & ALLOWED_BY_ROW
    if edit.allowed_index is not None:
        fields |= {"allowed": steps_of(edit.allowed), "allowed_index": steps_of(edit.allowed_index, packed)}
        fields["allowed_size"] = len(edit.allowed)
    elif edit.allowed is not None:
        fields["allowed"] = steps_of(edit.allowed, packed)
    if edit.bias_tokens is not None:
        fields |= {"bias_tokens": edit.bias_tokens, "bias_values": edit.bias_values, "bias_size": len(edit.bias_tokens)}
        fields["bias_spans"] = steps_of(edit.bias_spans, ragged and edit.by_row & BIAS_BY_ROW)
    if edit._replace(
        allowed=None, allowed_index=None, bias_tokens=None, bias_values=None, bias_spans=None, by_row=0
    ).on():  # fmt: skip
        fields["penalises"] = 1
        for name in ("repetition", "frequency", "presence"):
            value = getattr(edit, name)
            is_tensor = isinstance(value, torch.Tensor)
            fields[name] = _arguments.Number(
                *(steps_of(value) if is_tensor else (None, 0, 0)), 0.0 if is_tensor else float(value)
            )
        for name in ("prompt_mask", "output_mask", "output_counts", "seen_index"):
            if getattr(edit, name) is not None:
                fields[name] = steps_of(getattr(edit, name))
        if edit.seen_index is not None:
            fields["seen_size"] = len(edit.prompt_mask if edit.output_mask is None else edit.output_mask)
        if edit.pending is not None and edit.pending.shape[-1]:
            fields |= {"pending": steps_of(edit.pending), "pending_size": edit.pending.shape[-1]}
        if tokens is not None:
            fields["tokens"] = _arguments.Steps(tokens, 0 if ragged else tokens.stride(0), tokens.stride(-1))
        if parents is not None:
            fields["parents"] = _arguments.Steps(
                parents, parents.stride(0) if parents.ndim == 2 else 0, parents.stride(-1)
            )
    return {"edits": LogitEdits(by_row=edit.by_row, **fields)}
