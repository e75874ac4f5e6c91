"""count_at_least: how many tokens of rows, which may be parts of rows, are at least as large as a number."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Number
from specdec_kernels.ops import _laws as laws
from specdec_kernels.sampling import Edits

COUNT_AT_LEAST = Op(
    "count_at_least",
    figures=True,
    rows=kinds.rows("*V"),
    request_index=kinds.tokens("B:c", optional=True),
    law=kinds.law("~"),
    edits=kinds.EDITS,
    least=kinds.floats("*:c"),
    counts=kinds.Output(torch.int32, "out", "*"),
)


def count_at_least(
    rows: torch.Tensor,
    least: torch.Tensor,
    *,
    temperature: Number | None = None,
    edits: Edits | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """How many tokens of each row have ``logit / temperature >= least``: the counts of parts add up to a token's rank.

    As everywhere, a logit of NaN is -inf and one of +inf the largest finite number.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., n] of logits, contiguous along the vocabulary; parts of rows, or whole ones.
    least : Tensor
        float32 [...], contiguous. A row is not read where it is -inf or NaN: none is counted.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. At 0, and out of range, logits are compared as they are.
    edits : Edits, optional
        As for ``race_sample``, of the part's columns.
    request_index : Tensor, optional
        int32 [B], as for ``race_sample``. Of an idle request, or with an index out of range, none is counted.
    out : Tensor, optional
        int32 [...], preallocated.

    Returns
    -------
    Tensor
        int32 [...].

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import count_at_least
    >>> count_at_least(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([1.0]), temperature=2.0).tolist()
    [2]
    """
    found = COUNT_AT_LEAST.direct(False, rows, request_index, "logits", temperature, None, edits, least, out)
    if found is not None:
        return found
    inputs.check_rows("rows", rows)
    lead, device = rows.shape[:-1], rows.device
    COUNT_AT_LEAST.check({"*": lead, "device": device}, least=least)
    folded, law, changes, _ = laws.of_rows("rows", rows, temperature, None, edits, request_index)
    given = out is not None
    out = COUNT_AT_LEAST.output("counts", out, lead, device)
    COUNT_AT_LEAST(folded, request_index, law, changes, least.view(-1), out.view(-1), given=given,)  # fmt: skip
    return out
