"""Pairs of rows, for residual and overlap: the launch that stores the ``RowStats`` of each row.

int32 counters, zero before and after a call, 8 for each pair: the key of the draft's argmax (two words), programs done,
status, the key of the target's argmax (two words), which rows of probabilities have weight, one unused.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _launch, _laws, _math, _rows

WEIGHS = tl.constexpr(6)  # word of a pair's record: 1 if the target's row has weight, 2 if the draft's has
BOTH_WEIGH = tl.constexpr(3)


class Side(NamedTuple):
    """Rows of the target or of the draft, and what their laws need. A draft's rows lie by entry."""

    rows: _arguments.Rows
    temperature: _arguments.Number
    cuts: tl.tensor  # float32 [rows, CUT]
    map: tl.tensor  # [V]: the token of each column of a draft


class Pair(NamedTuple):
    """Row ``row[b]`` of the target and ``draft_row[b]`` of the draft make pair b."""

    row: tl.tensor  # [P]
    draft_row: tl.tensor  # [P]
    rows_of_target: int
    rows_of_draft: int
    cuts: tl.tensor  # float32 [P, CUT_WORDS]
    stats: _arguments.Steps  # float32 [P, 4]: the ``RowStats`` of both rows
    subtracted: _arguments.Number  # the factor of q in p - subtracted q


class Memory(NamedTuple):
    """Memory of a launch over pairs."""

    counters: tl.tensor  # int32 [P, 8]
    pair_stats: tl.tensor  # float32 [P, 4]: the ``RowStats`` of the target's and of the draft's row
    partials: tl.tensor  # float32: mass tiles of both rows, then sums of tiles


class Plan(NamedTuple):
    """What is compiled in."""

    TARGET: tl.constexpr
    DRAFT: tl.constexpr
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


@triton.jit
def load_pair_stats(pair, b):
    """The ``RowStats`` of the target's and of the draft's row of a pair."""
    stats = _arguments.at(pair.stats, b, 0)
    return _laws.RowStats(tl.load(stats), tl.load(stats + 1)), _laws.RowStats(tl.load(stats + 2), tl.load(stats + 3))


@triton.jit
def columns_of(side, index, live):
    """The columns of a row. A row that is not live has none, so its probabilities are 0."""
    columns = side.rows.vocab
    if index.data is not None:
        columns = tl.where(live, columns, 0)
    return columns


@_launch.kernel
def laws_kernel(
    target: Side, draft: Side, index: _arguments.Index, memory: Memory, edits: _edits.LogitEdits, plan: Plan
):
    """Stores the ``RowStats`` of both rows of each pair."""
    row = tl.program_id(0).to(tl.int64)
    at = _arguments.locate_row(target.rows, index, row)
    columns, q_columns = columns_of(target, index, at.live), columns_of(draft, index, at.live)
    inverse, greedy, _ = _arguments.load_temperature(target.temperature, at.entry, at.j, at.live)
    q_inverse, q_greedy, _ = _arguments.load_temperature(draft.temperature, at.entry, at.j, at.live)
    record = memory.counters + 8 * row
    row_edits, _bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, columns)
    p_law = _laws.Law(
        inverse if plan.TARGET == "logits" else None, greedy, target.cuts, row, edits.by_row, row_edits, edits
    )  # fmt: skip
    q_law = _laws.Law(q_inverse if plan.DRAFT == "logits" else None, q_greedy, draft.cuts, row)
    last, _, _ = _rows.scan_pair(
        _laws.Row(_rows.start_of(target.rows, at.i, at.j, plan.ALIGNED), columns, p_law), _rows.key_at(record + 4),
        _laws.Row(_rows.start_of(draft.rows, at.entry, at.j, plan.ALIGNED), q_columns, q_law, draft.map), record,
        memory.partials + 2 * _rows.mass_items_of(columns) * row, memory.pair_stats + 4 * row, tl.program_id(1),
        tl.num_programs(1), plan.TILE, plan.TILES,
    )  # fmt: skip
    if last:
        tl.store(record + _rows.DONE, 0)


@triton.jit
def tile_status(x, law, row_status, BIT: tl.constexpr):
    """``row_status`` after a tile of probabilities: NON_FINITE if one is bad, BIT << 8 if one has weight.

    Logits add nothing, for ``laws_kernel`` has checked them.
    """
    if law.inverse is None:
        tops = _rows.group_tops(x)
        row_status |= _math.any_of(_laws.unclean_groups(x, tops, law)) * _math.NON_FINITE
        row_status |= _math.any_of((tops < _math.SMALLEST) == 0) * (BIT << 8)
    return row_status


@triton.jit
def report_status(record, row_status):
    """Adds this program's ``row_status`` to the pair's record."""
    if row_status & _math.NON_FINITE != 0:
        tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")
    if row_status > _math.NON_FINITE:
        tl.atomic_or(record + WEIGHS, row_status >> 8, sem="relaxed")


@triton.jit
def status_of_pair(record, p_law, q_law, flags, at):
    """The status of a pair after all its programs called ``report_status``. Resets the record's WEIGHS."""
    row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
    flags |= row_status & (_cuts.DRAFT_BAD - 1) | row_status // _cuts.DRAFT_BAD
    weigh = tl.load(record + WEIGHS, cache_modifier=".cg")
    if p_law.inverse is not None:
        weigh |= 1
    if q_law.inverse is not None:
        weigh |= 2
    flags |= tl.where(weigh == BOTH_WEIGH, 0, _math.NON_FINITE)
    _rows.barrier()  # all warps have read it
    tl.store(record + WEIGHS, 0)
    return tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER))


def pair_of(call):
    rows = [0 if rows is None else rows.shape[0] * rows.shape[1] for rows in (call.target, call.draft)]
    return Pair(
        call.row, call.draft_row, *rows, _launch.floats(call.cuts), _arguments.steps_or_none(call.row_stats),
        _arguments.number_of(call.subtracted),
    )  # fmt: skip


def count_scratch_words(call):
    """float32 words of scratch memory that ``launch_laws`` needs."""
    outer, inner, vocab = call.target.shape
    rows = outer * inner
    cuts = _cuts.count_scratch_words(vocab, rows, call.target.device, _launch.scanned_sides(call, call.draft))
    return (4 + _launch.mass_items_of(vocab)) * rows + cuts


def launch_laws(call, edits, counters, scratch, rows, tile, tiles, warps):
    """Launches cuts and ``RowStats`` of rows if the laws need them. Returns arguments for the next kernel."""
    target, draft = call.target, call.draft
    outer, inner, vocab = target.shape
    index = _arguments.index_of(call.request_index, draft, edit=call.edits)
    items = scratch[4 * rows :]
    scanned = _launch.scanned_sides(call, draft)
    flags = _arguments.Steps(counters[_rows.FLAGS.value :], 8 * inner, 8)
    p_cuts, q_cuts = _cuts.launch_pair(
        call, draft, scanned, index, edits, scratch, _cuts.Stored(inner, 4, counters, 8, flags, 0),
        items[_launch.mass_items_of(vocab) * rows :], outer, inner,
    )  # fmt: skip
    laws = call.target_law, call.draft_law
    plan = *(law.space for law in laws), _launch.aligned(target, draft), tile, _launch.power_of_2(tiles)
    arguments = dict(
        target=Side(_arguments.rows_of(target), _arguments.temperature_of(laws[0]), p_cuts, None),
        draft=Side(_arguments.rows_of(draft), _arguments.temperature_of(laws[1]), q_cuts, call.draft_map),
        index=index, memory=Memory(counters, scratch, items), **edits, plan=_launch.constants(Plan, *plan),
    )  # fmt: skip
    if any(_launch.needs_row_stats(law) and not scans for law, scans in zip(laws, scanned, strict=True)):
        _launch.launch(laws_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, arguments)
    return arguments
