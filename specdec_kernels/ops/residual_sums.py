"""residual_sums: what a draft left of its law in parts of rows, and what the draft has there."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._declaration import LAW, NUMBER, TENSOR, Law, Op, Output
from specdec_kernels.ops._laws import target_law
from specdec_kernels.ops._types import Number

RESIDUAL_SUMS = Op(
    "residual_sums",
    target=TENSOR,
    draft=TENSOR,
    row=TENSOR,
    draft_row=TENSOR,
    known=TENSOR,
    target_law=LAW,
    draft_law=LAW,
    taken=NUMBER,
    sums=Output(torch.int64, "sums"),
    status=Output(torch.int32, "status"),
)


def residual_sums(
    target: torch.Tensor,
    draft: torch.Tensor,
    row: torch.Tensor,
    draft_row: torch.Tensor,
    *,
    known: torch.Tensor,
    taken: Number = 1.0,
    temperature: Number | None = None,
    draft_temperature: Number | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of ``(p - taken q)^+`` and of q over parts of pairs of rows: whole numbers, in units of 2**-42.

    Each weight of at most 1 is rounded to the nearest unit. So the sums of parts, added up, are those of the row,
    however it was cut.

    Parameters
    ----------
    target, draft : Tensor
        float32, bfloat16 or float16 [..., n] of logits, of the same columns.
    row, draft_row : Tensor
        int32 [P]: a pair of rows, each among all of its side. -1 in either is an idle pair, which weighs nothing.
    known : Tensor
        float32 [P, 4]: what ``tile_laws`` says of the target's row, then of the draft's.
    taken : float or Tensor
        float32 [P].
    temperature, draft_temperature : float or Tensor
        float32 [P], those of ``known``. Default 1.0, and the target's for the draft.

    Returns
    -------
    tuple of Tensor
        Sums, int64 [P, 2]: of ``(p - taken q)^+``, then of q. And status, int32 [P]: 8 a temperature or a row out of
        range. A row out of range weighs nothing.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import mass_tiles, residual_sums, tile_laws
    >>> target, draft = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> known = torch.cat([tile_laws(mass_tiles(rows)[0], rows)[0] for rows in (target, draft)], dim=-1)
    >>> row = torch.zeros(1, dtype=torch.int32)
    >>> sums, _ = residual_sums(target, draft, row, row, known=known)
    >>> [round(x, 4) for x in (sums * 2.0**-42).flatten().tolist()]
    [0.4526, 1.0]
    """
    raw = (target, draft, row, draft_row, known, taken, temperature, draft_temperature)
    inputs.refuse_gradient(
        "residual_sums", target=target, draft=draft, known=known, taken=taken, temperature=temperature,
        draft_temperature=draft_temperature,
    )  # fmt: skip
    if found := RESIDUAL_SUMS.recall(raw):
        return tuple(found)
    inputs.check_rows("target", target)
    inputs.check_rows("draft", draft)
    device = target.device
    inputs.check_device("draft", draft, device)
    if draft.shape[-1] != target.shape[-1]:
        raise ValueError(f"draft: expected the target's {target.shape[-1]} columns; got {inputs.shown(draft)}")
    inputs.check_tensor("row", row, (torch.int32,), 1)
    pairs = len(row)
    inputs.check_tensor("draft_row", draft_row, (torch.int32,), 1)
    inputs.check_shape("draft_row", draft_row, (pairs,))
    inputs.check_tensor("known", known, (torch.float32,), 2)
    inputs.check_shape("known", known, (pairs, 4))
    for name, x in (("row", row), ("draft_row", draft_row), ("known", known)):
        inputs.check_device(name, x, device)
    law = target_law("logits", temperature, None, (pairs,), device)
    q_law = law if draft_temperature is None else Law(
        "logits", inputs.number("draft_temperature", draft_temperature, (pairs,), device)
    )  # fmt: skip
    taken = inputs.number("taken", taken, (pairs,), device)
    sums = torch.empty((pairs, 2), dtype=torch.int64, device=device)
    status = torch.empty(pairs, dtype=torch.int32, device=device)
    RESIDUAL_SUMS(
        inputs.rows3("target", target), inputs.rows3("draft", draft), row, draft_row, known, law, q_law, taken, sums,
        status, raw=raw, results=(sums, status),
    )  # fmt: skip
    return sums, status
