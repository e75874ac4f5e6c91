"""The memory layout of an engine's batch and of its verdict, where these are not padded rows of requests."""

from typing import Literal, NamedTuple

import torch

__all__ = ["InputPositions", "OutputFormat", "Packing"]


class Packing(NamedTuple):
    """Chains of several lengths, one after the other without padding: ``packing=`` of ``verify_chain``.

    Attributes
    ----------
    cu_drafts : Tensor, optional
        int32 [B+1] from 0: request b owns drafts ``cu[b] .. cu[b+1]`` and target rows from ``cu[b] + b`` on.
        A request whose bounds fall or end behind the last draft gets token 0 and status bit 8, and so does the first
        request if ``cu[0]`` is not 0.
    cu_rows : Tensor, optional
        int32 [B+1] from 0, instead of ``cu_drafts``: request b owns target rows ``cu[b] .. cu[b+1]``, one more
        than drafts. ``draft_tokens`` is then [D+B]: each row has its input token, which for a request's first row is
        the last committed token. There may be more rows behind the last request's.
    max_drafts : int, optional
        The width K of the output. Default: the largest request on a CPU; D on a device, where reading the bounds would
        wait for it, and under ``torch.compile``, which traces no values. A request with more drafts is cut off there
        and gets status bit 8.

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
    """The positions of the target rows' input tokens: a value of ``position=`` of verify_chain and verify_tree.

    A row decides the token after its input token. Positions and nonces are of the batch, not of the entries that
    ``request_index`` points to.

    Attributes
    ----------
    positions : Tensor
        int64 or int32 [B, K+1], or like packed target rows; for trees [B, N]. Only the position of a request's first
        row, or of a tree's root, is read.
    nonces : Tensor, optional
        int64 or int32 [B], instead of ``nonce``. Not for trees.

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
    """How ``verify_chain`` and ``verify_tree`` write into ``out``, so that one launch fills an engine's buffers.

    With an ``index`` the tokens of all requests lie in one row, ``out.tokens`` [any]: the token after node i of request
    b is written to ``out.tokens[index[b, i]]``, and the path holds these indices instead of nodes. In a chain node 0
    is the last committed token, and node i draft i - 1. No two nodes share an index. With an index outside of the row
    nothing is written: the path has -1 there, and the status 8.

    Attributes
    ----------
    index : Tensor, optional
        int32 or int64, [B, K+1] for chains, [B, N] for trees.
    path : Tensor, optional
        int32 [B, K+1]: the path of a chain is written here. Needed with ``index``. Trees have it in ``out``.
    num_passed : Tensor, optional
        int32 [B]: for chains, how many drafts pass their test is written here: the accepted drafts, and those behind
        the rejected one, up to the first -1, that their uniforms would accept. With rejection alone, and probabilities
        of one vocabulary.
    zeros : bool
        Whether tokens behind the last are 0, not -1, so that each can be looked up in a table: for padded batches,
        where idle requests have no token at all. The path has -1 all the same. With an ``index`` all nodes off the
        path get 0, and so do the nodes of idle requests.
    count : str
        What ``out.num_accepted`` counts: "accepted" drafts, or "emitted" tokens, one more.
    add : bool
        Whether that count, and ``num_passed``, is added to the output's value. Idle requests add nothing.
    bonus : Tensor, optional
        int32 or int64 [B]: for chains, the token after a request's last draft, if it is given. It is written where all
        drafts are accepted. The target then has no row for it: it is [B, K, V], or packed [D, V] with request b's rows
        from ``cu_drafts[b]`` on. A chain that ends early, at a -1, has a row there and draws from it; so does one that
        ``max_drafts`` cuts off. A token out of the vocabulary gives token 0 and the status 8. Not with ``cu_rows`` or
        ``InputPositions``.
    """

    index: torch.Tensor | None = None  # type: ignore[assignment]  # a tuple has methods of these two names
    path: torch.Tensor | None = None
    num_passed: torch.Tensor | None = None
    zeros: bool = False
    count: Literal["accepted", "emitted"] = "accepted"  # type: ignore[assignment]
    add: bool = False
    bonus: torch.Tensor | None = None
