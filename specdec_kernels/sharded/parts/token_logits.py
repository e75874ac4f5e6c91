"""token_logits: the logits of some tokens in rows, which may be parts of rows, after edits."""

import torch

from specdec_kernels._constants import PART_UNIT
from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.ops import _laws as laws
from specdec_kernels.sampling import Edits

TOKEN_LOGITS = Op(
    "token_logits",
    figures=True,
    rows=kinds.rows("*V"),
    vocab_start=kinds.size(least=0),
    places=kinds.tokens("P", optional=True, role="packs"),
    tokens=kinds.tokens("*.M|P.M:c"),
    edits=kinds.edits("~"),
    logits=kinds.Output(torch.float32, "out", "*.M|P.M"),
)


def token_logits(
    rows: torch.Tensor,
    tokens: torch.Tensor,
    *,
    places: torch.Tensor | None = None,
    vocab_start: int = 0,
    edits: Edits | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The logits of some tokens in rows, after edits; 0 where a part of a row has not got the token.

    The bits of a float32 0 are 0, so what the owner of a token has is the bitwise or of what all parts give.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., n] of logits, contiguous along the vocabulary: columns of the tokens from
        ``vocab_start`` on.
    tokens : Tensor
        int32 or int64 [...], or [..., m] for m tokens of each row; those outside of the part give 0.
    places : Tensor, optional
        int32 or int64 [P]: the row of each among all rows, in any order; ``tokens`` is [P] or [P, m] then. A place
        without a row gives 0.
    vocab_start : int
        A multiple of 128.
    edits : Edits, optional
        As for ``race_sample``, of the part's columns: masks begin with the part's words, tokens with 0. What is out of
        range is off, as there, and not told.
    out : Tensor, optional
        float32, like ``tokens``, preallocated.

    Returns
    -------
    Tensor
        float32, like ``tokens``. NaN stays.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import token_logits
    >>> rows = torch.tensor([[3.0, 1.0, 2.0], [7.0, 8.0, 9.0]])
    >>> token_logits(rows, torch.tensor([2, 130, 128]), places=torch.tensor([0, 1, 1]), vocab_start=128).tolist()
    [0.0, 9.0, 7.0]
    """
    vocab_start = TOKEN_LOGITS.size("vocab_start", vocab_start, "a multiple of {step}", step=PART_UNIT)
    if (found := TOKEN_LOGITS.direct(False, rows, vocab_start, places, tokens, edits, out)) is not None:
        return found
    inputs.check_rows("rows", rows)
    lead, device = rows.shape[:-1], rows.device
    TOKEN_LOGITS.check({"device": device}, places=places)
    inputs.check_tensor("tokens", tokens, inputs.TOKEN_DTYPES, None)
    inputs.check_device("tokens", tokens, device)
    of_rows = lead if places is None else places.shape
    if tokens.shape[: len(of_rows)] != of_rows or tokens.ndim > len(of_rows) + 1:
        raise ValueError(f"tokens: expected shape {list(of_rows)}, or one dimension more; got {inputs.shown(tokens)}")
    folded, _, changes, _ = laws.of_rows("rows", rows, None, None, edits, None)
    given = out is not None
    out = TOKEN_LOGITS.output("logits", out, tokens.shape, device)
    each = of_rows.numel()
    many = tokens.shape[-1] if tokens.ndim > len(of_rows) else 1
    TOKEN_LOGITS(
        folded, vocab_start, places, tokens.reshape(each, many), changes, out.view(each, many), given=given,
    )  # fmt: skip
    return out
