"""The status bits of requests and rows."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Status"]


class Status(enum.IntFlag):
    """Bits of a ``status``, one for each request, or for each row in ops on rows. 0: no fault.

    Bits report only rows and numbers that decided the output.

    Examples
    --------
    >>> from specdec_kernels import Status
    >>> Status.TOKEN_RANGE in Status(5)
    True
    """

    NON_FINITE = 1
    """A row has a NaN, +inf or a negative probability, or no positive weight where a token is drawn from it."""
    EMPTY_RESIDUAL = 2
    """Target and draft are equal to rounding: the token was drawn from the target, which has weight."""
    TOKEN_RANGE = 4
    """A draft token outside of the vocabulary: rejected. In ``logprobs`` any token outside but -1."""
    PARAMETER = 8
    """A temperature, ``top_p``, ``min_p``, ``draft_prob`` or ``epsilon`` out of range (taken as argmax, off, off,
    clamped, 0), a ``request_index`` or ``cu_drafts`` that points outside, ``cu_drafts`` that does not begin with 0
    (token 0), a given token outside of the vocabulary (token 0), an entry of ``parents``, ``path`` or ``prefix_len``
    out of range, or a link that is no part of a tree."""


TEXTS = {
    Status.NON_FINITE: "a NaN, +inf or a negative probability in a row, or a row without positive weight",
    Status.EMPTY_RESIDUAL: "the residual was empty",
    Status.TOKEN_RANGE: "a token out of range",
    Status.PARAMETER: "a temperature, top_p, min_p, draft_prob, epsilon, edit, cu_drafts or request_index out of range",
}


def raise_for_status(op: str, status: torch.Tensor) -> None:
    """The last step of ``check=True``: waits for the device, raises if a request (row) has a status bit set."""
    each = "request" if status.ndim == 1 else "row"
    flat = status.flatten().tolist()
    bad = [(b, s) for b, s in enumerate(flat) if s]
    if bad:
        lines = [f"{each} {b}: " + "; ".join(text for bit, text in TEXTS.items() if s & bit) for b, s in bad[:8]]
        more = f" (and {len(bad) - 8} more)" if len(bad) > 8 else ""
        raise RuntimeError(f"{op}: " + ", ".join(lines) + more)
