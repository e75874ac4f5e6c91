"""Races under sampling filters: who finds a row's cut races what is kept of it.

The programs of a row look through it (``_cuts``). The last one finds the cut, and scores the tokens that are listed
then. If no list holds them it races the row alone. Rows whose filters are off are raced by all of their programs.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _filters, _laws, _math, _races, _rows


@triton.jit
def race_part_of_row(row, record, noise, split, splits, TILE: tl.constexpr):
    """A program's part of the race of a row."""
    first, last = _rows.share_of(tl.cdiv(row.columns, TILE), split, splits)
    if row.map is None:
        best, bad = _races.race_tiles(
            row, first, last, _rows.key_at(record), noise, None, None, _math.STREAM_RACE, TILE
        )  # fmt: skip
    else:
        best, bad = _races.race_mapped(row, first, last, noise, _math.STREAM_RACE, TILE)
    tl.atomic_max(_rows.key_at(record), best, sem="relaxed")
    if bad:
        tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")


@triton.jit
def begin_kept(row, filter, record, scratch, noise, split, splits, tiling):
    """A program's part of a row."""
    if _cuts.is_on(filter):
        law = row.law
        order_law = _laws.Law(
            _filters.order_of(filter, law.inverse), None, None, law.row, law.edited, law.place, law.edits
        )
        ordered = _laws.Row(row.at, row.columns, order_law)
        _cuts.scan_row(ordered, filter, record, scratch, split, splits, _math.NON_FINITE, tiling)
    else:
        race_part_of_row(row, record, noise, split, splits, tiling.TILE)


@triton.jit
def score_list(row, order, cut, room, noise):
    """(scores, tokens) of those that a cut keeps, all of them listed. Filters compare raw values times ``order``."""
    x, ids = _filters.load_list(room, cut.listed)
    v = _math.scaled(x, order)
    keeps = (v > cut.value) | ((v == cut.value) & (ids <= cut.token))
    x = _laws.clean(x, row.law)
    tokens = ids
    if row.map is not None:
        tokens = tl.load(row.map + ids, mask=keeps, other=_math.NO_TOKEN)
    scores = _laws.greedy_scores(x, row.law)
    if row.law.greedy == 0:
        scores = _races.mapped_scores(x, tokens + noise.first, noise, row.law, _math.STREAM_RACE)
    scores = tl.where(keeps, scores, -_math.INFINITY)
    shape: tl.constexpr = (_filters.LISTED // _math.GROUP, _math.GROUP)
    return tl.reshape(scores, shape), tl.reshape(tokens, shape)


@triton.jit
def cut_kept(row, filter, scratch, cuts, tiling):
    """The ``Cut`` of a row whose law has what its filter compares. ``listed`` is -1 if no token has weight."""
    # 0: no list holds them. Then the row's words of ``cuts`` have the cut.
    cut = _cuts.cut_row(row, filter, scratch, False, tiling)
    listed = tl.where(cut.top > -_math.INFINITY, cut.listed, -1)
    if listed == 0:
        words = cuts + _laws.CUT * row.law.row
        tl.store(words, cut.value)
        tl.store(words + 1, cut.token.to(tl.float32, bitcast=True))
        tl.store(words + 2, row.law.inverse)
        _rows.barrier()  # the cut is stored
    return _filters.Cut(cut.value, cut.token, cut.count, cut.mass, listed, cut.top)


@triton.jit
def finish_kept(row, filter, record, scratch, cuts, noise, tiling):
    """Races what is kept of a row, for the record's key. ``cuts`` has CUT words a row, for rows that no list holds."""
    if _cuts.is_on(filter):
        law = row.law
        order = _filters.order_of(filter, law.inverse)
        order_law = _laws.Law(order, None, None, law.row, law.edited, law.place, law.edits)
        cut = cut_kept(_laws.Row(row.at, row.columns, order_law), filter, scratch, cuts, tiling)
        if cut.listed > 0:
            scores, ids = score_list(row, order, cut, _cuts.room_of(row, scratch, tiling), noise)
            best = _rows.best_of_tile(scores, ids, tl.full([], 0, tl.uint64))
            tl.atomic_max(_rows.key_at(record), best, sem="relaxed")
        elif cut.listed == 0:
            kept_law = _laws.Law(law.inverse, law.greedy, cuts, law.row, law.edited, law.place, law.edits)
            kept = _laws.Row(row.at, row.columns, kept_law, row.map)
            race_part_of_row(kept, record, noise, 0, 1, tiling.TILE)
