"""residual_sums: what a draft left of its law in parts of rows, and what the draft has there."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Number
from specdec_kernels.sampling import Edits
from specdec_kernels.sharded.parts._pairs import check_rows, edit_of, laws_of

RESIDUAL_SUMS = Op(
    "residual_sums",
    result=tuple,
    figures=True,
    target=kinds.rows("*V"),
    draft=kinds.rows("^V"),
    row=kinds.ints("R:c"),
    draft_row=kinds.ints("R:c"),
    cuts=kinds.ints("R6:c", optional=True),
    known=kinds.floats("R4"),
    target_law=kinds.law("R"),
    draft_law=kinds.law("R", shown="draft"),
    edits=kinds.edits("~"),
    subtracted=kinds.number("R"),
    sums=kinds.Output(torch.int64, "sums", "R2"),
    status=kinds.Output(torch.int32, "status", "R"),
)


def residual_sums(
    target: torch.Tensor,
    draft: torch.Tensor,
    row: torch.Tensor,
    draft_row: torch.Tensor,
    *,
    known: torch.Tensor,
    subtracted: Number = 1.0,
    temperature: Number | None = None,
    draft_temperature: Number | None = None,
    cuts: torch.Tensor | None = None,
    edits: Edits | None = None,
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
    cuts : Tensor, optional
        int32 [P, 6], as for ``residual_race``: what filters keep of each pair of rows.
    edits : Edits, optional
        As for ``residual_race``: of all rows of ``target``.

    Returns
    -------
    tuple of Tensor
        Sums, int64 [P, 2]: of ``(p - taken q)^+``, then of q. And status, int32 [P]: 8 a temperature, a row or an edit
        out of range. A row out of range weighs nothing.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import mass_tiles, residual_sums, tile_laws
    >>> target, draft = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> known = torch.cat([tile_laws(mass_tiles(rows)[0], rows)[0] for rows in (target, draft)], dim=-1)
    >>> row = torch.zeros(1, dtype=torch.int32)
    >>> sums, _ = residual_sums(target, draft, row, row, known=known)
    >>> [round(x, 4) for x in (sums * 2.0**-42).flatten().tolist()]
    [0.4526, 1.0]
    """
    of_draft = temperature if draft_temperature is None else draft_temperature
    if (found := RESIDUAL_SUMS.direct(
        False, target, draft, row, draft_row, cuts, known, "logits", temperature, None, "logits", of_draft, None, edits,
        subtracted, None, None,
    )) is not None:  # fmt: skip
        return found
    inputs.check_rows("draft", draft)
    sizes = check_rows(RESIDUAL_SUMS, target, draft, row, draft_row, cuts, known)
    pairs, device = len(row), target.device
    law, q_law = laws_of(temperature, draft_temperature, pairs, device)
    folded = inputs.rows3("target", target)
    changes = edit_of(edits, law, target, folded)
    subtracted = RESIDUAL_SUMS.number("subtracted", subtracted, (pairs,), device)
    sums, status = RESIDUAL_SUMS.new(sizes)
    RESIDUAL_SUMS(
        folded, inputs.rows3("draft", draft), row, draft_row, cuts, known, law, q_law, changes, subtracted, sums,
        status,
    )  # fmt: skip
    return sums, status
