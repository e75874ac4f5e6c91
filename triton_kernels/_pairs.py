"""Pairs of rows, for residual and overlap: the launch that finds what the probabilities of each row need.

int32 counters, zero before and after a call, 8 for each pair: the key of the draft's argmax (two words), programs done,
status, the key of the target's argmax (two words), which rows of probabilities have weight, one unused.
"""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _cuts, _launch
from specdec_kernels.triton_kernels._cuts import DRAFT_MET
from specdec_kernels.triton_kernels._edits import place_at
from specdec_kernels.triton_kernels._laws import Law, unclean_groups
from specdec_kernels.triton_kernels._math import (
    NON_FINITE,
    PARAMETER,
    SMALLEST,
    any_of,
    inverse_temperature,
)
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    barrier,
    divisor,
    entry_of,
    group_tops,
    key_at,
    learn_pair,
    mass_items_of,
    row_at,
)

WEIGHS = tl.constexpr(6)  # where a pair's record says which rows have weight: 1 the target's, 2 the draft's
BOTH_WEIGH = tl.constexpr(3)


@triton.jit
def place_of(row, inner, request_index, entries):
    """(request, row in it, entry whose numbers and draft row it uses, whether that exists, whether it is idle)."""
    i, j = row // inner, row % inner
    entry, live, idle = entry_of(i, request_index, entries)
    return i, j, entry, live, idle


@triton.jit
def temperatures_of(target, target_value, target_at, draft, draft_value, draft_at, live):
    """(1/T, argmax wanted) of the target and of the draft, and the status of both temperatures."""
    inverse, greedy, bad = inverse_temperature(divisor(target, target_value, target_at, live))
    draft_inverse, draft_greedy, bad_draft = inverse_temperature(divisor(draft, draft_value, draft_at, live))
    return inverse, greedy, draft_inverse, draft_greedy, bad | bad_draft


@_launch.kernel
def laws_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32, draft_map, request_index, entries: tl.int64,
    target_temperature, target_temperature_outer: tl.int64, target_temperature_inner: tl.int64,
    target_temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_inner: tl.int64,
    draft_temperature_value: tl.float32,
    counters, figures, partials, target_cuts, draft_cuts, edits,
    TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Stores four numbers for each pair: the ``Known`` of the target's row and that of the draft's row."""
    row = tl.program_id(0).to(tl.int64)
    i, j, entry, live, _ = place_of(row, inner, request_index, entries)
    if request_index is not None:
        vocab, draft_vocab = tl.where(live, vocab, 0), tl.where(live, draft_vocab, 0)
    inverse, greedy, draft_inverse, draft_greedy, _ = temperatures_of(
        target_temperature, target_temperature_value, entry * target_temperature_outer + j * target_temperature_inner,
        draft_temperature, draft_temperature_value, entry * draft_temperature_outer + j * draft_temperature_inner, live,
    )  # fmt: skip
    record = counters + 8 * row
    place, _bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    last, _, _ = learn_pair(
        Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab),
        Law(inverse if TARGET == "logits" else None, greedy, target_cuts, row, *place, *edits), key_at(record + 4),
        Row(row_at(draft, entry * draft_outer + j * draft_inner, ALIGNED), draft_vocab),
        Law(draft_inverse if DRAFT == "logits" else None, draft_greedy, draft_cuts, row), draft_map,
        record, partials + 2 * mass_items_of(vocab) * row, figures + 4 * row, tl.program_id(1), tl.num_programs(1),
        TILE, TILES,
    )  # fmt: skip
    if last:
        tl.store(record + DONE, 0)


@triton.jit
def look(x, law, row_status, BIT: tl.constexpr):
    """``row_status`` with what a tile of a row of probabilities adds: NON_FINITE, and BIT << 8 if a token has weight.

    Logits add nothing: ``laws_kernel`` has looked at them.
    """
    if law.inverse is None:
        tops = group_tops(x)
        row_status |= any_of(unclean_groups(x, tops, law)) * NON_FINITE | any_of((tops < SMALLEST) == 0) * (BIT << 8)
    return row_status


@triton.jit
def tell(record, row_status):
    """Writes what this program met into the pair's record."""
    if row_status & NON_FINITE != 0:
        tl.atomic_or(record + FLAGS, NON_FINITE, sem="relaxed")
    if row_status > NON_FINITE:
        tl.atomic_or(record + WEIGHS, row_status >> 8, sem="relaxed")


@triton.jit
def status_of_pair(record, target_law, draft_law, flags, live, idle):
    """The status of a pair, once all its programs have called ``tell``. Sets their part of the record back to zero."""
    row_status = tl.load(record + FLAGS, cache_modifier=".cg")
    flags |= row_status & (DRAFT_MET - 1) | row_status // DRAFT_MET
    weigh = tl.load(record + WEIGHS, cache_modifier=".cg")
    if target_law.inverse is not None:
        weigh |= 1
    if draft_law.inverse is not None:
        weigh |= 2
    flags |= tl.where(weigh == BOTH_WEIGH, 0, NON_FINITE)
    barrier()  # all warps have read
    tl.store(record + WEIGHS, 0)
    return tl.where(live, flags, tl.where(idle, 0, PARAMETER))


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
    index = _launch.index(call.request_index, draft, edit=call.edits)
    items = scratch[4 * rows :]
    scanned = _launch.scanned_sides(call, draft)
    cuts = _cuts.launch_pair(
        call, draft, scanned, index, edits, scratch, counters, 8, counters[FLAGS.value :], (8 * inner, 8),
        items[_launch.mass_items_of(vocab) * rows :], outer, inner,
    )  # fmt: skip
    arguments = dict(
        target=target, target_outer=target.stride(0), target_inner=target.stride(1),
        draft=draft, draft_outer=draft.stride(0), draft_inner=draft.stride(1),
        inner=inner, vocab=vocab, draft_vocab=draft.shape[-1], draft_map=call.draft_map, **index,
        **_launch.divisor("target_temperature", call.target_law, "outer", "inner"),
        **_launch.divisor("draft_temperature", call.draft_law, "outer", "inner"),
        counters=counters, figures=scratch, partials=items, **cuts, **edits,
        TARGET=call.target_law.space, DRAFT=call.draft_law.space, TILE=tile, TILES=_launch.power_of_2(tiles),
        ALIGNED=_launch.aligned(target, draft),
    )  # fmt: skip
    laws = call.target_law, call.draft_law
    if any(_launch.is_learned(law) and not found for law, found in zip(laws, scanned, strict=True)):
        _launch.launch(laws_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, arguments)
    return arguments
