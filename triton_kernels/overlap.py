"""How well a draft law covers a target law: sums over pairs of tiles, added up by the last program of a row."""

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _edits, _launch
from specdec_kernels.triton_kernels._edits import place_at, request_status
from specdec_kernels.triton_kernels._laws import Law, known_at, log_probabilities, probabilities
from specdec_kernels.triton_kernels._math import entropy_term, harmonic_term, sum_in_any_order
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
    DONE,
    FLAGS,
    Row,
    is_last,
    load_tile,
    load_tokens,
    row_at,
    tile_tokens,
)


@triton.jit
def sum_of_tiles(sums, index, here):
    """The sum of one of the four numbers of each tile, which other programs may have written."""
    return sum_in_any_order(tl.load(sums + 4 * index, mask=here, other=0.0, cache_modifier=".cg"))


@_launch.kernel
def overlap_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32, draft_map, request_index, entries: tl.int64,
    target_temperature, target_temperature_outer: tl.int64, target_temperature_inner: tl.int64,
    target_temperature_value: tl.float32,
    draft_temperature, draft_temperature_outer: tl.int64, draft_temperature_inner: tl.int64,
    draft_temperature_value: tl.float32,
    accept, tv, kl, harmonic, status, counters, figures, partials, target_cuts, draft_cuts, edits,
    TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
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
    place, bad_bias = place_at(edits, entry, j, i, j, 0, 0, live, vocab)
    target_law = Law(inverse if TARGET == "logits" else None, greedy, target_cuts, row, *place, *edits)
    draft_law = Law(draft_inverse if DRAFT == "logits" else None, draft_greedy, draft_cuts, row)
    target_row = Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), columns)
    draft_row = Row(row_at(draft, entry * draft_outer + j * draft_inner, ALIGNED), draft_vocab)
    own, record = figures + 4 * row, counters + 8 * row
    p_known, q_known = known_at(own, target_law, row >= 0), known_at(own + 2, draft_law, row >= 0)
    tiles = tl.cdiv(vocab, TILE)
    sums = partials + 4 * tiles * row
    row_status = 0
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int32) * TILE
        tokens = tile_tokens(start, TILE)
        x = load_tile(target_row, target_law, start, TILE)
        y = load_tokens(draft_row, draft_law, draft_map, start, TILE)
        p = probabilities(x, tokens, target_law, p_known)
        q = probabilities(y, tokens, draft_law, q_known)
        tl.store(sums + 4 * tile, sum_in_any_order(tl.minimum(p, q)))
        tl.store(sums + 4 * tile + 1, sum_in_any_order(tl.abs(p - q)))
        log_p = log_probabilities(x, tokens, target_law, p_known)
        log_q = log_probabilities(y, tokens, draft_law, q_known)
        tl.store(sums + 4 * tile + 2, sum_in_any_order(entropy_term(p, log_p, log_q)))
        tl.store(sums + 4 * tile + 3, sum_in_any_order(harmonic_term(p, q)))
        if status is not None:
            row_status = look(y, draft_law, look(x, target_law, row_status, 1), 2)
    if status is not None:
        tell(record, row_status)

    if is_last(record + DONE, splits):
        index = tl.arange(0, TILES)
        here = index < tiles
        tl.store(accept + row, sum_of_tiles(sums, index, here))
        tl.store(tv + row, 0.5 * sum_of_tiles(sums + 1, index, here))
        tl.store(kl + row, sum_of_tiles(sums + 2, index, here))
        tl.store(harmonic + row, sum_of_tiles(sums + 3, index, here))
        if status is not None:
            flags |= bad_bias | request_status(edits, entry, j, live, vocab)
            tl.store(status + row, status_of_pair(record, target_law, draft_law, flags, live, idle))
        tl.store(record + FLAGS, 0)
        tl.store(record + DONE, 0)


def overlap(call):
    """sum min(p, q), total variation, KL(p || q) and sum p q / (p + q), each [A R], of row pairs [A, R, V]."""
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
        sums = dict(accept=call.accept, tv=call.tv, kl=call.kl, harmonic=call.harmonic, status=call.status)
        _launch.launch(overlap_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, shared | sums)
