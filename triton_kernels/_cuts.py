"""What sampling filters keep of rows: a launch before the op's own, for all rows of a tensor.

It stores the words of a cut (``_laws.keeps``) for each row, and the ``Known`` of what is kept. The op then reads rows
as if the tokens that filters drop were -inf; it has no other text about filters. The programs of a row store the
maxima of its cells; the last of them finds the cut (``_filters``). With many rows a program takes one row after the
other, so that the memory for cells and lists does not grow with their number. On AMD GPUs a ticket does not order the
stores of all waves: there a second launch finds the cuts. Races find cuts in their own launch (``_kept``).
"""

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _filters, _launch, _laws, _math, _rows

CELLS = tl.constexpr(1024)  # of a row, about
LOOKED_AT = tl.constexpr(1024)  # tokens at once where a cut is looked for
DRAFT_MET = tl.constexpr(_math.NON_FINITE.value << 8)  # in a record's status: a draft row has a bad value, or no weight


class Search(NamedTuple):
    """Where cuts are kept, and memory in which they are found: so many words for each row that is looked through."""

    cuts: tl.tensor
    scratch: tl.tensor
    words: int


class Tiling(NamedTuple):
    """Tokens of a cell and of a tile, tiles of a row (a power of 2), whether rows start on multiples of 16."""

    CELL: tl.constexpr
    TILE: tl.constexpr
    TILES: tl.constexpr
    ALIGNED: tl.constexpr


class Side(NamedTuple):
    """Rows of a target or of a draft: their law, and where cuts and what is known of them go."""

    rows: _arguments.Rows
    law: _arguments.Law
    map: tl.tensor
    cuts: tl.tensor
    known: tl.tensor


class Stored(NamedTuple):
    """Where things are stored of row j of request i: at i ``step`` + j, or packed like a chain's.

    ``known`` and ``records`` have so many words a row, ``flags`` steps for requests and rows. ``given`` is 1 where
    chains have no row after their last draft.
    """

    step: int
    known_row: int
    records: tl.tensor
    records_row: int
    flags: _arguments.Steps
    given: int


@triton.jit
def is_on(filter):
    return (filter.top_k > 0) | (filter.share >= 0) | (filter.log_min_p > -_math.INFINITY)


@triton.jit
def refers_to_row(filter):
    """Whether the mass of the whole row is wanted: for top_p, or because nothing is dropped."""
    after = ((filter.top_k > 0) & ((filter.rules & _filters.AFTER_TOP_K) != 0)) | (
        (filter.log_min_p > -_math.INFINITY) & ((filter.rules & _filters.AFTER_MIN_P) != 0)
    )
    return (is_on(filter) == 0) | ((filter.share >= 0) & (after == 0))


@triton.jit
def scan_row(row, filter, record, scratch, split, splits, MET: tl.constexpr, tiling):
    """A program's part of a row of logits: maxima of cells, and masses. MET goes to the record if a value is bad."""
    _rows.barrier()  # all warps have read what is there of another row
    first, end = _rows.share_of(tl.cdiv(row.columns, tiling.TILE), split, splits)
    if _filters.cell_tiles(row, first, end, scratch, tiling.CELL, tiling.TILE):
        tl.atomic_or(record + _rows.FLAGS, MET, sem="relaxed")
    if refers_to_row(filter):
        _rows.mass_tiles(row, first, end, scratch + cells_of(row, tiling), tiling.TILE)


@triton.jit
def cells_of(row, tiling):
    return tl.cdiv(row.columns, tiling.TILE) * (tiling.TILE // tiling.CELL)


@triton.jit
def room_of(row, scratch, tiling):
    """Where the search of a row's cut has room: in the place of its masses, and behind them."""
    items = scratch + cells_of(row, tiling)
    words = items.to(tl.pointer_type(tl.int32), bitcast=True)
    begin = tl.maximum(_rows.mass_items_of(row.columns), _filters.LISTED)
    return _filters.Room(words, items + begin, words + begin + _filters.LISTED)


@triton.jit
def cut_row(row, filter, scratch, COUNTS: tl.constexpr, tiling):
    """The ``Cut`` of a row that has been looked through; its law says what filters compare. One program calls this."""
    # Without filters the last value and id are -inf and -1, how many is counted only if COUNTS, and the sum is the
    # row's mass.
    TILE: tl.constexpr = tiling.TILE
    PART: tl.constexpr = min(LOOKED_AT, TILE)
    items = scratch + cells_of(row, tiling)
    value, token = tl.full([], -_math.INFINITY, tl.float32), tl.full([], -1, tl.int32)
    count, mass, listed = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    at = tl.arange(0, tiling.TILES * (TILE // tiling.CELL))
    cells = tl.load(scratch + at, mask=at < cells_of(row, tiling), other=-_math.INFINITY, cache_modifier=".cg")
    top = tl.max(cells, axis=0)
    if top > -_math.INFINITY:
        if refers_to_row(filter):
            ITEMS: tl.constexpr = tiling.TILES * max(TILE // _math.MASS_TILE, 1)
            mass, _ = _rows.mass_of(items, tl.cdiv(row.columns, _math.MASS_TILE), ITEMS)
        if is_on(filter):
            _rows.barrier()  # all warps have read the masses
            cut = _filters.cut_of(row, filter, cells, top, mass, room_of(row, scratch, tiling), tiling.CELL, PART)
            value, token, count, mass, listed = cut.value, cut.token, cut.count, cut.mass, cut.listed
        elif COUNTS:
            for tile in range(0, tl.cdiv(row.columns, TILE)):
                x = _laws.clean(_rows.load_tile(row, tl.cast(tile, tl.int32) * TILE, TILE), row.law)
                count += tl.sum(tl.sum((x > -_math.INFINITY).to(tl.int64), axis=1), axis=0)
    return _filters.Cut(value, token, count, mass, listed, top)


@triton.jit
def kept_mass(row, cells, value, CELL: tl.constexpr, TILE: tl.constexpr):
    """(sum of the weights, largest) of what the law's cut, at ``value``, keeps of a row."""
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
    side, heat, filter, at, index, packing, stored, edits, scratch, split, splits, STAGE: tl.constexpr,
    DRAFT: tl.constexpr, tiling,
):  # fmt: skip
    """A program's part of the row ``at``. The last one stores its cut: whether this is the last is returned."""
    # Rows of a draft (DRAFT) lie by entry, and are one fewer than the target's in a packed chain, but as many if the
    # token after them is given: what is stored has room for that row, too. They take tickets where keys will stand,
    # since their record is the target's, too. ``heat`` is (1 / T, whether T is 0).
    i, j, live = at.i, at.j, at.live
    if packing.cu_drafts is None:
        there, token_at, n, own_row = i >= 0, i * 0, i * stored.step + j, j
        offset = (at.entry if DRAFT else i) * side.rows.outer + j * side.rows.inner
    else:
        packed = _arguments.packed_of(packing, i, tl.cast(stored.step, tl.int32) - 1)
        token_at = packed.first_token
        there, n = packed.readable & (j < packed.drafts + (0 if DRAFT else 1 - stored.given)), packed.first_row + j
        own_row = n - i * stored.given
        if DRAFT and index.data is not None:
            offset = at.entry * side.rows.outer + j * side.rows.inner
        else:
            offset = (packed.first_draft + j if DRAFT else own_row) * side.rows.inner
    is_last = i < 0
    if there:
        filtered = is_on(filter)
        inverse, greedy = heat
        order = tl.where(filtered & ((filter.rules & _filters.BEFORE_TEMPERATURE) != 0), 1.0, inverse)
        start, columns = _rows.row_at(side.rows.rows, offset, tiling.ALIGNED), tl.where(live, side.rows.vocab, 0)
        place, bad_bias = _edits.place_at(edits, at.entry, j, i, own_row, j, token_at, live, side.rows.vocab)
        row = _laws.Row(start, columns, _laws.Law(order, None, None, n, edits.by_row, place, edits))
        record, words = stored.records + stored.records_row * n, side.cuts + _laws.CUT * n
        ticket = record + (0 if DRAFT else _rows.DONE)
        MET: tl.constexpr = DRAFT_MET if DRAFT else _math.NON_FINITE
        is_last = tl.full([], STAGE != "scan", tl.int1)
        if STAGE != "cut":
            scan_row(row, filter, record, scratch, split, splits, MET, tiling)
        if STAGE == "all":
            is_last = _rows.is_last(ticket, splits)
        if is_last:
            tl.store(ticket, 0)
            cut = cut_row(row, filter, scratch, False, tiling)
            weighs = cut.top > -_math.INFINITY
            if live & (weighs == 0):
                tl.atomic_or(record + _rows.FLAGS, MET, sem="relaxed")
            if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                if greedy & (bad_bias != 0):  # of others the walk says so
                    tl.atomic_or(record + _rows.FLAGS, bad_bias, sem="relaxed")
            cuts_off = filtered & (greedy == 0)
            tl.store(words, tl.where(cuts_off, cut.value, -_math.INFINITY))
            tl.store(words + 1, tl.where(cuts_off, cut.token, _math.NO_TOKEN).to(tl.float32, bitcast=True))
            tl.store(words + 2, order)
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
                    law = _laws.Law(inverse, None, side.cuts, n, edits.by_row, place, edits)
                    PART: tl.constexpr = min(LOOKED_AT, tiling.TILE)
                    mass, top = kept_mass(_laws.Row(start, columns, law), scratch, cut.value, tiling.CELL, PART)
                top = tl.where(weighs, top, 0.0)
                log_sum = tl.where(weighs, _math.log_sum_of(mass), _math.INFINITY)
            tl.store(side.known + stored.known_row * n, top)
            tl.store(side.known + stored.known_row * n + 1, log_sum)
    return is_last


@triton.jit
def cut_side(
    side, each, index, packing, asked, stored, edits, scratch, STAGE: tl.constexpr, DRAFT: tl.constexpr, tiling
):
    """A program's part of one of the rows of a side. Where ``asked`` has a -1 for a row, nobody asks for it."""
    at = _arguments.row_of(side.rows, index, tl.cast(each, tl.int64))
    live = at.live
    if asked.data is not None:
        live = live & (tl.load(_arguments.at(asked, at.i, at.j)) != -1)
    at = _arguments.At(at.i, at.j, at.entry, live, at.idle)
    inverse, greedy, _ = _arguments.heat_of(side.law.temperature, at.entry, at.j, live)
    filter, bad = _filters.filter_of(side.law, at.entry, at.j, live, side.rows.vocab, greedy)
    if live & (bad != 0):
        tl.atomic_or(_arguments.at(stored.flags, at.i, at.j), bad, sem="relaxed")
    cut_one(
        side, (inverse, greedy), _filters.without_ties(filter, greedy), at, index, packing, stored, edits, scratch,
        tl.program_id(1), tl.num_programs(1), STAGE, DRAFT, tiling,
    )  # fmt: skip


@_launch.kernel
def cuts_kernel(
    target: Side, draft: Side, of_target: tl.int32, of_draft: tl.int32, index: _arguments.Index,
    packing: _arguments.Packing, asked: _arguments.Steps, stored: Stored, search: Search, edits: _edits.LogitEdits,
    no_edits: _edits.LogitEdits, tiling: Tiling, STAGE: tl.constexpr,
):  # fmt: skip
    """``of_target`` rows of the target, then ``of_draft`` of the draft; a side may be absent."""
    # A program has memory for one row at a time.
    scratch = search.scratch + search.words * tl.program_id(0).to(tl.int64)
    for each in range(tl.program_id(0), of_target + of_draft, tl.num_programs(0)):
        if target.rows.rows is not None:  # noqa: SIM102  one is known when it is compiled
            if each < of_target:
                cut_side(target, each, index, packing, asked, stored, edits, scratch, STAGE, False, tiling)
        if draft.rows.rows is not None:  # noqa: SIM102
            if each >= of_target:
                cut_side(
                    draft, each - of_target, index, packing, _arguments.Steps(), stored, no_edits, scratch, STAGE, True,
                    tiling,
                )  # fmt: skip


def most_registers(arguments):
    """A limit for kernels that find cuts: three programs of 128 threads fit. Spills are where a row's cut is found."""
    return 168


cuts_kernel.most_registers = most_registers


# Host side


def cell_of(tile, tiles):
    """Tokens of a cell. A tile has whole cells, and a row some ``CELLS`` of them."""
    return min(tile, max(_math.GROUP.value, tile * _launch.power_of_2(tiles) // CELLS.value))


def tiling_of(tile, tiles, aligned):
    return _launch.constants(Tiling, cell_of(tile, tiles), tile, _launch.power_of_2(tiles), aligned)


@functools.cache
def search_words_of(vocab):
    """float32 words of memory in which a program finds a cut: cells; masses, or which cells are open; the list."""
    cells = 0
    for edited in (False, True):
        tile, tiles, _ = _launch.tile_of(vocab, edited)
        cells = max(cells, tiles * (tile // cell_of(tile, tiles)))
    return cells + max(_launch.mass_items_of(vocab) // 2, _filters.LISTED.value) + 2 * _filters.LISTED.value


def groups_of(rows, device):
    """Groups of programs, with memory for a row each: one for every row, or four on a multiprocessor, at most 256."""
    # More rows are taken in turn, if one launch does it all.
    if not _launch.TICKETS_ORDER_STORES:
        return rows
    return max(1, min(rows, 256, 4 * _launch.multiprocessors(device)))


def search_of(rows, vocab, device):
    """float32 words of memory in which the cuts of so many rows are found."""
    return search_words_of(vocab) * groups_of(rows, device)


def words_of(vocab, rows, device, scanned):
    """float32 words of scratch memory for the cuts of so many rows of each side that is ``scanned_sides``."""
    count = rows * sum(scanned)
    return _laws.CUT.value * count + search_of(count, vocab, device) if count else 0


NO_SIDE = Side(_arguments.NO_ROWS, _arguments.NO_LAW, None, None, None)


def launch_cuts(
    target, draft, index, stored, scratch, requests, edits=_edits.OFF, packing=_arguments.UNPACKED,
    asked=_arguments.NO_STEPS,
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
        target=target, draft=draft, of_target=counts[0], of_draft=counts[1], index=index, packing=packing, asked=asked,
        stored=stored, search=Search(None, scratch, search_words_of(vocab)), **edits, no_edits=_edits.LogitEdits.OFF,
        tiling=tiling_of(tile, tiles, _launch.aligned(*tensors)),
    )  # fmt: skip
    launch_search(cuts_kernel, sum(counts), tiles, warps, tensors[0].device, arguments)


def launch_search(kernel, rows, tiles, warps, device, arguments):
    """Launches a kernel that looks through rows and finds their cuts."""
    groups = groups_of(rows, device)
    splits = _launch.splits_of(rows, tiles, device) if groups == rows else 1
    if _launch.TICKETS_ORDER_STORES:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "all"})
    else:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "scan"})
        _launch.launch(kernel, (groups,), warps, arguments | {"STAGE": "cut"})


def launch_pair(call, draft, scanned, index, edits, figures, stored, scratch, requests, width):
    """The cuts of an op's rows of a target and of a draft, or of no draft: what ``_laws.Law`` has of each side."""
    # None for a law without filters. ``scanned`` says which sides are ``scanned_sides``. ``figures`` has four words for
    # each of the ``width`` rows of a request: what probabilities need of these.
    packing = _arguments.packing_of(call, requests) if hasattr(call, "cu_drafts") else _arguments.UNPACKED
    rows = requests * width if packing.cu_drafts is None else len(call.target) + requests * stored.given
    sides, cuts = [], []
    for here, own, law, known, count in (
        (scanned[0], call.target, call.target_law, figures, width - stored.given),
        (scanned[1], draft, call.draft_law, figures[2:], width - 1),
    ):
        if here:
            if packing.cu_drafts is None and own is draft:
                count = own.shape[1]
            sides.append(
                Side(_arguments.rows_of(own, count), _arguments.law_of(law), call.draft_map if own is draft else None,
                scratch, known)
            )  # fmt: skip
        else:
            sides.append(NO_SIDE)
        cuts.append(scratch if here and _launch.is_filtered(law) else None)
        scratch = scratch[_laws.CUT.value * rows * here :]
    if any(scanned):
        launch_cuts(*sides, index, stored, scratch, requests, edits if scanned[0] else _edits.OFF, packing)
    return cuts
