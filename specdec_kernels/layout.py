"""How an engine's batch lies in memory, and how it wants a verdict, where these are not padded rows of requests."""

from typing import NamedTuple

import torch

from specdec_kernels.calls.types import Count

__all__ = ["InputPositions", "OutputFormat", "Packing"]


class Packing(NamedTuple):
    """Chains of several lengths one after the other, without padding: what ``verify_chain`` takes as ``packing=``.

    Attributes
    ----------
    cu_drafts : Tensor, optional
        int32 [B+1] from 0: request b owns drafts ``cu[b] .. cu[b+1]`` and target rows from ``cu[b] + b`` on.
        Token 0 and status bit 8 come of a request whose bounds fall or end behind the last draft, and of the first one
        where ``cu[0]`` is not 0.
    cu_rows : Tensor, optional
        int32 [B+1] from 0, instead of ``cu_drafts``: request b owns target rows ``cu[b] .. cu[b+1]``, one more
        than drafts. ``draft_tokens`` is [D+B] then: each row has the token that enters it, which a request's first row
        has from before. Rows behind the last request's may be there.
    max_drafts : int, optional
        The width K of the output. Default: the largest request on a CPU, D elsewhere, where looking would wait for the
        device, and under ``torch.compile``, which sees no values. A request with more is cut off there and gets status
        bit 8.

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
        int64 or int32 [B], instead of ``nonce``. Not of trees.

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


class OutputFormat(NamedTuple):
    """How ``verify_chain`` and ``verify_tree`` write what ``out`` has, for engines that want it so from one launch.

    With an ``index`` the tokens of all requests lie in one row, ``out.tokens`` [any]: the token after node i of request
    b is written to ``out.tokens[index[b, i]]``, and the path is of these places in the place of nodes. Of chains node 0
    is the last committed token, and node i draft i - 1. Each node has a place of its own. One outside of the row is not
    written: the path has -1 there, and the status 8.

    Attributes
    ----------
    index : Tensor, optional
        int32 or int64, [B, K+1] for chains, [B, N] for trees.
    path : Tensor, optional
        int32 [B, K+1]: of chains, the path is written here. Needed with ``index``. Trees have it in ``out``.
    num_passed : Tensor, optional
        int32 [B]: of chains, how many drafts pass their own test is written here: those that were accepted, and those
        behind the rejected one, up to the first -1, that their own uniforms would accept. With rejection alone, of
        probabilities of one vocabulary.
    zeros : bool
        Whether tokens have 0 after the last, not -1, so that each can be looked up in a table: for padded batches,
        where idle requests have no token at all. The path has -1 all the same. With an ``index`` the places of all
        nodes that are not on the path get 0, those of idle requests among them.
    count : str
        What ``out.num_accepted`` counts: "accepted" drafts, or "emitted" tokens, one more.
    add : bool
        Whether that, and ``num_passed``, is added to what is there. Idle requests add nothing.
    bonus : Tensor, optional
        int32 or int64 [B]: of chains, the token after a request's last draft is given. It is written where all drafts
        are accepted. The target has no row for it then: it is [B, K, V], or packed [D, V] with request b's rows from
        ``cu_drafts[b]`` on. A chain that ends early, at a -1, has a row there and draws from it; so does one that
        ``max_drafts`` cuts off. A token out of the vocabulary gives token 0 and the status 8. Without ``cu_rows`` and
        ``InputPositions``.
    """

    index: torch.Tensor | None = None  # type: ignore[assignment]  # a tuple has methods of these two names
    path: torch.Tensor | None = None
    num_passed: torch.Tensor | None = None
    zeros: bool = False
    count: Count = "accepted"  # type: ignore[assignment]
    add: bool = False
    bonus: torch.Tensor | None = None
