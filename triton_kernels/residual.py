"""The law that replaces a rejected token: one launch computes the weights, the next knows their sum and normalises.

What several threads wrote of a row is read only after their launch has ended. On gfx942 the barrier before a ticket
does not wait for the stores of other waves.
"""

import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import Law, known_at, probabilities
from specdec_kernels.triton_kernels._math import (
    EMPTY_RESIDUAL,
    draft_prob_of,
    of_units,
    residual_weight,
    unit_sums,
)
from specdec_kernels.triton_kernels._pairs import (
    launch_laws,
    look,
    place_of,
    status_of_pair,
    tell,
    temperatures_of,
    words_of,
)
from specdec_kernels.triton_kernels._rows import (
    FLAGS,
    Row,
    load_tile,
    load_tokens,
    number,
    row_at,
    share_of,
    tile_tokens,
)


@_launch.kernel
def residual_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32, draft_map, request_index, entries: tl.int64,
    target_temperature, target_temperature_outer: tl.int64, target_temperature_inner: tl.int64,
    target_temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_inner: tl.int64,
    draft_temperature_value: tl.float32,
    draft_prob, draft_prob_outer: tl.int64, draft_prob_inner: tl.int64, draft_prob_value: tl.float32,
    probs, mass, status, counters, figures, partials, target_cuts, draft_cuts, edits,
    STAGE: tl.constexpr, TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    i, j, entry, live, idle = place_of(row, inner, request_index, entries)
    columns = vocab
    if request_index is not None:  # a row that is not live gets no columns, so its probabilities are 0
        columns, draft_vocab = tl.where(live, vocab, 0), tl.where(live, draft_vocab, 0)
    inverse, greedy, draft_inverse, draft_greedy, flags = temperatures_of(
        target_temperature, target_temperature_value, entry * target_temperature_outer + j * target_temperature_inner,
        draft_temperature, draft_temperature_value, entry * draft_temperature_outer + j * draft_temperature_inner, live,
    )  # fmt: skip
    h, bad_h = draft_prob_of(
        number(draft_prob, draft_prob_value, entry * draft_prob_outer + j * draft_prob_inner, live)
    )  # fmt: skip
    flags |= bad_h
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    target_law = Law(inverse if TARGET == "logits" else None, greedy, target_cuts, row, *place, *edits)
    draft_law = Law(draft_inverse if DRAFT == "logits" else None, draft_greedy, draft_cuts, row)
    target_row = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), columns)
    draft_row = Row(row_at(draft, entry * draft_outer + j * draft_inner, ALIGNED), draft_vocab)
    probs = row_at(probs, row * vocab, ALIGNED)
    own, record = figures + 4 * row, counters + 8 * row
    p_known, q_known = known_at(own, target_law, row >= 0), known_at(own + 2, draft_law, row >= 0)
    tiles = tl.cdiv(vocab, TILE)
    sums = (partials + 2 * tiles * row).to(tl.pointer_type(tl.int64), bitcast=True)  # one for each tile
    first, last = share_of(tiles, split, splits)
    if STAGE == "weigh":
        row_status = 0
        for tile in range(first, last):
            start = tl.cast(tile, tl.int32) * TILE
            tokens = tile_tokens(start, TILE)
            x = load_tile(target_row, target_law, start, TILE)
            y = load_tokens(draft_row, draft_law, draft_map, start, TILE)
            p = probabilities(x, tokens, target_law, p_known)
            drafted = h * probabilities(y, tokens, draft_law, q_known)
            weight = residual_weight(p, drafted)
            tl.store(probs + tokens, weight, mask=tokens < vocab)
            tl.store(sums + tile, tl.sum(unit_sums(weight), axis=0))
            if status is not None:
                row_status = look(y, draft_law, look(x, target_law, row_status, 1), 2)
        if status is not None:
            tell(record, row_status)
    else:
        index = tl.arange(0, TILES)
        weight = of_units(tl.sum(tl.load(sums + index, mask=index < tiles, other=0), axis=0))
        for tile in range(first, last):
            start = tl.cast(tile, tl.int32) * TILE
            tokens = tile_tokens(start, TILE)
            if weight > 0.0:
                p = tl.div_rn(tl.load(probs + tokens, mask=tokens < vocab, other=0.0), weight)
            else:
                x = load_tile(target_row, target_law, start, TILE)
                p = probabilities(x, tokens, target_law, p_known)
            tl.store(probs + tokens, p, mask=tokens < vocab)
        if split == 0:
            tl.store(mass + row, weight)
            if status is not None:
                flags |= tl.where(weight > 0.0, 0, EMPTY_RESIDUAL)
                flags |= bad_bias | request_status(edits, entry, j, live, vocab)
                tl.store(status + row, status_of_pair(record, target_law, draft_law, flags, live, idle))
            tl.store(record + FLAGS, 0)


def most_registers(arguments):
    """A limit where weights are summed: four programs of 128 threads then fit a multiprocessor."""
    return 128 if arguments["STAGE"] == "weigh" else None


residual_kernel.most_registers = most_registers


def residual(call):
    """norm((p - a q)^+) [A R, V] and the probability [A R] that a token is drawn from it; p and 0 if it is empty."""
    target = call.target
    outer, inner, vocab = target.shape
    rows = outer * inner
    if rows == 0:
        return
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 8 * rows, words_of(call))
        shared = launch_laws(call, edits, counters, scratch, rows, tile, tiles, warps)
        arguments = shared | {
            "ALIGNED": _launch.aligned(target, call.draft, call.probs),
            **_launch.number("draft_prob", call.draft_prob, "outer", "inner"),
            "probs": call.probs, "mass": call.mass, "status": call.status,
        }  # fmt: skip
        for stage in ("weigh", "normalise"):
            splits = _launch.splits_of(rows, tiles, target.device)
            _launch.launch(residual_kernel, (rows, splits), warps, arguments | {"STAGE": stage})
