"""What kernels get of a call: tuples of what belongs together, with its steps beside each pointer.

Steps are in elements. Before Triton 3.7 a tuple that holds a None cannot be returned, nor compared with None; all else
can be done with it, and its fields can be compared.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _math

from specdec_kernels.calls.values import DIVIDED


class Number(NamedTuple):
    """A number of each entry, or of each row of an entry: from memory, or one for all."""

    data: tl.tensor
    outer: int  # steps
    inner: int
    value: float


class Counter(NamedTuple):
    """A whole ``Number``."""

    data: tl.tensor
    outer: int
    inner: int
    value: int


class Steps(NamedTuple):
    """A tensor that has something for each row of each entry."""

    data: tl.tensor = None
    outer: int = None
    inner: int = None


class Rows(NamedTuple):
    """Rows [A, R, V]; ``count`` is R."""

    rows: tl.tensor
    outer: int
    inner: int
    count: int
    vocab: int


class Packing(NamedTuple):
    """How requests of a chain are packed: cumulative numbers of drafts, and how many there are at all.

    ``tokens_by_row``: ``cu_drafts`` counts rows, and tokens stand in the rows that they enter.
    """

    cu_drafts: tl.tensor
    tokens_by_row: int
    total: int


class Index(NamedTuple):
    """Which of so many entries each request uses; the one with its own number if ``data`` is None."""

    data: tl.tensor
    entries: int


class Law(NamedTuple):
    """The numbers of a law, and its rules."""

    temperature: Number
    top_k: Counter
    top_p: Number
    min_p: Number
    rules: int


class Noise(NamedTuple):
    seed: Counter
    position: Counter
    nonce: Counter


@triton.jit
def entry_of(index, b):
    """(the entry whose numbers and draft rows request ``b`` uses, whether there is that entry, whether it is idle)."""
    if index.data is None:
        return b, b >= 0, b < 0
    else:
        entry = tl.load(index.data + b).to(tl.int64)
        live = (entry >= 0) & (entry < index.entries)
        return tl.where(live, entry, 0), live, entry == -1


@triton.jit
def offset_at(steps, outer, inner):
    return outer * steps.outer + inner * steps.inner


@triton.jit
def at(steps, outer, inner):
    return steps.data + offset_at(steps, outer, inner)


@triton.jit
def number(number, entry, row, live):
    """A number of a row of an entry: from memory (0 if there is no such entry), or the one for all."""
    if number.data is None:
        return number.value
    else:
        return tl.load(at(number, entry, row), mask=live, other=0)


@triton.jit
def heat_of(temperature, entry, row, live):
    """(1 / T, whether T is 0, status). Beside a pointer a ``value`` of 1 says that logits are divided already."""
    t = number(temperature, entry, row, live)
    if temperature.data is not None:
        t = tl.where((temperature.value > 0.0) & (t >= _math.SMALLEST), 1.0, t)
    return _math.inverse_temperature(t)


class Packed(NamedTuple):
    """Where one of packed requests is: its slots, the first draft and row of all, and the first draft token."""

    readable: tl.tensor
    drafts: tl.tensor
    first_draft: tl.tensor
    first_row: tl.tensor
    first_token: tl.tensor
    flags: tl.tensor


@triton.jit
def packed_of(packing, b, most):
    """Where request ``b`` is, of which at most so many drafts count."""
    if packing.cu_drafts is None:
        return Packed(b >= 0, most + 0, b * most, b * (most + 1), b * most, 0)
    else:
        begin, end = tl.load(packing.cu_drafts + b).to(tl.int64), tl.load(packing.cu_drafts + b + 1).to(tl.int64)
        begin -= tl.where(packing.tokens_by_row != 0, b, 0)
        end -= tl.where(packing.tokens_by_row != 0, b + 1, 0)
        readable = (begin >= 0) & ((b > 0) | (begin == 0)) & (end >= begin) & (end <= packing.total)
        begin = tl.where(readable, begin, 0)
        drafts = tl.where(readable, end - begin, 0)
        return Packed(
            readable, tl.minimum(drafts, most).to(tl.int32), begin, begin + b,
            begin + tl.where(packing.tokens_by_row != 0, b + 1, 0),
            tl.where(readable & (drafts <= most), 0, _math.PARAMETER),
        )  # fmt: skip


class At(NamedTuple):
    """Row ``j`` of request ``i``, whose numbers are those of an entry, if it is ``live``."""

    i: tl.tensor
    j: tl.tensor
    entry: tl.tensor
    live: tl.tensor
    idle: tl.tensor


@triton.jit
def row_of(rows, index, row):
    """Where a row is, of all."""
    count = tl.cast(rows.count, tl.int32)
    i, j = row // count, row % count
    entry, live, idle = entry_of(index, i)
    return At(i, j, entry, live, idle)


class Entering(NamedTuple):
    """Positions of the tokens that enter rows, nonces of requests, and seeds of races by row. None need be given."""

    positions: Steps
    nonces: Steps
    row_seeds: Steps


@triton.jit
def entered(noise, entering, b, row, there):
    """The noise of a row at the position after that of the token that enters it, if that is given."""
    # Then its nonce may be given, too.
    if entering.positions.data is None:
        return noise
    else:
        position, nonce = tl.load(at(entering.positions, b, row), mask=there, other=0) + 1, noise.nonce
        if entering.nonces.data is not None:
            nonce = tl.load(at(entering.nonces, b, 0), mask=there, other=0).to(tl.uint32)
        return _math.Noise(noise.seed, position.to(tl.uint32), nonce, noise.first)


@triton.jit
def race_noise(noise, entering, b, node, depth):
    """The noise of the race at a node of request ``b`` from that at its root, or of seeds by row."""
    if entering.row_seeds.data is None:
        return _math.later(noise, depth)
    else:
        seed = tl.load(at(entering.row_seeds, b, node.to(tl.int64))).to(tl.int64)
        nothing = tl.full([], 0, tl.uint32)
        return _math.Noise(seed, nothing, nothing, noise.first)


@triton.jit
def noise_of(noise, entry, row, live, first=0):
    """The noise of a row, from numbers that may be int32 or int64 in memory. Its column 0 is token ``first``."""
    return _math.Noise(
        tl.cast(number(noise.seed, entry, row, live), tl.int64),
        tl.cast(number(noise.position, entry, row, live), tl.uint32),
        tl.cast(number(noise.nonce, entry, row, live), tl.uint32), first,
    )  # fmt: skip


# Host side

NO_STEPS, NO_ROWS, UNPACKED = Steps(), Rows(None, None, None, None, None), Packing(None, None, None)
NO_NUMBER = Number(None, None, None, None)
NO_LAW = Law(NO_NUMBER, Counter(*NO_NUMBER), NO_NUMBER, NO_NUMBER, None)


def steps_of(tensor):
    """The steps of a tensor along its first two dimensions."""
    return (*tensor.stride(), 0, 0)[:2]


def number_of(value):
    if isinstance(value, torch.Tensor):
        return Number(value, *steps_of(value), 0.0)
    return Number(None, 0, 0, float(value))


def counter_of(value):
    return Counter(value, *steps_of(value), 0) if isinstance(value, torch.Tensor) else Counter(None, 0, 0, value)


def rows_of(rows, count=None):
    """Rows [A, R, V], packed [D, V], or none."""
    if rows is None:
        return NO_ROWS
    outer = rows.stride(0) if rows.ndim == 3 else 0
    return Rows(rows, outer, rows.stride(-2), rows.shape[1] if count is None else count, rows.shape[-1])


def steps_or_none(tensor):
    return NO_STEPS if tensor is None else Steps(tensor, *steps_of(tensor))


def row_steps(tensor):
    """A tensor with a number for each row: [B, N], or of packed requests [R]."""
    if tensor is None:
        return NO_STEPS
    return Steps(tensor, 0 if tensor.ndim == 1 else tensor.stride(0), tensor.stride(-1))


def entering_of(call, positions, nonces=None):
    """What a call has of an ``Entering``, ``positions`` as Steps."""
    return Entering(positions, *map(steps_or_none, (nonces, call.row_seeds)))


def nodes_of(tensor):
    """A tensor with a number for each node: [B, N], or [N] for all requests."""
    return Steps(tensor, tensor.stride(0) if tensor.ndim == 2 else 0, tensor.stride(-1))


def packing_of(call, requests):
    if call.cu_drafts is None:
        return UNPACKED
    by_row = int(call.tokens_by_row)
    return Packing(call.cu_drafts, by_row, call.draft_tokens.shape[0] - requests * by_row)


def temperature_of(law):
    """A law's temperature, as ``heat_of`` reads it; without a law it is 1."""
    if law is None:
        return number_of(1.0)
    found = number_of(law.temperature)
    return found._replace(value=float(not _launch.is_greedy(law))) if law.rules & DIVIDED else found


def law_of(law):
    return Law(temperature_of(law), counter_of(law.top_k), number_of(law.top_p), number_of(law.min_p), law.rules)


def noise_numbers(noise):
    return Noise(*map(counter_of, noise))


def index_of(request_index, *values, edit=None):
    """Which entries requests use: as many as draft rows, tensors of numbers and edits have."""
    # If there are none of these, all requests have the same numbers, and any index is good.
    if request_index is None:
        return Index(None, 0)
    values = *values, *(() if edit is None else edit.by_entry())
    entries = next((value.shape[0] for value in values if isinstance(value, torch.Tensor)), _launch.ANY_NUMBER)
    return Index(request_index, entries)
