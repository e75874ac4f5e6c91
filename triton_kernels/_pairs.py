"""Pairs of rows, for residual and overlap: the launch that finds what the probabilities of each row need.

int32 counters, zero before and after a call, 8 for each pair: the key of the draft's argmax (two words), programs done,
status, the key of the target's argmax (two words), which rows of probabilities have weight, one unused.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _cuts, _edits, _launch, _laws, _math, _rows

WEIGHS = tl.constexpr(6)  # where a pair's record says which rows have weight: 1 the target's, 2 the draft's
BOTH_WEIGH = tl.constexpr(3)


class Side(NamedTuple):
    """Rows of the target or of the draft, and what their laws need. A draft's rows lie by entry."""

    rows: _arguments.Rows
    temperature: _arguments.Number
    cuts: tl.tensor
    map: tl.tensor


class Pair(NamedTuple):
    """Which rows belong together, of how many; their cuts, and four floats that are known of both; the share of q."""

    row: tl.tensor
    draft_row: tl.tensor
    rows_of_target: int
    rows_of_draft: int
    cuts: tl.tensor
    known: _arguments.Steps
    subtracted: _arguments.Number


class Memory(NamedTuple):
    """Counters; four floats for each pair: the ``Known`` of the target's row and that of the draft's row; partials."""

    counters: tl.tensor
    figures: tl.tensor
    partials: tl.tensor


class Plan(NamedTuple):
    """What is compiled in: spaces of both sides, and tiles."""

    TARGET: tl.constexpr
    DRAFT: tl.constexpr
    ALIGNED: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr


@triton.jit
def known_of(pair, b):
    """The ``Known`` of the target's and of the draft's row of a pair."""
    known = _arguments.at(pair.known, b, 0)
    return _laws.Known(tl.load(known), tl.load(known + 1)), _laws.Known(tl.load(known + 2), tl.load(known + 3))


@triton.jit
def columns_of(side, index, live):
    """The columns of a row: one that is not live gets none, so its probabilities are 0."""
    columns = side.rows.vocab
    if index.data is not None:
        columns = tl.where(live, columns, 0)
    return columns


@_launch.kernel
def laws_kernel(
    target: Side, draft: Side, index: _arguments.Index, memory: Memory, edits: _edits.LogitEdits, plan: Plan
):
    """Stores four numbers for each pair."""
    row = tl.program_id(0).to(tl.int64)
    at = _arguments.row_of(target.rows, index, row)
    columns, q_columns = columns_of(target, index, at.live), columns_of(draft, index, at.live)
    inverse, greedy, _ = _arguments.heat_of(target.temperature, at.entry, at.j, at.live)
    q_inverse, q_greedy, _ = _arguments.heat_of(draft.temperature, at.entry, at.j, at.live)
    record = memory.counters + 8 * row
    place, _bad_bias = _edits.place_at(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, columns)
    p_law = _laws.Law(
        inverse if plan.TARGET == "logits" else None, greedy, target.cuts, row, edits.by_row, place, edits
    )  # fmt: skip
    q_law = _laws.Law(q_inverse if plan.DRAFT == "logits" else None, q_greedy, draft.cuts, row)
    last, _, _ = _rows.learn_pair(
        _laws.Row(_rows.start_of(target.rows, at.i, at.j, plan.ALIGNED), columns, p_law), _rows.key_at(record + 4),
        _laws.Row(_rows.start_of(draft.rows, at.entry, at.j, plan.ALIGNED), q_columns, q_law, draft.map), record,
        memory.partials + 2 * _rows.mass_items_of(columns) * row, memory.figures + 4 * row, tl.program_id(1),
        tl.num_programs(1), plan.TILE, plan.TILES,
    )  # fmt: skip
    if last:
        tl.store(record + _rows.DONE, 0)


@triton.jit
def look(x, law, row_status, BIT: tl.constexpr):
    """``row_status`` with what a tile of a row of probabilities adds: NON_FINITE, and BIT << 8 if a token has weight.

    Logits add nothing: ``laws_kernel`` has looked at them.
    """
    if law.inverse is None:
        tops = _rows.group_tops(x)
        row_status |= _math.any_of(_laws.unclean_groups(x, tops, law)) * _math.NON_FINITE
        row_status |= _math.any_of((tops < _math.SMALLEST) == 0) * (BIT << 8)
    return row_status


@triton.jit
def tell(record, row_status):
    """Writes what this program met into the pair's record."""
    if row_status & _math.NON_FINITE != 0:
        tl.atomic_or(record + _rows.FLAGS, _math.NON_FINITE, sem="relaxed")
    if row_status > _math.NON_FINITE:
        tl.atomic_or(record + WEIGHS, row_status >> 8, sem="relaxed")


@triton.jit
def status_of_pair(record, p_law, q_law, flags, at):
    """The status of a pair, once all its programs have called ``tell``. Sets their part of the record back to zero."""
    row_status = tl.load(record + _rows.FLAGS, cache_modifier=".cg")
    flags |= row_status & (_cuts.DRAFT_MET - 1) | row_status // _cuts.DRAFT_MET
    weigh = tl.load(record + WEIGHS, cache_modifier=".cg")
    if p_law.inverse is not None:
        weigh |= 1
    if q_law.inverse is not None:
        weigh |= 2
    flags |= tl.where(weigh == BOTH_WEIGH, 0, _math.NON_FINITE)
    _rows.barrier()  # all warps have read
    tl.store(record + WEIGHS, 0)
    return tl.where(at.live, flags, tl.where(at.idle, 0, _math.PARAMETER))


def pair_of(call):
    rows = [0 if rows is None else rows.shape[0] * rows.shape[1] for rows in (call.target, call.draft)]
    return Pair(
        call.row, call.draft_row, *rows, _launch.floats(call.cuts), _arguments.steps_or_none(call.known),
        _arguments.number_of(call.subtracted),
    )  # fmt: skip


def words_of(call):
    """float32 words of scratch memory that ``launch_laws`` needs."""
    outer, inner, vocab = call.target.shape
    rows = outer * inner
    cuts = _cuts.words_of(vocab, rows, call.target.device, _launch.scanned_sides(call, call.draft))
    return (4 + _launch.mass_items_of(vocab)) * rows + cuts


def launch_laws(call, edits, counters, scratch, rows, tile, tiles, warps):
    """Launches what finds the laws of rows, if it is needed. Returns the arguments that the next kernel shares."""
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
    if any(_launch.is_learned(law) and not found for law, found in zip(laws, scanned, strict=True)):
        _launch.launch(laws_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, arguments)
    return arguments
