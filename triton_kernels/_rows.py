"""Rows in tiles of [groups, 64] tokens: loading them, what several programs learn of one, where they meet."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._laws import (
    Known,
    argmax_known,
    clean,
    greedy_scores,
    nothing,
    probabilities,
    unclean_groups,
    unlike,
)
from specdec_kernels.triton_kernels._math import (
    GROUP,
    INFINITY,
    NO_TOKEN,
    NOBODY,
    NON_FINITE,
    Noise,
    any_of,
    exp_or_zero,
    key_of,
    log,
)

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

# Records of rows and requests begin alike: the best key (two words), programs done, status.
DONE, FLAGS = tl.constexpr(2), tl.constexpr(3)


class Row(NamedTuple):
    """Where a row is, or each row of a block, and how many columns it has."""

    at: tl.tensor
    columns: tl.tensor


@triton.jit
def entry_of(b, request_index, entries):
    """(whose numbers and draft rows request ``b`` uses, whether it has such an entry, whether it is idle)."""
    if request_index is None:
        return b, b >= 0, b < 0
    else:
        index = tl.load(request_index + b).to(tl.int64)
        live = (index >= 0) & (index < entries)
        return tl.where(live, index, 0), live, index == -1


@triton.jit
def number(pointer, value, offset, live):
    """A number of an entry: from memory, 0 if the request has none, or the same for all."""
    if pointer is None:
        return value
    else:
        return tl.load(pointer + offset, mask=live, other=0)


@triton.jit
def noise_at(seed, seed_value, seed_at, position, position_value, position_at, nonce, nonce_value, nonce_at, live):
    """The noise of a row, from numbers that may be int32 or int64 in memory."""
    return Noise(
        number(seed, seed_value, seed_at, live).to(tl.int64),
        number(position, position_value, position_at, live).to(tl.uint32),
        number(nonce, nonce_value, nonce_at, live).to(tl.uint32),
    )  # fmt: skip


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
    """Pointer to the row at an offset in elements; rounding to 16 tells the compiler that the offset already is."""
    if ALIGNED:
        offset = offset // 16 * 16
    return rows + offset


class Rows(NamedTuple):
    """Where row 0 of a request is, the stride of rows and how many columns they have."""

    at: tl.tensor
    step: tl.tensor
    columns: tl.tensor


@triton.jit
def row_of(rows, n, ALIGNED: tl.constexpr):
    """Row n of a request, or a block of them."""
    return Row(row_at(rows.at, n * rows.step, ALIGNED), rows.columns)


@triton.jit
def share_of(tiles, split, splits):
    """The tiles [first, last) of a row that are a program's."""
    return split * tiles // splits, (split + 1) * tiles // splits


@triton.jit
def load_tile(row, law, start, TILE: tl.constexpr):
    """A tile of a row; nothing beyond its columns."""
    tokens = tile_tokens(start, TILE)
    return tl.load(row.at + tokens, mask=tokens < row.columns, other=nothing(law)).to(tl.float32)


@triton.jit
def first_not_below(draft_map, low, count, token):
    """The first of ``count`` entries from ``low`` on, or the one behind, that is not below ``token``; they rise."""
    while count > 1:
        half = count // 2
        low = tl.where(tl.load(draft_map + low + (half - 1)) < token, low + half, low)
        count -= half
    return low + (tl.load(draft_map + low) < token).to(tl.int32)


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
        # Rising entries: a token of the tile stands less than a tile behind the first that is not below ``start``.
        low = first_not_below(draft_map, start * 0, row.columns, start)
        low = tl.maximum(tl.minimum(low, row.columns - 1), 0)
        tokens = tile_tokens(start, TILE)
        column = first_not_below(draft_map, low + tokens * 0, tl.minimum(row.columns - low, TILE), tokens)
        there = column < row.columns
        there = there & (tl.load(draft_map + column, mask=there, other=-1) == tokens)
        return tl.load(row.at + column, mask=there, other=nothing(law)).to(tl.float32)


@triton.jit
def probability_at(row, token, there, law, known, draft_map):
    """(the probability of a token of a row, 0 where it is not ``there``; whether the row's value is no probability)."""
    column, there = column_of(draft_map, row.columns, token, there)
    x = tl.load(row.at + column, mask=there, other=0.0).to(tl.float32)
    return tl.where(there, probabilities(x, token, law, known), 0.0), there & unlike(x, law)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def group_tops(x):
    """The largest of each group [groups]; a NaN or +inf shows as NaN or +inf."""
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
    """All threads of this program have come here, and each sees what the others wrote."""
    tl.debug_barrier()


@triton.jit
def is_last(ticket, programs):
    """Whether this program is the last of ``programs`` to come here; what the others wrote before is then visible."""
    barrier()  # all threads of this program have written
    return tl.atomic_add(ticket, 1, sem="acq_rel") == programs - 1


@triton.jit
def lse_tiles(row, law, first, last, partials, TILE: tl.constexpr):
    """Stores (largest, sum of exp) of each tile [first, last) of a row of logits; returns whether one was bad.

    Partial sums are kept by tile, not by program, so that no result depends on how a row was split. The approximate
    exponential is good to a few ulp where terms are large.
    """
    bad = first < 0
    for tile in range(first, last):
        raw = load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE)
        tops = group_tops(raw)
        tile_bad = any_of(unclean_groups(raw, tops, law)) > 0
        x = clean(raw, law)
        top = tl.max(clean(tops, law), axis=0)
        if tile_bad:
            top = tl.max(tl.max(x, axis=1), axis=0)
        terms = tl.exp(x - tl.where(top > -INFINITY, top, 0.0))
        tl.store(partials + 2 * tile, top)
        tl.store(partials + 2 * tile + 1, tl.sum(tl.sum(terms, axis=1), axis=0))
        bad = bad | tile_bad
    return bad


@triton.jit
def finish_lse(partials, tiles, TILES: tl.constexpr):
    """(largest, log of the sum, status) from the partial sums of all tiles."""
    tile = tl.arange(0, TILES)
    tops = tl.load(partials + 2 * tile, mask=tile < tiles, other=-INFINITY, cache_modifier=".cg")
    sums = tl.load(partials + 2 * tile + 1, mask=tile < tiles, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * exp_or_zero(tops - top), axis=0)
    some = top > -INFINITY
    return tl.where(some, top, 0.0), tl.where(some, log(total), INFINITY), top == -INFINITY


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
def scan_row(row, law, key, sums, split, splits, TILE: tl.constexpr):
    """A program's part of what probabilities of a row need: its log-sum-exp, or at T = 0 its argmax, in ``key``.

    Returns whether a value was bad.
    """
    first, last = share_of(tl.cdiv(row.columns, TILE), split, splits)
    bad = first < 0
    if law.greedy is not None:
        if law.greedy:
            best, bad = argmax_tiles(row, law, first, last, TILE)
            tl.atomic_max(key, best, sem="relaxed")
        elif law.inverse is not None:
            bad = lse_tiles(row, law, first, last, sums, TILE)
    elif law.inverse is not None:
        bad = lse_tiles(row, law, first, last, sums, TILE)
    return bad


@triton.jit
def finish_row(row, law, draft_map, key, sums, own, TILE: tl.constexpr, TILES: tl.constexpr):
    """Stores what all programs of a row learned at ``own``; returns it, and whether the row has no weight at all."""
    top, log_sum, weightless = 0.0, 0.0, row.columns < 0
    if law.greedy is not None:
        if law.greedy:
            best = tl.load(key, cache_modifier=".cg")
            top, log_sum = argmax_known(best, draft_map)
            weightless = best == NOBODY
            barrier()  # all warps have read
            tl.store(key, best * 0)
        elif law.inverse is not None:
            top, log_sum, weightless = finish_lse(sums, tl.cdiv(row.columns, TILE), TILES)
        tl.store(own, top)
        tl.store(own + 1, log_sum)
    elif law.inverse is not None:
        top, log_sum, weightless = finish_lse(sums, tl.cdiv(row.columns, TILE), TILES)
        tl.store(own, top)
        tl.store(own + 1, log_sum)
    return top, log_sum, weightless


@triton.jit
def learn_pair(
    target, target_law, target_key, draft, draft_law, draft_map, record, sums, own, split, splits,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program's part of a row, or a pair of rows, whose probabilities are wanted.

    (whether it was the last part; then what was learned of the target's and of the draft's row: it is stored at
    ``own``, four floats). Sums of tiles go to ``sums``, four floats a tile of the target's row; ``record`` counts parts
    and holds the key of a draft row's argmax.
    """
    tiles = tl.cdiv(target.columns, TILE)
    bad = scan_row(target, target_law, target_key, sums, split, splits, TILE)
    if draft is not None:
        bad |= scan_row(draft, draft_law, key_at(record), sums + 2 * tiles, split, splits, TILE)
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    p_top, p_log_sum, q_top, q_log_sum = 0.0, 0.0, 0.0, 0.0
    last = is_last(record + DONE, splits)
    if last:
        p_top, p_log_sum, weightless = finish_row(target, target_law, None, target_key, sums, own, TILE, TILES)
        if draft is not None:
            q_top, q_log_sum, draft_weightless = finish_row(
                draft, draft_law, draft_map, key_at(record), sums + 2 * tiles, own + 2, TILE, TILES
            )
            weightless |= draft_weightless
        if weightless:
            tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    return last, Known(p_top, p_log_sum), Known(q_top, q_log_sum)
