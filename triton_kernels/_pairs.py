"""Pairs of rows as laws, for residual and overlap: the launch that learns what probabilities need of each row.

int32 counters, zero before and after a call, 8 a pair: the key of the draft's argmax (two words), programs done,
status, the key of the target's argmax.
"""

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from specdec_kernels.triton_kernels._laws import Law, probabilities
from specdec_kernels.triton_kernels._math import inverse_temperature
from specdec_kernels.triton_kernels._rows import (
    DONE,
    FLAGS,
    Row,
    key_at,
    learn_pair,
    load_tile,
    number,
    row_at,
    tile_tokens,
)


@_launch.kernel
def laws_kernel(
    target, target_outer: tl.int64, target_inner: tl.int64, draft, draft_outer: tl.int64, draft_inner: tl.int64,
    inner: tl.int32, vocab: tl.int32, draft_vocab: tl.int32,
    temperature, temperature_outer: tl.int64, temperature_inner: tl.int64, temperature_value: tl.float32,
    counters, figures, partials,
    TARGET: tl.constexpr, DRAFT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Four figures a pair, ``Known`` of the target's and of the draft's row."""
    row = tl.program_id(0).to(tl.int64)
    i, j = row // inner, row % inner
    inverse, greedy, _ = inverse_temperature(
        number(temperature, temperature_value, i * temperature_outer + j * temperature_inner)
    )
    record = counters + 8 * row
    last, _, _ = learn_pair(
        Row(row_at(target, i * target_outer + j * target_inner, ALIGNED), vocab),
        Law(inverse if TARGET == "logits" else None, greedy), key_at(record + 4),
        Row(row_at(draft, i * draft_outer + j * draft_inner, ALIGNED), draft_vocab),
        Law(inverse if DRAFT == "logits" else None, greedy),
        record, partials + 4 * tl.cdiv(vocab, TILE) * row, figures + 4 * row, tl.program_id(1), tl.num_programs(1),
        TILE, TILES,
    )  # fmt: skip
    if last:
        tl.store(record + DONE, 0)
        tl.store(record + FLAGS, 0)


@triton.jit
def law_tile(row, law, known, start, TILE: tl.constexpr):
    """Probabilities of a tile."""
    return probabilities(load_tile(row, law, start, TILE), tile_tokens(start, TILE), law, known)


def launch_laws(target, draft, space, temperature, counters, figures, partials, rows, tile, tiles, warps):
    """The launch of ``laws_kernel`` where it is needed; returns the arguments that the next kernel shares with it."""
    arguments = dict(
        target=target, target_outer=target.stride(0), target_inner=target.stride(1),
        draft=draft, draft_outer=draft.stride(0), draft_inner=draft.stride(1),
        inner=target.shape[1], vocab=target.shape[-1], draft_vocab=draft.shape[-1],
        **_launch.number("temperature", temperature, "outer", "inner"),
        counters=counters, figures=figures, partials=partials, TARGET=space, DRAFT=space, TILE=tile,
        TILES=triton.next_power_of_2(tiles), ALIGNED=_launch.aligned(target, draft),
    )  # fmt: skip
    if space == "logits" or isinstance(temperature, torch.Tensor) or not temperature >= 2.0**-126:
        _launch.launch(laws_kernel, (rows, _launch.splits_of(rows, tiles, target.device)), warps, **arguments)
    return arguments
