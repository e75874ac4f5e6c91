"""race_sample: one token of each row by the exponential race."""

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.calls.values import Counter, Number, Space
from specdec_kernels.ops._rows import RowOp
from specdec_kernels.sampling import LogitEdits, Sampling

RACE_SAMPLE = RowOp(
    "race_sample",
    rows=kinds.rows("*V", shown="target"),
    vocab_start=kinds.size(least=0),
    draft_map=kinds.ints("V", optional=True, role="map"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    noise=kinds.noise("~"),
    tokens=kinds.Output(torch.int64, "out", "*"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
    scores=kinds.Output(torch.float32, "scores", "*", optional=True),
)


def race_sample(
    target: torch.Tensor,
    *,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    draft_map: torch.Tensor | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Draw one token of each row: ``argmin_i E(i) / p(i)``, E the position's exponential arrivals.

    The law is exactly ``softmax(target / temperature)``, but no softmax is computed: one pass over the row, and
    logarithms only for the few tokens that could win. The noise is that of ``verify_chain(method="race")``, which
    therefore reproduces plain sampling by this function token for token; it is also how a draft model should draw.

    Parameters
    ----------
    target : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary.
    seed, position, nonce : int or Tensor
        int64 or int32, broadcast to the rows. With several rows at least one must differ between them.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. 0 means argmax, ties to the lowest id. Short for
        ``sampling=Sampling(temperature=...)``.
    sampling : Sampling, optional
        How a row becomes a law, instead of ``temperature``. With filters the law is that over the tokens they keep;
        the noise stays the whole row's.
    edits : LogitEdits, optional
        Edits of the logits before that: bias, penalties, a grammar. Not with ``draft_map``.
    draft_map : Tensor, optional
        int32 [V], rising: the target's token for each column of a row, for a draft with another vocabulary. The
        tokens drawn, and the noise, are then the target's.
    request_index : Tensor, optional
        int32 or int64 [B], with rows [B, V] or [B, R, V]: row b uses the numbers of this entry.
        ``temperature``, ``seed``, ``position`` and ``nonce`` then have S entries. -1 is an idle request: token -1. Any
        other index outside [0, S) gives token 0 and status 8.
    out : Tensor, optional
        int64 [...], preallocated.
    status : Tensor, optional
        int32 [...], overwritten, the bits of ``Status``: 1 a NaN, +inf or a negative probability in a row, or a row
        without positive weight; 8 a temperature (argmax), top_p or min_p (off) or request_index out of range.

    Returns
    -------
    Tensor
        int64 [...]: always inside [0, V). NaN logits have no weight; a row without any gives token 0.

    References
    ----------
    Maddison, Tarlow, Minka 2014 (A* sampling); Kobus, Gündüz 2025.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([0.0, 9.0, -float("inf")])
    >>> specdec_kernels.race_sample(logits, seed=1, position=0, temperature=0.0).item()
    1
    """
    return RACE_SAMPLE.direct(
        check, target, 0, draft_map, request_index, space, temperature, sampling, edits, seed, position,
        nonce, out, status, None,
    )  # fmt: skip
