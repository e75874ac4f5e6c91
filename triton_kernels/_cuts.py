"""What sampling filters keep of rows: a launch before the op's own, for all rows of a tensor.

It stores the words of a cut (``_laws.keeps``) for each row, and the ``Known`` of what is kept. The op then reads rows
as if the tokens that filters drop were -inf; it has no other text about filters. The programs of a row store the
maxima of its cells; the last of them finds the cut (``_filters``). With many rows a program takes one row after the
other, so that the memory for cells and lists does not grow with their number. On AMD GPUs a ticket does not order the
stores of all waves: there a second launch finds the cuts. Races find cuts in their own launch (``_kept``).
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import Edits, place_at
from specdec_kernels.triton_kernels._filters import (
    AFTER_MIN_P,
    AFTER_TOP_K,
    BEFORE_TEMPERATURE,
    LISTED,
    Filter,
    Room,
    cell_tiles,
    cut_of,
    filter_of,
    rules_of,
)
from specdec_kernels.triton_kernels._laws import CUT, Law, clean
from specdec_kernels.triton_kernels._math import (
    GROUP,
    INFINITY,
    MASS_TILE,
    NO_TOKEN,
    NON_FINITE,
    inverse_temperature,
    log_sum_of,
    row_weight,
)
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    bounds_of,
    divisor,
    entry_of,
    is_last,
    load_tile,
    mass_items_of,
    mass_of,
    mass_tiles,
    number,
    row_at,
    share_of,
)

CELLS = tl.constexpr(1024)  # of a row, about
LOOKED_AT = tl.constexpr(1024)  # tokens at once where a cut is looked for
DRAFT_MET = tl.constexpr(NON_FINITE.value << 8)  # in a record's status: a draft row has a bad value, or no weight


@triton.jit
def is_on(filter):
    return (filter.top_k > 0) | (filter.share >= 0) | (filter.log_min_p > -INFINITY)


@triton.jit
def refers_to_row(filter, rules):
    """Whether the mass of the whole row is wanted: for top_p, or because nothing is dropped."""
    after = ((filter.top_k > 0) & (rules & AFTER_TOP_K != 0)) | (
        (filter.log_min_p > -INFINITY) & (rules & AFTER_MIN_P != 0)
    )
    return (is_on(filter) == 0) | ((filter.share >= 0) & (after == 0))


@triton.jit
def scan_row(
    row, law, filter, rules, record, scratch, split, splits, MET: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """A program's part of a row of logits: maxima of cells, and masses. MET goes to the record if a value is bad."""
    barrier()  # all warps have read what is there of another row
    first, end = share_of(tl.cdiv(row.columns, TILE), split, splits)
    if cell_tiles(row, law, first, end, scratch, CELL, TILE):
        tl.atomic_or(record + FLAGS, MET, sem="relaxed")
    if refers_to_row(filter, rules):
        mass_tiles(row, law, first, end, scratch + cells_of(row, CELL, TILE), TILE)


@triton.jit
def cells_of(row, CELL: tl.constexpr, TILE: tl.constexpr):
    return tl.cdiv(row.columns, TILE) * (TILE // CELL)


@triton.jit
def room_of(row, scratch, CELL: tl.constexpr, TILE: tl.constexpr):
    """Where the search of a row's cut has room: in the place of its masses, and behind them."""
    items = scratch + cells_of(row, CELL, TILE)
    words = items.to(tl.pointer_type(tl.int32), bitcast=True)
    begin = tl.maximum(mass_items_of(row.columns), LISTED)
    return Room(words, items + begin, words + begin + LISTED)


@triton.jit
def cut_row(
    row, law, filter, rules, scratch, COUNTS: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """What filters keep of a row that has been looked through; ``law`` says what they compare. One program calls this.

    The value and id of the last token kept, -inf and -1 without filters; how many are kept, without filters only if
    COUNTS; the sum of their weights, without filters the row's mass; the largest value. And how many tokens are listed
    in the row's room, all that are kept among them; 0 if they are not.
    """
    items = scratch + cells_of(row, CELL, TILE)
    value, token = tl.full([], -INFINITY, tl.float32), tl.full([], -1, tl.int32)
    count, mass, listed = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    at = tl.arange(0, TILES * (TILE // CELL))
    cells = tl.load(scratch + at, mask=at < cells_of(row, CELL, TILE), other=-INFINITY, cache_modifier=".cg")
    top = tl.max(cells, axis=0)
    if top > -INFINITY:
        if refers_to_row(filter, rules):
            mass, _ = mass_of(items, tl.cdiv(row.columns, MASS_TILE), TILES * max(TILE // MASS_TILE, 1))
        if is_on(filter):
            barrier()  # all warps have read the masses
            room = room_of(row, scratch, CELL, TILE)
            value, token, count, mass, listed = cut_of(
                row, law, filter, rules, cells, top, mass, room, CELL, min(LOOKED_AT, TILE)
            )
        elif COUNTS:
            for tile in range(0, tl.cdiv(row.columns, TILE)):
                x = clean(load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE), law)
                count += tl.sum(tl.sum((x > -INFINITY).to(tl.int64), axis=1), axis=0)
    return value, token, count, mass, top, listed


@triton.jit
def kept_mass(row, law, cells, value, CELL: tl.constexpr, TILE: tl.constexpr):
    """(sum of the weights, largest) of what the law's cut, at ``value``, keeps of a row."""
    mass, top = tl.full([], 0, tl.int64), tl.full([], -INFINITY, tl.float32)
    for turn in range(2):
        for tile in range(0, tl.cdiv(row.columns, TILE)):
            at = tile * (TILE // CELL) + tl.arange(0, TILE // CELL)
            if tl.max(tl.load(cells + at, cache_modifier=".cg"), axis=0) >= value:
                x = clean(load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE), law)
                if turn == 0:
                    top = tl.maximum(top, tl.max(tl.max(x, axis=1), axis=0))
                else:
                    mass += tl.sum(tl.sum(row_weight(x - top), axis=1), axis=0)
    return mass, top


class Side(NamedTuple):
    """A row's law, and where its side's rows are: the target's, or a draft's."""

    rows: tl.tensor
    request: tl.tensor  # strides
    row: tl.tensor
    vocab: tl.tensor
    draft_map: tl.tensor
    inverse: tl.tensor
    greedy: tl.tensor
    rules: tl.tensor
    cuts: tl.tensor
    known: tl.tensor


@triton.jit
def cut_one(
    side, filter, bad_number, i, j, live, entry, request_index, step, cu_drafts, tokens_by_row, total_drafts, given,
    known_row, records, records_row, flags, scratch, edits, split, splits, STAGE: tl.constexpr, DRAFT: tl.constexpr,
    ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program's part of row j of request i. The last one stores its cut: whether this is the last is returned.

    ``flags`` are the row's, or the request's. Rows of a draft (DRAFT) lie by entry, and are one fewer than the
    target's in a packed chain, but as many if the token after them is ``given``: what is stored has room for that row,
    too. They take tickets where keys will stand, since their record is the target's, too.
    """
    if cu_drafts is None:
        there, token_at, n, own_row = i >= 0, i * 0, i * step + j, j
        offset = (entry if DRAFT else i) * side.request + j * side.row
    else:
        readable, drafts, begin, first, _, token_at = bounds_of(
            i, cu_drafts, total_drafts, step.to(tl.int32) - 1, tokens_by_row
        )  # fmt: skip
        there, n = readable & (j < drafts + (0 if DRAFT else 1 - given)), first + j
        own_row = n - i * given
        if DRAFT and request_index is not None:
            offset = entry * side.request + j * side.row
        else:
            offset = (begin + j if DRAFT else own_row) * side.row
    if live & (bad_number != 0):
        tl.atomic_or(flags, bad_number, sem="relaxed")
    stored = i < 0
    if there:
        filtered = is_on(filter)
        order = tl.where(filtered & (side.rules & BEFORE_TEMPERATURE != 0), 1.0, side.inverse)
        row = Row(row_at(side.rows, offset, ALIGNED), tl.where(live, side.vocab, 0))
        place, bad_bias = place_at(edits, entry, j, i, own_row, j, token_at, live, side.vocab)
        law = Law(order, None, None, n, *place, *edits)
        record, cut = records + records_row * n, side.cuts + CUT * n
        ticket = record + (0 if DRAFT else DONE)
        MET: tl.constexpr = DRAFT_MET if DRAFT else NON_FINITE
        last = tl.full([], STAGE != "scan", tl.int1)
        rules = rules_of(side.rules, side.greedy)
        if STAGE != "cut":
            scan_row(row, law, filter, rules, record, scratch, split, splits, MET, CELL, TILE)
        if STAGE == "all":
            last = is_last(ticket, splits)
        if last:
            tl.store(ticket, 0)
            value, token, _count, mass, top, _listed = cut_row(
                row, law, filter, rules, scratch, False, CELL, TILE, TILES
            )
            weighs = top > -INFINITY
            if live & (weighs == 0):
                tl.atomic_or(record + FLAGS, MET, sem="relaxed")
            if edits.by_row is not None:  # noqa: SIM102  one is known when it is compiled
                if side.greedy & (bad_bias != 0):  # of others the walk says so
                    tl.atomic_or(record + FLAGS, bad_bias, sem="relaxed")
            cuts_off = filtered & (side.greedy == 0)
            tl.store(cut, tl.where(cuts_off, value, -INFINITY))
            tl.store(cut + 1, tl.where(cuts_off, token, NO_TOKEN).to(tl.float32, bitcast=True))
            tl.store(cut + 2, order)
            log_sum = 0.0
            if side.greedy:
                if side.draft_map is not None:
                    token = tl.load(side.draft_map + token, mask=token >= 0, other=-1)
                top = token.to(tl.float32, bitcast=True)
            else:
                if filtered & (order != side.inverse):
                    barrier()  # the cut is stored
                    kept_law = Law(side.inverse, None, side.cuts, n, *place, *edits)
                    mass, top = kept_mass(row, kept_law, scratch, value, CELL, min(LOOKED_AT, TILE))
                top, log_sum = tl.where(weighs, top, 0.0), tl.where(weighs, log_sum_of(mass), INFINITY)
            tl.store(side.known + known_row * n, top)
            tl.store(side.known + known_row * n + 1, log_sum)
        stored = last
    return stored


@_launch.kernel
def cuts_kernel(
    target, target_request: tl.int64, target_row: tl.int64, requests: tl.int32, rows: tl.int32, step: tl.int64,
    vocab: tl.int32, cu_drafts, tokens_by_row: tl.int32, total_drafts: tl.int64, given: tl.int32, draft_map,
    request_index, entries: tl.int64, tokens, tokens_request: tl.int64, tokens_row: tl.int64,
    temperature, temperature_request: tl.int64, temperature_row: tl.int64, temperature_value: tl.float32,
    top_k, top_k_request: tl.int64, top_k_row: tl.int64, top_k_value: tl.int64,
    top_p, top_p_request: tl.int64, top_p_row: tl.int64, top_p_value: tl.float32,
    min_p, min_p_request: tl.int64, min_p_row: tl.int64, min_p_value: tl.float32, rules: tl.int32, cuts, known,
    draft, draft_request: tl.int64, draft_row: tl.int64, draft_rows: tl.int32, draft_vocab: tl.int32,
    draft_temperature, draft_temperature_request: tl.int64, draft_temperature_row: tl.int64,
    draft_temperature_value: tl.float32,
    draft_top_k, draft_top_k_request: tl.int64, draft_top_k_row: tl.int64, draft_top_k_value: tl.int64,
    draft_top_p, draft_top_p_request: tl.int64, draft_top_p_row: tl.int64, draft_top_p_value: tl.float32,
    draft_min_p, draft_min_p_request: tl.int64, draft_min_p_row: tl.int64, draft_min_p_value: tl.float32,
    draft_rules: tl.int32, draft_cuts, draft_known,
    known_row: tl.int64, records, records_row: tl.int64, flags, flags_request: tl.int64, flags_row: tl.int64,
    scratch, scratch_row: tl.int64, edits,
    STAGE: tl.constexpr, ALIGNED: tl.constexpr, CELL: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """``rows`` rows of a request of the target, then ``draft_rows`` of the draft; either may be None.

    What is stored lies ``step`` rows further for the next request, or is packed like a chain's. Where ``tokens`` has a
    -1 for a row, nobody asks for it. A program has memory for one row at a time.
    """
    scratch += scratch_row * tl.program_id(0).to(tl.int64)
    of_target = requests * rows
    for each in range(tl.program_id(0), of_target + requests * draft_rows, tl.num_programs(0)):
        if target is not None:  # noqa: SIM102  one is known when it is compiled
            if each < of_target:
                i, j = tl.cast(each, tl.int64) // rows, tl.cast(each, tl.int64) % rows
                entry, live, _ = entry_of(i, request_index, entries)
                if tokens is not None:
                    live = live & (tl.load(tokens + i * tokens_request + j * tokens_row) != -1)
                inverse, greedy, _ = inverse_temperature(
                    divisor(temperature, temperature_value, entry * temperature_request + j * temperature_row, live)
                )
                k, share, log_min_p, bad = filter_of(
                    number(top_k, top_k_value, entry * top_k_request + j * top_k_row, live),
                    number(top_p, top_p_value, entry * top_p_request + j * top_p_row, live),
                    number(min_p, min_p_value, entry * min_p_request + j * min_p_row, live), vocab, greedy,
                )  # fmt: skip
                side = Side(target, target_request, target_row, vocab, None, inverse, greedy, rules, cuts, known)
                cut_one(
                    side, Filter(k, share, log_min_p), bad, i, j, live, entry, request_index, step, cu_drafts,
                    tokens_by_row, total_drafts, given, known_row, records, records_row,
                    flags + i * flags_request + j * flags_row, scratch, edits, tl.program_id(1), tl.num_programs(1),
                    STAGE, False, ALIGNED, CELL, TILE, TILES,
                )  # fmt: skip
        if draft is not None:  # noqa: SIM102
            if each >= of_target:
                at = tl.cast(each - of_target, tl.int64)
                i, j = at // draft_rows, at % draft_rows
                entry, live, _ = entry_of(i, request_index, entries)
                at = entry * draft_temperature_request + j * draft_temperature_row
                inverse, greedy, _ = inverse_temperature(divisor(draft_temperature, draft_temperature_value, at, live))
                k, share, log_min_p, bad = filter_of(
                    number(draft_top_k, draft_top_k_value, entry * draft_top_k_request + j * draft_top_k_row, live),
                    number(draft_top_p, draft_top_p_value, entry * draft_top_p_request + j * draft_top_p_row, live),
                    number(draft_min_p, draft_min_p_value, entry * draft_min_p_request + j * draft_min_p_row, live),
                    draft_vocab, greedy,
                )  # fmt: skip
                side = Side(
                    draft, draft_request, draft_row, draft_vocab, draft_map, inverse, greedy, draft_rules, draft_cuts,
                    draft_known,
                )  # fmt: skip
                cut_one(
                    side, Filter(k, share, log_min_p), bad, i, j, live, entry, request_index, step, cu_drafts,
                    tokens_by_row, total_drafts, given, known_row, records, records_row,
                    flags + i * flags_request + j * flags_row, scratch, Edits(), tl.program_id(1), tl.num_programs(1),
                    STAGE, True, ALIGNED, CELL, TILE, TILES,
                )  # fmt: skip


def most_registers(arguments):
    """A limit for kernels that find cuts: three programs of 128 threads fit. Spills are where a row's cut is found."""
    return 168


cuts_kernel.most_registers = most_registers


class Places(NamedTuple):
    """Where the kernel stores: tensors, and how many words of each a row has (of ``flags`` also a request)."""

    known_row: int
    records: torch.Tensor
    records_row: int
    flags: torch.Tensor
    flags_request: int
    flags_row: int


def cell_of(tile, tiles):
    """Tokens of a cell. A tile has whole cells, and a row some ``CELLS`` of them."""
    return min(tile, max(GROUP.value, tile * _launch.power_of_2(tiles) // CELLS.value))


@functools.cache
def search_words_of(vocab):
    """float32 words of memory in which a program finds a cut: cells; masses, or which cells are open; the list."""
    cells = 0
    for edited in (False, True):
        tile, tiles, _ = _launch.tile_of(vocab, edited)
        cells = max(cells, tiles * (tile // cell_of(tile, tiles)))
    return cells + max(_launch.mass_items_of(vocab) // 2, LISTED.value) + 2 * LISTED.value


def groups_of(rows, device):
    """Groups of programs, with memory for a row each: one for every row, or four on a multiprocessor, at most 256.

    More rows are taken in turn, if one launch does it all.
    """
    if not _launch.TICKETS_ORDER_STORES:
        return rows
    return max(1, min(rows, 256, 4 * _launch.multiprocessors(device)))


def search_of(rows, vocab, device):
    """float32 words of memory in which the cuts of so many rows are found."""
    return search_words_of(vocab) * groups_of(rows, device)


def words_of(vocab, rows, device, scanned):
    """float32 words of scratch memory for the cuts of so many rows of each side that is ``scanned_sides``."""
    count = rows * sum(scanned)
    return CUT.value * count + search_of(count, vocab, device) if count else 0


def side_of(name, rows, law, known, cuts):
    """The arguments of rows [requests, count, V], packed [D, V], or None, as the kernel's ``target`` or ``draft``."""
    own = "" if name == "target" else "draft_"
    law = None if rows is None else law
    return {
        name: rows, f"{name}_request": rows.stride(0) if rows is not None and rows.ndim == 3 else 0,
        f"{name}_row": 0 if rows is None else rows.stride(-2), f"{own}vocab": 0 if rows is None else rows.shape[-1],
        f"{own}rules": 0 if rows is None else law.rules, f"{own}cuts": cuts, f"{own}known": known,
        **_launch.divisor(own + "temperature", law, "request", "row"),
        **_launch.filters(law, "request", "row", own=own),
    }  # fmt: skip


def launch_cuts(
    target, draft, counts, index, places, scratch, requests, width, edits=_edits.OFF, draft_map=None, cu_drafts=None,
    tokens_by_row=0, stored=0, tokens=None, given=0,
):  # fmt: skip
    """Launches the kernel. ``target`` and ``draft`` are (rows, law, known, cuts), or None; cuts have CUT words a row.

    ``counts`` are the rows of a request in each. ``width`` is how many rows a request has where things are stored,
    ``stored`` how many there are, if not as many for each. ``given`` is 1 where chains have no row after their last
    draft. ``scratch`` has ``search_of`` words.
    """
    counts = [count * (side is not None) for count, side in zip(counts, (target, draft), strict=True)]
    rows = [side[0] for side in (target, draft) if side is not None]
    if requests * sum(counts) == 0:
        return
    vocab = max(x.shape[-1] for x in rows)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    nothing = None, None, None, None
    arguments = dict(
        **side_of("target", *target or nothing), **side_of("draft", *draft or nothing), requests=requests,
        rows=counts[0], draft_rows=counts[1], step=width, cu_drafts=cu_drafts, tokens_by_row=tokens_by_row,
        total_drafts=stored - requests, given=given,
        draft_map=draft_map, **index, tokens=tokens, tokens_request=0 if tokens is None else tokens.stride(0),
        tokens_row=0 if tokens is None else tokens.stride(1), **places._asdict(), **edits,
        scratch=scratch, scratch_row=search_words_of(vocab),
        ALIGNED=_launch.aligned(*rows), CELL=cell_of(tile, tiles), TILE=tile, TILES=_launch.power_of_2(tiles),
    )  # fmt: skip
    launch_search(cuts_kernel, requests * sum(counts), tiles, warps, rows[0].device, arguments)


def launch_search(kernel, rows, tiles, warps, device, arguments):
    """Launches a kernel that looks through rows and finds their cuts."""
    groups = groups_of(rows, device)
    splits = _launch.splits_of(rows, tiles, device) if groups == rows else 1
    if _launch.TICKETS_ORDER_STORES:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "all"})
    else:
        _launch.launch(kernel, (groups, splits), warps, arguments | {"STAGE": "scan"})
        _launch.launch(kernel, (groups,), warps, arguments | {"STAGE": "cut"})


NO_CUTS = {"target_cuts": None, "draft_cuts": None}


def launch_pair(
    call, draft, scanned, index, edits, figures, records, records_row, flags, flags_steps, scratch, requests, width
):  # fmt: skip
    """The arguments ``target_cuts`` and ``draft_cuts`` of an op on rows of a target and of a draft, or of no draft.

    None for a law without filters. ``scanned`` says which sides are ``scanned_sides``. ``figures`` has four words for
    each of the ``width`` rows of a request: what probabilities need of these.
    """
    cu_drafts, tokens_by_row = getattr(call, "cu_drafts", None), int(getattr(call, "tokens_by_row", False))
    given = int(getattr(call, "bonus", None) is not None)
    stored = requests * width if cu_drafts is None else len(call.target) + requests * given
    sides, found = [], []
    for here, rows, law, known in (
        (scanned[0], call.target, call.target_law, figures),
        (scanned[1], draft, call.draft_law, figures[2:]),
    ):
        sides.append((rows, law, known, scratch) if here else None)
        found.append(scratch if here and _launch.is_filtered(law) else None)
        scratch = scratch[CUT.value * stored * here :]
    if any(scanned):
        counts = width - given, 0 if draft is None else draft.shape[1] if cu_drafts is None else width - 1
        launch_cuts(
            *sides, counts, index, Places(4, records, records_row, flags, *flags_steps), scratch, requests, width,
            edits if scanned[0] else _edits.OFF, call.draft_map, cu_drafts, tokens_by_row, stored, given=given,
        )  # fmt: skip
    return dict(zip(NO_CUTS, found, strict=True))
