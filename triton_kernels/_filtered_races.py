"""Races under sampling filters: the program that finds a row's cut races the tokens that pass.

All programs of a row scan it (``_cuts``). The last one finds the cut and scores the listed tokens; if the list does not
hold them it races the whole row. All programs race a row whose filters are off.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _filters, _laws, _math, _races, _rows


@triton.jit
def race_slice(row, record, noise, split, splits, TILE: tl.constexpr):
    """Races one program's tiles of a row."""
    first, last = _rows.tile_range(tl.cdiv(row.columns, TILE), split, splits)
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
def begin_row(row, filter, record, scratch, noise, split, splits, tiling):
    """Scans one program's tiles of a row, or races them where filters are off."""
    if _cuts.is_on(filter):
        law = row.law
        order_law = _laws.Law(
            _filters.order_of(filter, law.inverse), None, None, law.row, law.edited, law.row_edits, law.edits
        )
        ordered = _laws.Row(row.at, row.columns, order_law)
        _cuts.scan_row(ordered, filter, record, scratch, split, splits, _math.NON_FINITE, tiling)
    else:
        race_slice(row, record, noise, split, splits, tiling.TILE)


@triton.jit
def score_list(row, order, cut, workspace, noise):
    """(scores, tokens) of the listed tokens that pass a cut. Filters compare raw values times ``order``."""
    x, ids = _filters.load_list(workspace, cut.listed)
    v = _math.scaled(x, order)
    in_support = (v > cut.value) | ((v == cut.value) & (ids <= cut.token))
    x = _laws.clean(x, row.law)
    tokens = ids
    if row.map is not None:
        tokens = tl.load(row.map + ids, mask=in_support, other=_math.NO_TOKEN)
    scores = _laws.greedy_scores(x, row.law)
    if row.law.greedy == 0:
        scores = _races.mapped_scores(x, tokens + noise.first, noise, row.law, _math.STREAM_RACE)
    scores = tl.where(in_support, scores, -_math.INFINITY)
    shape: tl.constexpr = (_filters.LISTED // _math.GROUP, _math.GROUP)
    return tl.reshape(scores, shape), tl.reshape(tokens, shape)


@triton.jit
def search_row(row, filter, scratch, cuts, tiling):
    """The ``Cut`` of a row whose law scales values as the filters compare them."""
    # ``listed`` is -1 if no token has weight, and 0 if the list does not hold them; then ``cuts`` gets the cut.
    cut = _cuts.cut_row(row, filter, scratch, False, tiling)
    listed = tl.where(cut.top > -_math.INFINITY, cut.listed, -1)
    if listed == 0:
        cut_words = cuts + _laws.CUT * row.law.row
        tl.store(cut_words, cut.value)
        tl.store(cut_words + 1, cut.token.to(tl.float32, bitcast=True))
        tl.store(cut_words + 2, row.law.inverse)
        _rows.barrier()  # the cut is stored
    return _filters.Cut(cut.value, cut.token, cut.count, cut.mass, listed, cut.top)


@triton.jit
def end_row(row, filter, record, scratch, cuts, noise, tiling):
    """Races the tokens of a scanned row that pass its filters. ``cuts`` is float32 [rows, CUT]."""
    if _cuts.is_on(filter):
        law = row.law
        order = _filters.order_of(filter, law.inverse)
        order_law = _laws.Law(order, None, None, law.row, law.edited, law.row_edits, law.edits)
        cut = search_row(_laws.Row(row.at, row.columns, order_law), filter, scratch, cuts, tiling)
        if cut.listed > 0:
            scores, ids = score_list(row, order, cut, _cuts.workspace_of(row, scratch, tiling), noise)
            best = _rows.best_of_tile(scores, ids, tl.full([], 0, tl.uint64))
            tl.atomic_max(_rows.key_at(record), best, sem="relaxed")
        elif cut.listed == 0:
            support_law = _laws.Law(law.inverse, law.greedy, cuts, law.row, law.edited, law.row_edits, law.edits)
            support_row = _laws.Row(row.at, row.columns, support_law, row.map)
            race_slice(support_row, record, noise, 0, 1, tiling.TILE)
