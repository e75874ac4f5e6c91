"""The masses of residuals, and of drafts, in shards of rows: one launch, rows split over programs."""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _pairs, _rows

DRAFTED = tl.constexpr(4)  # word of a pair's record with its second sum; the first is where a key would be


@_launch.kernel
def residual_sums_kernel(
    target: _arguments.Rows, draft: _arguments.Rows, pair: _pairs.Pair, temperature: _arguments.Number,
    draft_temperature: _arguments.Number, sums, status, counters, edits: _edits.LogitEdits, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    vocab = target.vocab
    p_index, q_index = tl.load(pair.row + b), tl.load(pair.draft_row + b)
    idle = (p_index == -1) | (q_index == -1)
    live = (p_index >= 0) & (p_index < pair.rows_of_target) & (q_index >= 0) & (q_index < pair.rows_of_draft)
    p_index, q_index = tl.where(live, p_index, 0), tl.where(live, q_index, 0)
    inverse, _, flags = _arguments.load_temperature(temperature, b, 0, live)
    q_inverse, _, q_flags = _arguments.load_temperature(draft_temperature, b, 0, live)
    subtracted = _arguments.number(pair.subtracted, b, 0, live)
    i, j = p_index // target.count, p_index % target.count
    row_edits, bad_bias = _edits.load_row_edits(edits, i, j, i, j, 0, 0, live, vocab)
    cuts, q_cuts = None, None
    if pair.cuts is not None:
        cuts = pair.cuts + _laws.CUT_WORDS * b
        q_cuts = pair.cuts + _laws.CUT_WORDS * b + _laws.CUT_WORDS // 2
    p_law = _laws.Law(inverse, None, cuts, 0, edits.by_row, row_edits, edits)
    q_law = _laws.Law(q_inverse, None, q_cuts, 0)
    p_stats, q_stats = _pairs.load_pair_stats(pair, b)
    p_row = _laws.Row(_rows.start_of(target, i, j, ALIGNED), vocab, p_law)
    q_row = _laws.Row(_rows.start_of(draft, q_index // draft.count, q_index % draft.count, ALIGNED), vocab, q_law)
    first, last = _rows.tile_range(tl.cdiv(vocab, TILE), tl.program_id(1), tl.num_programs(1))
    last = tl.where(live, last, first)
    residual_mass, drafted = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for tile in range(first, last):
        start = tl.cast(tile, tl.int32) * TILE
        tokens = _rows.tile_tokens(start, TILE)
        p = _laws.probabilities(_rows.load_tile(p_row, start, TILE), tokens, p_law, p_stats)
        q = _laws.probabilities(_rows.load_tile(q_row, start, TILE), tokens, q_law, q_stats)
        residual_mass += tl.sum(_math.unit_sums(_math.residual_weight(p, subtracted * q)), axis=0)
        drafted += tl.sum(_math.unit_sums(q), axis=0)
    record = counters + 8 * b
    tl.atomic_add(_rows.key_at(record), residual_mass.to(tl.uint64), sem="relaxed")
    tl.atomic_add(_rows.key_at(record + DRAFTED), drafted.to(tl.uint64), sem="relaxed")
    if _rows.is_last(record + _rows.DONE, tl.num_programs(1)):
        nothing = tl.zeros([], tl.uint64)
        left = tl.atomic_xchg(_rows.key_at(record), nothing, sem="relaxed")
        tl.store(sums + 2 * b, left.to(tl.int64))
        of_draft = tl.atomic_xchg(_rows.key_at(record + DRAFTED), nothing, sem="relaxed")
        tl.store(sums + 2 * b + 1, of_draft.to(tl.int64))
        flags |= bad_bias | _edits.request_status(edits, i, j, live, vocab)
        tl.store(status + b, tl.where(live, flags | q_flags, tl.where(idle, 0, _math.PARAMETER)))
        tl.store(record + _rows.DONE, 0)


def residual_sums(call):
    """The units of (p - subtracted q)^+ and of q of each pair; ``sums`` int64 [P, 2]."""
    target, draft, pairs = call.target, call.draft, len(call.row)
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(target.shape[2], edits is not _edits.OFF)
    with _launch.on_device(target), _launch.whole_calls:
        counters, _ = _launch.workspace(target, 8 * pairs, 0)
        arguments = dict(
            target=_arguments.rows_of(target), draft=_arguments.rows_of(draft), pair=_pairs.pair_of(call),
            temperature=_arguments.temperature_of(call.target_law),
            draft_temperature=_arguments.temperature_of(call.draft_law), sums=call.sums, status=call.status,
            counters=counters, **edits, ALIGNED=_launch.aligned(target, draft), TILE=tile,
        )  # fmt: skip
        splits = _launch.splits_of(pairs, tiles, target.device)
        _launch.launch(residual_sums_kernel, (pairs, splits), warps, arguments)
