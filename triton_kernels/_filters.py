"""The search of a row's cut, by one program, from the maxima of the row's cells (csrc/include/specdec/filter.h).

The tokens that pass filters are a prefix of one order, so a cut is a key, and the number of tokens of that key that
pass. Keys are integers in the order of the values. The maxima of cells give a key that no passing token is below. The
tokens from there on are listed, and the cut is searched in the list. If the list does not hold them, counts and masses
above three levels first narrow the range of keys in which the cut lies.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _laws, _math, _rows

LISTED = tl.constexpr(256)  # how many tokens, or cells, a list holds
LOWEST = tl.constexpr(0x00800000)  # the key of the lowest number; that of -inf is one less
NO_LIMIT, ALL_TOKENS = tl.constexpr(2**63 - 1), tl.constexpr(2**31 - 1)
AFTER_TOP_K, AFTER_MIN_P, TOGETHER, BEFORE_TEMPERATURE = (tl.constexpr(bit) for bit in (1, 2, 4, 8))


class Filter(NamedTuple):
    """The filters of a row."""

    top_k: tl.tensor  # 0: off
    top_p_units: tl.tensor  # floor(2^32 top_p), -1: off
    log_min_p: tl.tensor  # -inf: off
    rules: tl.tensor


class Cut(NamedTuple):
    """Where filters cut a row. A token passes if its value is above ``value``, or equals it and its id is at most
    ``token``."""

    value: tl.tensor
    token: tl.tensor
    count: tl.tensor  # how many tokens pass
    mass: tl.tensor  # the sum of their weights
    listed: tl.tensor  # length of the list in the row's workspace, which has all that pass; 0: it does not hold them
    top: tl.tensor  # the row's largest value


class Range(NamedTuple):
    """Keys [first, end) in which a cut lies."""

    first: tl.tensor
    end: tl.tensor
    rank: tl.tensor  # how many tokens are above them
    mass: tl.tensor  # the mass of these


class Workspace(NamedTuple):
    """Memory of a search, ``LISTED`` elements each."""

    cells: tl.tensor  # indices of open cells
    listed: tl.tensor  # raw values of listed tokens
    ids: tl.tensor


@triton.jit
def load_filter(law, entry, row, live, columns, greedy):
    """(the filter of an entry, status); at temperature 0 only the first token of the order passes."""
    top_k = _arguments.number(law.top_k, entry, row, live)
    top_p = _arguments.number(law.top_p, entry, row, live)
    min_p = _arguments.number(law.min_p, entry, row, live)
    top_k = tl.cast(tl.where((top_k > 0) & (top_k < columns), top_k, 0), tl.int32)
    cuts = (top_p >= 0.0) & (top_p < 1.0)
    top_p_units = tl.where(cuts, (tl.where(cuts, top_p, 0.0) * 2.0**32).to(tl.int64), -1)
    floor = _math.log(tl.minimum(tl.maximum(min_p, _math.SMALLEST), 1.0))
    floor = tl.where(min_p >= _math.SMALLEST, floor, -_math.INFINITY)
    status = tl.where((top_p >= 0.0) & (min_p >= 0.0), 0, _math.PARAMETER)
    filter = Filter(
        tl.where(greedy, 1, top_k), tl.where(greedy, -1, top_p_units), tl.where(greedy, -_math.INFINITY, floor),
        tl.cast(law.rules, tl.int32),
    )  # fmt: skip
    return filter, status


@triton.jit
def without_ties(filter, greedy):
    """A filter that passes one token at temperature 0, whatever ties with it."""
    return Filter(
        filter.top_k, filter.top_p_units, filter.log_min_p, tl.where(greedy, filter.rules & ~TOGETHER, filter.rules)
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
def open_cells(keys, least, workspace):
    """Lists the cells whose largest key is at least ``least``; returns how many, -1 if the list does not hold them."""
    selected = keys >= least
    list_index = tl.cumsum(selected.to(tl.int32), axis=0) - 1
    tl.store(workspace.cells + list_index, tl.arange(0, keys.shape[0]), mask=selected & (list_index < LISTED))
    _rows.barrier()
    count = tl.sum(selected.to(tl.int32), axis=0)
    return tl.where(count <= LISTED, count, -1)


@triton.jit
def load_cells(row, workspace, opened, base, CELL: tl.constexpr, TILE: tl.constexpr):
    """(raw values, tokens) of a tile of cells: of the ``opened`` listed ones, or of all if that is -1."""
    index = base + tl.arange(0, TILE // CELL)
    cell = tl.load(workspace.cells + index, mask=index < opened, other=0, cache_modifier=".cg")
    there = index < tl.where(opened < 0, _math.NO_TOKEN, opened)
    cell = tl.where(opened < 0, index, cell)
    tokens = cell[:, None] * CELL + tl.arange(0, CELL)[None, :]
    inside = there[:, None] & (tokens < row.columns)
    x = tl.load(row.at + tokens, mask=inside, other=_laws.nothing(row.law)).to(tl.float32)
    first, last = tl.min(tl.where(there, cell, _math.NO_TOKEN), axis=0), tl.max(tl.where(there, cell, 0), axis=0)
    x = _edits.edited(x, tokens, inside, first * CELL, (last + 1) * CELL, row.law)
    return _laws.drop_filtered(x, tokens, base >= 0, row.law), tokens


@triton.jit
def count_cells(row, opened, CELL: tl.constexpr):
    """How many cells a pass reads."""
    return tl.where(opened < 0, tl.cdiv(row.columns, CELL), opened)


@triton.jit
def list_tokens(row, workspace, opened, keys, CELL: tl.constexpr, TILE: tl.constexpr):
    """Lists raw values and ids of the tokens in a range of keys, by id; returns how many, above ``LISTED`` if too
    many."""
    length = tl.full([], 0, tl.int32)
    for base in range(0, count_cells(row, opened, CELL), TILE // CELL):
        if length <= LISTED:
            x, tokens = load_cells(row, workspace, opened, base, CELL, TILE)
            x, tokens = tl.reshape(x, [TILE]), tl.reshape(tokens, [TILE])
            key = _math.ordered(_laws.clean(x, row.law))
            selected = (key >= keys.first) & (key < keys.end)
            list_index = length + tl.cumsum(selected.to(tl.int32), axis=0) - 1
            tl.store(workspace.listed + list_index, x, mask=selected & (list_index < LISTED))
            tl.store(workspace.ids + list_index, tokens, mask=selected & (list_index < LISTED))
            length += tl.sum(selected.to(tl.int32), axis=0)
    _rows.barrier()
    return length


@triton.jit
def load_list(workspace, length):
    """(raw values, ids) of the listed tokens; -inf and -1 behind the last."""
    at = tl.arange(0, LISTED)
    x = tl.load(workspace.listed + at, mask=at < length, other=-_math.INFINITY, cache_modifier=".cg")
    return x, tl.load(workspace.ids + at, mask=at < length, other=-1, cache_modifier=".cg")


@triton.jit
def measure(row, workspace, opened, top, keys, levels, CELL: tl.constexpr, TILE: tl.constexpr):
    """Counts, then masses, of the tokens in a range of keys: of all, and of those at or above each of three levels."""
    CELLS: tl.constexpr = TILE // CELL
    a, b, c = levels
    n, m = tl.zeros([CELLS], tl.int32), tl.zeros([CELLS], tl.int64)
    n_a, n_b, n_c, m_a, m_b, m_c = n, n, n, m, m, m
    for base in range(0, count_cells(row, opened, CELL), CELLS):
        x, _ = load_cells(row, workspace, opened, base, CELL, TILE)
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
def level_at(keys, top, turn, quarter):
    """The level between ``quarter`` quarters of a range, counted from below."""
    # The first turn spaces levels by the distance from the largest value, two more by equal steps of the value, all
    # later ones by equal steps of the key, which end in any case.
    last = keys.end - 1
    low, high = _math.from_ordered(keys.first), _math.from_ordered(last)
    value = tl.where(turn == 0, top - 1.0 * (4 - quarter) * (4 - quarter), low + (high - low) * (0.25 * quarter))
    step = ((keys.end - keys.first).to(tl.uint64) * quarter >> 2).to(tl.uint32)
    level = tl.where((turn < 3) & (value == value), _math.ordered(value), keys.first + step)
    return tl.minimum(tl.maximum(level, keys.first), last)


@triton.jit
def narrow(row, workspace, opened, top, keys, turn, most, limit, CELL: tl.constexpr, TILE: tl.constexpr):
    """(first, end, rank, mass, number of tokens) of the quarter of a range that holds the cut; and ``most``."""
    # If the range reaches neither ``most`` nor ``limit`` all its tokens pass, and ``most`` becomes their number.
    first, end, rank, mass = keys
    a, b, c = level_at(keys, top, turn, 1), level_at(keys, top, turn, 2), level_at(keys, top, turn, 3)
    b = tl.maximum(a, b)
    c = tl.maximum(b, c)
    n, n_a, n_b, n_c, m, m_a, m_b, m_c = measure(row, workspace, opened, top, keys, (a, b, c), CELL, TILE)
    most = tl.minimum(most, rank + n)
    n_above, m_above = n * 0, m * 0
    # The cut is in the highest quarter whose lower level reaches ``most`` or ``limit``.
    in_c, in_b, in_a = (
        reached(rank + n_c, mass + m_c, most, limit), reached(rank + n_b, mass + m_b, most, limit),
        reached(rank + n_a, mass + m_a, most, limit),
    )  # fmt: skip
    first = tl.where(in_c, c, tl.where(in_b, b, tl.where(in_a, a, first)))
    n_inside = tl.where(in_c, n_c, tl.where(in_b, n_b, tl.where(in_a, n_a, n)))
    end = tl.where(in_c, end, tl.where(in_b, c, tl.where(in_a, b, a)))
    n_above = tl.where(in_c, n_above, tl.where(in_b, n_c, tl.where(in_a, n_b, n_a)))
    m_above = tl.where(in_c, m_above, tl.where(in_b, m_c, tl.where(in_a, m_b, m_a)))
    return first, end, rank + n_above, mass + m_above, n_inside - n_above, most


@triton.jit
def reached(rank, mass, most, limit):
    return (rank >= most) | (mass >= limit)


@triton.jit
def find_boundary(keys, weights, low, high, most, limit):
    """The highest key in [low, high) that ``most`` keys, or ``limit`` of their weights, reach; ``low`` if none is."""
    while high - low > 1:
        level = low + ((high - low) >> 1)
        at_least = keys >= level
        up = reached(tl.sum(at_least.to(tl.int32), axis=0), tl.sum(tl.where(at_least, weights, 0), axis=0), most, limit)
        low, high = tl.where(up, level, low), tl.where(up, high, level)
    return low


@triton.jit
def count_ties(key, equal, top, most, limit, together):
    """(how many of the ``equal`` tokens of the last key pass, the weight of each): up to ``most``, and to ``limit``."""
    weight = _math.row_weight(_math.from_ordered(key) - top)
    ties = tl.minimum(most, equal)
    if weight > 0:
        ties = tl.minimum(ties, tl.minimum((limit - 1) // weight, ALL_TOKENS - 1).to(tl.int32) + 1)
    return tl.where(together, equal, ties), weight


@triton.jit
def find_id(row, workspace, key, opened, rank, CELL: tl.constexpr, TILE: tl.constexpr):
    """The id of the ``rank``-th token, from 1, that has a key."""
    token, before = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    for base in range(0, count_cells(row, opened, CELL), TILE // CELL):
        if before < rank:
            x, tokens = load_cells(row, workspace, opened, base, CELL, TILE)
            x, tokens = tl.reshape(x, [TILE]), tl.reshape(tokens, [TILE])
            equal = _math.ordered(_laws.clean(x, row.law)) == key
            tie_rank = before + tl.cumsum(equal.to(tl.int32), axis=0)
            token = tl.maximum(token, tl.max(tl.where(equal & (tie_rank <= rank), tokens, -1), axis=0))
            before += tl.sum(equal.to(tl.int32), axis=0)
    return token


@triton.jit
def mass_limit(top_p_units, whole):
    """ceil(top_p_units * whole / 2^32), at least 1: tokens pass until their mass reaches this."""
    units, whole = top_p_units.to(tl.uint64), whole.to(tl.uint64)
    low = (units * (whole & 0xFFFFFFFF) + 0xFFFFFFFF) >> 32
    return tl.maximum((units * (whole >> 32) + low).to(tl.int64), 1)


@triton.jit
def find_cut(row, filter, cells, top, whole, workspace, CELL: tl.constexpr, TILE: tl.constexpr):
    """The ``Cut`` of a row that has weight."""
    # ``cells`` are the maxima of the row's cells. ``whole`` is the row's mass if top_p refers to it.
    top_k, top_p_units, log_min_p, rules = filter
    by_k, by_top_p, by_least = top_k > 0, top_p_units >= 0, log_min_p > -_math.INFINITY
    after_k, after_least = by_k & (rules & AFTER_TOP_K != 0), by_least & (rules & AFTER_MIN_P != 0)
    tops = _math.ordered(cells)
    floor = tl.where(by_least, tl.maximum(_math.ordered(top + log_min_p), LOWEST), LOWEST)
    none = tl.full([], NO_LIMIT, tl.int64)
    everything = tl.full([], ALL_TOKENS, tl.int32)
    first, end = tl.full([], 0, tl.uint32), _math.ordered(top) + 1
    rank, mass = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64)
    key, last, support_size, support_mass = first, rank - 1, rank, mass
    length, number, opened = rank, rank, rank - 1
    fresh = rank == 0
    # If top_p refers to the mass that top_k or min_p leave, a first step finds the cut of these alone.
    for step in range(tl.where(by_top_p & (after_k | after_least), 0, 1), 2):
        most = tl.where(by_k & ((step == 1) | after_k), top_k, everything)
        least = tl.where((step == 1) | after_least, floor, LOWEST).to(tl.uint32)
        limit = none
        if by_top_p & (step == 1):
            limit = mass_limit(top_p_units, whole)
        if fresh:
            first, end, rank, mass, number = least, _math.ordered(top) + 1, rank * 0, mass * 0, number * 0
            if (most < everything) | (limit < none):
                first = find_boundary(tops, _math.row_weight(_math.from_ordered(tops) - top), first, end, most, limit)
            turn = 0
            more = fresh
            while more:
                keys = Range(first, end, rank, mass)
                opened = open_cells(tops, first, workspace)
                length = tl.full([], LISTED + 1, tl.int32)
                if number <= LISTED:  # the last pass did not count more
                    length = list_tokens(row, workspace, opened, keys, CELL, TILE)
                if length > LISTED:
                    first, end, rank, mass, number, most = narrow(
                        row, workspace, opened, top, keys, turn, most, limit, CELL, TILE
                    )  # fmt: skip
                    turn += 1
                more = (length > LISTED) & ((number <= LISTED) | (end - first > 1))
        together = rules & TOGETHER != 0
        if length <= LISTED:
            x, ids = load_list(workspace, length)
            v = _laws.clean(x, row.law)
            listed, each = _math.ordered(v), _math.row_weight(v - top)
            low = tl.maximum(first, least)
            most = tl.minimum(most, rank + tl.sum((listed >= low).to(tl.int32), axis=0))
            key = find_boundary(listed, each, low, end, most - rank, limit - mass)
            above = rank + tl.sum((listed > key).to(tl.int32), axis=0)
            mass_above = mass + tl.sum(tl.where(listed > key, each, 0), axis=0)
            tie_rank = tl.cumsum((listed == key).to(tl.int32), axis=0)
            ties, weight = count_ties(key, tl.max(tie_rank, axis=0), top, most - above, limit - mass_above, together)
            last = tl.max(tl.where((listed == key) & (tie_rank <= ties), ids, -1), axis=0)
        else:
            key, above, mass_above = first, rank, mass
            ties, weight = count_ties(key, number, top, most - above, limit - mass_above, together)
            if step == 1:
                last = find_id(row, workspace, key, opened, ties, CELL, TILE)
        support_size, support_mass = above + ties, mass_above + ties * weight
        whole = support_mass
        fresh = (length > LISTED) | (rank > 0)
    listed = tl.where(fresh, 0, length)
    return Cut(_math.from_ordered(key), last, support_size.to(tl.int64), support_mass, listed, top)
