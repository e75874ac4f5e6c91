"""The law that replaces a rejected token: one launch computes weights and their sums, the next normalises.

A second launch reads the weights, since on gfx942 the barrier before a ticket does not wait for the stores of other
waves.
"""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _pairs, _rows


@_launch.kernel
def residual_kernel(
    target: _pairs.Side, draft: _pairs.Side, index: _arguments.Index, draft_prob: _arguments.Number, probs, mass,
    status, memory: _pairs.Memory, edits: _edits.LogitEdits, plan: _pairs.Plan, STAGE: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = plan.TILE
    row = tl.program_id(0).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    at = _arguments.locate_row(target.rows, index, row)
    vocab, columns, q_columns = (
        target.rows.vocab, _pairs.columns_of(target, index, at.live), _pairs.columns_of(draft, index, at.live)
    )  # fmt: skip
    inverse, greedy, flags = _arguments.load_temperature(target.temperature, at.entry, at.j, at.live)
    q_inverse, q_greedy, bad_temperature = _arguments.load_temperature(draft.temperature, at.entry, at.j, at.live)
    h, bad_h = _math.draft_prob_of(_arguments.number(draft_prob, at.entry, at.j, at.live))
    flags |= bad_temperature | bad_h
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, vocab)
    p_law = _laws.Law(
        inverse if plan.TARGET == "logits" else None, greedy, target.cuts, row, edits.by_row, row_edits, edits
    )  # fmt: skip
    q_law = _laws.Law(q_inverse if plan.DRAFT == "logits" else None, q_greedy, draft.cuts, row)
    p_row = _laws.Row(_rows.start_of(target.rows, at.i, at.j, plan.ALIGNED), columns, p_law)
    q_row = _laws.Row(_rows.start_of(draft.rows, at.entry, at.j, plan.ALIGNED), q_columns, q_law, draft.map)
    probs = _rows.row_at(probs, row * vocab, plan.ALIGNED)
    pair_stats, record = memory.pair_stats + 4 * row, memory.counters + 8 * row
    p_stats = _laws.load_row_stats(pair_stats, p_law, row >= 0)
    q_stats = _laws.load_row_stats(pair_stats + 2, q_law, row >= 0)
    tiles = tl.cdiv(vocab, TILE)
    sums = (memory.partials + 2 * tiles * row).to(tl.pointer_type(tl.int64), bitcast=True)  # [tiles]
    first, last = _rows.tile_range(tiles, split, splits)
    if STAGE == "weigh":
        row_status = 0
        for tile in range(first, last):
            start = tl.cast(tile, tl.int32) * TILE
            tokens = _rows.tile_tokens(start, TILE)
            x, y = _rows.load_tile(p_row, start, TILE), _rows.load_tokens(q_row, tokens, start, TILE)
            p = _laws.probabilities(x, tokens, p_law, p_stats)
            drafted = h * _laws.probabilities(y, tokens, q_law, q_stats)
            weight = _math.residual_weight(p, drafted)
            tl.store(probs + tokens, weight, mask=tokens < vocab)
            tl.store(sums + tile, tl.sum(_math.unit_sums(weight), axis=0))
            if status is not None:
                row_status = _pairs.tile_status(y, q_law, _pairs.tile_status(x, p_law, row_status, 1), 2)
        if status is not None:
            _pairs.report_status(record, row_status)
    else:
        each = tl.arange(0, plan.TILES)
        weight = _math.of_units(tl.sum(tl.load(sums + each, mask=each < tiles, other=0), axis=0))
        for tile in range(first, last):
            start = tl.cast(tile, tl.int32) * TILE
            tokens = _rows.tile_tokens(start, TILE)
            if weight > 0.0:
                p = tl.div_rn(tl.load(probs + tokens, mask=tokens < vocab, other=0.0), weight)
            else:
                p = _laws.probabilities(_rows.load_tile(p_row, start, TILE), tokens, p_law, p_stats)
            tl.store(probs + tokens, p, mask=tokens < vocab)
        if split == 0:
            tl.store(mass + row, weight)
            if status is not None:
                flags |= tl.where(weight > 0.0, 0, _math.EMPTY_RESIDUAL)
                flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, at.live, vocab)
                tl.store(status + row, _pairs.status_of_pair(record, p_law, q_law, flags, at))
            tl.store(record + _rows.FLAGS, 0)


def most_registers(arguments):
    """A limit where weights are summed: four programs of 128 threads then fit a multiprocessor."""
    return 128 if arguments["STAGE"] == "weigh" else None


residual_kernel.most_registers = most_registers


def residual(call):
    """norm((p - a q)^+) [A R, V] and the probability [A R] that a token is drawn from it; p and 0 if it is empty."""
    target = call.target
    rows, vocab = target.shape[0] * target.shape[1], target.shape[2]
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 8 * rows, _pairs.count_scratch_words(call))
        shared = _pairs.launch_laws(call, edits, counters, scratch, rows, tile, tiles, warps)
        spaces, aligned = (call.target_law.space, call.draft_law.space), _launch.aligned(target, call.draft, call.probs)
        arguments = shared | dict(
            draft_prob=_arguments.number_of(call.draft_prob), probs=call.probs, mass=call.mass, status=call.status,
            plan=_launch.constants(_pairs.Plan, *spaces, aligned, tile, _launch.power_of_2(tiles)),
        )  # fmt: skip
        splits = _launch.splits_of(rows, tiles, target.device)
        for stage in ("weigh", "normalise"):
            _launch.launch(residual_kernel, (rows, splits), warps, arguments | {"STAGE": stage})
