"""mask_logits: rows with -inf for the tokens that filters drop."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Number
from specdec_kernels.ops.cutoff import Cut

MASK_LOGITS = Op(
    "mask_logits",
    direct=False,
    figures=True,
    rows=kinds.rows("*V"),
    temperature=kinds.number("*"),
    value=kinds.floats("*:c", shown="cut.value"),
    last=kinds.Given((torch.int64,), "*:c", shown="cut.last"),
    out=kinds.Kind("Tensor(!) {}", shown="out", role="output", shape="*V"),
)


def mask_logits(
    rows: torch.Tensor, cut: Cut, *, temperature: Number = 1.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits as they are, but -inf for tokens that filters drop.

    The ops of this package take filters themselves, and write no rows. This is for engines that need filtered logits
    for something else.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary.
    cut : Cut
        The result of ``cutoff`` for these rows; ``value`` and ``last``, [...], are read. LogitEdits are not applied:
        the rows are compared as they are.
    temperature : float or Tensor
        float32, broadcast to the rows: that of the cut. 1.0 where filters come before the temperature.
    out : Tensor, optional
        Like ``rows``, preallocated. It may be ``rows``.

    Returns
    -------
    Tensor
        [..., V] of the type of ``rows``. NaN stays.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import Sampling, cutoff, mask_logits
    >>> logits = torch.tensor([[2.0, 1.0, 1.0, -1.0]])
    >>> mask_logits(logits, cutoff(logits, sampling=Sampling(top_k=2)))
    tensor([[2., 1., -inf, -inf]])
    """
    if not isinstance(cut, (tuple, list)) or len(cut) != 5:
        raise TypeError(f"cut: expected a Cut; got {inputs.shown(cut)}")
    value, last = cut[0], cut[1]
    if (outputs := MASK_LOGITS.direct(False, rows, temperature, value, last, out is rows or out)) is not None:
        return outputs
    inputs.check_rows("rows", rows)
    lead, device = rows.shape[:-1], rows.device
    MASK_LOGITS.check({"*": lead, "device": device}, value=value, last=last)
    temperature = MASK_LOGITS.number("temperature", temperature, lead, device)
    separate = out is not None and out is not rows
    if out is None:
        out = torch.empty(*rows.shape, dtype=rows.dtype, device=device)
    elif separate:
        inputs.check_tensor("out", out, (rows.dtype,), rows.ndim)
        inputs.check_shape("out", out, rows.shape)
        inputs.check_device("out", out, device)
    folded = inputs.rows3("rows", rows)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(folded.shape[:2])
    MASK_LOGITS(
        folded, temperature, value.view(-1), last.view(-1), inputs.rows3("out", out), given=separate,
    )  # fmt: skip
    return out
