"""How well a draft law covers a target law: sums over pairs of tiles, added up by the last program of a row."""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _edits, _launch, _laws, _math, _pairs, _rows


class Outputs(NamedTuple):
    """What a call writes, [rows] each; ``status`` may be None."""

    accept: tl.tensor
    tv: tl.tensor
    kl: tl.tensor
    harmonic: tl.tensor
    status: tl.tensor


@triton.jit
def sum_of_tiles(sums, index, inside):
    """The sum over tiles of one of their four numbers, which other programs may have written."""
    return _math.sum_in_any_order(tl.load(sums + 4 * index, mask=inside, other=0.0, cache_modifier=".cg"))


@_launch.kernel
def overlap_kernel(
    target: _pairs.Side, draft: _pairs.Side, index: _arguments.Index, outputs: Outputs, memory: _pairs.Memory,
    edits: _edits.LogitEdits, plan: _pairs.Plan,
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
    flags |= bad_temperature
    row_edits, bad_bias = _edits.load_row_edits(edits, at.entry, at.j, at.i, at.j, 0, 0, at.live, vocab)
    p_law = _laws.Law(
        inverse if plan.TARGET == "logits" else None, greedy, target.cuts, row, edits.by_row, row_edits, edits
    )  # fmt: skip
    q_law = _laws.Law(q_inverse if plan.DRAFT == "logits" else None, q_greedy, draft.cuts, row)
    p_row = _laws.Row(_rows.start_of(target.rows, at.i, at.j, plan.ALIGNED), columns, p_law)
    q_row = _laws.Row(_rows.start_of(draft.rows, at.entry, at.j, plan.ALIGNED), q_columns, q_law, draft.map)
    pair_stats, record = memory.pair_stats + 4 * row, memory.counters + 8 * row
    p_stats = _laws.load_row_stats(pair_stats, p_law, row >= 0)
    q_stats = _laws.load_row_stats(pair_stats + 2, q_law, row >= 0)
    tiles = tl.cdiv(vocab, TILE)
    sums = memory.partials + 4 * tiles * row
    row_status = 0
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        tokens = _rows.tile_tokens(start, TILE)
        x, y = _rows.load_tile(p_row, start, TILE), _rows.load_tokens(q_row, tokens, start, TILE)
        p, log_p = _laws.weighed(x, tokens, p_law, p_stats)
        q, log_q = _laws.weighed(y, tokens, q_law, q_stats)
        # This one goes first, for few registers are left.
        tl.store(sums + 4 * tile + 2, _math.sum_in_any_order(_math.entropy_term(p, log_p, log_q)))
        tl.store(sums + 4 * tile, _math.sum_in_any_order(tl.minimum(p, q)))
        tl.store(sums + 4 * tile + 1, _math.sum_in_any_order(tl.abs(p - q)))
        tl.store(sums + 4 * tile + 3, _math.sum_in_any_order(_math.harmonic_term(p, q)))
        if outputs.status is not None:
            row_status = _pairs.tile_status(y, q_law, _pairs.tile_status(x, p_law, row_status, 1), 2)
    if outputs.status is not None:
        _pairs.report_status(record, row_status)

    if _rows.is_last(record + _rows.DONE, splits):
        each = tl.arange(0, plan.TILES)
        inside = each < tiles
        tl.store(outputs.accept + row, sum_of_tiles(sums, each, inside))
        tl.store(outputs.tv + row, 0.5 * sum_of_tiles(sums + 1, each, inside))
        tl.store(outputs.kl + row, sum_of_tiles(sums + 2, each, inside))
        tl.store(outputs.harmonic + row, sum_of_tiles(sums + 3, each, inside))
        if outputs.status is not None:
            flags |= bad_bias | _edits.request_status(edits, at.entry, at.j, at.live, vocab)
            tl.store(outputs.status + row, _pairs.status_of_pair(record, p_law, q_law, flags, at))
        tl.store(record + _rows.FLAGS, 0)
        tl.store(record + _rows.DONE, 0)


def overlap(call):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q), each [A R], of row pairs [A, R, V]."""
    target = call.target
    rows, vocab = target.shape[0] * target.shape[1], target.shape[2]
    edits = _edits.arguments(call)
    tile, tiles, warps = _launch.tile_of(vocab, edits is not _edits.OFF)
    with _launch.on_device(target), _launch.whole_calls:
        counters, scratch = _launch.workspace(target, 8 * rows, _pairs.count_scratch_words(call))
        shared = _pairs.launch_laws(call, edits, counters, scratch, rows, tile, tiles, warps)
        outputs = {"outputs": Outputs(call.accept, call.tv, call.kl, call.harmonic, call.status)}
        _launch.launch(overlap_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, shared | outputs)
