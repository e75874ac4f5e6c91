"""Edits of the target's rows (csrc/include/specdec/edit.h): bias, penalties, and what a grammar allows.

Values are edited right after they are loaded (``_rows.load_tile``, ``load_masses``, ``value_at``), so no other text
knows of edits but that which makes laws. A kernel gets them as one argument, an ``Edits``. What is None in it is left
out when the kernel is compiled; a kernel without edits is the one that it would be if there were no edits.
"""

import operator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels._math import INFINITY, LARGEST, PARAMETER, any_of, first_not_below

from specdec_kernels.calls.values import ALLOWED_BY_ROW, BIAS_BY_ROW, Edit

MOST = tl.constexpr(2**31 - 1)  # where counts end
BLOCK = tl.constexpr(128)  # entries of a list looked at together
BY_ROW_ALLOWED, BY_ROW_BIAS = tl.constexpr(ALLOWED_BY_ROW), tl.constexpr(BIAS_BY_ROW)


class Edits(NamedTuple):
    """A call's ``Edit``, as kernels get it: pointers, the steps from an entry to the next and from a row to the next.

    ``tokens`` and ``parents`` are those of the draft, where penalties count along it. Whole numbers are ``sealed``.
    """

    allowed: torch.Tensor = None
    allowed_entry: int = None
    allowed_row: int = None
    bias_tokens: torch.Tensor = None
    bias_values: torch.Tensor = None
    bias_size: int = None
    bias_spans: torch.Tensor = None
    bias_entry: int = None
    bias_row: int = None
    repetition: torch.Tensor = None
    repetition_value: float = None
    repetition_entry: int = None
    repetition_row: int = None
    frequency: torch.Tensor = None
    frequency_value: float = None
    frequency_entry: int = None
    frequency_row: int = None
    presence: torch.Tensor = None
    presence_value: float = None  # None if there are no penalties at all
    presence_entry: int = None
    presence_row: int = None
    prompt_mask: torch.Tensor = None
    prompt_entry: int = None
    prompt_row: int = None
    output_mask: torch.Tensor = None
    output_entry: int = None
    output_row: int = None
    output_counts: torch.Tensor = None
    counts_entry: int = None
    counts_row: int = None
    pending: torch.Tensor = None
    pending_size: int = None
    pending_entry: int = None
    pending_row: int = None
    seen_index: torch.Tensor = None
    seen_size: int = None
    seen_entry: int = None
    seen_row: int = None
    allowed_index: torch.Tensor = None
    allowed_size: int = None
    allowed_index_entry: int = None
    allowed_index_row: int = None
    tokens: torch.Tensor = None
    tokens_request: int = None
    tokens_step: int = None
    parents: torch.Tensor = None
    parents_request: int = None
    parents_step: int = None
    by_row: int = None  # None if there are no edits


class Place(NamedTuple):
    """Where the lists of one row of the target are, in elements from the pointers of an ``Edits``; and its numbers.

    ``node`` is the number of drafts before the row, or its node in a tree.
    """

    allowed_at: tl.tensor
    begin: tl.tensor  # of its entries of bias_tokens
    end: tl.tensor
    rising: tl.tensor  # whether they rise, all in the vocabulary
    columns: tl.tensor
    own_repetition: tl.tensor
    own_inverse: tl.tensor
    own_frequency: tl.tensor
    own_presence: tl.tensor
    prompt_at: tl.tensor
    output_at: tl.tensor
    counts_at: tl.tensor
    pending_at: tl.tensor
    pendings: tl.tensor
    tokens_at: tl.tensor
    parents_at: tl.tensor
    node: tl.tensor


# Where a row's lists are


@triton.jit
def opened(number):
    """A whole number of an ``Edits``: the inverse of ``sealed``."""
    return (number & 0x1FFFFFFFFFFFFFFF) >> 1


@triton.jit
def number_of(pointer, value, entry_step, row_step, entry, row, live):
    if pointer is None:
        return value
    else:
        return tl.load(pointer + entry * opened(entry_step) + row * opened(row_step), mask=live, other=0.0)


@triton.jit
def finite_or(off, x):
    """(x, or ``off`` if it is not finite; whether it is)."""
    good = tl.abs(x) < INFINITY
    return tl.where(good, x, off), good


@triton.jit
def penalties_of(edits, entry, row, live):
    """(repetition, its inverse, frequency, presence, status) of an entry; a number out of range is off."""
    r, f, g = edits.repetition, edits.frequency, edits.presence
    r = number_of(r, edits.repetition_value, edits.repetition_entry, edits.repetition_row, entry, row, live)
    f = number_of(f, edits.frequency_value, edits.frequency_entry, edits.frequency_row, entry, row, live)
    g = number_of(g, edits.presence_value, edits.presence_entry, edits.presence_row, entry, row, live)
    f, good_f = finite_or(0.0, f)
    g, good_g = finite_or(0.0, g)
    good_r = (r > 0.0) & (r < INFINITY)
    r = tl.where(good_r, r, 1.0)
    return r, tl.div_rn(1.0, r), f, g, tl.where(good_r & good_f & good_g, 0, PARAMETER)


@triton.jit
def rise(tokens, begin, end, columns):
    """Whether the entries [begin, end) of a list rise, all in the vocabulary."""
    bad = begin < 0
    for base in range(begin, end, BLOCK):
        entry = base + tl.arange(0, BLOCK)
        token = tl.load(tokens + entry, mask=entry < end, other=0)
        before = tl.load(tokens + entry - 1, mask=(entry < end) & (entry > begin), other=-1)
        bad = bad | (any_of((entry < end) & ((token <= before) | (token >= columns))) > 0)
    return bad == 0


@triton.jit
def span_at(edits, outer, inner, live, columns):
    """(begin, end, whether the entries rise, status) of the bias at a place."""
    span = edits.bias_spans + outer * opened(edits.bias_entry) + inner * opened(edits.bias_row)
    begin, end = tl.load(span, mask=live, other=0), tl.load(span + 1, mask=live, other=0)
    good = (begin >= 0) & (end >= begin) & (end <= opened(edits.bias_size))
    begin, end = tl.where(good, begin, 0), tl.where(good, end, 0)
    rising = rise(edits.bias_tokens, begin, end, columns)
    return begin, end, rising, tl.where(good & rising, 0, PARAMETER)


@triton.jit
def slot_at(index, entry_step, row_step, size, outer, inner, live):
    """(which of ``size`` lists an index says, -1 for none; status)."""
    slot = tl.load(index + outer * opened(entry_step) + inner * opened(row_step), mask=live, other=-1)
    inside = (slot >= 0) & (slot < opened(size))
    return tl.where(inside, slot, -1).to(tl.int64), tl.where(inside | (slot == -1), 0, PARAMETER)


@triton.jit
def place_at(edits, entry, row, target, target_row, node, first, live, columns):
    """(the ``Place`` of a row, the status of its bias and of its indices).

    The numbers and lists of its request are at (``entry``, ``row``), its own are at (``target``, ``target_row``). Where
    an index says that a row has no list, the list's place is negative.
    ``node`` drafts are before it, or it is that node of a tree. ``first`` counts the draft tokens before those of its
    request where they are packed.
    """
    allowed_at, begin, end, rising, bad = 0, 0, 0, 0, 0
    repetition, inverse, frequency, presence = 1.0, 1.0, 0.0, 0.0
    prompt_at, output_at, counts_at, pending_at, pendings, tokens_at, parents_at = 0, 0, 0, 0, 0, 0, 0
    if edits.allowed is not None:
        own = opened(edits.by_row) & BY_ROW_ALLOWED != 0
        outer, inner = tl.where(own, target, entry), tl.where(own, target_row, row)
        if edits.allowed_index is not None:
            outer, bad = slot_at(
                edits.allowed_index, edits.allowed_index_entry, edits.allowed_index_row, edits.allowed_size, outer,
                inner, live,
            )  # fmt: skip
            inner = 0
        allowed_at = outer * opened(edits.allowed_entry) + inner * opened(edits.allowed_row)
        if edits.allowed_index is not None:
            allowed_at = tl.where(outer < 0, -1, allowed_at)
    if edits.bias_tokens is not None:
        own = opened(edits.by_row) & BY_ROW_BIAS != 0
        outer, inner = tl.where(own, target, entry), tl.where(own, target_row, row)
        begin, end, rising, bad_bias = span_at(edits, outer, inner, live, columns)
        bad |= bad_bias
    if edits.presence_value is not None:
        repetition, inverse, frequency, presence, _ = penalties_of(edits, entry, row, live)
        seen, seen_row = entry, row
        if edits.seen_index is not None:
            seen, bad_seen = slot_at(
                edits.seen_index, edits.seen_entry, edits.seen_row, edits.seen_size, entry, row, live
            )
            seen_row = 0
            bad |= bad_seen
        if edits.prompt_mask is not None:
            prompt_at = seen * opened(edits.prompt_entry) + seen_row * opened(edits.prompt_row)
        if edits.output_mask is not None:
            output_at = seen * opened(edits.output_entry) + seen_row * opened(edits.output_row)
        if edits.output_counts is not None:
            counts_at = seen * opened(edits.counts_entry) + seen_row * opened(edits.counts_row)
        if edits.seen_index is not None:
            prompt_at, output_at = tl.where(seen < 0, -1, prompt_at), tl.where(seen < 0, -1, output_at)
        if edits.pending is not None:
            pending_at = entry * opened(edits.pending_entry) + row * opened(edits.pending_row)
            pendings = tl.where(live, opened(edits.pending_size).to(tl.int32), 0)
        if edits.tokens is not None:
            tokens_at = target * opened(edits.tokens_request) + first * opened(edits.tokens_step)
        if edits.parents is not None:
            parents_at = target * opened(edits.parents_request)
    return Place(
        allowed_at, begin, end, rising, columns, repetition, inverse, frequency, presence, prompt_at, output_at,
        counts_at, pending_at, pendings, tokens_at, parents_at, tl.cast(node, tl.int32),
    ), bad  # fmt: skip


@triton.jit
def request_status(edits, entry, row, live, columns):
    """The status of what a request's edits have for all its rows: numbers, pending tokens, bias."""
    status = 0
    if edits.bias_tokens is not None:  # noqa: SIM102  one is known when it is compiled
        if opened(edits.by_row) & BY_ROW_BIAS == 0:
            _begin, _end, _rising, bad = span_at(edits, entry, row, live, columns)
            status |= bad
    if edits.presence_value is not None:
        _r, _inverse, _f, _g, bad = penalties_of(edits, entry, row, live)
        status |= bad
        if edits.pending is not None:
            pending = edits.pending + entry * opened(edits.pending_entry) + row * opened(edits.pending_row)
            size = tl.where(live, opened(edits.pending_size).to(tl.int32), 0)
            for base in range(0, size, BLOCK):
                at = base + tl.arange(0, BLOCK)
                token = tl.load(pending + at, mask=at < size, other=-1)
                status |= any_of((token < -1) | (token >= columns)) * PARAMETER
    return tl.where(live, status, 0)


# What becomes of a row's values


@triton.jit
def bias_of(value):
    """NaN forbids like -inf; +inf is the largest finite number."""
    return tl.where(value == value, tl.minimum(value, LARGEST), -INFINITY)


@triton.jit
def biased(x, tokens, start, end, law):
    """Values of tokens in [start, end) after their bias. Entries that do not rise are passed over."""
    entry, last = law.begin, -1
    if law.rising & (entry < law.end):
        entry = first_not_below(law.bias_tokens, entry, law.end - entry, tl.cast(start, tl.int32))
    more = entry < law.end
    while more:
        token = tl.load(law.bias_tokens + entry)
        value = bias_of(tl.load(law.bias_values + entry))
        counts = (token > last) & (token < law.columns)
        x = tl.where((tokens == token) & counts, x + value, x)
        last = tl.where(counts, token, last)
        entry += 1
        more = (entry < law.end) & ((law.rising == 0) | (token < end - 1))
    return x


@triton.jit
def bits_at(words, tokens, there):
    """The bits of tokens in a mask; 0 where not ``there``."""
    word = tl.load(words + (tokens >> 5), mask=there, other=0)
    return (word >> (tokens & 31).to(tl.int32)) & 1


@triton.jit
def one_more(count, tokens, token, columns):
    """Counts after one token more in the output; one out of range is not counted."""
    token = tl.where((token >= 0) & (token < columns), token, -1).to(tl.int32)
    return count + ((tokens == token) & (count < MOST)).to(tl.int32)


@triton.jit
def counts_of(tokens, there, law):
    """How often tokens stand in the output, and before the row in what is pending and drafted."""
    count = (tokens * 0).to(tl.int32)
    if law.output_mask is not None:
        if law.seen_index is not None:
            there = there & (law.output_at >= 0)
        count = bits_at(law.output_mask + law.output_at, tokens, there)
        if law.output_counts is not None:
            seen = count > 0
            found = tl.load(law.output_counts + law.counts_at + tokens, mask=seen, other=0)
            count = tl.where(seen, tl.maximum(found, 1), 0)
    if law.pending is not None:
        for i in range(0, law.pendings):
            count = one_more(count, tokens, tl.load(law.pending + law.pending_at + i), law.columns)
    if law.tokens is not None:
        drafted, step = law.tokens + law.tokens_at, opened(law.tokens_step)
        if law.parents is None:
            for i in range(0, law.node):
                count = one_more(count, tokens, tl.load(drafted + i * step), law.columns)
        else:
            parents, parents_step = law.parents + law.parents_at, opened(law.parents_step)
            node = law.node + 0
            while node > 0:
                count = one_more(count, tokens, tl.load(drafted + node * step), law.columns)
                parent = tl.load(parents + node * parents_step).to(tl.int32)
                node = tl.where((parent > 0) & (parent < node), parent, 0)
    return count


@triton.jit
def penalised(z, tokens, there, law):
    """Logits after the penalties of tokens that were seen."""
    count = counts_of(tokens, there, law)
    counted = count > 0
    seen = counted
    if law.prompt_mask is not None:
        if law.seen_index is not None:
            there = there & (law.prompt_at >= 0)
        seen = seen | (bits_at(law.prompt_mask + law.prompt_at, tokens, there) > 0)
    z = tl.where(seen, tl.where(z > 0.0, z * law.own_inverse, z * law.own_repetition), z)
    return tl.where(counted, (z - law.own_frequency * count.to(tl.float32)) - law.own_presence, z)


@triton.jit
def edited(x, tokens, there, start, end, law):
    """The logits of ``tokens`` after all edits, where ``there``: a tile of [start, end), or a token alone."""
    if law.bias_tokens is not None:
        x = biased(x, tokens, start, end, law)
    if law.presence_value is not None:  # noqa: SIM102  one is known when it is compiled
        if (law.own_repetition != 1.0) | (law.own_frequency != 0.0) | (law.own_presence != 0.0):
            x = penalised(x, tokens, there, law)
    if law.allowed is not None:
        if law.allowed_index is not None:
            there = there & (law.allowed_at >= 0)
        may = bits_at(law.allowed + law.allowed_at, tokens, there) > 0
        if law.allowed_index is not None:
            may = may | (law.allowed_at < 0)
        x = tl.where(may, x, -INFINITY)
    return x


# Host side

NO_EDITS = Edits()
OFF = {"edits": NO_EDITS}
_NO_EDIT = Edit()


def sealed(number):
    """A whole number that looks like any other to Triton, which compiles in a 1, and sees whether 16 divides."""
    return 2**61 + 2 * number + 1


def most_registers(arguments):
    """A limit for rejection with edits: three programs of 128 threads fit. Left alone, ptxas spills to fit in four.

    So too for block and traversal, but for their walk, whose programs have more threads.
    """
    limited = arguments["METHOD"] != "race" and arguments["STAGE"] != "walk"
    return 168 if arguments["edits"].by_row is not None and limited else None


def is_on(edit):
    """Whether there are edits."""
    return any(map(operator.is_not, edit, _NO_EDIT)) and edit.on()


def arguments(call, tokens=None, parents=None, ragged=False):
    """The argument ``edits`` of a call, whose penalties count along the draft ``tokens``, if there is one."""
    edit = call.edits
    if not is_on(edit):
        return OFF
    found = {}

    def steps(name, tensor, packed=False):
        found[f"{name}_entry"] = sealed(0 if packed else tensor.stride(0))
        found[f"{name}_row"] = sealed(tensor.stride(1) if tensor.ndim > 1 and tensor.shape[1] > 1 else 0)

    def lists(field, name, packed=False):
        tensor = getattr(edit, field)
        if tensor is not None:
            found[field] = tensor
            steps(name, tensor, packed)

    packed = ragged and edit.by_row & ALLOWED_BY_ROW
    if edit.allowed_index is None:
        lists("allowed", "allowed", packed)
    else:
        lists("allowed", "allowed")
        lists("allowed_index", "allowed_index", packed)
        found["allowed_size"] = sealed(len(edit.allowed))
    if edit.bias_tokens is not None:
        found |= {"bias_tokens": edit.bias_tokens, "bias_values": edit.bias_values}
        found["bias_size"] = sealed(len(edit.bias_tokens))
        lists("bias_spans", "bias", ragged and edit.by_row & BIAS_BY_ROW)
    if edit._replace(
        allowed=None, allowed_index=None, bias_tokens=None, bias_values=None, bias_spans=None, by_row=0
    ).on():  # fmt: skip
        for name in ("repetition", "frequency", "presence"):
            value = getattr(edit, name)
            if isinstance(value, torch.Tensor):
                found |= {name: value, f"{name}_value": 0.0}
                steps(name, value)
            else:
                found[f"{name}_value"] = float(value)
        lists("prompt_mask", "prompt")
        lists("output_mask", "output")
        lists("output_counts", "counts")
        if edit.seen_index is not None:
            lists("seen_index", "seen")
            found["seen_size"] = sealed(len(edit.prompt_mask if edit.output_mask is None else edit.output_mask))
        if edit.pending is not None and edit.pending.shape[-1]:
            lists("pending", "pending")
            found["pending_size"] = sealed(edit.pending.shape[-1])
        if tokens is not None:
            found["tokens"], found["tokens_step"] = tokens, sealed(tokens.stride(-1))
            found["tokens_request"] = sealed(0 if ragged else tokens.stride(0))
        if parents is not None:
            found["parents"], found["parents_step"] = parents, sealed(parents.stride(-1))
            found["parents_request"] = sealed(parents.stride(0) if parents.ndim == 2 else 0)
    return {"edits": Edits(by_row=sealed(edit.by_row), **found)}
