"""Arguments of kernels: NamedTuples of a call's tensors, each pointer beside its steps.

Steps are in elements. Before Triton 3.7 a kernel can neither return a tuple that holds a None nor compare it with None;
its fields can be compared.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _math

from specdec_kernels.calls.values import DIVIDED


class Number(NamedTuple):
    """A float for each entry and row: in memory, or one ``value`` for all if ``data`` is None."""

    data: tl.tensor  # [A, R], [A, 1], or None
    outer: int
    inner: int
    value: float


class Counter(NamedTuple):
    """A ``Number`` that is an integer."""

    data: tl.tensor  # [A, R], [A, 1], or None
    outer: int
    inner: int
    value: int


class Steps(NamedTuple):
    """A tensor of at least two dimensions, with the steps of the first two."""

    data: tl.tensor = None  # [A, R, ...]
    outer: int = None
    inner: int = None


class Rows(NamedTuple):
    """Rows of logits or probabilities. Packed rows [D, V] have an ``outer`` of 0."""

    rows: tl.tensor  # [A, R, V]
    outer: int
    inner: int
    count: int  # R
    vocab: int  # V


class Packing(NamedTuple):
    """Packed chains: request b has the drafts from ``cu_drafts[b]`` up to ``cu_drafts[b + 1]``, of ``total`` in all.

    With ``tokens_by_row`` ``cu_drafts`` counts rows, and a token stands in the row whose input it is.
    """

    cu_drafts: tl.tensor  # [B + 1]
    tokens_by_row: int
    total: int


class Index(NamedTuple):
    """``data[b]`` is the entry of request b, out of ``entries``; request b uses entry b if ``data`` is None."""

    data: tl.tensor  # [B]
    entries: int


class Law(NamedTuple):
    """The numbers of a law (a distribution), and the bits of its ``rules``."""

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
def load_entry(index, b):
    """(entry of request ``b``, 0 if it has none; whether it has one; whether the request is idle)."""
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
    """The number of a row of an entry, 0 if the entry is not ``live``; or the one for all."""
    if number.data is None:
        return number.value
    else:
        return tl.load(at(number, entry, row), mask=live, other=0)


@triton.jit
def load_temperature(temperature, entry, row, live):
    """(1 / T, whether T is 0, status). Logits are already divided by T where a pointer has a ``value`` of 1."""
    t = number(temperature, entry, row, live)
    if temperature.data is not None:
        t = tl.where((temperature.value > 0.0) & (t >= _math.SMALLEST), 1.0, t)
    return _math.inverse_temperature(t)


class Packed(NamedTuple):
    """The position of one request among packed ones, as indices into all drafts, rows and draft tokens."""

    readable: tl.tensor  # whether its bounds make sense
    drafts: tl.tensor  # how many of its drafts are verified
    first_draft: tl.tensor
    first_row: tl.tensor
    first_token: tl.tensor
    flags: tl.tensor  # status bits


@triton.jit
def locate_request(packing, b, max_drafts):
    """The ``Packed`` of request ``b``, which verifies at most ``max_drafts`` drafts."""
    if packing.cu_drafts is None:
        return Packed(b >= 0, max_drafts + 0, b * max_drafts, b * (max_drafts + 1), b * max_drafts, 0)
    else:
        begin, end = tl.load(packing.cu_drafts + b).to(tl.int64), tl.load(packing.cu_drafts + b + 1).to(tl.int64)
        begin -= tl.where(packing.tokens_by_row != 0, b, 0)
        end -= tl.where(packing.tokens_by_row != 0, b + 1, 0)
        readable = (begin >= 0) & ((b > 0) | (begin == 0)) & (end >= begin) & (end <= packing.total)
        begin = tl.where(readable, begin, 0)
        drafts = tl.where(readable, end - begin, 0)
        return Packed(
            readable, tl.minimum(drafts, max_drafts).to(tl.int32), begin, begin + b,
            begin + tl.where(packing.tokens_by_row != 0, b + 1, 0),
            tl.where(readable & (drafts <= max_drafts), 0, _math.PARAMETER),
        )  # fmt: skip


class At(NamedTuple):
    """Row ``j`` of request ``i``, which uses the numbers of ``entry`` if it is ``live``."""

    i: tl.tensor
    j: tl.tensor
    entry: tl.tensor
    live: tl.tensor
    idle: tl.tensor


@triton.jit
def locate_row(rows, index, row):
    """The ``At`` of a row, counted over all requests."""
    count = tl.cast(rows.count, tl.int32)
    i, j = row // count, row % count
    entry, live, idle = load_entry(index, i)
    return At(i, j, entry, live, idle)


class Inputs(NamedTuple):
    """Where noise comes from other than a call's ``Noise``. Each tensor may be None."""

    positions: Steps  # [B, R] or packed [R]: positions of the input tokens of rows
    nonces: Steps  # [B]
    row_seeds: Steps  # [B, R]: the seed of the race in each row


@triton.jit
def noise_at_input(noise, inputs, b, row, there):
    """``noise`` at the position after the row's input token, and with the request's nonce, where ``inputs`` has
    them."""
    if inputs.positions.data is None:
        return noise
    else:
        position, nonce = tl.load(at(inputs.positions, b, row), mask=there, other=0) + 1, noise.nonce
        if inputs.nonces.data is not None:
            nonce = tl.load(at(inputs.nonces, b, 0), mask=there, other=0).to(tl.uint32)
        return _math.Noise(noise.seed, position.to(tl.uint32), nonce, noise.first)


@triton.jit
def race_noise(noise, inputs, b, node, depth):
    """The noise of the race at a node of request ``b``: ``noise`` ``depth`` positions later, or the row's seed."""
    if inputs.row_seeds.data is None:
        return _math.later(noise, depth)
    else:
        seed = tl.load(at(inputs.row_seeds, b, node.to(tl.int64))).to(tl.int64)
        nothing = tl.full([], 0, tl.uint32)
        return _math.Noise(seed, nothing, nothing, noise.first)


@triton.jit
def load_noise(noise, entry, row, live, first=0):
    """The noise of a row whose column 0 is token ``first``. Numbers may be int32 or int64 in memory."""
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


def inputs_of(call, positions, nonces=None):
    """The ``Inputs`` of a call, ``positions`` as Steps."""
    return Inputs(positions, *map(steps_or_none, (nonces, call.row_seeds)))


def nodes_of(tensor):
    """A tensor with a number for each node: [B, N], or [N] for all requests."""
    return Steps(tensor, tensor.stride(0) if tensor.ndim == 2 else 0, tensor.stride(-1))


def packing_of(call, requests):
    if call.cu_drafts is None:
        return UNPACKED
    by_row = int(call.tokens_by_row)
    return Packing(call.cu_drafts, by_row, call.draft_tokens.shape[0] - requests * by_row)


def temperature_of(law):
    """A law's temperature, as ``load_temperature`` reads it; without a law it is 1."""
    if law is None:
        return number_of(1.0)
    temperature = number_of(law.temperature)
    return temperature._replace(value=float(not _launch.is_greedy(law))) if law.rules & DIVIDED else temperature


def law_of(law):
    return Law(temperature_of(law), counter_of(law.top_k), number_of(law.top_p), number_of(law.min_p), law.rules)


def noise_numbers(noise):
    return Noise(*map(counter_of, noise))


def index_of(request_index, *values, edit=None):
    """The ``Index`` of a call. ``values`` and ``edit`` say how many entries there are."""
    # Without a tensor among them all requests have the same numbers, so any index is good.
    if request_index is None:
        return Index(None, 0)
    values = *values, *(() if edit is None else edit.by_entry())
    entries = next((value.shape[0] for value in values if isinstance(value, torch.Tensor)), _launch.ANY_NUMBER)
    return Index(request_index, entries)
