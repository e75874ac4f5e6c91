"""What a draft left of its law in parts of rows, and what the draft has there: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import CUT_WORDS, Known, Law, probabilities
from specdec_kernels.triton_kernels._math import PARAMETER, inverse_temperature, residual_weight, unit_sums
from specdec_kernels.triton_kernels._rows import (
    DONE,
    Row,
    divisor,
    is_last,
    key_at,
    load_tile,
    number,
    row_at,
    share_of,
    tile_tokens,
)

DRAFTED = tl.constexpr(4)  # where the second sum of a pair's counters stands; the first stands where a key would


@_launch.kernel
def residual_sums_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, inner: tl.int32, target_rows: tl.int64,
    draft, draft_outer: tl.int64, draft_inner: tl.int64, of_draft: tl.int32, draft_rows: tl.int64, vocab: tl.int32,
    row, draft_row, cuts, known, known_row: tl.int64,
    temperature, temperature_outer: tl.int64, temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_value: tl.float32,
    subtracted, subtracted_outer: tl.int64, subtracted_value: tl.float32,
    sums, status, counters, edits, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    place, beside = tl.load(row + pair), tl.load(draft_row + pair)
    idle = (place == -1) | (beside == -1)
    live = (place >= 0) & (place < target_rows) & (beside >= 0) & (beside < draft_rows)
    place, beside = tl.where(live, place, 0), tl.where(live, beside, 0)
    inverse, _, flags = inverse_temperature(divisor(temperature, temperature_value, pair * temperature_outer, live))
    q_inverse, _, q_flags = inverse_temperature(
        divisor(draft_temperature, draft_temperature_value, pair * draft_temperature_outer, live)
    )
    share = number(subtracted, subtracted_value, pair * subtracted_outer, live)
    i, j = place // inner, place % inner
    edited, bad_bias = place_at(edits, i, j, i, j, 0, 0, live, vocab)
    if cuts is None:
        law, q_law = Law(inverse, None, None, 0, *edited, *edits), Law(q_inverse, None)
    else:
        law = Law(inverse, None, cuts + CUT_WORDS * pair, 0, *edited, *edits)
        q_law = Law(q_inverse, None, cuts + CUT_WORDS * pair + CUT_WORDS // 2, 0)
    what = known + pair * known_row
    p_known, q_known = Known(tl.load(what), tl.load(what + 1)), Known(tl.load(what + 2), tl.load(what + 3))
    own = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab)
    other = Row(row_at(draft, beside // of_draft * draft_outer + beside % of_draft * draft_inner, ALIGNED), vocab)
    first, last = share_of(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    residual_mass, drafted = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        tokens = tile_tokens(start, TILE)
        p = probabilities(load_tile(own, law, start, TILE), tokens, law, p_known)
        q = probabilities(load_tile(other, q_law, start, TILE), tokens, q_law, q_known)
        residual_mass += tl.sum(unit_sums(residual_weight(p, share * q)), axis=0)
        drafted += tl.sum(unit_sums(q), axis=0)
    record = counters + 8 * pair
    tl.atomic_add(key_at(record), residual_mass.to(tl.uint64), sem="relaxed")
    tl.atomic_add(key_at(record + DRAFTED), drafted.to(tl.uint64), sem="relaxed")
    if is_last(record + DONE, tl.num_programs(1)):
        nothing = tl.zeros([], tl.uint64)
        tl.store(sums + 2 * pair, tl.atomic_xchg(key_at(record), nothing, sem="relaxed").to(tl.int64))
        tl.store(sums + 2 * pair + 1, tl.atomic_xchg(key_at(record + DRAFTED), nothing, sem="relaxed").to(tl.int64))
        flags |= bad_bias | request_status(edits, i, j, live, vocab)
        tl.store(status + pair, tl.where(live, flags | q_flags, tl.where(idle, 0, PARAMETER)))
        tl.store(record + DONE, 0)


def residual_sums(call):
    """The units of (p - taken q)^+ and of q of each pair; ``sums`` int64 [P, 2]."""
    target, draft, pairs = call.target, call.draft, len(call.row)
    if pairs == 0:
        return
    vocab = target.shape[-1]
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(target), _launch.whole_calls:
        counters, _ = _launch.workspace(target, 8 * pairs, 0)
        arguments = dict(
            target=target, target_outer=target.stride(0), target_inner=target.stride(1), inner=target.shape[1],
            target_rows=target.shape[0] * target.shape[1], draft=draft, draft_outer=draft.stride(0),
            draft_inner=draft.stride(1), of_draft=draft.shape[1], draft_rows=draft.shape[0] * draft.shape[1],
            vocab=vocab, row=call.row, draft_row=call.draft_row, cuts=_launch.floats(call.cuts),
            known=call.known, known_row=call.known.stride(0),
            **_launch.divisor("temperature", call.target_law, "outer"),
            **_launch.divisor("draft_temperature", call.draft_law, "outer"),
            **_launch.number("subtracted", call.subtracted, "outer"), sums=call.sums, status=call.status,
            counters=counters, **edits, ALIGNED=_launch.aligned(target, draft), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(pairs, tiles, target.device)
        _launch.launch(residual_sums_kernel, (pairs, splits), warps, arguments)
