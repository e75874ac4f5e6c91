"""Rows in tiles of [groups, 64] tokens: how they are loaded, and how the programs that share a row work together."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._edits import edited
from specdec_kernels.triton_kernels._laws import (
    Known,
    argmax_known,
    clean,
    greedy_scores,
    kept,
    keys,
    nothing,
    probabilities,
    unclean_groups,
    unlike,
)
from specdec_kernels.triton_kernels._math import (
    GROUP,
    INFINITY,
    INTERPRETED,
    MASS_TILE,
    NO_TOKEN,
    NOBODY,
    NON_FINITE,
    PARAMETER,
    SMALLEST,
    Noise,
    any_of,
    first_not_below,
    key_of,
    log_sum_of,
    tile_mass,
    unit_weight,
)

# The counters of a row or a request begin with the best key (two words), programs done, status.
DONE, FLAGS = tl.constexpr(2), tl.constexpr(3)


class Row(NamedTuple):
    """Pointer to a row, or to each row of a block, and the number of columns."""

    at: tl.tensor
    columns: tl.tensor


@triton.jit
def entry_of(b, request_index, entries):
    """(the entry whose numbers and draft rows request ``b`` uses, whether there is that entry, whether it is idle)."""
    if request_index is None:
        return b, b >= 0, b < 0
    else:
        index = tl.load(request_index + b).to(tl.int64)
        live = (index >= 0) & (index < entries)
        return tl.where(live, index, 0), live, index == -1


@triton.jit
def bounds_of(b, cu_drafts, total_drafts, max_drafts, tokens_by_row):
    """(readable, slots, first draft, first row, status, where its token is among the draft tokens) of a request.

    ``tokens_by_row``: ``cu_drafts`` counts rows, and tokens stand in the rows that they enter.
    """
    if cu_drafts is None:
        return b >= 0, max_drafts + 0, b * max_drafts, b * (max_drafts + 1), 0, b * max_drafts
    else:
        begin, end = tl.load(cu_drafts + b).to(tl.int64), tl.load(cu_drafts + b + 1).to(tl.int64)
        begin -= tl.where(tokens_by_row != 0, b, 0)
        end -= tl.where(tokens_by_row != 0, b + 1, 0)
        readable = (begin >= 0) & (end >= begin) & (end <= total_drafts)
        begin = tl.where(readable, begin, 0)
        drafts = tl.where(readable, end - begin, 0)
        return (
            readable, tl.minimum(drafts, max_drafts).to(tl.int32), begin, begin + b,
            tl.where(readable & (drafts <= max_drafts), 0, PARAMETER), begin + tl.where(tokens_by_row != 0, b + 1, 0),
        )  # fmt: skip


@triton.jit
def number(pointer, value, offset, live):
    """A number of an entry: from memory (0 if the request has no entry), or the one for all."""
    if pointer is None:
        return value
    else:
        return tl.load(pointer + offset, mask=live, other=0)


@triton.jit
def divisor(pointer, value, offset, live):
    """A temperature: what logits are divided by, or 0. Beside a pointer a ``value`` of 1 says that this is done."""
    t = number(pointer, value, offset, live)
    if pointer is not None:
        t = tl.where((value > 0.0) & (t >= SMALLEST), 1.0, t)
    return t


@triton.jit
def noise_at(
    seed, seed_value, seed_at, position, position_value, position_at, nonce, nonce_value, nonce_at, live, first=0
):  # fmt: skip
    """The noise of a row, from numbers that may be int32 or int64 in memory. Its column 0 is token ``first``."""
    return Noise(
        number(seed, seed_value, seed_at, live).to(tl.int64),
        number(position, position_value, position_at, live).to(tl.uint32),
        number(nonce, nonce_value, nonce_at, live).to(tl.uint32),
        first,
    )  # fmt: skip


@triton.jit
def entered(noise, input_positions, at, there, input_nonces=None, nonce_at=0):
    """The noise of a row at the position after that of the token that enters it, if that is given.

    Then its nonce may be given, too.
    """
    if input_positions is None:
        return noise
    else:
        position, nonce = tl.load(input_positions + at, mask=there, other=0) + 1, noise.nonce
        if input_nonces is not None:
            nonce = tl.load(input_nonces + nonce_at, mask=there, other=0).to(tl.uint32)
        return Noise(noise.seed, position.to(tl.uint32), nonce, noise.first)


@triton.jit
def key_at(record):
    """The 64-bit key in the first two words of an int32 record."""
    return record.to(tl.pointer_type(tl.uint64), bitcast=True)


@triton.jit
def tile_tokens(start, TILE: tl.constexpr):
    """Token ids [TILE / 64, 64] of the tile that begins at ``start``."""
    group = tl.arange(0, TILE // GROUP)
    return start + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def row_at(rows, offset, ALIGNED: tl.constexpr):
    """Pointer to the row at an offset in elements.

    ALIGNED offsets are multiples of 16. Rounding them changes nothing, but tells the compiler so.
    """
    if ALIGNED:
        offset = offset // 16 * 16
    return rows + offset


class Rows(NamedTuple):
    """Pointer to row 0 of a request, the stride between rows and the number of columns."""

    at: tl.tensor
    step: tl.tensor
    columns: tl.tensor


@triton.jit
def row_of(rows, n, ALIGNED: tl.constexpr):
    """Row n of a request, or a block of them."""
    return Row(row_at(rows.at, n * rows.step, ALIGNED), rows.columns)


@triton.jit
def share_of(tiles, split, splits):
    """The tiles [first, last) of a row that this program takes."""
    return split * tiles // splits, (split + 1) * tiles // splits


@triton.jit
def load_tile(row, law, start, TILE: tl.constexpr):
    """A tile of a row; columns beyond its end have no weight."""
    tokens = tile_tokens(start, TILE)
    x = tl.load(row.at + tokens, mask=tokens < row.columns, other=nothing(law)).to(tl.float32)
    return kept(edited(x, tokens, tokens < row.columns, start, start + TILE, law), tokens, start >= 0, law)


@triton.jit
def value_at(row, column, there, law):
    """The value of a column of a row, or of a block of one column; without weight if not ``there``."""
    x = tl.load(row.at + column, mask=there, other=nothing(law)).to(tl.float32)
    if law.bias_tokens is not None:
        first = column if len(column.shape) == 0 else tl.max(column, axis=0)
        x = edited(x, column, there, first, first + 1, law)
    else:
        x = edited(x, column, there, 0, 0, law)
    return kept(x, column, there, law)


@triton.jit
def column_of(draft_map, columns, token, there):
    """(the column of a draft row that has a token, whether there is one)."""
    if draft_map is None:
        return token, there & (token < columns)
    else:
        column = first_not_below(draft_map, (token * 0).to(tl.int32), columns, token)
        there = there & (column < columns)
        return column, there & (tl.load(draft_map + column, mask=there, other=-1) == token)


@triton.jit
def load_tokens(row, law, draft_map, start, TILE: tl.constexpr):
    """The values of a draft row for a tile of the target's tokens."""
    if draft_map is None:
        return load_tile(row, law, start, TILE)
    else:
        # Entries rise, so the tokens of this tile are among the TILE entries from the first that is at least ``start``.
        low = first_not_below(draft_map, start * 0, row.columns, start)
        low = tl.maximum(tl.minimum(low, row.columns - 1), 0)
        tokens = tile_tokens(start, TILE)
        column = first_not_below(draft_map, low + tokens * 0, tl.minimum(row.columns - low, TILE), tokens)
        there = column < row.columns
        there = there & (tl.load(draft_map + column, mask=there, other=-1) == tokens)
        x = tl.load(row.at + column, mask=there, other=nothing(law)).to(tl.float32)
        return kept(x, column, start >= 0, law)


@triton.jit
def probability_at(row, token, there, law, known, draft_map):
    """(the probability of a token in a row, 0 if not ``there``; whether its value cannot be a probability)."""
    column, there = column_of(draft_map, row.columns, token, there)
    x = value_at(row, column, there, law)
    return tl.where(there, probabilities(x, token, law, known), 0.0), there & unlike(x, law)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def group_tops(x):
    """The largest of each row [rows] of a block; a NaN or +inf shows as NaN or +inf."""
    if INTERPRETED:  # which runs a reduction that it does not know element by element
        return tl.max(tl.where(x == x, x, INFINITY), axis=1)
    else:
        return tl.reduce(x, 1, _max_or_nan)


@triton.jit
def best_of_tile(scores, tokens, best):
    """The best key after a tile of scores."""
    top = tl.max(tl.max(scores, axis=1), axis=0)
    token = tl.min(tl.min(tl.where(scores == top, tokens, NO_TOKEN), axis=1), axis=0)
    return tl.maximum(best, key_of(top, token))


@triton.jit
def barrier():
    """Waits for all threads of this program; then each sees what the others wrote."""
    tl.debug_barrier()


@triton.jit
def is_last(ticket, parts, done=1):
    """Whether these are the last of ``parts`` to be done. Then this program sees what others wrote before theirs."""
    barrier()  # all threads of this program have written
    return tl.atomic_add(ticket, done, sem="acq_rel") == parts - done


@triton.jit
def clear(words, count):
    """Sets so many int32 words back to zero, once all warps have read them."""
    barrier()
    for base in range(0, count, 128):
        at = base + tl.arange(0, 128)
        tl.store(words + at, tl.zeros([128], tl.int32), mask=at < count)


@triton.jit
def mass_items_of(columns):
    """float32 words that the mass tiles of a row take in scratch memory: a maximum and two words of units each."""
    return 3 * tl.cdiv(columns, MASS_TILE)


@triton.jit
def store_item(items, count, tile, top, units):
    """Keeps a mass tile: its largest value and its mass in units of that. Scalars: one thread stores them all."""
    here = tile < count
    words = items.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(items + tile, top, mask=here)
    tl.store(words + count + tile, units.to(tl.int32), mask=here)
    tl.store(words + 2 * count + tile, (units >> 32).to(tl.int32), mask=here)


@triton.jit
def store_items(items, count, tile, tops, units):
    """Keeps one, two or four mass tiles from ``tile`` on."""
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
def load_masses(row, law, start, TILE: tl.constexpr):
    """A tile of a row [mass tiles, tokens], so that a thread has tokens of one mass tile only, where it can."""
    MASSES: tl.constexpr = max(TILE // MASS_TILE, 1)
    GROUPS: tl.constexpr = TILE // MASSES // GROUP
    group, mass, column = tl.arange(0, GROUPS), tl.arange(0, MASSES), tl.arange(0, GROUP)
    tokens = start + mass[None, :, None] * MASS_TILE + group[:, None, None] * GROUP + column[None, None, :]
    x = tl.load(row.at + tokens, mask=tokens < row.columns, other=nothing(law)).to(tl.float32)
    x = edited(x, tokens, tokens < row.columns, start, start + TILE, law)
    return tl.reshape(tl.trans(x, 1, 0, 2), [MASSES, GROUPS * GROUP])


@triton.jit
def mass_tiles(row, law, first, last, items, TILE: tl.constexpr):
    """Stores what the mass tiles in the tiles [first, last) of a row of logits weigh; returns whether one was bad.

    Their weights are whole numbers in units of each tile's own maximum, so nothing depends on how a row was split or
    on the order of a sum. They can be added to each other only once the row's maximum is known: ``finish_mass``.
    """
    MASSES: tl.constexpr = max(TILE // MASS_TILE, 1)
    count = tl.cdiv(row.columns, MASS_TILE)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        raw = load_masses(row, law, start, TILE)
        x, tops = keys(raw, law), group_tops(raw)
        bad = bad | (any_of(unclean_groups(raw, tops, law)) > 0)
        tops = keys(tops, law)
        if any_of((tops < INFINITY) == 0) > 0:  # a NaN, or infinity, may be by the temperature
            x = clean(raw, law)
            tops = group_tops(x)
        weights = unit_weight(x - tops[:, None])  # 0 of a NaN, and everywhere in a tile that has no weight
        one, other = tl.split(tl.reshape(weights, [MASSES, weights.shape[1] // 2, 2]))
        units = tl.sum((one + other).to(tl.int64), axis=1)
        store_items(items, count, tl.cast(tile, tl.int32) * MASSES, tops, units)
    return bad


@triton.jit
def mass_of(items, count, ITEMS: tl.constexpr):
    """(mass, largest value) of a row from all its mass tiles."""
    tile = tl.arange(0, ITEMS)
    here = tile < count
    words = items.to(tl.pointer_type(tl.uint32), bitcast=True)
    tops = tl.load(items + tile, mask=here, other=-INFINITY, cache_modifier=".cg")
    low = tl.load(words + count + tile, mask=here, other=0, cache_modifier=".cg")
    high = tl.load(words + 2 * count + tile, mask=here, other=0, cache_modifier=".cg")
    units = (high.to(tl.int64) << 32) | low.to(tl.int64)
    top = tl.max(tops, axis=0)
    return tl.sum(tile_mass(units, tops - top), axis=0), top


@triton.jit
def finish_mass(items, count, ITEMS: tl.constexpr):
    """(largest, log of the sum, status) of a row from all its mass tiles."""
    mass, top = mass_of(items, count, ITEMS)
    some = top > -INFINITY
    return tl.where(some, top, 0.0), tl.where(some, log_sum_of(mass), INFINITY), top == -INFINITY


@triton.jit
def argmax_tiles(row, law, first, last, TILE: tl.constexpr):
    """(the key of the most probable column in the tiles [first, last) of a row, bad)."""
    best = tl.full([], 0, tl.uint64)
    bad = first < 0
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        x = load_tile(row, law, start, TILE)
        bad = bad | (any_of(unclean_groups(x, group_tops(x), law)) > 0)
        best = best_of_tile(greedy_scores(clean(x, law), law), tile_tokens(start, TILE), best)
    return best, bad


@triton.jit
def scan_row(row, law, key, items, split, splits, TILE: tl.constexpr):
    """A program's part of what probabilities of a row need: its mass, in ``items``, or at T = 0 its argmax, in ``key``.

    Nothing if its cut is known: what is kept of it was looked at then. Returns whether a value was bad.
    """
    first, last = share_of(tl.cdiv(row.columns, TILE), split, splits)
    bad = first < 0
    if law.cuts is not None:
        pass
    elif law.greedy is not None:
        if law.greedy:
            best, bad = argmax_tiles(row, law, first, last, TILE)
            tl.atomic_max(key, best, sem="relaxed")
        elif law.inverse is not None:
            bad = mass_tiles(row, law, first, last, items, TILE)
    elif law.inverse is not None:
        bad = mass_tiles(row, law, first, last, items, TILE)
    return bad


@triton.jit
def finish_row(row, law, draft_map, key, items, own, ITEMS: tl.constexpr):
    """Stores what all programs of a row learned at ``own``; returns it, and whether the row has no weight at all."""
    top, log_sum, weightless = 0.0, 0.0, row.columns < 0
    if law.cuts is not None:
        top, log_sum = tl.load(own), tl.load(own + 1)
    elif law.greedy is not None:
        if law.greedy:
            best = tl.load(key, cache_modifier=".cg")
            top, log_sum = argmax_known(best, draft_map)
            weightless = best == NOBODY
            barrier()  # all warps have read
            tl.store(key, best * 0)
        elif law.inverse is not None:
            top, log_sum, weightless = finish_mass(items, tl.cdiv(row.columns, MASS_TILE), ITEMS)
        tl.store(own, top)
        tl.store(own + 1, log_sum)
    elif law.inverse is not None:
        top, log_sum, weightless = finish_mass(items, tl.cdiv(row.columns, MASS_TILE), ITEMS)
        tl.store(own, top)
        tl.store(own + 1, log_sum)
    return top, log_sum, weightless


@triton.jit
def learn_pair(
    target, target_law, target_key, draft, draft_law, draft_map, record, items, own, split, splits,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program's part of what the probabilities of a row, or of a pair of rows, need.

    (whether it was the last part; then what was learned of the target's and of the draft's row: it is stored at
    ``own``, four floats). Mass tiles go to ``items``: of the target's row, then of the draft's, which is no longer;
    ``record`` counts parts and holds the key of a draft row's argmax.
    """
    ITEMS: tl.constexpr = TILES * max(TILE // MASS_TILE, 1)
    draft_items = items + mass_items_of(target.columns)
    bad = scan_row(target, target_law, target_key, items, split, splits, TILE)
    if draft is not None:
        bad |= scan_row(draft, draft_law, key_at(record), draft_items, split, splits, TILE)
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
    last = is_last(record + DONE, splits)
    if last:
        p_top, p_log_sum, weightless = finish_row(target, target_law, None, target_key, items, own, ITEMS)
        if draft is not None:
            q_top, q_log_sum, draft_weightless = finish_row(
                draft, draft_law, draft_map, key_at(record), draft_items, own + 2, ITEMS
            )
            weightless |= draft_weightless
        if weightless:
            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    return last, Known(p_top, p_log_sum), Known(q_top, q_log_sum)
