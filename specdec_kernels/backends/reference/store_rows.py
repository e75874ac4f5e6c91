"""Copies rows into an engine's cache."""

import torch

from specdec_kernels.calls import typed


def store_rows(call: "typed.StoreRows"):
    """Row by row, where slot and column are in range."""
    rows, cache = call.rows[:, 0], call.cache
    column = torch.as_tensor(call.column, dtype=torch.int64, device=rows.device).expand(len(rows), 1)
    for row, slot, row_column in zip(rows, call.slots.tolist(), column[:, 0].tolist(), strict=True):
        if 0 <= slot < cache.shape[0] and 0 <= row_column < cache.shape[1]:
            cache[slot, row_column, : rows.shape[-1]] = row
