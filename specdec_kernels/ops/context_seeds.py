"""context_seeds: seeds of races from a key and the tokens before them, for text with a watermark."""

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.layout import Packing
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _trees as trees
from specdec_kernels.ops.verify_chain import check_ends, ends_of

CONTEXT_SEEDS = Op(
    "context_seeds",
    names=(
        "text", "draft_tokens", "packing", "parents", "request_index", "key", "start", "seed", "position", "window",
        "ordered", "out",
    ),
    text=kinds.tokens("ET"),
    draft_tokens=kinds.tokens("BM|D"),
    cu_drafts=kinds.ints(optional=True, role="packing"),
    tokens_by_row=kinds.Kind("bool {}", role="packing"),
    parents=kinds.tokens(optional=True),
    request_index=kinds.REQUEST_INDEX,
    key=kinds.counter("E"),
    start=kinds.counter("E"),
    seed=kinds.counters("B"),
    position=kinds.counters("B"),
    window=kinds.size(least=1, most=8),
    ordered=kinds.FLAG,
    seeds=kinds.Output(torch.int64, "out", "BN"),
)  # fmt: skip


def context_seeds(
    text: torch.Tensor,
    draft_tokens: torch.Tensor,
    *,
    key: Counter,
    seed: Counter,
    position: Counter,
    start: Counter = 0,
    window: int = 4,
    ordered: bool = True,
    parents: torch.Tensor | None = None,
    packing: Packing | None = None,
    request_index: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The seed of each row's race, so that the text carries a watermark by ``key``.

    A row's context is the last ``window`` tokens before the token that it decides: drafts on its path, then the text.
    Its seed is a keyed hash of them, the same as in plain sampling; docs/watermark.md has the formula. Where fewer
    than a window of tokens follow the prompt, or the context has occurred since the prompt, the seed is the request's
    own for that position: else texts would repeat themselves, and p-values would be wrong.

    Parameters
    ----------
    text : Tensor
        int32 or int64 [B, T]: prompts and the tokens written since. Tokens from ``position`` on are not read.
    draft_tokens : Tensor
        int32 or int64 [B, K], K may be 0, or [D] with ``packing``; with ``parents`` [B, N], as for ``verify_tree``.
    key, start : int or Tensor
        int64 or int32 [B]: a secret, 0 for no watermark; and the length of the prompt, whose tokens are no context.
    seed, position : int or Tensor
        int64 or int32 [B]: the seed of the request's noise; and the number of tokens of the text.
    window : int
        From 1 to 8.
    ordered : bool
        Whether the order of a context's tokens counts. Otherwise they are hashed by rising token.
    parents : Tensor, optional
        int32 or int64 [N] or [B, N]: the parents of drafts that are trees.
    packing : Packing, optional
        As for ``verify_chain``, with ``max_drafts``.
    request_index : Tensor, optional
        int32 or int64 [B]: the entry of ``text`` [S, T], ``key`` [S] and ``start`` [S] of a request. Rows of an idle
        request (-1), and of an index outside, have 0.
    out : Tensor, optional
        int64, preallocated, contiguous.

    Returns
    -------
    Tensor
        int64 [B, K+1] or [B, N]: ``seed=`` of ``verify_chain``, ``verify_tree`` and ``race_sample``, at position 0.

    References
    ----------
    Aaronson 2022 (the watermark); Fernandez et al. 2023 (repeats); Bernstein 1999 (the hash).

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import context_seeds, race_sample, verify_chain
    >>> text, drafts, logits = torch.tensor([[5, 3, 8, 1]]), torch.tensor([[2, 7]]), torch.zeros(1, 3, 9)
    >>> rows = context_seeds(text, drafts, key=42, seed=7, position=4, window=2)
    >>> verdict = verify_chain(drafts, logits, method="race", seed=rows, position=0)
    >>> torch.equal(verdict.tokens[:, 0], race_sample(logits[:, 0], seed=rows[:, 0], position=0))
    True
    """
    raw = text, draft_tokens, packing, parents, request_index, key, start, seed, position, window, ordered, out
    CONTEXT_SEEDS.direct(False, *raw)
    ends, tokens_by_row, most = ends_of(packing)
    sizes = inputs.beside(text) | ({} if ends is None else {"packed": True})
    CONTEXT_SEEDS.check(sizes, draft_tokens=draft_tokens)
    device = draft_tokens.device
    if ends is not None:
        batch = check_ends(ends, tokens_by_row, device)
        width = inputs.whole("packing.max_drafts", most, "an int of 0 or more", 0) + 1
        if parents is not None:
            raise ValueError(f"packing: expected None with parents; got {inputs.shown(parents)}")
    elif parents is None:
        batch, width = draft_tokens.shape[0], draft_tokens.shape[1] + 1
    else:
        batch, width = draft_tokens.shape
        trees.check_parents(parents, (batch, width))
        inputs.check_device("parents", parents, device)
    if request_index is None:
        sizes["E"] = batch
    else:
        laws.check_index(request_index, batch, device)
    CONTEXT_SEEDS.check(sizes, text=text)
    by_entry = (CONTEXT_SEEDS.number(name, x, (sizes["E"],), device) for name, x in (("key", key), ("start", start)))
    seed, position = (
        x if isinstance(x, torch.Tensor) else torch.full((batch,), x, dtype=torch.int64, device=device)
        for x in (inputs.counter(name, x, (batch,), device) for name, x in (("seed", seed), ("position", position)))
    )
    seeds = CONTEXT_SEEDS.output("seeds", out, (batch, width), device)
    CONTEXT_SEEDS(
        text, draft_tokens, ends, tokens_by_row, parents, request_index, *by_entry, seed, position,
        CONTEXT_SEEDS.size("window", window, "an int from {least} to {most}", 8), inputs.flag("ordered", ordered),
        seeds, given=out is not None,
    )  # fmt: skip
    return seeds
