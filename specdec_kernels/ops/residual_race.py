"""residual_race: the first arrival in a part of a row, over what a draft left of its law."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._declaration import LAW, NOISE, NUMBER, OPTIONAL, SIZE, TENSOR, Law, Noise, Op, Output
from specdec_kernels.ops._laws import noise_of, target_law
from specdec_kernels.ops._types import Counter, Number
from specdec_kernels.sampling import Sampling

RESIDUAL_RACE = Op(
    "residual_race",
    target=TENSOR,
    first_token=SIZE,
    draft=OPTIONAL,
    row=TENSOR,
    draft_row=OPTIONAL,
    excluded=OPTIONAL,
    known=TENSOR,
    target_law=LAW,
    draft_law=LAW,
    taken=NUMBER,
    noise=NOISE,
    tokens=Output(torch.int64, "tokens"),
    status=Output(torch.int32, "status"),
    scores=Output(torch.float32, "scores"),
)


def residual_race(
    target: torch.Tensor,
    draft: torch.Tensor | None,
    row: torch.Tensor,
    *,
    first_token: int,
    draft_row: torch.Tensor | None = None,
    excluded: torch.Tensor | None = None,
    known: torch.Tensor,
    taken: Number = 1.0,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first arrival in a part of one row of each request, over ``(p - taken q)^+``: what ends a rejection.

    Parameters
    ----------
    target, draft : Tensor
        float32, bfloat16 or float16 [..., n] of logits, the columns of the tokens from ``first_token`` on.
    row, draft_row : Tensor
        int32 [B], among all rows. ``row`` -1 is an idle request. ``draft_row`` -1: over p. A row out of range gives
        token 0 and status 8. A ``draft`` needs a ``draft_row``.
    first_token : int
        A multiple of 1,024.
    excluded : Tensor, optional
        int32 [B]: a token that has no weight in a race over p; -1 for none.
    known : Tensor
        float32 [B, 4]: what ``tile_laws`` says of the target's row, then of the draft's.
    taken : float or Tensor
        float32 [B].
    seed, position, nonce : int or Tensor
        int64 or int32 [B]; the position is that which the row decides.
    temperature, sampling, draft_sampling : optional
        As for ``verify_chain``, [B]. Filters are those of the part, as if it were all.

    Returns
    -------
    tuple of Tensor
        (tokens int64, scores float32, status int32), [B] each, as ``sharded.race_partial`` has them.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import mass_tiles, residual_race, tile_laws
    >>> target, draft = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    >>> known = torch.cat([tile_laws(mass_tiles(rows)[0], rows)[0] for rows in (target, draft)], dim=-1)
    >>> row = torch.zeros(1, dtype=torch.int32)
    >>> residual_race(target, draft, row, first_token=0, draft_row=row, known=known, seed=1, position=0)[0].item()
    0
    """
    raw = (
        seed, position, nonce, target, draft, row, first_token, draft_row, excluded, known, taken, temperature,
        sampling, draft_sampling,
    )  # fmt: skip
    if found := RESIDUAL_RACE.recall(raw):
        return found[0], found[2], found[1]
    inputs.check_rows("target", target)
    inputs.check_tensor("row", row, (torch.int32,), 1)
    batch, device = len(row), target.device
    if draft is not None:
        inputs.check_rows("draft", draft)
        if draft.shape[-1] != target.shape[-1]:
            raise ValueError(f"draft: expected the target's {target.shape[-1]} columns; got {inputs.shown(draft)}")
    if (draft is None) != (draft_row is None):
        wanted = "None without a draft" if draft is None else "int32 [B] with a draft"
        raise ValueError(f"draft_row: expected {wanted}; got {inputs.shown(draft_row)}")
    for name, places in (("draft_row", draft_row), ("excluded", excluded)):
        if places is not None:
            inputs.check_tensor(name, places, (torch.int32,), 1)
            inputs.check_shape(name, places, (batch,))
    inputs.check_tensor("known", known, (torch.float32,), 2)
    inputs.check_shape("known", known, (batch, 4))
    for name, x in (("draft", draft), ("row", row), ("draft_row", draft_row), ("excluded", excluded), ("known", known)):
        if x is not None:
            inputs.check_device(name, x, device)
    law = target_law("logits", temperature, sampling, (batch,), device)
    q_law = Law("logits", law.temperature)
    if draft_sampling is not None:
        q_law = target_law("logits", None, draft_sampling, (batch,), device)
    taken = inputs.number("taken", taken, (batch,), device)
    noise = noise_of(1, seed, position, nonce, (batch,), device)
    tokens = torch.empty(batch, dtype=torch.int64, device=device)
    scores = torch.empty(batch, dtype=torch.float32, device=device)
    status = torch.empty(batch, dtype=torch.int32, device=device)
    folded = None if draft is None else inputs.rows3("draft", draft)
    RESIDUAL_RACE(
        inputs.rows3("target", target), first_token, folded, row, draft_row, excluded, known, law, q_law, taken,
        Noise(*noise), tokens, status, scores, raw=raw, results=(tokens, status, scores),
    )  # fmt: skip
    return tokens, scores, status
