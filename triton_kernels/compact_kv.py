"""Accepted cache entries move together: one launch for all layers of one shape."""

import math
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows

WORD_TYPES = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64, 16: tl.int64}
MOST_LAYERS = 256  # of a launch, for addresses are kernel arguments, which have 4 KiB


class Layers(NamedTuple):
    """The shape of caches, with steps in words."""

    heads: int
    request: int  # step between requests, or pages
    head: int  # step between heads
    slot_step: int
    words: int  # of an entry
    cache_slots: int  # of a request
    page_size: int  # slots of a page
    pages: int


@triton.jit
def locate_entry(table, prefix, node, page_size, mask):
    """(page, slot in it) of a node's entry. Without a block table page 0 has all slots of the request."""
    cache_slot = prefix + node
    if table is None:
        return cache_slot * 0, cache_slot
    else:
        row = cache_slot.to(tl.int32)
        return tl.load(table + row // page_size, mask=mask, other=0).to(tl.int64), (row % page_size).to(tl.int64)


@triton.jit
def has_slot(table, prefix, node, layers, page_size, requested):
    """Whether the cache has a slot for the node."""
    slots_left = tl.where(prefix >= 0, layers.cache_slots - prefix, 0)
    there = requested & (node >= 0) & (node < slots_left)
    page, _ = locate_entry(table, prefix, node, page_size, there)
    return there & (page >= 0) & (page < layers.pages)


@triton.jit
def count_moves(path, length, table, prefix, layers, page_size):
    """(how many entries of a path move, status): they move while they rise and both slots are in the cache."""
    moves = length + 0
    status = 0
    base = length * 0
    while base < moves:
        d = base + tl.arange(0, 32)
        node = tl.load(path + d, mask=d < length, other=-1)
        before = tl.load(path + d - 1, mask=(d > 0) & (d < length), other=-1)
        rises = (d < length) & (node > before)
        fits = has_slot(table, prefix, node, layers, page_size, rises)
        fits &= has_slot(table, prefix, d, layers, page_size, rises)
        moves = tl.minimum(moves, tl.min(tl.where(fits, _math.NO_TOKEN, d), axis=0))
        status |= tl.max(tl.where((d == moves) & (node != -1), _math.PARAMETER, 0), axis=0)
        base += 32
    return moves, status


@_launch.kernel
def compact_kv_kernel(
    caches, layers: Layers, paths: _arguments.Steps, length: tl.int32, prefix_len: _arguments.Counter,
    tables: _arguments.Steps, status, WORD: tl.constexpr, PAIRS: tl.constexpr, DEPTHS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    heads, words, page_size = (
        tl.cast(layers.heads, tl.int32), tl.cast(layers.words, tl.int32), tl.cast(layers.page_size, tl.int32)
    )  # fmt: skip
    b, layer, head = (program // (len(caches) * heads)).to(tl.int64), program // heads % len(caches), program % heads
    path, table = _arguments.at(paths, b, 0), None
    prefix = tl.cast(_arguments.number(prefix_len, b, 0, b >= 0), tl.int64)
    if tables.data is not None:
        table = _arguments.at(tables, b, 0)
    moves, bad = count_moves(path, length, table, prefix, layers, page_size)
    if program % (len(caches) * heads) == 0:
        tl.store(status + b, bad)
    address = tl.full([], 0, tl.int64)
    for i in tl.static_range(len(caches)):
        address = tl.where(layer == i, caches[i], address)
    cache = address.to(tl.pointer_type(WORD))
    if PAIRS:  # shows divisibility to the compiler, so that it moves 16 bytes at once
        cache, words = tl.multiple_of(cache, 16), words // 2 * 2
    first = head * layers.head + (b * layers.request if tables.data is None else 0)
    # Blocks go in order of d. path[d] >= d, so a slot is written only after its last read.
    for base in range(0, moves, DEPTHS):
        d = base + tl.arange(0, DEPTHS)
        node = tl.load(path + d, mask=d < moves, other=0)
        moved = (d < moves) & (node != d)
        for begin in range(0, words, BLOCK):
            word = begin + tl.arange(0, BLOCK)
            inside = moved[:, None] & (word < words)[None, :]
            page, page_slot = locate_entry(table, prefix, node, page_size, moved)
            source = first + page * layers.request + page_slot * layers.slot_step
            page, page_slot = locate_entry(table, prefix, d, page_size, moved)
            to = first + page * layers.request + page_slot * layers.slot_step
            if PAIRS:
                source, to = source // 2 * 2, to // 2 * 2
            entries = tl.load(cache + source[:, None] + word[None, :], mask=inside)
            _rows.barrier()  # all threads have read this block
            tl.store(cache + to[:, None] + word[None, :], entries, mask=inside)


compact_kv_kernel.programs = None  # Triton's launch has to type each address by its size


def shape_of(cache):
    """(bytes that move at once, heads, strides of request, head and slot, size of an entry), the last four in words."""
    size = cache.element_size()
    bytes_ = [size * stride for stride in cache.stride()[:3]] + [size * cache.shape[3]]
    unit = math.gcd(cache.data_ptr(), *bytes_, 16)
    return unit, cache.shape[1], *(count // min(unit, 8) for count in bytes_)


def compact_kv(call):
    """Moves entry ``path[d]`` of each cache [B, H, S, E] to d, behind the prefix; ``status`` int32 [B]."""
    caches, path = call.caches, call.path
    requests, length = path.shape
    if requests == 0:
        return
    cache_slots, pages = (min((cache.shape[i] for cache in caches), default=2**63 - 1) for i in (2, 0))
    table, page_size = call.block_table, 1
    if table is not None:
        page_size = cache_slots if caches else 1
        cache_slots = page_size * table.shape[1]
    layers_of = {}
    for cache in caches:
        if cache.numel():
            layers_of.setdefault(shape_of(cache), []).append(cache.data_ptr())
    if not layers_of:
        layers_of[1, 1, 0, 0, 0, 0] = [0]  # nothing moves, but paths are checked
    with _launch.on_device(path):
        for (unit, heads, request, head, slot_step, words), layers in layers_of.items():
            block = min(256, triton.next_power_of_2(max(1, words)))
            for first in range(0, len(layers), MOST_LAYERS):
                addresses = tuple(layers[first : first + MOST_LAYERS])
                arguments = dict(
                    caches=addresses,
                    layers=Layers(heads, request, head, slot_step, words, cache_slots, max(page_size, 1), pages),
                    paths=_arguments.steps_or_none(path), length=length, tables=_arguments.steps_or_none(table),
                    prefix_len=_arguments.counter_of(call.prefix_len), status=call.status, WORD=WORD_TYPES[unit],
                    PAIRS=unit == 16, DEPTHS=2048 // block, BLOCK=block,
                )  # fmt: skip
                _launch.launch(compact_kv_kernel, (requests * len(addresses) * heads,), 4, arguments)
