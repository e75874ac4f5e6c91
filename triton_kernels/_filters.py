"""Which tokens of a row sampling filters keep (specdec/filter.h): found by one program, from the maxima of its cells.

Every cut keeps a prefix of one order, so what is looked for is how many tokens stay. Keys are whole numbers in the
order of the values. A bisection over the maxima of cells of 64 tokens finds a key that no kept token is below. The
tokens from there on are listed. Where they are more than the list holds, every look at them goes over the row again.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._laws import clean
from specdec_kernels.triton_kernels._math import (
    GROUP,
    INFINITY,
    PARAMETER,
    SMALLEST,
    log,
    row_weight,
)
from specdec_kernels.triton_kernels._rows import barrier, group_tops, load_tile

LISTED = tl.constexpr(2048)  # tokens that a list holds
LOWEST = tl.constexpr(0x00800000)  # the key of the lowest number; that of -inf is one less
AFTER_TOP_K, AFTER_MIN_P, TOGETHER, BEFORE_TEMPERATURE = (tl.constexpr(bit) for bit in (1, 2, 4, 8))


class Filter(NamedTuple):
    """Numbers of a request: top_k, 0 where off; floor(2^32 top_p), -1 where off; log min_p, -inf where off."""

    top_k: tl.tensor
    share: tl.tensor
    log_min_p: tl.tensor


class Tokens(NamedTuple):
    """What to look at: the row and its law, the maxima of its cells, the largest value; the list and its length.

    The length is 0 where the list would not hold them all.
    """

    row: tl.tensor
    law: tl.tensor
    cells: tl.tensor
    top: tl.tensor
    values: tl.tensor
    length: tl.tensor


@triton.jit
def filter_of(top_k, top_p, min_p, columns, greedy):
    """(the filter of such numbers, status); at temperature 0 only the first token of the order stays."""
    top_k = tl.where((top_k > 0) & (top_k < columns), top_k, 0).to(tl.int64)
    cuts = (top_p >= 0.0) & (top_p < 1.0)
    share = tl.where(cuts, (tl.where(cuts, top_p, 0.0) * 2.0**32).to(tl.int64), -1)
    floor = tl.where(min_p >= SMALLEST, log(tl.minimum(tl.maximum(min_p, SMALLEST), 1.0)), -INFINITY)
    status = tl.where((top_p >= 0.0) & (min_p >= 0.0), 0, PARAMETER)
    return (
        tl.where(greedy, 1, top_k), tl.where(greedy, -1, share), tl.where(greedy, -INFINITY, floor), status
    )  # fmt: skip


@triton.jit
def order_key(v):
    """uint32 in the order of the values; both zeros are one."""
    bits = (v + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def value_of(key):
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def cell_tiles(row, law, first, last, cells, TILE: tl.constexpr):
    """Stores the largest value of each cell in the tiles [first, last); returns whether one held a bad value."""
    CELLS: tl.constexpr = TILE // GROUP
    met = tl.zeros([CELLS], tl.int1)
    for tile in range(first, last):
        x = load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE)
        unclean = (group_tops(x) < INFINITY) == 0
        met = met | unclean
        tops = tl.max(clean(x, law), axis=1)
        tl.store(cells + tile * CELLS + tl.arange(0, CELLS), tops)
    return tl.max(met.to(tl.int32), axis=0) > 0


@triton.jit
def sums_of(v, level, top):
    """(how many of some values have a key of ``level`` or more, the sum of their weights)."""
    here = order_key(v) >= level
    return here.to(tl.int64), tl.where(here, row_weight(v - top), 0)


@triton.jit
def measured(seen, level, TILE: tl.constexpr):
    """(how many tokens of a row have a key of ``level`` or more, the sum of their weights)."""
    row, law, cells, top, values, length = seen
    CELLS: tl.constexpr = TILE // GROUP
    level = tl.maximum(level, LOWEST)
    count, mass = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    if length > 0:
        at = tl.arange(0, LISTED)
        v = tl.load(values + at, mask=at < length, other=-INFINITY, cache_modifier=".cg")
        here, weights = sums_of(v, level, top)
        count, mass = tl.sum(here, axis=0), tl.sum(weights, axis=0)
    else:
        for tile in range(0, tl.cdiv(row.columns, TILE)):
            tops = tl.load(cells + tile * CELLS + tl.arange(0, CELLS), cache_modifier=".cg")
            if tl.max(order_key(tops), axis=0) >= level:
                v = clean(load_tile(row, law, tile * TILE, TILE), law)
                here, weights = sums_of(v, level, top)
                count += tl.sum(tl.sum(here, axis=1), axis=0)
                mass += tl.sum(tl.sum(weights, axis=1), axis=0)
    return count, mass


@triton.jit
def reaching(seen, goal, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The highest key from which on the tokens, or their weights, come to ``goal``; 0 if all of them do not."""
    level = tl.full([], 0, tl.uint32)
    for bit in range(32):
        attempt = level | (tl.full([], 0x80000000, tl.uint32) >> bit)
        count, mass = measured(seen, attempt, TILE)
        level = tl.where((mass if BY_MASS else count) >= goal, attempt, level)
    return level


@triton.jit
def bracket_of(cells, number, top, goal, BY_MASS: tl.constexpr, CELLS: tl.constexpr):
    """The same of the maxima of cells: no more than of the tokens themselves."""
    at = tl.arange(0, CELLS)
    tops = tl.load(cells + at, mask=at < number, other=-INFINITY, cache_modifier=".cg")
    keys = order_key(tops)
    weights = tl.where(tops > -INFINITY, 1, 0).to(tl.int64)
    if BY_MASS:
        weights = row_weight(tops - top)
    level = tl.full([], 0, tl.uint32)
    for bit in range(32):
        attempt = level | (tl.full([], 0x80000000, tl.uint32) >> bit)
        level = tl.where(tl.sum(tl.where(keys >= attempt, weights, 0), axis=0) >= goal, attempt, level)
    return level


@triton.jit
def list_tokens(row, law, cells, level, values, ids, TILE: tl.constexpr):
    """Lists values and ids of the tokens from a key on, in the order of ids; returns how many, 0 if too many."""
    CELLS: tl.constexpr = TILE // GROUP
    level = tl.maximum(level, LOWEST)
    length = tl.full([], 0, tl.int32)
    for tile in range(0, tl.cdiv(row.columns, TILE)):
        tops = tl.load(cells + tile * CELLS + tl.arange(0, CELLS), cache_modifier=".cg")
        if (length <= LISTED) & (tl.max(order_key(tops), axis=0) >= level):
            start = tl.cast(tile, tl.int32) * TILE
            v = tl.reshape(clean(load_tile(row, law, start, TILE), law), [TILE])
            here = order_key(v) >= level
            at = length + tl.cumsum(here.to(tl.int32), axis=0) - 1
            tl.store(values + at, v, mask=here & (at < LISTED))
            tl.store(ids + at, start + tl.arange(0, TILE), mask=here & (at < LISTED))
            length += tl.sum(here.to(tl.int32), axis=0)
    barrier()
    return tl.where(length <= LISTED, length, 0)


@triton.jit
def id_of(seen, ids, level, rank, TILE: tl.constexpr):
    """The id of the ``rank``-th, from 1, of the tokens that have a key; the last one's if they are fewer."""
    row, law, cells, _top, values, length = seen
    CELLS: tl.constexpr = TILE // GROUP
    found, before = tl.full([], -1, tl.int32), tl.full([], 0, tl.int64)
    if length > 0:
        at = tl.arange(0, LISTED)
        v = tl.load(values + at, mask=at < length, other=-INFINITY, cache_modifier=".cg")
        equal = order_key(v) == level
        place = tl.cumsum(equal.to(tl.int32), axis=0)
        tokens = tl.load(ids + at, mask=at < length, other=-1, cache_modifier=".cg")
        found = tl.max(tl.where(equal & (place <= rank), tokens, -1), axis=0)
    else:
        for tile in range(0, tl.cdiv(row.columns, TILE)):
            tops = tl.load(cells + tile * CELLS + tl.arange(0, CELLS), cache_modifier=".cg")
            if (before < rank) & (tl.max(order_key(tops), axis=0) >= level):
                start = tl.cast(tile, tl.int32) * TILE
                v = tl.reshape(clean(load_tile(row, law, start, TILE), law), [TILE])
                equal = order_key(v) == level
                place = before + tl.cumsum(equal.to(tl.int32), axis=0)
                found = tl.maximum(found, tl.max(tl.where(equal & (place <= rank), start + tl.arange(0, TILE), -1), 0))
                before += tl.sum(equal.to(tl.int64), axis=0)
    return found


@triton.jit
def prefix(seen, tokens, TILE: tl.constexpr):
    """(key of the last of the first so many tokens, how many of that key are among them, the sum of all weights)."""
    level = reaching(seen, tokens, False, TILE)
    above, mass_above = measured(seen, level + 1, TILE)
    weight = row_weight(value_of(level) - seen.top)
    return level, tokens - above, mass_above + (tokens - above) * weight


@triton.jit
def share_of_mass(share, whole):
    """What the tokens before a kept one weigh less than: ceil(share * whole / 2^32), int64."""
    part, whole = share.to(tl.uint64), whole.to(tl.uint64)
    low = (part * (whole & 0xFFFFFFFF) + 0xFFFFFFFF) >> 32
    return (part * (whole >> 32) + low).to(tl.int64)


@triton.jit
def cut_of(row, law, filter, rules, cells, top, whole, values, ids, TILE: tl.constexpr, CELLS: tl.constexpr):
    """(value, id of the last token kept, how many, the sum of their weights) of a row that has weight.

    ``whole`` is the row's mass, where top_p refers to it. ``values`` and ``ids`` have room for ``LISTED``.
    """
    top_k, share, log_min_p = filter
    number = tl.cdiv(row.columns, GROUP)
    together = rules & TOGETHER != 0
    by_k, by_share, by_least = top_k > 0, share >= 0, log_min_p > -INFINITY
    after_k, after_least = by_k & (rules & AFTER_TOP_K != 0), by_least & (rules & AFTER_MIN_P != 0)
    after = after_k | after_least
    # No kept token is below any of the brackets; the mass that top_p refers to is only to be cut by what it names.
    floor = tl.full([], LOWEST, tl.uint32)
    level = floor
    if by_least:
        floor = tl.maximum(order_key(top + log_min_p), LOWEST)
        if (by_share == 0) | after_least | (after == 0):
            level = floor
    if by_k:  # noqa: SIM102  `and` would look at both
        if (by_share == 0) | after_k | (after == 0):
            level = tl.maximum(level, bracket_of(cells, number, top, top_k, False, CELLS))
    least = tl.full([], 0, tl.int64)
    if by_share & (after == 0):
        least = tl.maximum(share_of_mass(share, whole), 1)
        level = tl.maximum(level, bracket_of(cells, number, top, least, True, CELLS))
    length = list_tokens(row, law, cells, level, values, ids, TILE)
    seen = Tokens(row, law, cells, top, values, length)

    most = tl.full([], 1 << 40, tl.int64)
    kept_by_k, kept_by_least = most, most
    if by_least:
        kept_by_least, _ = measured(seen, floor, TILE)
    if by_k:
        key = reaching(seen, top_k, False, TILE)
        if key > 0:
            kept_by_k = top_k
            if together:
                kept_by_k, _ = measured(seen, key, TILE)
    all_of_them, _ = measured(seen, level, TILE)
    kept = tl.minimum(tl.minimum(kept_by_k, kept_by_least), all_of_them)
    if by_share:
        if after:
            named = tl.minimum(tl.where(after_k, kept_by_k, most), tl.where(after_least, kept_by_least, most))
            _, _, whole = prefix(seen, tl.minimum(named, all_of_them), TILE)
            least = tl.maximum(share_of_mass(share, whole), 1)
        key = reaching(seen, least, True, TILE)
        if key > 0:
            above, mass_above = measured(seen, key + 1, TILE)
            weight = tl.maximum(row_weight(value_of(key) - top), 1)
            equal, _ = measured(seen, key, TILE)
            some = above + (least - mass_above + weight - 1) // weight
            kept = tl.minimum(kept, tl.where(together, equal, tl.minimum(some, equal)))
    key, ties, mass = prefix(seen, kept, TILE)
    return value_of(key), id_of(seen, ids, key, ties, TILE), kept, mass
