"""chain_ends: what ends chains of which a walk accepted some drafts."""

from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops._declaration import NUMBER, OPTIONAL, SIZE, TENSOR, Op, Output
from specdec_kernels.ops._types import Number
from specdec_kernels.ops.verify_chain import _slot_numbers


class ChainEnds(NamedTuple):
    """What ends each chain.

    Attributes
    ----------
    tokens : Tensor
        int64 [B, K+1]: the drafts accepted, 0 where the last token is still to be drawn, -1 behind. Of requests with
        temperature 0 the last token is there.
    status : Tensor
        int32 [B].
    row, draft_row : Tensor
        int32 [B]: what the last token is drawn from, among all rows: the target's row, or -1 where nothing is drawn,
        and the draft's row that is subtracted, or -1.
    tried : Tensor
        int32 [B]: the draft that was refused; -1 if there is none, or it is outside of the vocabulary.
    taken : Tensor
        float32 [B]: the multiple of the draft's row.
    slot : Tensor
        int64 [B]: the place of the last token.
    laws : Tensor
        float32 [B, 4]: what is known of both rows.
    """

    tokens: torch.Tensor
    status: torch.Tensor
    row: torch.Tensor
    draft_row: torch.Tensor
    tried: torch.Tensor
    taken: torch.Tensor
    slot: torch.Tensor
    laws: torch.Tensor


CHAIN_ENDS = Op(
    "chain_ends",
    draft_tokens=TENSOR,
    cu_drafts=OPTIONAL,
    vocab=SIZE,
    request_index=OPTIONAL,
    num_accepted=TENSOR,
    walked=TENSOR,
    met=TENSOR,
    draft_met=OPTIONAL,
    read=OPTIONAL,
    winners=OPTIONAL,
    draft_places=OPTIONAL,
    known=TENSOR,
    draft_known=OPTIONAL,
    temperature=NUMBER,
    draft_prob=NUMBER,
    tokens=Output(torch.int64, "tokens"),
    status=Output(torch.int32, "status"),
    row=Output(torch.int32, "row"),
    draft_row=Output(torch.int32, "draft_row"),
    tried=Output(torch.int32, "tried"),
    taken=Output(torch.float32, "taken"),
    slot=Output(torch.int64, "slot"),
    laws=Output(torch.float32, "laws"),
)


def chain_ends(
    draft_tokens: torch.Tensor,
    num_accepted: torch.Tensor,
    walked: torch.Tensor,
    *,
    vocab: int,
    met: torch.Tensor,
    known: torch.Tensor,
    draft_met: torch.Tensor | None = None,
    draft_known: torch.Tensor | None = None,
    draft_places: torch.Tensor | None = None,
    read: torch.Tensor | None = None,
    winners: torch.Tensor | None = None,
    temperature: Number = 1.0,
    draft_prob: Number = 1.0,
    request_index: torch.Tensor | None = None,
    cu_drafts: torch.Tensor | None = None,
    max_drafts: int | None = None,
) -> ChainEnds:
    """What is left of a rejection whose walk is done: the tokens before the last, and what the last is drawn from.

    For verification over parts of rows: the walk (``verify_chain``) was on the probabilities of the drafts alone, and
    ``residual_race`` draws from the rows that this names.

    Parameters
    ----------
    draft_tokens, cu_drafts, request_index, draft_prob
        As for ``verify_chain``.
    num_accepted, walked : Tensor
        int32 [B]: of the walk, and its status, of which the bits 4 and 8 are taken.
    vocab : int
    met : Tensor
        int32, one for each target row: the status of each.
    known : Tensor
        float32 [target rows, 2], as by ``tile_laws``.
    draft_met : Tensor, optional
        int32, one for each draft: the status of its row. Without it there are no draft laws.
    draft_known : Tensor, optional
        float32 [draft rows, 2].
    draft_places : Tensor, optional
        int64 [drafts]: the row of each draft, if they are not those of the drafts in order.
    read : Tensor, optional
        bool [B, K+1]: whose rows, beside the last, decided the output. Default: all up to the last.
    winners : Tensor, optional
        int64, one for each target row: the argmax, needed where a temperature is 0.
    temperature : float or Tensor
        float32 [B]: 0 where the argmax decided.
    max_drafts : int, optional
        With ``cu_drafts``: K.

    Returns
    -------
    ChainEnds

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import chain_ends
    >>> zero = torch.zeros(1, dtype=torch.int32)
    >>> ends = chain_ends(  # one of two drafts was accepted
    ...     torch.tensor([[5, 9]]), zero + 1, zero, vocab=16, met=zero.repeat(3), known=torch.zeros(3, 2)
    ... )
    >>> ends.tokens.tolist(), ends.row.tolist(), ends.tried.tolist()
    ([[5, 0, -1]], [1], [9])
    """
    raw = (
        draft_tokens, num_accepted, walked, vocab, met, known, draft_met, draft_known, draft_places, read,
        winners, temperature, draft_prob, request_index, cu_drafts, max_drafts,
    )  # fmt: skip
    if found := CHAIN_ENDS.recall(raw):
        return ChainEnds(*found)
    inputs.check_tensor("met", met, (torch.int32,), None)
    inputs.check_tensor("draft_tokens", draft_tokens, inputs.TOKEN_DTYPES, 1 if cu_drafts is not None else 2)
    device, width = met.device, max_drafts
    if cu_drafts is not None:
        batch = len(cu_drafts) - 1
    else:
        batch, width = draft_tokens.shape
    if (cu_drafts is None) != (max_drafts is None) or width is None:
        raise ValueError(f"max_drafts: expected an int with cu_drafts, else None; got {max_drafts!r}")
    vocab = inputs.whole("vocab", vocab, "an int of 1 or more", 1)
    if (draft_met is None) != (draft_known is None):
        raise ValueError("draft_known: expected it with draft_met, and only then")
    drafts = draft_tokens.numel()
    rows, draft_rows = drafts + batch, len(draft_known) if draft_known is not None else 0
    for name, x, dtype, shape in (
        ("num_accepted", num_accepted, torch.int32, (batch,)), ("walked", walked, torch.int32, (batch,)),
        ("known", known, torch.float32, (rows, 2)), ("cu_drafts", cu_drafts, torch.int32, (batch + 1,)),
        ("read", read, torch.bool, (batch, width + 1)), ("draft_known", draft_known, torch.float32, (draft_rows, 2)),
    ):  # fmt: skip
        if x is not None or name in ("num_accepted", "walked", "known"):
            inputs.output(name, x, dtype, shape, device)
    for name, x, dtype, count in (
        ("met", met, torch.int32, rows), ("draft_met", draft_met, torch.int32, drafts),
        ("winners", winners, torch.int64, rows), ("draft_places", draft_places, torch.int64, drafts),
    ):  # fmt: skip
        if x is None:
            continue
        inputs.check_tensor(name, x, (dtype,), None)
        if x.numel() != count or not x.is_contiguous() or x.device != device:
            raise ValueError(f"{name}: expected {count} contiguous items on {device}; got {inputs.shown(x)}")
    if request_index is not None:
        laws.check_index(request_index, batch, device)
    packed = cu_drafts is not None
    temperature = inputs.number("temperature", temperature, (batch,), device)
    draft_prob = _slot_numbers(draft_prob, batch, (drafts,) if packed else (batch, width), packed, device)

    def made(dtype, *last):
        return torch.empty((batch, *last), dtype=dtype, device=device)

    ends = ChainEnds(
        made(torch.int64, width + 1), made(torch.int32), made(torch.int32), made(torch.int32), made(torch.int32),
        made(torch.float32), made(torch.int64), made(torch.float32, 4),
    )  # fmt: skip

    def flat(x):
        return None if x is None else x.view(-1)

    CHAIN_ENDS(
        draft_tokens, cu_drafts, vocab, request_index, num_accepted, walked, flat(met), flat(draft_met), flat(read),
        flat(winners), flat(draft_places), flat(known), flat(draft_known), temperature, draft_prob, *ends,
        raw=raw, results=tuple(ends),
    )  # fmt: skip
    return ends
