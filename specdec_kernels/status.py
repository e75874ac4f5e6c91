"""What the ops report of each request."""

import enum

__all__ = ["Status"]


class Status(enum.IntFlag):
    """Bits of a ``status``, one for each request, or for each row in ops on rows. 0: all is well.

    Bits tell only of what decided the output.

    Examples
    --------
    >>> from specdec_kernels import Status
    >>> Status.TOKEN_RANGE in Status(5)
    True
    """

    NON_FINITE = 1
    """A NaN, +inf or a negative probability was met, or a row without positive weight was asked for a token."""
    EMPTY_RESIDUAL = 2
    """Target and draft were equal to rounding: drawn from the target itself, which has weight."""
    TOKEN_RANGE = 4
    """A draft token outside of the vocabulary: rejected. In ``logprobs`` any token outside but -1."""
    PARAMETER = 8
    """A temperature, ``top_p``, ``min_p``, ``draft_prob`` or ``epsilon`` out of range (taken as argmax, off, off,
    clamped, 0), a ``request_index`` or ``cu_drafts`` that points outside, ``cu_drafts`` that does not begin with 0
    (token 0), a given token outside of the vocabulary (token 0), an entry of ``parents``, ``path`` or ``prefix_len``
    out of range, or a link that is no part of a tree."""
