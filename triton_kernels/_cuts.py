"""The cuts of sampling filters: a launch that finds them for all rows of a tensor, before an op's other launches.

It stores a cut (``_laws.in_support``) for each row, and the ``RowStats`` of the tokens that pass. The op then reads
dropped tokens as -inf and has no other code about filters. The programs of a row store the maxima of its cells; the
last of them searches the cut (``_filters``). If rows are many a program takes several, one after the other, so the
memory for cells and lists does not grow with their number. On AMD GPUs a ticket does not order the stores of all waves,
so a second launch searches the cuts. Races search cuts in the launch that races (``_filtered_races``).
"""

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _filters, _launch, _laws, _math, _rows

CELLS = tl.constexpr(1024)  # about so many in a row
LOOKED_AT = tl.constexpr(1024)  # tokens of a step when a cut is searched
DRAFT_BAD = tl.constexpr(_math.NON_FINITE.value << 8)  # status bit: a draft row has a bad value, or no weight


class Search(NamedTuple):
    """Memory of a search."""

    cuts: tl.tensor  # float32 [rows, CUT]
    scratch: tl.tensor  # float32 [groups of programs, row_words]
    row_words: int


class Tiling(NamedTuple):
    """Sizes that are compiled in."""

    CELL: tl.constexpr  # tokens of a cell
    TILE: tl.constexpr  # tokens of a tile
    TILES: tl.constexpr  # tiles of a row, rounded up to a power of 2
    ALIGNED: tl.constexpr  # whether rows start on multiples of 16 elements


class Side(NamedTuple):
    """Rows of a target or of a draft with their law, and where the launch stores the cut and the stats of each."""

    rows: _arguments.Rows
    law: _arguments.Law
    map: tl.tensor  # [V]: the token of each column of a draft
    cuts: tl.tensor  # float32 [rows, CUT]
    row_stats: tl.tensor  # float32 [rows, Stored.stats_row]


class Stored(NamedTuple):
    """Where results of row j of request i are stored: at index i ``step`` + j, or packed like the rows of a chain."""

    step: int
    stats_row: int  # words of a row's stats
    records: tl.tensor  # int32 [rows, records_row]
    records_row: int
    flags: _arguments.Steps  # int32: the status word of each request or row
    bonus_given: int  # 1 if chains have no row after their last draft, else 0


@triton.jit
def is_on(filter):
    return (filter.top_k > 0) | (filter.top_p_units >= 0) | (filter.log_min_p > -_math.INFINITY)


@triton.jit
def refers_to_row(filter):
    """Whether the mass of the whole row is needed: for top_p, or because no token is dropped."""
    after = ((filter.top_k > 0) & ((filter.rules & _filters.AFTER_TOP_K) != 0)) | (
        (filter.log_min_p > -_math.INFINITY) & ((filter.rules & _filters.AFTER_MIN_P) != 0)
    )
    return (is_on(filter) == 0) | ((filter.top_p_units >= 0) & (after == 0))


@triton.jit
def scan_row(row, filter, record, scratch, split, splits, BAD_BITS: tl.constexpr, tiling):
    """Stores the maxima of cells, and the masses, of one program's tiles of a row. A bad value sets BAD_BITS."""
    _rows.barrier()  # all warps have read what the last row left in scratch
    first, end = _rows.tile_range(tl.cdiv(row.columns, tiling.TILE), split, splits)
    if _filters.cell_tiles(row, first, end, scratch, tiling.CELL, tiling.TILE):
        tl.atomic_or(record + _rows.FLAGS, BAD_BITS, sem="relaxed")
    if refers_to_row(filter):
        _rows.mass_tiles(row, first, end, scratch + cells_of(row, tiling), tiling.TILE)


@triton.jit
def cells_of(row, tiling):
    return tl.cdiv(row.columns, tiling.TILE) * (tiling.TILE // tiling.CELL)


@triton.jit
def workspace_of(row, scratch, tiling):
    """The ``Workspace`` of a row's search: it overwrites the masses, and goes on behind them."""
    items = scratch + cells_of(row, tiling)
    cells = items.to(tl.pointer_type(tl.int32), bitcast=True)
    list_start = tl.maximum(_rows.mass_items_of(row.columns), _filters.LISTED)
    return _filters.Workspace(cells, items + list_start, cells + list_start + _filters.LISTED)


@triton.jit
def cut_row(row, filter, scratch, COUNTS: tl.constexpr, tiling):
    """The ``Cut`` of a scanned row whose law scales values as the filters compare them. One program calls this."""
    # If filters are off the last value and id are -inf and -1, and ``mass`` is the whole row's. Only COUNTS counts
    # tokens.
    TILE: tl.constexpr = tiling.TILE
    SLICE: tl.constexpr = min(LOOKED_AT, TILE)
    items = scratch + cells_of(row, tiling)
    value, last = tl.full([], -_math.INFINITY, tl.float32), tl.full([], -1, tl.int32)
    count, mass, listed = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    at = tl.arange(0, tiling.TILES * (TILE // tiling.CELL))
    cells = tl.load(scratch + at, mask=at < cells_of(row, tiling), other=-_math.INFINITY, cache_modifier=".cg")
    top = tl.max(cells, axis=0)
    if top > -_math.INFINITY:
        if refers_to_row(filter):
            ITEMS: tl.constexpr = tiling.TILES * max(TILE // _math.MASS_TILE, 1)
            mass, _ = _rows.sum_masses(items, tl.cdiv(row.columns, _math.MASS_TILE), ITEMS)
        if is_on(filter):
            _rows.barrier()  # all warps have read the masses
            workspace = workspace_of(row, scratch, tiling)
            cut = _filters.find_cut(row, filter, cells, top, mass, workspace, tiling.CELL, SLICE)
            value, last, count, mass, listed = cut.value, cut.token, cut.count, cut.mass, cut.listed
        elif COUNTS:
            for tile in range(0, tl.cdiv(row.columns, TILE)):
                x = _laws.clean(_rows.load_tile(row, tl.cast(tile, tl.int32) * TILE, TILE), row.law)
                count += tl.sum(tl.sum((x > -_math.INFINITY).to(tl.int64), axis=1), axis=0)
    return _filters.Cut(value, last, count, mass, listed, top)


@triton.jit
def support_mass(row, cells, value, CELL: tl.constexpr, TILE: tl.constexpr):
    """(sum of the weights, largest value) of the tokens that pass the law's cut at ``value``."""
    mass, top = tl.full([], 0, tl.int64), tl.full([], -_math.INFINITY, tl.float32)
    for turn in range(2):
        for tile in range(0, tl.cdiv(row.columns, TILE)):
            at = tile * (TILE // CELL) + tl.arange(0, TILE // CELL)
            if tl.max(tl.load(cells + at, cache_modifier=".cg"), axis=0) >= value:
                x = _laws.clean(_rows.load_tile(row, tl.cast(tile, tl.int32) * TILE, TILE), row.law)
                if turn == 0:
                    top = tl.maximum(top, tl.max(tl.max(x, axis=1), axis=0))
                else:
                    mass += tl.sum(tl.sum(_math.row_weight(x - top), axis=1), axis=0)
    return mass, top


@triton.jit
def cut_one(
    side, temperature, filter, at, index, packing, stored, edits, scratch, split, splits, STAGE: tl.constexpr,
    DRAFT: tl.constexpr, tiling,
):  # fmt: skip
    """Scans one program's tiles of the row ``at``; the row's last program stores the cut. Returns whether it did."""
    # Rows of a draft (DRAFT) lie by entry. A packed chain has one fewer of them than of the target's, or as many if the
    # token after the last draft is given; results have room for that row all the same. A draft row shares the record of
    # the target's, so its ticket is the word where a key will stand later. ``temperature`` is (1 / T, whether T is 0).
    i, j, live = at.i, at.j, at.live
    if packing.cu_drafts is None:
        readable, first_token, n, target_row = i >= 0, i * 0, i * stored.step + j, j
        offset = (at.entry if DRAFT else i) * side.rows.outer + j * side.rows.inner
    else:
        packed = _arguments.locate_request(packing, i, tl.cast(stored.step, tl.int32) - 1)
        first_token = packed.first_token
        readable = packed.readable & (j < packed.drafts + (0 if DRAFT else 1 - stored.bonus_given))
        n = packed.first_row + j
        target_row = n - i * stored.bonus_given
        if DRAFT and index.data is not None:
            offset = at.entry * side.rows.outer + j * side.rows.inner
        else:
            offset = (packed.first_draft + j if DRAFT else target_row) * side.rows.inner
    is_last = i < 0
    if readable:
        filtered = is_on(filter)
        inverse, greedy = temperature
        order = tl.where(filtered & ((filter.rules & _filters.BEFORE_TEMPERATURE) != 0), 1.0, inverse)
        start, columns = _rows.row_at(side.rows.rows, offset, tiling.ALIGNED), tl.where(live, side.rows.vocab, 0)
        vocab = side.rows.vocab
        row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, j, i, target_row, j, first_token, live, vocab)
        row = _laws.Row(start, columns, _laws.Law(order, None, None, n, edits.by_row, row_edits, edits))
        record, cut_words = stored.records + stored.records_row * n, side.cuts + _laws.CUT * n
        ticket = record + (0 if DRAFT else _rows.DONE)
        BAD_BITS: tl.constexpr = DRAFT_BAD if DRAFT else _math.NON_FINITE
        is_last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            scan_row(row, filter, record, scratch, split, splits, BAD_BITS, tiling)
        if STAGE == "all":
            is_last = _rows.is_last(ticket, splits)
        if is_last:
            tl.store(ticket, 0)
            cut = cut_row(row, filter, scratch, False, tiling)
            weighs = cut.top > -_math.INFINITY
            if live & (weighs == 0):
                tl.atomic_or(record + _rows.FLAGS, BAD_BITS, sem="relaxed")
            if edits.by_row is not None:  # noqa: SIM102  the outer `if` is constexpr
                if greedy & (bad_bias != 0):  # the walk reports those of other requests
                    tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
            cuts_off = filtered & (greedy == 0)
            tl.store(cut_words, tl.where(cuts_off, cut.value, -_math.INFINITY))
            tl.store(cut_words + 1, tl.where(cuts_off, cut.token, _math.NO_TOKEN).to(tl.float32, bitcast=True))
            tl.store(cut_words + 2, order)
            top, log_sum = cut.top, 0.0
            if greedy:
                token = cut.token
                if side.map is not None:
                    token = tl.load(side.map + token, mask=token >= 0, other=-1)
                top = token.to(tl.float32, bitcast=True)
            else:
                mass = cut.mass
                if filtered & (order != inverse):
                    _rows.barrier()  # the cut is stored
                    law = _laws.Law(inverse, None, side.cuts, n, edits.by_row, row_edits, edits)
                    SLICE: tl.constexpr = min(LOOKED_AT, tiling.TILE)
                    mass, top = support_mass(_laws.Row(start, columns, law), scratch, cut.value, tiling.CELL, SLICE)
                top = tl.where(weighs, top, 0.0)
                log_sum = tl.where(weighs, _math.log_sum_of(mass), _math.INFINITY)
            tl.store(side.row_stats + stored.stats_row * n, top)
            tl.store(side.row_stats + stored.stats_row * n + 1, log_sum)
    return is_last


@triton.jit
def cut_side(
    side, each, index, packing, requested, stored, edits, scratch, STAGE: tl.constexpr, DRAFT: tl.constexpr, tiling
):
    """Cuts one row of a side, or the slice of one program. A row whose ``requested`` is -1 is not read."""
    at = _arguments.locate_row(side.rows, index, tl.cast(each, tl.int64))
    live = at.live
    if requested.data is not None:
        live = live & (tl.load(_arguments.at(requested, at.i, at.j)) != -1)
    at = _arguments.At(at.i, at.j, at.entry, live, at.idle)
    inverse, greedy, _ = _arguments.load_temperature(side.law.temperature, at.entry, at.j, live)
    filter, bad = _filters.load_filter(side.law, at.entry, at.j, live, side.rows.vocab, greedy)
    if live & (bad != 0):
        tl.atomic_or(_arguments.at(stored.flags, at.i, at.j), bad, sem="relaxed")
    cut_one(
        side, (inverse, greedy), _filters.without_ties(filter, greedy), at, index, packing, stored, edits, scratch,
        tl.program_id(1), tl.num_programs(1), STAGE, DRAFT, tiling,
    )  # fmt: skip


@_launch.kernel
def cuts_kernel(
    target: Side, draft: Side, target_rows: tl.int32, draft_rows: tl.int32, index: _arguments.Index,
    packing: _arguments.Packing, requested: _arguments.Steps, stored: Stored, search: Search, edits: _edits.LogitEdits,
    no_edits: _edits.LogitEdits, tiling: Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    """Cuts ``target_rows`` rows of the target, then ``draft_rows`` of the draft, one at a time; either may be none."""
    scratch = search.scratch + search.row_words * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), target_rows + draft_rows, tl.num_programs(0)):
        if target.rows.rows is not None:  # noqa: SIM102  the outer `if` is constexpr
            if each < target_rows:
                cut_side(target, each, index, packing, requested, stored, edits, scratch, STAGE, False, tiling)
        if draft.rows.rows is not None:  # noqa: SIM102
            if each >= target_rows:
                cut_side(
                    draft, each - target_rows, index, packing, _arguments.Steps(), stored, no_edits, scratch, STAGE,
                    True, tiling,
                )  # fmt: skip


def most_registers(arguments):
    """A limit for kernels that search cuts: three programs of 128 threads fit. Only the search itself spills."""
    return 168


cuts_kernel.most_registers = most_registers


# Host side


def cell_of(tile, tiles):
    """Tokens of a cell. A tile has whole cells, and a row about ``CELLS`` of them."""
    return min(tile, max(_math.GROUP.value, tile * _launch.power_of_2(tiles) // CELLS.value))


def tiling_of(tile, tiles, aligned):
    return _launch.constants(Tiling, cell_of(tile, tiles), tile, _launch.power_of_2(tiles), aligned)


@functools.cache
def count_search_words(vocab):
    """float32 words of scratch memory of one search: cells; masses, then the indices of open cells; the list."""
    cells = 0
    for edited in (False, True):
        tile, tiles, _ = _launch.tile_of(vocab, edited)
        cells = max(cells, tiles * (tile // cell_of(tile, tiles)))
    return cells + max(_launch.mass_items_of(vocab) // 2, _filters.LISTED.value) + 2 * _filters.LISTED.value


def groups_of(rows, device):
    """Groups of programs, each with memory for one row: one a row, but at most four a multiprocessor, and 256."""
    # A launch that does not search has to leave the cells of every row for the one that does.
    if not _launch.TICKETS_ORDER_STORES:
        return rows
    return max(1, min(rows, 256, 4 * _launch.multiprocessors(device)))


def search_of(rows, vocab, device):
    """float32 words of scratch memory for the searches of ``rows`` rows."""
    return count_search_words(vocab) * groups_of(rows, device)


def count_scratch_words(vocab, rows, device, scanned):
    """float32 words of scratch memory for cuts and searches of ``rows`` rows of each side that is ``scanned``."""
    count = rows * sum(scanned)
    return _laws.CUT.value * count + search_of(count, vocab, device) if count else 0


NO_SIDE = Side(_arguments.NO_ROWS, _arguments.NO_LAW, None, None, None)


def launch_cuts(
    target, draft, index, stored, scratch, requests, edits=_edits.OFF, packing=_arguments.UNPACKED,
    requested=_arguments.NO_STEPS,
):  # fmt: skip
    """Launches the kernel for sides, of which one may be ``NO_SIDE``. ``scratch`` has ``search_of`` words."""
    sides = [side for side in (target, draft) if side is not NO_SIDE]
    counts = [0 if side is NO_SIDE else requests * side.rows.count for side in (target, draft)]
    if sum(counts) == 0:
        return
    tensors = [side.rows.rows for side in sides]
    vocab = max(side.rows.vocab for side in sides)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    arguments = dict(
        target=target, draft=draft, target_rows=counts[0], draft_rows=counts[1], index=index, packing=packing,
        requested=requested, stored=stored, search=Search(None, scratch, count_search_words(vocab)), **edits,
        no_edits=_edits.LogitEdits.OFF, tiling=tiling_of(tile, tiles, _launch.aligned(*tensors)),
    )  # fmt: skip
    launch_search(cuts_kernel, sum(counts), tiles, warps, tensors[0].device, arguments)


def launch_search(kernel, rows, tiles, warps, device, arguments):
    """Launches a kernel that scans rows and searches their cuts."""
    groups = groups_of(rows, device)
    splits = _launch.splits_of(rows, tiles, device) if groups == rows else 1
    if _launch.TICKETS_ORDER_STORES:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "all"})
    else:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "scan"})
        _launch.launch(kernel, (groups,), warps, arguments | {"STAGE": "cut"})


def launch_pair(call, draft, scanned, index, edits, pair_stats, stored, scratch, requests, width):
    """Launches the cuts of the sides that are ``scanned``; returns ``_laws.Law``'s ``cuts`` of target and draft."""
    # These are None for a law without filters. ``pair_stats`` is float32 [requests, width, 4].
    packing = _arguments.packing_of(call, requests) if hasattr(call, "cu_drafts") else _arguments.UNPACKED
    rows = requests * width if packing.cu_drafts is None else len(call.target) + requests * stored.bonus_given
    sides, cuts = [], []
    for searched, tensor, law, row_stats, count in (
        (scanned[0], call.target, call.target_law, pair_stats, width - stored.bonus_given),
        (scanned[1], draft, call.draft_law, pair_stats[2:], width - 1),
    ):
        if searched:
            if packing.cu_drafts is None and tensor is draft:
                count = tensor.shape[1]
            sides.append(
                Side(_arguments.rows_of(tensor, count), _arguments.law_of(law),
                call.draft_map if tensor is draft else None, scratch, row_stats)
            )  # fmt: skip
        else:
            sides.append(NO_SIDE)
        cuts.append(scratch if searched and _launch.is_filtered(law) else None)
        scratch = scratch[_laws.CUT.value * rows * searched :]
    if any(scanned):
        launch_cuts(*sides, index, stored, scratch, requests, edits if scanned[0] else _edits.OFF, packing)
    return cuts
