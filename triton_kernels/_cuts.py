"""What sampling filters keep of rows: two launches before the op's own, for all rows of a tensor.

They store the words of a cut (``_laws.keeps``) for each row, and the ``Known`` of what is kept. The op then reads rows
as if the tokens that filters drop were -inf; it has no other text about filters. In the first launch programs share a
row. In the next one a program finds the row's cut from the maxima of cells: in a list of at most 2,048 tokens where few
cells are open, else by going over the row once for each bit of a key. There is no ticket in place of the next launch,
for on gfx942 the barrier before a ticket does not wait for the stores of other waves.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at
from specdec_kernels.triton_kernels._filters import (
    AFTER_MIN_P,
    AFTER_TOP_K,
    BEFORE_TEMPERATURE,
    LISTED,
    LOWEST,
    Filter,
    Tokens,
    cell_tiles,
    cut_of,
    filter_of,
    measured,
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
    FLAGS,
    Row,
    barrier,
    bounds_of,
    entry_of,
    load_tile,
    mass_items_of,
    mass_of,
    mass_tiles,
    number,
    row_at,
    share_of,
)

LOOKED_AT = tl.constexpr(1024)  # tokens at once where a cut is looked for
DRAFT_MET = tl.constexpr(NON_FINITE.value << 8)  # in a record's status: a draft row has a bad value, or no weight


@triton.jit
def is_on(filter):
    return (filter.top_k > 0) | (filter.share >= 0) | (filter.log_min_p > -INFINITY)


@triton.jit
def cut_row(
    row, law, filter, rules, record, scratch, split, splits, STAGE: tl.constexpr, MET: tl.constexpr,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A part of a row of logits is looked at (STAGE ``scan``), or its cut is found by one program (``cut``).

    ``law`` says what filters compare. MET goes to the record's status if a value is bad. Returns what is found: the
    value and id of the last token kept, -inf and -1 without filters; how many are kept; the sum of their weights,
    without filters the row's mass; the largest value.
    """
    top_k, share, log_min_p = filter
    filtered = is_on(filter)
    after = ((top_k > 0) & (rules & AFTER_TOP_K != 0)) | ((log_min_p > -INFINITY) & (rules & AFTER_MIN_P != 0))
    weighed = (filtered == 0) | ((share >= 0) & (after == 0))
    tiles = tl.cdiv(row.columns, TILE)
    items = scratch + tiles * (TILE // GROUP)
    value, token = tl.full([], -INFINITY, tl.float32), tl.full([], -1, tl.int32)
    count, mass, top = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64), tl.full([], -INFINITY, tl.float32)
    if STAGE == "scan":
        first, end = share_of(tiles, split, splits)
        if cell_tiles(row, law, first, end, scratch, TILE):
            tl.atomic_or(record + FLAGS, MET, sem="relaxed")
        if weighed:
            mass_tiles(row, law, first, end, items, TILE)
    else:
        ITEMS: tl.constexpr = TILES * (TILE // MASS_TILE if TILE > MASS_TILE else 1)
        CELLS: tl.constexpr = TILES * (TILE // GROUP)
        PART: tl.constexpr = min(LOOKED_AT, TILE)
        at = tl.arange(0, CELLS)
        tops = tl.load(scratch + at, mask=at < tiles * (TILE // GROUP), other=-INFINITY, cache_modifier=".cg")
        top = tl.max(tops, axis=0)
        if top > -INFINITY:
            whole = tl.full([], 0, tl.int64)
            if weighed:
                whole, _ = mass_of(items, tl.cdiv(row.columns, MASS_TILE), ITEMS)
            values = items + mass_items_of(row.columns)
            ids = (values + LISTED).to(tl.pointer_type(tl.int32), bitcast=True)
            if filtered:
                value, token, count, mass = cut_of(
                    row, law, filter, rules, scratch, top, whole, values, ids, PART, CELLS
                )
            else:
                count, _ = measured(Tokens(row, law, scratch, top, values, 0), tl.full([], LOWEST, tl.uint32), PART)
                mass = whole
    return value, token, count, mass, top


@triton.jit
def kept_mass(row, law, cells, value, TILE: tl.constexpr):
    """(sum of the weights, largest) of what the law's cut, at ``value``, keeps of a row."""
    CELLS: tl.constexpr = TILE // GROUP
    mass, top = tl.full([], 0, tl.int64), tl.full([], -INFINITY, tl.float32)
    for turn in range(2):
        for tile in range(0, tl.cdiv(row.columns, TILE)):
            tops = tl.load(cells + tile * CELLS + tl.arange(0, CELLS), cache_modifier=".cg")
            if tl.max(tops, axis=0) >= value:
                x = clean(load_tile(row, law, tl.cast(tile, tl.int32) * TILE, TILE), law)
                if turn == 0:
                    top = tl.maximum(top, tl.max(tl.max(x, axis=1), axis=0))
                else:
                    mass += tl.sum(tl.sum(row_weight(x - top), axis=1), axis=0)
    return mass, top


@_launch.kernel
def cuts_kernel(
    target, target_request: tl.int64, target_row: tl.int64, rows: tl.int32, step: tl.int64, vocab: tl.int32,
    cu_drafts, total_drafts: tl.int64, draft_map, request_index, entries: tl.int64,
    tokens, tokens_request: tl.int64, tokens_row: tl.int64,
    temperature, temperature_request: tl.int64, temperature_row: tl.int64, temperature_value: tl.float32,
    top_k, top_k_request: tl.int64, top_k_row: tl.int64, top_k_value: tl.int64,
    top_p, top_p_request: tl.int64, top_p_row: tl.int64, top_p_value: tl.float32,
    min_p, min_p_request: tl.int64, min_p_row: tl.int64, min_p_value: tl.float32, rules: tl.int32,
    cuts, known, known_row: tl.int64, records, records_row: tl.int64, flags, flags_request: tl.int64,
    flags_row: tl.int64, scratch, scratch_row: tl.int64, edits,
    STAGE: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """``rows`` rows of a request; what is stored lies ``step`` rows further for the next, or is packed like a chain's.

    Rows of a draft (DRAFT) lie by entry, and are one fewer than the target's in a packed chain. Where ``tokens`` has a
    -1 for a row, nobody asks for it.
    """
    program = tl.program_id(0).to(tl.int64)
    i, j = program // rows, program % rows
    entry, live, _ = entry_of(i, request_index, entries)
    if cu_drafts is None:
        n = i * step + j
        offset = (entry if DRAFT else i) * target_request + j * target_row
    else:
        readable, drafts, begin, first, _ = bounds_of(i, cu_drafts, total_drafts, step.to(tl.int32) - 1)
        n = first + j
        offset = (begin + j if DRAFT else n) * target_row
    if tokens is not None:
        live = live & (tl.load(tokens + i * tokens_request + j * tokens_row) != -1)
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, entry * temperature_request + j * temperature_row, live)
    )
    k, share, log_min_p, bad_number = filter_of(
        number(top_k, top_k_value, entry * top_k_request + j * top_k_row, live),
        number(top_p, top_p_value, entry * top_p_request + j * top_p_row, live),
        number(min_p, min_p_value, entry * min_p_request + j * min_p_row, live), vocab, greedy,
    )  # fmt: skip
    if live & (bad_number != 0):
        tl.atomic_or(flags + i * flags_request + j * flags_row, bad_number, sem="relaxed")
    if cu_drafts is not None:  # noqa: SIM102  one is known when it is compiled
        if (readable & (j < drafts + (0 if DRAFT else 1))) == 0:  # there is no such row
            return
    filter = Filter(k, share, log_min_p)
    filtered = is_on(filter)
    order = tl.where(filtered & (rules & BEFORE_TEMPERATURE != 0), 1.0, inverse)
    row = Row(row_at(target, offset, ALIGNED), tl.where(live, vocab, 0))
    if cu_drafts is None:
        place, _bad_bias = place_at(edits, entry, j, i, j, j, 0, live, vocab)
    else:
        place, _bad_bias = place_at(edits, entry, j, i, n, j, begin, live, vocab)
    record, cut = records + records_row * n, cuts + CUT * n
    MET: tl.constexpr = DRAFT_MET if DRAFT else NON_FINITE
    scratch += scratch_row * n
    value, token, _count, mass, top = cut_row(
        row, Law(order, None, None, n, *place, *edits), filter, rules, record, scratch, tl.program_id(1),
        tl.num_programs(1), STAGE, MET, TILE, TILES,
    )  # fmt: skip
    if STAGE == "cut":
        weighs = top > -INFINITY
        if live & (weighs == 0):
            tl.atomic_or(record + FLAGS, MET, sem="relaxed")
        cuts_off = filtered & (greedy == 0)
        tl.store(cut, tl.where(cuts_off, value, -INFINITY))
        tl.store(cut + 1, tl.where(cuts_off, token, NO_TOKEN).to(tl.float32, bitcast=True))
        tl.store(cut + 2, order)
        log_sum = 0.0
        if greedy:
            if draft_map is not None:
                token = tl.load(draft_map + token, mask=token >= 0, other=-1)
            top = token.to(tl.float32, bitcast=True)
        else:
            if filtered & (order != inverse):
                barrier()  # the cut is stored
                kept_law = Law(inverse, None, cuts, n, *place, *edits)
                mass, top = kept_mass(row, kept_law, scratch, value, min(LOOKED_AT, TILE))
            top, log_sum = tl.where(weighs, top, 0.0), tl.where(weighs, log_sum_of(mass), INFINITY)
        tl.store(known + known_row * n, top)
        tl.store(known + known_row * n + 1, log_sum)


class Places(NamedTuple):
    """Where the kernel stores: tensors, and how many words of each a row has (of ``flags`` also a request)."""

    known: torch.Tensor
    known_row: int
    records: torch.Tensor
    records_row: int
    flags: torch.Tensor
    flags_request: int
    flags_row: int


def search_words_of(vocab):
    """float32 words of scratch memory in which the cut of a row is found."""
    tile, tiles, _ = _launch.tile_of(vocab)
    return tiles * tile // GROUP.value + _launch.mass_items_of(vocab) // 2 + 2 * LISTED.value


def words_of(vocab, *laws):
    """float32 words of scratch memory for a row of each law that may have filters: its cut, its Known, the search."""
    filtered = sum(law is not None and _launch.is_filtered(law) for law in laws)
    return (CUT.value + 2 + search_words_of(vocab)) * filtered


def launch_cuts(
    rows, law, index, places, scratch, requests, count, width, edits=_edits.OFF, draft=False, draft_map=None,
    cu_drafts=None, tokens=None,
):  # fmt: skip
    """Launches the kernel for ``count`` rows of each request, and returns their cuts, CUT words each.

    ``rows`` [requests, count, V], or [D, V] if ``cu_drafts`` packs them; a draft's lie by entry. ``width`` is how many
    rows a request has where things are stored. ``scratch`` has ``words_of`` words for each of these rows.
    """
    vocab, ragged = rows.shape[-1], cu_drafts is not None
    stored = len(rows) + draft * requests if ragged else requests * width
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    if requests * count:
        numbers = {
            key: value
            for name in ("temperature", "top_k", "top_p", "min_p")
            for key, value in _launch.number(name, getattr(law, name), "request", "row").items()
        }
        arguments = dict(
            target=rows, target_request=0 if ragged else rows.stride(0), target_row=rows.stride(-2), rows=count,
            step=width, vocab=vocab, cu_drafts=cu_drafts, total_drafts=stored - requests, draft_map=draft_map, **index,
            tokens=tokens, tokens_request=0 if tokens is None else tokens.stride(0),
            tokens_row=0 if tokens is None else tokens.stride(1), **numbers, rules=law.rules, cuts=scratch,
            **places._asdict(), **edits, scratch=scratch[CUT.value * stored :], scratch_row=search_words_of(vocab),
            DRAFT=draft, ALIGNED=_launch.aligned(rows), TILE=tile, TILES=_launch.power_of_2(tiles),
        )  # fmt: skip
        splits = _launch.splits_of(requests * count, tiles, rows.device)
        _launch.launch(cuts_kernel, (requests * count, splits), warps, arguments | {"STAGE": "scan"})
        _launch.launch(cuts_kernel, (requests * count,), warps, arguments | {"STAGE": "cut"})
    return scratch


def launch_rows(rows, law, index, draft_map, counters, scratch, edits):
    """The cuts of rows [A, R, V] that have records of four counters; None if there are no filters."""
    if not _launch.is_filtered(law):
        return None
    outer, inner, _ = rows.shape
    places = Places(scratch, 2, counters, 4, counters[FLAGS.value :], 4 * inner, 4)
    return launch_cuts(
        rows, law, index, places, scratch[2 * outer * inner :], outer, inner, inner, edits, draft_map=draft_map
    )  # fmt: skip


NO_CUTS = {"target_cuts": None, "draft_cuts": None}


def launch_pair(call, draft, index, edits, figures, records, records_row, flags, flags_steps, scratch, requests, width):
    """The arguments ``target_cuts`` and ``draft_cuts`` of an op on rows of a target and of a draft, or of no draft.

    None for a law without filters. ``figures`` has four words for each of the ``width`` rows of a request.
    """
    cu_drafts = getattr(call, "cu_drafts", None)
    found = dict(NO_CUTS)
    if _launch.is_filtered(call.target_law):
        places = Places(figures, 4, records, records_row, flags, *flags_steps)
        found["target_cuts"] = launch_cuts(
            call.target, call.target_law, index, places, scratch, requests, width, width, edits, cu_drafts=cu_drafts
        )
        stored = requests * width if cu_drafts is None else len(call.target)
        scratch = scratch[words_of(call.target.shape[-1], call.target_law) * stored :]
    if draft is not None and _launch.is_filtered(call.draft_law):
        places = Places(figures[2:], 4, records, records_row, flags, *flags_steps)
        count = draft.shape[1] if cu_drafts is None else width - 1
        found["draft_cuts"] = launch_cuts(
            draft, call.draft_law, index, places, scratch, requests, count, width, draft=True,
            draft_map=call.draft_map, cu_drafts=cu_drafts,
        )  # fmt: skip
    return found
