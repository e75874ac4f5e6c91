"""store_rows: copies rows to their slots and columns in an engine's cache."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter

STORE_ROWS = Op(
    "store_rows",
    figures=True,
    rows=kinds.rows("BV"),
    slots=kinds.tokens("B"),
    column=kinds.counter("B"),
    cache=kinds.Kind("Tensor(!) {}", shown="cache", role="written", shape="SCV:r"),
)


def store_rows(rows: torch.Tensor, cache: torch.Tensor, *, slots: torch.Tensor, column: Counter = 0) -> torch.Tensor:
    """``cache[slots[n], column[n], :V] = rows[n]``, skipping rows of padding.

    For engines that store the draft's logits by slot until they are verified, as vLLM's V2 runner does. Of several rows
    with one slot and column one is stored.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [N, V], contiguous along the vocabulary.
    cache : Tensor
        [slots, columns, V or more] of the same type, contiguous along the vocabulary; written in place. Elements from V
        on, and all other slots and columns, stay as they are.
    slots : Tensor
        int32 or int64 [N]. -1 is a row of padding; it, and one out of range, is not written.
    column : int or Tensor
        int32 or int64, broadcast to [N]. A row with one out of range is not written.

    Returns
    -------
    Tensor
        ``cache``.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import store_rows
    >>> cache = torch.zeros(2, 1, 2)
    >>> store_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), cache, slots=torch.tensor([1, -1]))
    tensor([[[0., 0.]],
    <BLANKLINE>
            [[1., 2.]]])
    """
    if STORE_ROWS.direct(False, rows, slots, column, cache) is not None:
        return cache
    inputs.check_rows("rows", rows, 2)
    count, device = len(rows), rows.device
    inputs.check_rows("cache", cache, 3)
    inputs.check_tensor("cache", cache, (rows.dtype,), 3)
    inputs.check_device("cache", cache, device)
    if cache.shape[-1] < rows.shape[-1]:
        raise ValueError(f"cache: expected {rows.shape[-1]} tokens or more, as rows has; got {inputs.shown(cache)}")
    STORE_ROWS.check({"B": count, "device": device}, slots=slots)
    column = STORE_ROWS.number("column", column, (count,), device, seen=(count, 1))
    STORE_ROWS(rows.unsqueeze(1), slots, column, cache, given=True)
    return cache
