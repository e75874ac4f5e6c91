"""count_tokens: updates the masks and counts that penalties read."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.sampling import LogitEdits

COUNT_TOKENS = Op(
    "count_tokens",
    tokens=kinds.tokens("BS"),
    num=kinds.counter("E", least=0),
    mask=kinds.Output(torch.int32, "edits' mask", "BW", by_rows=True, role="written"),
    counts=kinds.Output(torch.int32, "edits.output_counts", "BV", optional=True, by_rows=True, role="written"),
    status=kinds.Output(torch.int32, "status", "B"),
)


def count_tokens(
    edits: LogitEdits,
    tokens: torch.Tensor,
    num: Counter | None = None,
    *,
    prompt: bool = False,
    status: torch.Tensor | None = None,
) -> None:
    """Add each request's tokens to ``edits.output_mask`` and ``edits.output_counts``, in place.

    After a verification ``count_tokens(edits, verdict.tokens)`` adds the emitted tokens. A count whose bit is clear is
    0, whatever is in memory. So zeroing a request's mask is enough to begin a new text.

    Parameters
    ----------
    edits : LogitEdits
        Its masks int32 [B, W] are bits, its counts int32 [B, V], W at least ceil(V / 32); rows may have any stride.
        Without counts the mask alone is updated. Counts end at 2**31 - 1.
    tokens : Tensor
        int32 or int64 [B, n]. -1, and ids outside [0, V), are skipped; without counts V is 32 W.
    num : int or Tensor, optional
        int64 or int32 [B]: how many of a request's tokens to take, the first ones. Default: all.
    prompt : bool
        Add them to ``edits.prompt_mask`` instead.
    status : Tensor, optional
        int32 [B], overwritten: 8 where ``num`` is outside of [0, n] and counts as the nearest of these.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import LogitEdits
    >>> mask, counts = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 6, dtype=torch.int32)
    >>> edits = LogitEdits(frequency=0.5, output_mask=mask, output_counts=counts)
    >>> specdec_kernels.count_tokens(edits, torch.tensor([[3, 1, 3, -1]]))
    >>> counts.tolist(), mask.tolist()
    ([[0, 1, 0, 2, 0, 0]], [[10]])
    """
    if type(edits) is LogitEdits and type(prompt) is bool:
        mask, counts = (edits.prompt_mask, None) if prompt else (edits.output_mask, edits.output_counts)
        slots = tokens.shape[-1] if isinstance(tokens, torch.Tensor) and tokens.ndim else 0
        direct_num = (
            num if isinstance(num, (int, torch.Tensor)) and (isinstance(num, torch.Tensor) or num <= slots) else None
        )
        if COUNT_TOKENS.direct(False, tokens, slots if num is None else direct_num, mask, counts, status) is not None:
            return
    inputs.check_type("edits", edits, LogitEdits)
    prompt = inputs.flag("prompt", prompt)
    COUNT_TOKENS.check({}, tokens=tokens)
    (batch, slots), device = tokens.shape, tokens.device
    name = "edits.prompt_mask" if prompt else "edits.output_mask"
    mask = _rows(name, edits.prompt_mask if prompt else edits.output_mask, batch, device)
    counts = None if prompt else edits.output_counts
    if counts is not None:
        _rows("edits.output_counts", counts, batch, device)
        if 32 * mask.shape[1] < counts.shape[1]:
            raise ValueError(f"{name}: expected a bit for each of {counts.shape[1]} counts; got {inputs.shown(mask)}")
    num = COUNT_TOKENS.number("num", slots if num is None else num, (batch,), device)
    if not isinstance(num, torch.Tensor) and not 0 <= num <= slots:
        raise ValueError(f"num: expected 0 to {slots}, the number of tokens; got {num}")
    status = COUNT_TOKENS.output("status", status, (batch,), device)
    COUNT_TOKENS(tokens, num, mask, counts, status, given=True)


def _rows(name, x, batch, device):
    """``x`` if it is int32 [B, any] and no two rows share memory."""
    inputs.check_tensor(name, x, (torch.int32,), 2)
    inputs.output(name, x, torch.int32, (batch, x.shape[1]), device, by_rows=True)
    return x
