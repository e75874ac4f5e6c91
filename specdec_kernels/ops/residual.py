"""residual: the target's law less the draft's share of it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.calls.values import Number, Space
from specdec_kernels.ops._rows import RowOp
from specdec_kernels.sampling import Draft, LogitEdits, Sampling


class Residual(NamedTuple):
    """The law of the token that replaces a rejected one.

    Attributes
    ----------
    probs : Tensor
        float32 [..., V]. Where the residual is empty (p and q equal to rounding) it is p.
    mass : Tensor
        float32 [...]: the probability that a token is drawn from it, ``sum (p - h q)^+``; TV(p, q) for h = 1.
    """

    probs: torch.Tensor
    mass: torch.Tensor


RESIDUAL = RowOp(
    "residual",
    result=Residual,
    figures=True,
    target=kinds.rows("*V"),
    draft=kinds.rows("~U", role="draft"),
    draft_map=kinds.ints("U", optional=True, role="draft"),
    request_index=kinds.REQUEST_INDEX,
    target_law=kinds.law("~"),
    draft_law=kinds.law("~", role="draft"),
    edits=kinds.EDITS,
    draft_prob=kinds.number("~", most=1.0),
    probs=kinds.Output(torch.float32, "out.probs", "*V"),
    mass=kinds.Output(torch.float32, "out.mass", "*"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
)


def residual(
    target: torch.Tensor,
    draft: torch.Tensor | Draft,
    *,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_prob: Number = 1.0,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> Residual:
    """The law ``norm((p - h q)^+)`` that a rejected (or undrafted) token is drawn from, h = ``draft_prob``.

    ``verify_chain`` draws from it without ever writing it; this op is for engines that need it as a tensor.
    It has no gradient, and an argument that requires one is an error.

    Parameters
    ----------
    target : Tensor
        float32, bfloat16 or float16 [..., V].
    draft : Tensor or Draft
        [..., V'], V' <= V; tokens from V' on have q = 0. A ``Draft`` also has the rows' space, the sampling of its
        tokens, and the map of its vocabulary.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. Short for ``sampling=Sampling(temperature=...)``.
    sampling : Sampling, optional
        How a target row becomes a law, instead of ``temperature``.
    edits : LogitEdits, optional
        Edits of the target's logits before that: bias, penalties, a grammar.
    draft_prob : float or Tensor
        float32, broadcast to the rows.
    request_index : Tensor, optional
        int32 or int64 [B], with rows [B, V] or [B, R, V]: target row b uses the draft rows and numbers of this
        entry; these then have S entries. -1 is an idle request: its figures are 0. Any other index outside [0, S) gives
        0, too, and status 8.
    out : Residual, optional
        Preallocated outputs, contiguous.
    status : Tensor, optional
        int32 [...], overwritten, the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row
        without positive weight; 2 the residual is empty; 8 a temperature (argmax), top_p or min_p (off), draft_prob
        (clamped) or request_index out of range.

    Returns
    -------
    Residual
        ``(probs, mass)``.

    References
    ----------
    Leviathan, Kalman, Matias 2023; Toner et al. 2025 (draft_prob).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> probs, mass = specdec_kernels.residual(p, q, space="probs")
    >>> [round(x, 4) for x in probs.tolist()], round(mass.item(), 4)
    ([0.75, 0.25, 0.0, 0.0], 0.4)
    """
    return RESIDUAL.direct(
        check, target, draft, request_index, space, temperature, sampling, edits, draft_prob, out, status,
    )  # fmt: skip
