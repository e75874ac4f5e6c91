"""cutoff: the tokens that sampling filters keep, as a threshold."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.ops._rows import RowOp
from specdec_kernels.sampling import LogitEdits, Sampling


class Cut(NamedTuple):
    """The support of each row [...]: tokens with ``v > value``, or ``v == value`` and an id up to ``last``.

    ``v`` is the float32 logit over the temperature; the logit itself where filters come before the temperature.

    Attributes
    ----------
    value : Tensor
        float32: v of the support's last token. -inf where every filter is off, or no token has weight.
    last : Tensor
        int64: its id; with ``ties="all"`` the largest id of that v. -1 beside a value of -inf.
    count : Tensor
        int32: how many tokens are in the support; tokens without weight (-inf, NaN) never are.
    mass : Tensor
        int64: the sum of the support's weights in units of 2**-42 of the largest. Where every filter is off the
        row's mass, summed in tiles of 1,024 tokens, each in units of 2**-30 of its largest weight.
    max : Tensor
        float32: the largest v; -inf where no token has weight.
    """

    value: torch.Tensor
    last: torch.Tensor
    count: torch.Tensor  # type: ignore[assignment]  # tuples have a method of this name
    mass: torch.Tensor
    max: torch.Tensor


CUTOFF = RowOp(
    "cutoff",
    result=Cut,
    figures=True,
    rows=kinds.rows("*V"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    value=kinds.Output(torch.float32, "out.value", "*"),
    last=kinds.Output(torch.int64, "out.last", "*"),
    count=kinds.Output(torch.int32, "out.count", "*"),
    mass=kinds.Output(torch.int64, "out.mass", "*"),
    max=kinds.Output(torch.float32, "out.max", "*"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
)


def cutoff(
    rows: torch.Tensor,
    *,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> Cut:
    """The cut of each row by the filters of ``sampling``: a threshold, how many tokens the support has, and their mass.

    The ops that sample compute it themselves; this one is for tests, and for engines that need the figures, which are
    the same bits on every backend.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary. Logits: probabilities
        are final, and have no cut.
    sampling : Sampling, optional
        The filters, and the temperature; at 0 the argmax alone: its value, a count of 1 and a mass of 2**42.
    edits : LogitEdits, optional
        Edits of the logits before that: bias, penalties, a grammar.
    request_index : Tensor, optional
        int32 or int64 [B], with rows [B, V] or [B, R, V]: row b uses the numbers of this entry. Numbers then
        have S entries. -1 is an idle request: its row counts as one without weight. So does that of any other index
        outside [0, S), with status 8.
    out : Cut, optional
        Preallocated outputs, contiguous.
    status : Tensor, optional
        int32 [...], overwritten, the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row
        without positive weight; 8 a temperature (argmax), top_p or min_p (off) or request_index out of range.

    Returns
    -------
    Cut
        ``(value, last, count, mass, max)``, [...] each.

    References
    ----------
    Fan, Lewis, Dauphin 2018 (top-k); Holtzman et al. 2020 (top-p); Nguyen et al. 2024 (min-p).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Sampling
    >>> logits = torch.tensor([2.0, 1.0, 1.0, 0.5, -1.0, 3.0])
    >>> with specdec_kernels.backend("reference"):
    ...     cut = specdec_kernels.cutoff(logits, sampling=Sampling(top_k=3))
    >>> cut.value.item(), cut.last.item(), cut.count.item()  # tokens 5, 0 and the first of the two ones
    (1.0, 1, 3)
    """
    return CUTOFF.direct(check, rows, request_index, "logits", None, sampling, edits, out, status)
