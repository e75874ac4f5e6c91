"""logprobs: log-probabilities and ranks of given tokens, and the likeliest tokens beside them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import saved_by_name
from specdec_kernels.calls.values import Number
from specdec_kernels.ops._rows import RowOp
from specdec_kernels.sampling import LogitEdits, Sampling


class Logprobs(NamedTuple):
    """The figures of each row [...] and its token.

    Attributes
    ----------
    logprob : Tensor
        float32: the token's log-probability in nats. -inf if filters drop it, if it has no weight, or for -1.
    rank : Tensor
        int32: how many tokens of the support have at least its logit; 1 is the largest. 0 outside of the support.
    top_tokens : Tensor
        int64 [..., top]: the tokens of the largest logits, in order, ties by the lower id; -1 after the support's.
    top_logprobs : Tensor
        float32 [..., top]: their log-probabilities; -inf beside -1.
    """

    logprob: torch.Tensor
    rank: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor


@saved_by_name
class Support(NamedTuple):
    """The support of each row [...]: the tokens that its filters keep.

    Attributes
    ----------
    bits : Tensor
        int32 [..., ceil(V / 32)]: bit i % 32 of word i // 32 is 1 for token i of the support; ``LogitEdits.allowed``.
    count : Tensor
        int32 [...]: how many tokens are in the support.
    """

    bits: torch.Tensor
    count: torch.Tensor  # type: ignore[assignment]  # a tuple has a method of this name


LOGPROBS = RowOp(
    "logprobs",
    result=Logprobs,
    figures=True,
    sizes={"top": kinds.size("KV", least=0)},
    rows=kinds.rows("*V"),
    tokens=kinds.tokens("*"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    logprob=kinds.Output(torch.float32, "out.logprob", "*"),
    rank=kinds.Output(torch.int32, "out.rank", "*"),
    top_tokens=kinds.Output(torch.int64, "out.top_tokens", "*K"),
    top_logprobs=kinds.Output(torch.float32, "out.top_logprobs", "*K"),
    support_bits=kinds.Output(torch.int32, "support.bits", "*I", optional=True, role="status"),
    support_size=kinds.Output(torch.int32, "support.count", "*", optional=True, role="status"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
)


def logprobs(
    rows: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    top: int = 0,
    request_index: torch.Tensor | None = None,
    support: Support | None = None,
    out: Sequence[torch.Tensor] | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> Logprobs:
    """``log softmax`` of each row at its token, the token's rank, and the ``top`` likeliest tokens.

    Without ``temperature``, ``sampling`` and ``edits`` these are of the rows' logits. Otherwise they are of the law
    that these make, over the support of the filters. Rows and tokens of a verdict can be passed unchanged: its
    padding, -1, costs nothing.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary: logits.
    tokens : Tensor
        int64 or int32 [...]. -1 is none: logprob -inf and rank 0; its row is only read for ``top``.
    temperature : float or Tensor
        float32, broadcast to the rows. Short for ``sampling=Sampling(temperature=...)``. At 0 the argmax has logprob 0
        and rank 1, alone among the top; other tokens have -inf, and their rank by logit among all.
    sampling : Sampling, optional
        How a row becomes a law.
    edits : LogitEdits, optional
        Edits of the logits before that: bias, penalties, a grammar.
    top : int
        How many of the likeliest tokens to name, in [0, V].
    support : Support, optional
        Preallocated: the support of each row is written here, after edits; without filters all tokens that have weight.
        At temperature 0 it is the argmax alone. A row that is not read or has no weight has none. With
        ``LogitEdits(allowed=support.bits)`` any other op, a trainer's too, has the same support.
    request_index : Tensor, optional
        int32 or int64 [B], with rows [B, V] or [B, R, V]: row b uses the numbers of this entry. Numbers then
        have S entries. -1 is an idle request: its row counts as one without weight, its token as -1. So do those of any
        other index outside [0, S), with status 8.
    out : Logprobs, optional
        Preallocated outputs, contiguous.
    status : Tensor, optional
        int32 [...], overwritten, the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row
        without positive weight; 4 a token outside of the vocabulary, not -1; 8 a temperature (argmax), top_p or min_p
        (off) or request_index out of range.

    Returns
    -------
    Logprobs
        ``(logprob, rank, top_tokens, top_logprobs)``.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([2.0, 1.0, 3.0])
    >>> with specdec_kernels.backend("reference"):
    ...     scores = specdec_kernels.logprobs(logits, torch.tensor(0), top=2)
    >>> round(scores.logprob.item(), 4), scores.rank.item(), scores.top_tokens.tolist()
    (-1.4076, 2, [2, 0])
    """
    bits, number = (None, None) if support is None else _bits_and_count(support)
    return LOGPROBS.direct(
        check, rows, tokens, request_index, "logits", temperature, sampling, edits, top, out, bits, number,
        status,
    )  # fmt: skip


def _bits_and_count(support):
    if not isinstance(support, (tuple, list)) or len(support) != 2:
        raise TypeError(f"support: expected a Support; got {inputs.shown(support)}")
    for name, x in zip(Support._fields, support, strict=True):
        inputs.check_tensor(f"support.{name}", x, (torch.int32,), None)
    return support
