"""residual_race: the first arrival in a part of a row, over what a draft left of its law."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Counter, Number
from specdec_kernels.calls.values import Noise
from specdec_kernels.ops._laws import noise_of
from specdec_kernels.sampling import Edits
from specdec_kernels.sharded.parts._pairs import check_rows, edit_of, laws_of

RESIDUAL_RACE = Op(
    "residual_race",
    result=tuple,
    target=kinds.rows("*V"),
    vocab_start=kinds.size(least=0),
    draft=kinds.rows("^V", optional=True),
    row=kinds.ints("R:c"),
    draft_row=kinds.ints("R:c", optional=True),
    excluded=kinds.ints("R.X:u", optional=True),
    cuts=kinds.ints("R6:c", optional=True),
    known=kinds.floats("R4"),
    target_law=kinds.law("R"),
    draft_law=kinds.law("R", shown="draft"),
    edits=kinds.edits("~"),
    subtracted=kinds.number("R"),
    noise=kinds.noise("R"),
    tokens=kinds.Output(torch.int64, "tokens", "R"),
    status=kinds.Output(torch.int32, "status", "R"),
    scores=kinds.Output(torch.float32, "scores", "R"),
)


def residual_race(
    target: torch.Tensor,
    draft: torch.Tensor | None,
    row: torch.Tensor,
    *,
    vocab_start: int,
    draft_row: torch.Tensor | None = None,
    excluded: torch.Tensor | None = None,
    known: torch.Tensor,
    subtracted: Number = 1.0,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    temperature: Number | None = None,
    draft_temperature: Number | None = None,
    cuts: torch.Tensor | None = None,
    edits: Edits | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first arrival in a part of one row of each request, over ``(p - taken q)^+``: what ends a rejection.

    Parameters
    ----------
    target, draft : Tensor
        float32, bfloat16 or float16 [..., n] of logits, the columns of the tokens from ``vocab_start`` on.
    row, draft_row : Tensor
        int32 [B], among all rows. ``row`` -1 is an idle request. ``draft_row`` -1: over p. A row out of range gives
        token 0 and status 8. A ``draft`` needs a ``draft_row``.
    vocab_start : int
        A multiple of 1,024.
    excluded : Tensor, optional
        int32 [B] or [B, n]: tokens that have no weight in a race over p; -1 for none.
    known : Tensor
        float32 [B, 4]: what ``tile_laws`` says of the target's row, then of the draft's.
    taken : float or Tensor
        float32 [B].
    seed, position, nonce : int or Tensor
        int64 or int32 [B]; the position is that which the row decides.
    temperature, draft_temperature : float or Tensor
        float32 [B], those of ``known``. Default 1.0, and the target's for the draft. At 0 the target's argmax is all.
    cuts : Tensor, optional
        int32 [B, 6]: what filters keep of the target's row, then of the draft's. Of each three words: the value that
        the last token kept has, as bits of a float32 (-inf: all are kept); that token's column in the part; and what
        logits are multiplied by where filters compare them, as bits (1 / temperature, or 1). A token is kept whose
        value is larger, or equal and its column not behind that one (which may lie outside of the part).
    edits : Edits, optional
        As for ``race_sample``, of all rows of ``target`` and of the part's columns: masks begin with the part's words,
        tokens with 0.

    Returns
    -------
    tuple of Tensor
        (tokens int64, scores float32, status int32), [B] each, as ``sharded.race_partial`` has them. Status 8
        is also that of a temperature or an edit out of range.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels.sharded.parts import mass_tiles, residual_race, tile_laws
    >>> target, draft = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    >>> known = torch.cat([tile_laws(mass_tiles(rows)[0], rows)[0] for rows in (target, draft)], dim=-1)
    >>> row = torch.zeros(1, dtype=torch.int32)
    >>> residual_race(target, draft, row, vocab_start=0, draft_row=row, known=known, seed=1, position=0)[0].item()
    0
    """
    of_draft = temperature if draft_temperature is None else draft_temperature
    if (draft is None) == (draft_row is None) and (found := RESIDUAL_RACE.direct(
        False, target, vocab_start, draft, row, draft_row, excluded, cuts, known, "logits", temperature, None, "logits",
        of_draft, None, edits, subtracted, seed, position, nonce, None, None, None,
    )) is not None:  # fmt: skip
        return found[0], found[2], found[1]
    sizes = check_rows(RESIDUAL_RACE, target, draft, row, draft_row, cuts, known)
    batch, device = len(row), target.device
    if (draft is None) != (draft_row is None):
        wanted = "None without a draft" if draft is None else "int32 [B] with a draft"
        raise ValueError(f"draft_row: expected {wanted}; got {inputs.shown(draft_row)}")
    if excluded is not None:
        excluded = _tokens(excluded, batch, device)
    law, q_law = laws_of(temperature, draft_temperature, batch, device)
    rows = inputs.rows3("target", target)
    changes = edit_of(edits, law, target, rows)
    subtracted = RESIDUAL_RACE.number("subtracted", subtracted, (batch,), device)
    noise = noise_of(1, seed, position, nonce, (batch,), device)
    tokens, status, scores = RESIDUAL_RACE.new(sizes)
    folded = None if draft is None else inputs.rows3("draft", draft)
    RESIDUAL_RACE(
        rows, vocab_start, folded, row, draft_row, excluded, cuts, known, law, q_law, changes, subtracted,
        Noise(*noise), tokens, status, scores,
    )  # fmt: skip
    return tokens, scores, status


def _tokens(excluded, batch, device):
    """``excluded`` as [B, n]."""
    if not isinstance(excluded, torch.Tensor) or excluded.ndim != 2:
        inputs.check_tensor("excluded", excluded, (torch.int32,), 1)
        excluded = excluded.unsqueeze(-1)
    inputs.check_tensor("excluded", excluded, (torch.int32,), 2)
    inputs.check_shape("excluded", excluded, (batch, excluded.shape[1]))
    inputs.check_device("excluded", excluded, device)
    inputs.check_step("excluded", excluded, "the tokens")
    return excluded
