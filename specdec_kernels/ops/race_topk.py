"""race_topk: the first k arrivals of each row's race."""

import torch

from specdec_kernels.calls import kinds
from specdec_kernels.calls.values import Counter, Number, Space
from specdec_kernels.ops._rows import RowOp
from specdec_kernels.sampling import LogitEdits, Sampling

RACE_TOPK = RowOp(
    "race_topk",
    sizes={"k": kinds.size("KV", least=1)},
    rows=kinds.rows("*V", shown="draft"),
    vocab_start=kinds.size(least=0),
    draft_map=kinds.ints("V", optional=True, role="map"),
    request_index=kinds.REQUEST_INDEX,
    law=kinds.law("~"),
    edits=kinds.EDITS,
    noise=kinds.noise("~"),
    tokens=kinds.Output(torch.int64, "out", "*K"),
    status=kinds.Output(torch.int32, "status", "*", optional=True),
    scores=kinds.Output(torch.float32, "scores", "*K", optional=True),
)


def race_topk(
    draft: torch.Tensor,
    k: int,
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
    """The first k arrivals of each row, in order: k samples without replacement, the first as by ``race_sample``.

    Parameters
    ----------
    draft : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary.
    k : int
        1 <= k <= V.
    seed, position, nonce : int or Tensor
        int64 or int32, broadcast to the rows. With several rows at least one must differ between them.
    temperature : float or Tensor
        float32, broadcast to the rows. Default 1.0. 0 gives the k most probable tokens, ties to the lower id. Short for
        ``sampling=Sampling(temperature=...)``.
    sampling, edits, draft_map, request_index : optional
        As for ``race_sample``. An idle request has -1 in all columns, one with another index out of range has token 0
        first, then -1.
    out : Tensor, optional
        int64 [..., k], preallocated.
    status : Tensor, optional
        int32 [...], overwritten, as by ``race_sample``.

    Returns
    -------
    Tensor
        int64 [..., k]; -1 in the last columns where fewer than k tokens have positive weight, or pass the filters.

    References
    ----------
    Kool, van Hoof, Welling 2019 (Gumbel top-k); Kobus, Gündüz 2025.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([0.0, 9.0, 5.0, -float("inf")])
    >>> specdec_kernels.race_topk(logits, 4, seed=1, position=0, temperature=0.0).tolist()
    [1, 2, 0, -1]
    """
    return RACE_TOPK.direct(
        check, draft, 0, draft_map, request_index, space, temperature, sampling, edits, seed, position,
        nonce, k, out, status, None,
    )  # fmt: skip
