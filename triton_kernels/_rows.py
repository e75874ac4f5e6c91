"""Rows in tiles of [groups, 64] tokens: loads, reductions, and tickets of the programs that share a row."""

from collections import namedtuple
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _laws, _math

# A record of a row or a request begins with the best key (two words), then programs done, then status bits.
DONE, FLAGS = tl.constexpr(2), tl.constexpr(3)


@triton.jit
def key_at(record):
    """The 64-bit key in the first two words of an int32 record."""
    return record.to(tl.pointer_type(tl.uint64), bitcast=True)


@triton.jit
def tile_tokens(start, TILE: tl.constexpr):
    """Token ids [TILE / 64, 64] of the tile that begins at ``start``."""
    group = tl.arange(0, TILE // _math.GROUP)
    return start + group[:, None] * _math.GROUP + tl.arange(0, _math.GROUP)[None, :]


@triton.jit
def group_tokens(groups):
    """Token ids [groups, 64] of ``groups`` of a row."""
    return groups[:, None] * _math.GROUP + tl.arange(0, _math.GROUP)[None, :]


@triton.jit
def row_at(rows, offset, ALIGNED: tl.constexpr):
    """Pointer to the row at an offset in elements."""
    # ALIGNED offsets are multiples of 16. Rounding them changes nothing but shows that to the compiler.
    if ALIGNED:
        offset = offset // 16 * 16
    return rows + offset


@triton.jit
def start_of(rows, outer, inner, ALIGNED: tl.constexpr):
    """Pointer to a row of ``_arguments.Rows``."""
    return row_at(rows.rows, outer * rows.outer + inner * rows.inner, ALIGNED)


Side = namedtuple("Side", ("at", "step", "columns", "inverse", "greedy", "cuts", "row", "map"), defaults=8 * (None,))
Side.__doc__ = """A request's rows of the target, or of its draft: ``at`` points to the first, ``step`` apart.

``row`` is the index of the first in ``cuts``, float32 [rows, CUT]. Without a draft every field is None.
"""


@triton.jit
def side_row(side, n, ALIGNED: tl.constexpr):
    """Pointer to row n, or to a block of rows."""
    return row_at(side.at, n * side.step, ALIGNED)


class Memory(NamedTuple):
    """The memory of one request's walk."""

    records: tl.tensor  # int32 [rows, words of a record]
    pair_stats: tl.tensor  # float32 [rows, 4]
    node_state: tl.tensor  # float32 [nodes, NODE_WORDS]


@triton.jit
def tile_range(tiles, split, splits):
    """The tiles [first, last) of a row that this program takes."""
    return split * tiles // splits, (split + 1) * tiles // splits


@triton.jit
def load(row, tokens, start, end):
    """The values of a block of columns in [start, end); columns behind the row's end have no weight."""
    x = tl.load(row.at + tokens, mask=tokens < row.columns, other=_laws.nothing(row.law)).to(tl.float32)
    x = _edits.edited(x, tokens, tokens < row.columns, start, end, row.law)
    return _laws.drop_filtered(x, tokens, start >= 0, row.law)


@triton.jit
def load_tile(row, start, TILE: tl.constexpr):
    """A tile of a row."""
    return load(row, tile_tokens(start, TILE), start, start + TILE)


@triton.jit
def value_at(row, column, there):
    """The value of a column of a row, or of a block of one column; without weight if not ``there``."""
    x = tl.load(row.at + column, mask=there, other=_laws.nothing(row.law)).to(tl.float32)
    if row.law.edited is not None:
        first, end = 0, 0
        if row.law.edits.bias_tokens is not None:
            first = column if len(column.shape) == 0 else tl.max(column, axis=0)
            end = first + 1
        x = _edits.edited(x, column, there, first, end, row.law)
    return _laws.drop_filtered(x, column, there, row.law)


@triton.jit
def column_of(row, token, there):
    """(the column of a draft row that has a token, whether there is one)."""
    if row.map is None:
        return token, there & (token < row.columns)
    else:
        column = _math.first_not_below(row.map, (token * 0).to(tl.int32), row.columns, token)
        there = there & (column < row.columns)
        return column, there & (tl.load(row.map + column, mask=there, other=-1) == token)


@triton.jit
def load_tokens(row, tokens, start, TILE: tl.constexpr):
    """The values of a draft row for the target's ``tokens``, all in the tile at ``start``."""
    if row.map is None:
        return load(row, tokens, start, start + TILE)
    else:
        # Entries rise, so those of this tile are among the TILE from the first that is at least ``start`` on.
        low = _math.first_not_below(row.map, start * 0, row.columns, start)
        low = tl.maximum(tl.minimum(low, row.columns - 1), 0)
        column = _math.first_not_below(row.map, low + tokens * 0, tl.minimum(row.columns - low, TILE), tokens)
        there = column < row.columns
        there = there & (tl.load(row.map + column, mask=there, other=-1) == tokens)
        x = tl.load(row.at + column, mask=there, other=_laws.nothing(row.law)).to(tl.float32)
        return _laws.drop_filtered(x, column, start >= 0, row.law)


@triton.jit
def probability_at(row, token, there):
    """(the probability of a token in a row, 0 if not ``there``; whether its value cannot be a probability)."""
    column, there = column_of(row, token, there)
    x = value_at(row, column, there)
    return tl.where(there, _laws.probabilities(x, token, row.law, row.stats), 0.0), there & _laws.unlike(x, row.law)


@triton.jit
def is_empty(row, TILE: tl.constexpr):
    """Whether no token of a target's row has weight, so that the chain or branch ends there; its law is not greedy."""
    if row.law.inverse is not None:
        return row.stats.log_sum == _math.INFINITY
    else:
        weighs = row.columns < 0
        for at in range(0, row.columns, TILE):
            x = _laws.clean(load_tile(row, tl.cast(at, tl.int32), TILE), row.law)
            weighs = weighs | (_math.any_of(tl.max(x, axis=1) >= _math.SMALLEST) > 0)
        return weighs == 0


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def group_tops(x):
    """The largest of each row [rows] of a block; a NaN or +inf shows as NaN or +inf."""
    if _math.INTERPRETED:  # which runs a custom reduction element by element
        top = tl.max(tl.where(x == x, x, -_math.INFINITY), axis=1)
        return tl.where(tl.max((x != x).to(tl.int32), axis=1) > 0, float("nan"), top)
    else:
        return tl.reduce(x, 1, _max_or_nan)


@triton.jit
def best_of_tile(scores, tokens, best):
    """The best key after a tile of scores."""
    top = tl.max(tl.max(scores, axis=1), axis=0)
    token = tl.min(tl.min(tl.where(scores == top, tokens, _math.NO_TOKEN), axis=1), axis=0)
    return tl.maximum(best, _math.key_of(top, token))


@triton.jit
def barrier():
    """A barrier of this program's threads; behind it each thread sees what the others wrote."""
    tl.debug_barrier()


@triton.jit
def is_last(ticket, splits, done=1):
    """Whether a ticket, or ``done``, is the last of ``splits``. Then this program sees all that others wrote."""
    barrier()  # all threads of this program have written
    return tl.atomic_add(ticket, done, sem="acq_rel") == splits - done


@triton.jit
def clear_record(record):
    """Sets status and ticket of a record back to zero, after all warps have read them."""
    barrier()
    tl.store(record + FLAGS, 0)
    tl.store(record + DONE, 0)


@triton.jit
def clear(record, count):
    """Sets ``count`` int32 words back to zero, after all warps have read them."""
    barrier()
    for base in range(0, count, 128):
        at = base + tl.arange(0, 128)
        tl.store(record + at, tl.zeros([128], tl.int32), mask=at < count)


@triton.jit
def mass_items_of(columns):
    """float32 words of a row's mass tiles: a maximum each, and two words of int64 units."""
    return 3 * tl.cdiv(columns, _math.MASS_TILE)


@triton.jit
def store_item(items, count, tile, top, units):
    """Stores a mass tile: its largest value, and its mass in units of that. One thread stores scalars."""
    inside = tile < count
    units_at = items.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(items + tile, top, mask=inside)
    tl.store(units_at + count + tile, units.to(tl.int32), mask=inside)
    tl.store(units_at + 2 * count + tile, (units >> 32).to(tl.int32), mask=inside)


@triton.jit
def store_items(items, count, tile, tops, units):
    """Stores one, two or four mass tiles from ``tile`` on."""
    TILES: tl.constexpr = tops.shape[0]
    if TILES == 1:
        store_item(items, count, tile, tl.max(tops, axis=0), tl.sum(units, axis=0))
    else:
        even_tops, odd_tops = tl.split(tl.reshape(tops, [TILES // 2, 2]))
        even_units, odd_units = tl.split(tl.reshape(units, [TILES // 2, 2]))
        if TILES == 2:
            store_item(items, count, tile, tl.max(even_tops, axis=0), tl.sum(even_units, axis=0))
            store_item(items, count, tile + 1, tl.max(odd_tops, axis=0), tl.sum(odd_units, axis=0))
        else:
            first_top, third_top = tl.split(even_tops)
            second_top, fourth_top = tl.split(odd_tops)
            first_units, third_units = tl.split(even_units)
            second_units, fourth_units = tl.split(odd_units)
            store_item(items, count, tile, first_top, first_units)
            store_item(items, count, tile + 1, second_top, second_units)
            store_item(items, count, tile + 2, third_top, third_units)
            store_item(items, count, tile + 3, fourth_top, fourth_units)


@triton.jit
def load_masses(row, start, TILE: tl.constexpr):
    """A tile of a row as [mass tiles, tokens], so that a thread has tokens of one mass tile if the layout allows."""
    MASSES: tl.constexpr = max(TILE // _math.MASS_TILE, 1)
    GROUPS: tl.constexpr = TILE // MASSES // _math.GROUP
    group, mass, column = tl.arange(0, GROUPS), tl.arange(0, MASSES), tl.arange(0, _math.GROUP)
    tokens = start + mass[None, :, None] * _math.MASS_TILE + group[:, None, None] * _math.GROUP + column[None, None, :]
    x = tl.load(row.at + tokens, mask=tokens < row.columns, other=_laws.nothing(row.law)).to(tl.float32)
    x = _edits.edited(x, tokens, tokens < row.columns, start, start + TILE, row.law)
    return tl.reshape(tl.trans(x, 1, 0, 2), [MASSES, GROUPS * _math.GROUP])


@triton.jit
def mass_tiles(row, first, last, items, TILE: tl.constexpr):
    """Stores the mass tiles in the tiles [first, last) of a row of logits; returns whether a value was bad."""
    # Weights are integers in units of their mass tile's maximum, so a mass depends neither on how a row is split nor on
    # the order of a sum. ``finish_mass`` adds mass tiles, in units of the row's maximum.
    MASSES: tl.constexpr = max(TILE // _math.MASS_TILE, 1)
    count = tl.cdiv(row.columns, _math.MASS_TILE)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        raw = load_masses(row, start, TILE)
        x, tops = _laws.keys(raw, row.law), group_tops(raw)
        bad = bad | (_math.any_of(_laws.unclean_groups(raw, tops, row.law)) > 0)
        tops = _laws.keys(tops, row.law)
        if _math.any_of((tops < _math.INFINITY) == 0) > 0:  # a bad value, or one that overflows by the temperature
            x = _laws.clean(raw, row.law)
            tops = group_tops(x)
        weights = _math.unit_weight(x - tops[:, None])  # 0 for a NaN, and for all of a tile without weight
        one, other = tl.split(tl.reshape(weights, [MASSES, weights.shape[1] // 2, 2]))
        units = tl.sum((one + other).to(tl.int64), axis=1)
        store_items(items, count, tl.cast(tile, tl.int32) * MASSES, tops, units)
    return bad


@triton.jit
def sum_masses(items, count, ITEMS: tl.constexpr):
    """(mass, largest value) of a row from all its mass tiles."""
    tile = tl.arange(0, ITEMS)
    inside = tile < count
    units_at = items.to(tl.pointer_type(tl.uint32), bitcast=True)
    tops = tl.load(items + tile, mask=inside, other=-_math.INFINITY, cache_modifier=".cg")
    low = tl.load(units_at + count + tile, mask=inside, other=0, cache_modifier=".cg")
    high = tl.load(units_at + 2 * count + tile, mask=inside, other=0, cache_modifier=".cg")
    units = (high.to(tl.int64) << 32) | low.to(tl.int64)
    top = tl.max(tops, axis=0)
    return tl.sum(_math.tile_mass(units, tops - top), axis=0), top


@triton.jit
def finish_mass(items, count, ITEMS: tl.constexpr):
    """(largest, log of the sum, status) of a row from all its mass tiles."""
    mass, top = sum_masses(items, count, ITEMS)
    has_weight = top > -_math.INFINITY
    log_sum = tl.where(has_weight, _math.log_sum_of(mass), _math.INFINITY)
    return tl.where(has_weight, top, 0.0), log_sum, top == -_math.INFINITY


@triton.jit
def argmax_tiles(row, first, last, TILE: tl.constexpr):
    """(the key of the most probable column in the tiles [first, last) of a row, bad)."""
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, start, TILE)
        bad = bad | (_math.any_of(_laws.unclean_groups(x, group_tops(x), row.law)) > 0)
        best = best_of_tile(_laws.greedy_scores(_laws.clean(x, row.law), row.law), tile_tokens(start, TILE), best)
    return best, bad


@triton.jit
def scan_row(row, key, items, split, splits, TILE: tl.constexpr):
    """Scans one program's tiles of a row: its mass goes to ``items``, or at T = 0 its argmax to ``key``.

    A row with a cut is not scanned, for its ``RowStats`` are stored already. Returns whether a value was bad.
    """
    first, last = tile_range(tl.cdiv(row.columns, TILE), split, splits)
    bad = first < 0
    if row.law.cuts is not None:
        pass
    elif row.law.greedy is not None:
        if row.law.greedy:
            best, bad = argmax_tiles(row, first, last, TILE)
            tl.atomic_max(key, best, sem="relaxed")
        elif row.law.inverse is not None:
            bad = mass_tiles(row, first, last, items, TILE)
    elif row.law.inverse is not None:
        bad = mass_tiles(row, first, last, items, TILE)
    return bad


@triton.jit
def finish_row(row, key, items, row_stats, ITEMS: tl.constexpr):
    """Stores and returns the ``RowStats`` of a row that all its programs scanned, and whether it has no weight."""
    top, log_sum, weightless = 0.0, 0.0, row.columns < 0
    if row.law.cuts is not None:
        top, log_sum = tl.load(row_stats), tl.load(row_stats + 1)
    elif row.law.greedy is not None:
        if row.law.greedy:
            best = tl.load(key, cache_modifier=".cg")
            top, log_sum = _laws.argmax_stats(best, row.map)
            weightless = best == _math.NO_CANDIDATE
            barrier()  # all warps have read it
            tl.store(key, best * 0)
        elif row.law.inverse is not None:
            top, log_sum, weightless = finish_mass(items, tl.cdiv(row.columns, _math.MASS_TILE), ITEMS)
        tl.store(row_stats, top)
        tl.store(row_stats + 1, log_sum)
    elif row.law.inverse is not None:
        top, log_sum, weightless = finish_mass(items, tl.cdiv(row.columns, _math.MASS_TILE), ITEMS)
        tl.store(row_stats, top)
        tl.store(row_stats + 1, log_sum)
    return top, log_sum, weightless


@triton.jit
def scan_pair(p, p_key, q, record, items, pair_stats, split, splits, TILE: tl.constexpr, TILES: tl.constexpr):
    """Scans one program's tiles of a row, or of a pair of rows; the last program stores their ``RowStats``."""
    # Returns (whether this is the last; the ``RowStats`` of the target's and of the draft's row, valid in the last).
    # ``items`` is for the mass tiles of the target's row, then of the draft's, which has no more of them. ``record``
    # has the ticket and the key of a draft row's argmax.
    ITEMS: tl.constexpr = TILES * max(TILE // _math.MASS_TILE, 1)
    q_items = items + mass_items_of(p.columns)
    bad = scan_row(p, p_key, items, split, splits, TILE)
    if q.at is not None:
        bad |= scan_row(q, key_at(record), q_items, split, splits, TILE)
    if bad:
        tl.atomic_or(record + FLAGS, _math.NON_FINITE, sem="relaxed")
    p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
    last = is_last(record + DONE, splits)
    if last:
        p_top, p_log_sum, weightless = finish_row(p, p_key, items, pair_stats, ITEMS)
        if q.at is not None:
            q_top, q_log_sum, q_weightless = finish_row(q, key_at(record), q_items, pair_stats + 2, ITEMS)
            weightless |= q_weightless
        if weightless:
            tl.atomic_or(record + FLAGS, _math.NON_FINITE, sem="relaxed")
    return last, _laws.RowStats(p_top, p_log_sum), _laws.RowStats(q_top, q_log_sum)
