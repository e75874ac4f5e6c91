"""Races under sampling filters: who finds a row's cut races what is kept of it.

The programs of a row look through it (``_cuts``). The last one finds the cut, and scores the tokens that are listed
then. If no list holds them it races the row alone. Rows whose filters are off are raced by all of their programs.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._cuts import cut_row, is_on, room_of, scan_row
from specdec_kernels.triton_kernels._filters import BEFORE_TEMPERATURE, LISTED, load_list
from specdec_kernels.triton_kernels._laws import CUT, Law, clean, greedy_scores
from specdec_kernels.triton_kernels._math import GROUP, INFINITY, NO_TOKEN, NON_FINITE, STREAM_RACE
from specdec_kernels.triton_kernels._races import mapped_scores, race_mapped, race_tiles
from specdec_kernels.triton_kernels._rows import FLAGS, barrier, best_of_tile, key_at, share_of


@triton.jit
def race_part_of_row(row, law, draft_map, record, noise, split, splits, TILE: tl.constexpr):
    """A program's part of the race of a row."""
    first, last = share_of(tl.cdiv(row.columns, TILE), split, splits)
    if draft_map is None:
        best, bad = race_tiles(row, law, first, last, key_at(record), noise, None, None, STREAM_RACE, TILE)
    else:
        best, bad = race_mapped(row, law, draft_map, first, last, noise, STREAM_RACE, TILE)
    tl.atomic_max(key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")


@triton.jit
def order_of(inverse, rules):
    """1 / T of the values that filters compare."""
    return tl.where(rules & BEFORE_TEMPERATURE != 0, 1.0, inverse)


@triton.jit
def begin_kept(
    row, inverse, greedy, filter, rules, n, place, edits, draft_map, record, scratch, noise, split, splits,
    CELL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program's part of row n."""
    if is_on(filter):
        order_law = Law(order_of(inverse, rules), None, None, n, *place, *edits)
        scan_row(row, order_law, filter, rules, record, scratch, split, splits, NON_FINITE, CELL, TILE)
    else:
        law = Law(inverse, greedy, None, n, *place, *edits)
        race_part_of_row(row, law, draft_map, record, noise, split, splits, TILE)


@triton.jit
def score_list(order_law, law, room, listed, value, last, draft_map, vocab_start, noise):
    """(scores, tokens) of those that a cut keeps, all of them listed. ``order_law`` says what filters compare."""
    x, ids = load_list(room, listed)
    v = clean(x, order_law)
    keeps = (v > value) | ((v == value) & (ids <= last))
    x = clean(x, law)
    tokens = ids
    if draft_map is not None:
        tokens = tl.load(draft_map + ids, mask=keeps, other=NO_TOKEN)
    scores = greedy_scores(x, law)
    if law.greedy == 0:
        scores = mapped_scores(x, tokens + vocab_start, noise, law, STREAM_RACE)
    scores = tl.where(keeps, scores, -INFINITY)
    shape: tl.constexpr = (LISTED // GROUP, GROUP)
    return tl.reshape(scores, shape), tl.reshape(tokens, shape)


@triton.jit
def cut_kept(
    row, order_law, filter, rules, n, scratch, cuts, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The last value and token kept of row n, and how many tokens are listed: all that are kept, -1 if none has weight.

    0: no list holds them. Then the row's words of ``cuts`` have the cut.
    """
    value, token, _count, _mass, top, listed = cut_row(row, order_law, filter, rules, scratch, False, CELL, TILE, TILES)
    listed = tl.where(top > -INFINITY, listed, -1)
    if listed == 0:
        cut = cuts + CUT * n
        tl.store(cut, value)
        tl.store(cut + 1, token.to(tl.float32, bitcast=True))
        tl.store(cut + 2, order_law.inverse)
        barrier()  # the cut is stored
    return value, token, listed


@triton.jit
def finish_kept(
    row, inverse, greedy, filter, rules, n, place, edits, draft_map, vocab_start, record, scratch, cuts, noise,
    CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Races what is kept of row n, for the record's key. ``cuts`` has CUT words a row, for rows that no list holds."""
    if is_on(filter):
        order_law = Law(order_of(inverse, rules), None, None, n, *place, *edits)
        value, token, listed = cut_kept(row, order_law, filter, rules, n, scratch, cuts, CELL, TILE, TILES)
        if listed > 0:
            room, law = room_of(row, scratch, CELL, TILE), Law(inverse, greedy, None, n, *place, *edits)
            scores, ids = score_list(order_law, law, room, listed, value, token, draft_map, vocab_start, noise)
            tl.atomic_max(key_at(record), best_of_tile(scores, ids, tl.full([], 0, tl.uint64)), sem="relaxed")
        elif listed == 0:
            kept_law = Law(inverse, greedy, cuts, n, *place, *edits)
            race_part_of_row(row, kept_law, draft_map, record, noise, 0, 1, TILE)
