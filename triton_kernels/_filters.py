"""Which tokens of a row sampling filters keep (specdec/filter.h): found by one program, from the maxima of its cells.

Every cut keeps a prefix of one order, so what is looked for is a key and how many tokens of that key stay. Keys are
whole numbers in the order of the values. The maxima of cells give a key that no kept token is below. The tokens from
there on are listed, and the cut is found in the list. If the list does not hold them, counts and masses above some
levels first narrow down the range of keys in which the cut is.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _laws, _math, _rows

LISTED = tl.constexpr(256)  # tokens that a list holds, and cells
LOWEST = tl.constexpr(0x00800000)  # the key of the lowest number; that of -inf is one less
NO_LIMIT, ALL_TOKENS = tl.constexpr(2**63 - 1), tl.constexpr(2**31 - 1)
AFTER_TOP_K, AFTER_MIN_P, TOGETHER, BEFORE_TEMPERATURE = (tl.constexpr(bit) for bit in (1, 2, 4, 8))


class Filter(NamedTuple):
    """Numbers of a row: top_k, 0 where off; floor(2^32 top_p), -1 where off; log min_p, -inf where off; its rules."""

    top_k: tl.tensor
    share: tl.tensor
    log_min_p: tl.tensor
    rules: tl.tensor


class Cut(NamedTuple):
    """What filters keep of a row: the last value and its id, how many, the sum of their weights.

    ``listed`` tokens are in the row's room, all that are kept among them; 0 if they are not. ``top`` is the row's
    largest value.
    """

    value: tl.tensor
    token: tl.tensor
    count: tl.tensor
    mass: tl.tensor
    listed: tl.tensor
    top: tl.tensor


class Range(NamedTuple):
    """Keys [first, end), and how many tokens, with what mass, are above them."""

    first: tl.tensor
    end: tl.tensor
    rank: tl.tensor
    mass: tl.tensor


class Room(NamedTuple):
    """Memory for the numbers of ``LISTED`` cells, and for raw values and ids of tokens."""

    cells: tl.tensor
    listed: tl.tensor
    ids: tl.tensor


@triton.jit
def filter_of(law, entry, row, live, columns, greedy):
    """(the filter of an entry, status); at temperature 0 only the first token of the order stays."""
    top_k = _arguments.number(law.top_k, entry, row, live)
    top_p = _arguments.number(law.top_p, entry, row, live)
    min_p = _arguments.number(law.min_p, entry, row, live)
    top_k = tl.cast(tl.where((top_k > 0) & (top_k < columns), top_k, 0), tl.int32)
    cuts = (top_p >= 0.0) & (top_p < 1.0)
    share = tl.where(cuts, (tl.where(cuts, top_p, 0.0) * 2.0**32).to(tl.int64), -1)
    floor = _math.log(tl.minimum(tl.maximum(min_p, _math.SMALLEST), 1.0))
    floor = tl.where(min_p >= _math.SMALLEST, floor, -_math.INFINITY)
    status = tl.where((top_p >= 0.0) & (min_p >= 0.0), 0, _math.PARAMETER)
    filter = Filter(
        tl.where(greedy, 1, top_k), tl.where(greedy, -1, share), tl.where(greedy, -_math.INFINITY, floor),
        tl.cast(law.rules, tl.int32),
    )  # fmt: skip
    return filter, status


@triton.jit
def without_ties(filter, greedy):
    """A filter of which one token stays at temperature 0, whatever ties with it."""
    return Filter(
        filter.top_k, filter.share, filter.log_min_p, tl.where(greedy, filter.rules & ~TOGETHER, filter.rules)
    )


@triton.jit
def order_of(filter, inverse):
    """1 / T of the values that a filter compares."""
    return tl.where((filter.rules & BEFORE_TEMPERATURE) != 0, 1.0, inverse)


@triton.jit
def cell_tiles(row, first, last, cells, CELL: tl.constexpr, TILE: tl.constexpr):
    """Stores the largest value of each cell in the tiles [first, last); returns whether one held a bad value."""
    CELLS: tl.constexpr = TILE // CELL
    bad = first < 0
    for tile in range(first, last):
        x = _rows.load_tile(row, tl.cast(tile, tl.int32) * TILE, TILE)
        unclean = (_rows.group_tops(x) < _math.INFINITY) == 0
        bad = bad | (tl.max(unclean.to(tl.int32), axis=0) > 0)
        tops = tl.max(tl.reshape(tl.max(_laws.clean(x, row.law), axis=1), [CELLS, x.shape[0] // CELLS]), axis=1)
        tl.store(cells + tile * CELLS + tl.arange(0, CELLS), tops)
    return bad


@triton.jit
def open_cells(keys, least, room):
    """Lists the cells whose largest key is ``least`` or more; returns how many, -1 if the list does not hold them."""
    here = keys >= least
    place = tl.cumsum(here.to(tl.int32), axis=0) - 1
    tl.store(room.cells + place, tl.arange(0, keys.shape[0]), mask=here & (place < LISTED))
    _rows.barrier()
    count = tl.sum(here.to(tl.int32), axis=0)
    return tl.where(count <= LISTED, count, -1)


@triton.jit
def load_cells(row, room, opened, base, CELL: tl.constexpr, TILE: tl.constexpr):
    """(raw values, tokens) of a tile of cells: of those listed, or of all if ``opened`` is -1."""
    index = base + tl.arange(0, TILE // CELL)
    cell = tl.load(room.cells + index, mask=index < opened, other=0, cache_modifier=".cg")
    there = index < tl.where(opened < 0, _math.NO_TOKEN, opened)
    cell = tl.where(opened < 0, index, cell)
    tokens = cell[:, None] * CELL + tl.arange(0, CELL)[None, :]
    inside = there[:, None] & (tokens < row.columns)
    x = tl.load(row.at + tokens, mask=inside, other=_laws.nothing(row.law)).to(tl.float32)
    first, last = tl.min(tl.where(there, cell, _math.NO_TOKEN), axis=0), tl.max(tl.where(there, cell, 0), axis=0)
    x = _edits.edited(x, tokens, inside, first * CELL, (last + 1) * CELL, row.law)
    return _laws.kept(x, tokens, base >= 0, row.law), tokens


@triton.jit
def number_of_cells(row, opened, CELL: tl.constexpr):
    """How many cells there are to look at."""
    return tl.where(opened < 0, tl.cdiv(row.columns, CELL), opened)


@triton.jit
def list_tokens(row, room, opened, keys, CELL: tl.constexpr, TILE: tl.constexpr):
    """Lists raw values and ids of the tokens in a range of keys, in the order of ids; returns how many they are."""
    # If they are more than the list holds, a number above ``LISTED``.
    length = tl.full([], 0, tl.int32)
    for base in range(0, number_of_cells(row, opened, CELL), TILE // CELL):
        if length <= LISTED:
            x, tokens = load_cells(row, room, opened, base, CELL, TILE)
            x, tokens = tl.reshape(x, [TILE]), tl.reshape(tokens, [TILE])
            key = _math.ordered(_laws.clean(x, row.law))
            here = (key >= keys.first) & (key < keys.end)
            place = length + tl.cumsum(here.to(tl.int32), axis=0) - 1
            tl.store(room.listed + place, x, mask=here & (place < LISTED))
            tl.store(room.ids + place, tokens, mask=here & (place < LISTED))
            length += tl.sum(here.to(tl.int32), axis=0)
    _rows.barrier()
    return length


@triton.jit
def load_list(room, length):
    """(raw values, ids) of the tokens listed; -inf and -1 behind the last."""
    at = tl.arange(0, LISTED)
    x = tl.load(room.listed + at, mask=at < length, other=-_math.INFINITY, cache_modifier=".cg")
    return x, tl.load(room.ids + at, mask=at < length, other=-1, cache_modifier=".cg")


@triton.jit
def measured(row, room, opened, top, keys, levels, CELL: tl.constexpr, TILE: tl.constexpr):
    """How many tokens of a range have a key of each of three levels or more, how many all; and the sums of weights."""
    CELLS: tl.constexpr = TILE // CELL
    a, b, c = levels
    n, m = tl.zeros([CELLS], tl.int32), tl.zeros([CELLS], tl.int64)
    n_a, n_b, n_c, m_a, m_b, m_c = n, n, n, m, m, m
    for base in range(0, number_of_cells(row, opened, CELL), CELLS):
        x, _ = load_cells(row, room, opened, base, CELL, TILE)
        v = _laws.clean(x, row.law)
        key = _math.ordered(v)
        one = tl.where((key >= keys.first) & (key < keys.end), 1, 0)
        weight = tl.where(one > 0, _math.row_weight(v - top), 0)
        n, m = n + tl.sum(one, axis=1), m + tl.sum(weight, axis=1)
        n_a, m_a = n_a + tl.sum(tl.where(key >= a, one, 0), axis=1), m_a + tl.sum(tl.where(key >= a, weight, 0), axis=1)
        n_b, m_b = n_b + tl.sum(tl.where(key >= b, one, 0), axis=1), m_b + tl.sum(tl.where(key >= b, weight, 0), axis=1)
        n_c, m_c = n_c + tl.sum(tl.where(key >= c, one, 0), axis=1), m_c + tl.sum(tl.where(key >= c, weight, 0), axis=1)
    _rows.barrier()  # all warps have read which cells are open
    return (
        tl.sum(n, axis=0), tl.sum(n_a, axis=0), tl.sum(n_b, axis=0), tl.sum(n_c, axis=0),
        tl.sum(m, axis=0), tl.sum(m_a, axis=0), tl.sum(m_b, axis=0), tl.sum(m_c, axis=0),
    )  # fmt: skip


@triton.jit
def level_in(keys, top, turn, quarter):
    """The level between ``quarter`` quarters of a range, counted from below."""
    # At first by distance from the largest value, then twice by equal steps of the value, then by equal steps of the
    # key, which always come to an end.
    last = keys.end - 1
    low, high = _math.from_ordered(keys.first), _math.from_ordered(last)
    value = tl.where(turn == 0, top - 1.0 * (4 - quarter) * (4 - quarter), low + (high - low) * (0.25 * quarter))
    step = ((keys.end - keys.first).to(tl.uint64) * quarter >> 2).to(tl.uint32)
    level = tl.where((turn < 3) & (value == value), _math.ordered(value), keys.first + step)
    return tl.minimum(tl.maximum(level, keys.first), last)


@triton.jit
def narrowed(row, room, opened, top, keys, turn, most, limit, CELL: tl.constexpr, TILE: tl.constexpr):
    """(a part of a range, the one that holds the cut; how many tokens are in it; ``most``)."""
    # If the range does not reach ``most`` nor ``limit``, all its tokens are kept: then ``most`` becomes their number.
    first, end, rank, mass = keys
    a, b, c = level_in(keys, top, turn, 1), level_in(keys, top, turn, 2), level_in(keys, top, turn, 3)
    b = tl.maximum(a, b)
    c = tl.maximum(b, c)
    n, n_a, n_b, n_c, m, m_a, m_b, m_c = measured(row, room, opened, top, keys, (a, b, c), CELL, TILE)
    most = tl.minimum(most, rank + n)
    n_above, m_above = n * 0, m * 0
    # From above: the first level that the cut is not below.
    in_c, in_b, in_a = (
        reached(rank + n_c, mass + m_c, most, limit), reached(rank + n_b, mass + m_b, most, limit),
        reached(rank + n_a, mass + m_a, most, limit),
    )  # fmt: skip
    first = tl.where(in_c, c, tl.where(in_b, b, tl.where(in_a, a, first)))
    n_here = tl.where(in_c, n_c, tl.where(in_b, n_b, tl.where(in_a, n_a, n)))
    end = tl.where(in_c, end, tl.where(in_b, c, tl.where(in_a, b, a)))
    n_above = tl.where(in_c, n_above, tl.where(in_b, n_c, tl.where(in_a, n_b, n_a)))
    m_above = tl.where(in_c, m_above, tl.where(in_b, m_c, tl.where(in_a, m_b, m_a)))
    return first, end, rank + n_above, mass + m_above, n_here - n_above, most


@triton.jit
def reached(rank, mass, most, limit):
    return (rank >= most) | (mass >= limit)


@triton.jit
def boundary_of(keys, weights, low, high, most, limit):
    """The highest key in [low, high) that so many keys, or so much of their weight, reach; ``low`` if there is none."""
    while high - low > 1:
        level = low + ((high - low) >> 1)
        here = keys >= level
        up = reached(tl.sum(here.to(tl.int32), axis=0), tl.sum(tl.where(here, weights, 0), axis=0), most, limit)
        low, high = tl.where(up, level, low), tl.where(up, high, level)
    return low


@triton.jit
def ties_kept(key, equal, top, most, limit, together):
    """(how many of the tokens that have the last key are kept, what each weighs), if so many and so much may stay."""
    weight = _math.row_weight(_math.from_ordered(key) - top)
    ties = tl.minimum(most, equal)
    if weight > 0:
        ties = tl.minimum(ties, tl.minimum((limit - 1) // weight, ALL_TOKENS - 1).to(tl.int32) + 1)
    return tl.where(together, equal, ties), weight


@triton.jit
def id_of(row, room, key, opened, rank, CELL: tl.constexpr, TILE: tl.constexpr):
    """The id of the ``rank``-th token, from 1, that has a key."""
    found, before = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    for base in range(0, number_of_cells(row, opened, CELL), TILE // CELL):
        if before < rank:
            x, tokens = load_cells(row, room, opened, base, CELL, TILE)
            x, tokens = tl.reshape(x, [TILE]), tl.reshape(tokens, [TILE])
            equal = _math.ordered(_laws.clean(x, row.law)) == key
            place = before + tl.cumsum(equal.to(tl.int32), axis=0)
            found = tl.maximum(found, tl.max(tl.where(equal & (place <= rank), tokens, -1), axis=0))
            before += tl.sum(equal.to(tl.int32), axis=0)
    return found


@triton.jit
def share_of_mass(share, whole):
    """What the tokens before a kept one weigh less than: ceil(share * whole / 2^32), at least 1."""
    part, whole = share.to(tl.uint64), whole.to(tl.uint64)
    low = (part * (whole & 0xFFFFFFFF) + 0xFFFFFFFF) >> 32
    return tl.maximum((part * (whole >> 32) + low).to(tl.int64), 1)


@triton.jit
def cut_of(row, filter, cells, top, whole, room, CELL: tl.constexpr, TILE: tl.constexpr):
    """The ``Cut`` of a row that has weight."""
    # ``cells`` are the largest values of the row's cells. ``whole`` is the row's mass, where top_p refers to it.
    top_k, share, log_min_p, rules = filter
    by_k, by_share, by_least = top_k > 0, share >= 0, log_min_p > -_math.INFINITY
    after_k, after_least = by_k & (rules & AFTER_TOP_K != 0), by_least & (rules & AFTER_MIN_P != 0)
    tops = _math.ordered(cells)
    floor = tl.where(by_least, tl.maximum(_math.ordered(top + log_min_p), LOWEST), LOWEST)
    none = tl.full([], NO_LIMIT, tl.int64)
    everything = tl.full([], ALL_TOKENS, tl.int32)
    first, end = tl.full([], 0, tl.uint32), _math.ordered(top) + 1
    rank, mass = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64)
    key, last, kept_tokens, kept_mass = first, rank - 1, rank, mass
    length, number, opened = rank, rank, rank - 1
    fresh = rank == 0
    # Where top_p refers to what other cuts keep, these come first, alone.
    for step in range(tl.where(by_share & (after_k | after_least), 0, 1), 2):
        most = tl.where(by_k & ((step == 1) | after_k), top_k, everything)
        least = tl.where((step == 1) | after_least, floor, LOWEST).to(tl.uint32)
        limit = none
        if by_share & (step == 1):
            limit = share_of_mass(share, whole)
        if fresh:
            first, end, rank, mass, number = least, _math.ordered(top) + 1, rank * 0, mass * 0, number * 0
            if (most < everything) | (limit < none):
                first = boundary_of(tops, _math.row_weight(_math.from_ordered(tops) - top), first, end, most, limit)
            turn = 0
            more = fresh
            while more:
                keys = Range(first, end, rank, mass)
                opened = open_cells(tops, first, room)
                length = tl.full([], LISTED + 1, tl.int32)
                if number <= LISTED:  # as far as is known
                    length = list_tokens(row, room, opened, keys, CELL, TILE)
                if length > LISTED:
                    first, end, rank, mass, number, most = narrowed(
                        row, room, opened, top, keys, turn, most, limit, CELL, TILE
                    )  # fmt: skip
                    turn += 1
                more = (length > LISTED) & ((number <= LISTED) | (end - first > 1))
        together = rules & TOGETHER != 0
        if length <= LISTED:
            x, ids = load_list(room, length)
            v = _laws.clean(x, row.law)
            listed, each = _math.ordered(v), _math.row_weight(v - top)
            low = tl.maximum(first, least)
            most = tl.minimum(most, rank + tl.sum((listed >= low).to(tl.int32), axis=0))
            key = boundary_of(listed, each, low, end, most - rank, limit - mass)
            above = rank + tl.sum((listed > key).to(tl.int32), axis=0)
            mass_above = mass + tl.sum(tl.where(listed > key, each, 0), axis=0)
            place = tl.cumsum((listed == key).to(tl.int32), axis=0)
            ties, weight = ties_kept(key, tl.max(place, axis=0), top, most - above, limit - mass_above, together)
            last = tl.max(tl.where((listed == key) & (place <= ties), ids, -1), axis=0)
        else:
            key, above, mass_above = first, rank, mass
            ties, weight = ties_kept(key, number, top, most - above, limit - mass_above, together)
            if step == 1:
                last = id_of(row, room, key, opened, ties, CELL, TILE)
        kept_tokens, kept_mass = above + ties, mass_above + ties * weight
        whole = kept_mass
        fresh = (length > LISTED) | (rank > 0)
    listed = tl.where(fresh, 0, length)
    return Cut(_math.from_ordered(key), last, kept_tokens.to(tl.int64), kept_mass, listed, top)
