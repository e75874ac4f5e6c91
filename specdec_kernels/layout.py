"""How an engine's batch lies in memory, where it is not one padded row of drafts for each request."""

from typing import NamedTuple

import torch

__all__ = ["InputPositions", "Packing"]


class Packing(NamedTuple):
    """Chains of several lengths one after the other, without padding: what ``verify_chain`` takes as ``packing=``.

    Attributes
    ----------
    cu_drafts : Tensor, optional
        int32 [B+1] from 0: request b owns drafts ``cu[b] .. cu[b+1]`` and target rows from ``cu[b] + b`` on.
    cu_rows : Tensor, optional
        int32 [B+1] from 0, in the place of ``cu_drafts``: request b owns target rows ``cu[b] .. cu[b+1]``, one more
        than drafts. ``draft_tokens`` is [D+B] then: each row has the token that enters it, which a request's first row
        has from before. Rows behind the last request's may be there.
    max_drafts : int, optional
        The width K of the output. Default: the largest request on a CPU, D elsewhere, where looking would wait for the
        device. A request with more is cut off there and gets status bit 8.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Packing
    >>> target = torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])  # two rows, and one
    >>> specdec_kernels.verify_chain(
    ...     torch.tensor([1]), target, packing=Packing(torch.tensor([0, 1, 1], dtype=torch.int32)), temperature=0.0,
    ...     seed=torch.arange(2), position=0,
    ... ).tokens.tolist()
    [[1, 0], [2, -1]]
    """

    cu_drafts: torch.Tensor | None = None
    cu_rows: torch.Tensor | None = None
    max_drafts: int | None = None


class InputPositions(NamedTuple):
    """Where the tokens stand that enter the target's rows: what ``position=`` of verify_chain and verify_tree may be.

    A row decides the token after the one that enters it. Positions and nonces are of the batch, not of the entries that
    ``request_index`` points to.

    Attributes
    ----------
    positions : Tensor
        int64 or int32 [B, K+1], or like packed target rows; of trees [B, N]. Only that of a request's first row, of a
        tree's root, is looked at.
    nonces : Tensor, optional
        int64 or int32 [B], in the place of ``nonce``. Not of trees.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import InputPositions
    >>> drafts, target, seed = torch.tensor([[2]]), torch.zeros(1, 2, 8), 7
    >>> entered = InputPositions(torch.tensor([[4, 5]]))  # the last token is at 4, the draft would be at 5
    >>> one = specdec_kernels.verify_chain(drafts, target, method="race", seed=seed, position=entered)
    >>> other = specdec_kernels.verify_chain(drafts, target, method="race", seed=seed, position=5)
    >>> torch.equal(one.tokens, other.tokens)
    True
    """

    positions: torch.Tensor
    nonces: torch.Tensor | None = None
