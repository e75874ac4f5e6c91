"""overlap: how close draft and target are, before any token is drafted."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.values import FILTERED, Number, Space
from specdec_kernels.ops import _gradients as gradients
from specdec_kernels.ops._rows import Reading, RowOp
from specdec_kernels.sampling import Draft, LogitEdits, Sampling


class Overlap(NamedTuple):
    """Figures of each pair of rows, float32 [...].

    Attributes
    ----------
    accept : Tensor
        ``sum min(p, q)``: the acceptance by rejection.
    tv : Tensor
        ``1/2 sum |p - q|`` = 1 - accept.
    kl : Tensor
        ``KL(p || q)`` in nats; inf only where the draft gives a token of the target no weight at all.
    harmonic : Tensor
        ``sum p q / (p + q)``: a lower bound of the acceptance by a race.
    """

    accept: torch.Tensor
    tv: torch.Tensor
    kl: torch.Tensor
    harmonic: torch.Tensor


OVERLAP = RowOp(
    "overlap",
    result=Overlap,
    figures=True,
    backward=2,  # target and draft
    target=kinds.rows("*V"),
    draft=kinds.rows("~U", role="draft"),
    draft_map=kinds.ints("U", optional=True, role="draft"),
    request_index=kinds.REQUEST_INDEX,
    target_law=kinds.law("~"),
    draft_law=kinds.law("~", role="draft"),
    edits=kinds.EDITS,
    accept=kinds.Output(torch.float32, "out.accept", "*"),
    tv=kinds.Output(torch.float32, "out.tv", "*"),
    kl=kinds.Output(torch.float32, "out.kl", "*"),
    harmonic=kinds.Output(torch.float32, "out.harmonic", "*"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
)


def overlap(
    target: torch.Tensor,
    draft: torch.Tensor | Draft,
    *,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> Overlap:
    """How much of the target's law the draft's covers: acceptance, distances, and the race's lower bound, in one pass.

    Differentiable in ``target`` and ``draft``, once, by ``backward()``, for training drafts.

    Parameters
    ----------
    target : Tensor
        float32, bfloat16 or float16 [..., V].
    draft : Tensor or Draft
        [..., V'], V' <= V; tokens from V' on have q = 0. As for ``residual``.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. Short for ``sampling=Sampling(temperature=...)``.
    sampling, edits, request_index : optional
        As for ``residual``.
    out : Overlap, optional
        Preallocated outputs, contiguous.
    status : Tensor, optional
        int32 [...], overwritten, the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row
        without positive weight; 8 a temperature (argmax), top_p or min_p (off) or request_index out of range.

    Returns
    -------
    Overlap
        ``(accept, tv, kl, harmonic)``, float32 [...] each.

    References
    ----------
    Leviathan, Kalman, Matias 2023 (acceptance); Kobus, Gündüz 2025, Lemma 3.1 (harmonic).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> [round(x.item(), 4) for x in specdec_kernels.overlap(p, q, space="probs")]
    [0.6, 0.4, 0.4564, 0.4]
    """
    raw = (target, draft, request_index, space, temperature, sampling, edits, out, status)
    of_draft = draft.rows if isinstance(draft, Draft) else draft
    if not inputs.wants_gradient(target, of_draft):
        return OVERLAP.direct(check, *raw)
    OVERLAP.refuse_derivatives(raw)
    OVERLAP.refuse_unreadable(raw)
    call = Reading(OVERLAP, check, raw)
    if any(law.rules & FILTERED for law in call.laws):
        raise ValueError("sampling: expected no filters where target or draft requires grad; got some that may be on")
    if call.values["edits"].on():
        raise ValueError("edits: expected None where target or draft requires grad; got a LogitEdits")
    if out is not None:
        raise ValueError("out: expected None where target or draft requires grad; got preallocated outputs")
    shapes = call.rows.shape, call.values["draft"].shape
    how = call.values["draft_map"], request_index, *call.laws
    return Overlap(*gradients.Overlap.apply(target, of_draft, shapes, call, *how))
