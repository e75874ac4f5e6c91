"""Moving accepted cache entries together: one launch for all layers of one shape."""

import math
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64, 16: tl.int64}
MOST_LAYERS = 256  # whose addresses a launch takes: kernel arguments have 4 KiB


class Layers(NamedTuple):
    """Cache entries of so many words: heads, slots, pages of so many slots, and steps in words."""

    heads: int
    request: int
    head: int
    slot: int
    words: int
    slots: int
    page_slots: int
    pages: int


@triton.jit
def place_of(table, prefix, node, page_slots, mask):
    """(page, slot in it) of a node's entry. Without a block table all slots are in page 0, the request's own."""
    slot = prefix + node
    if table is None:
        return slot * 0, slot
    else:
        row = slot.to(tl.int32)
        return tl.load(table + row // page_slots, mask=mask, other=0).to(tl.int64), (row % page_slots).to(tl.int64)


@triton.jit
def is_there(table, prefix, node, layers, page_slots, asked):
    """Whether the cache has a slot for the node."""
    room = tl.where(prefix >= 0, layers.slots - prefix, 0)
    there = asked & (node >= 0) & (node < room)
    page, _ = place_of(table, prefix, node, page_slots, there)
    return there & (page >= 0) & (page < layers.pages)


@triton.jit
def moves_of(path, length, table, prefix, layers, page_slots):
    """(how many entries of a path can be moved, status): as long as they rise, and lie inside of the cache before and
    after."""
    moves = length + 0
    status = 0
    base = length * 0
    while base < moves:
        d = base + tl.arange(0, 32)
        node = tl.load(path + d, mask=d < length, other=-1)
        before = tl.load(path + d - 1, mask=(d > 0) & (d < length), other=-1)
        rises = (d < length) & (node > before)
        fits = is_there(table, prefix, node, layers, page_slots, rises)
        fits &= is_there(table, prefix, d, layers, page_slots, rises)
        moves = tl.minimum(moves, tl.min(tl.where(fits, _math.NO_TOKEN, d), axis=0))
        status |= tl.max(tl.where((d == moves) & (node != -1), _math.PARAMETER, 0), axis=0)
        base += 32
    return moves, status


@_launch.kernel
def compact_kv_kernel(
    caches, layers: Layers, paths: _arguments.Steps, length: tl.int32, prefix_len: _arguments.Counter,
    tables: _arguments.Steps, status, WORD: tl.constexpr, PAIRS: tl.constexpr, DEPTHS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    mine = tl.program_id(0)
    heads, words, page_slots = (
        tl.cast(layers.heads, tl.int32), tl.cast(layers.words, tl.int32), tl.cast(layers.page_slots, tl.int32)
    )  # fmt: skip
    b, layer, head = (mine // (len(caches) * heads)).to(tl.int64), mine // heads % len(caches), mine % heads
    path, table = _arguments.at(paths, b, 0), None
    prefix = tl.cast(_arguments.number(prefix_len, b, 0, b >= 0), tl.int64)
    if tables.data is not None:
        table = _arguments.at(tables, b, 0)
    moves, bad = moves_of(path, length, table, prefix, layers, page_slots)
    if mine % (len(caches) * heads) == 0:
        tl.store(status + b, bad)
    address = tl.full([], 0, tl.int64)
    for i in tl.static_range(len(caches)):
        address = tl.where(layer == i, caches[i], address)
    cache = address.to(tl.pointer_type(WORD))
    if PAIRS:  # tells the compiler what is divisible, so that it moves 16 bytes at once
        cache, words = tl.multiple_of(cache, 16), words // 2 * 2
    first = head * layers.head + (b * layers.request if tables.data is None else 0)
    # In order. path[d] >= d, so a slot is written only after its last read.
    for base in range(0, moves, DEPTHS):
        d = base + tl.arange(0, DEPTHS)
        node = tl.load(path + d, mask=d < moves, other=0)
        moved = (d < moves) & (node != d)
        for begin in range(0, words, BLOCK):
            word = begin + tl.arange(0, BLOCK)
            here = moved[:, None] & (word < words)[None, :]
            page, slot = place_of(table, prefix, node, page_slots, moved)
            source = first + page * layers.request + slot * layers.slot
            page, slot = place_of(table, prefix, d, page_slots, moved)
            to = first + page * layers.request + slot * layers.slot
            if PAIRS:
                source, to = source // 2 * 2, to // 2 * 2
            entries = tl.load(cache + source[:, None] + word[None, :], mask=here)
            _rows.barrier()  # all of this block has been read
            tl.store(cache + to[:, None] + word[None, :], entries, mask=here)


compact_kv_kernel.programs = None  # Triton's own launch looks at the addresses: their types are their sizes


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
    slots, pages = (min((cache.shape[i] for cache in caches), default=2**63 - 1) for i in (2, 0))
    table, page_slots = call.block_table, 1
    if table is not None:
        page_slots = slots if caches else 1
        slots = page_slots * table.shape[1]
    layers_of = {}
    for cache in caches:
        if cache.numel():
            layers_of.setdefault(shape_of(cache), []).append(cache.data_ptr())
    if not layers_of:
        layers_of[1, 1, 0, 0, 0, 0] = [0]  # nothing to move, but the paths are checked
    with _launch.on_device(path):
        for (unit, heads, request, head, slot, words), layers in layers_of.items():
            block = min(256, triton.next_power_of_2(max(1, words)))
            for first in range(0, len(layers), MOST_LAYERS):
                some = tuple(layers[first : first + MOST_LAYERS])
                arguments = dict(
                    caches=some, layers=Layers(heads, request, head, slot, words, slots, max(page_slots, 1), pages),
                    paths=_arguments.steps_or_none(path), length=length, tables=_arguments.steps_or_none(table),
                    prefix_len=_arguments.counter_of(call.prefix_len), status=call.status, WORD=WORDS[unit],
                    PAIRS=unit == 16, DEPTHS=2048 // block, BLOCK=block,
                )  # fmt: skip
                _launch.launch(compact_kv_kernel, (requests * len(some) * heads,), 4, arguments)
