"""context_seeds: the noise of races from a key and the tokens before them, for text with a watermark."""

from collections.abc import Sequence

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.types import Counter
from specdec_kernels.calls.values import Noise
from specdec_kernels.layout import InputPositions, Packing, RowSeeds
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops import _trees as trees
from specdec_kernels.ops.verify_chain import ends_of

CONTEXT_SEEDS = Op(
    "context_seeds",
    result=RowSeeds,
    names=(
        "text", "draft_tokens", "key", "seed", "position", "window", "ordered", "start", "parents", "packing",
        "request_index", "out",
    ),
    text=kinds.tokens("ET"),
    draft_tokens=kinds.tokens("BM|D"),
    cu_drafts=kinds.ints(optional=True, role="packing"),
    tokens_by_row=kinds.Kind("bool {}", role="packing"),
    parents=kinds.tokens(optional=True),
    request_index=kinds.tokens("B:c", optional=True),
    key=kinds.counter("E"),
    noise=kinds.noise("E"),
    input_positions=kinds.counters("BP|L", "position.positions", optional=True, role="noise"),
    start=kinds.counter("E"),
    window=kinds.size(least=1, most=8),
    ordered=kinds.FLAG,
    seeds=kinds.Output(torch.int64, "out.seeds", "BP"),
    positions=kinds.Output(torch.int64, "out.positions", "BP"),
)  # fmt: skip


def context_seeds(
    text: torch.Tensor,
    draft_tokens: torch.Tensor,
    *,
    key: Counter,
    seed: Counter,
    position: Counter | InputPositions,
    window: int = 4,
    ordered: bool = True,
    start: Counter = 0,
    parents: torch.Tensor | None = None,
    packing: Packing | None = None,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor | None] | None = None,
) -> RowSeeds:
    """The seed and the position of each row's race, so that the text carries a watermark by ``key``.

    A row's context is the last ``window`` tokens before the token it decides: drafts on its path, then the text. Its
    seed is a keyed hash of them, at position 0; so is that of plain sampling after the same tokens, and of a detector
    (``specdec_kernels.watermark``). Where the context was there before, the row has the request's own noise instead:
    ``seed``, at its place in the text. Otherwise the text could repeat itself, and its p-value would be wrong.

    With 32-bit words modulo 2³², and Philox by ``key``: ``S = Σ_i philox(token_i, i, window, 8)`` over the first three
    words, i = 1 for the latest token, 0 for all of a set; the seed is the first two words of ``philox(S, 9)``.

    Parameters
    ----------
    text : Tensor
        int32 or int64 [B, T]: the tokens that are committed. What is behind them is not looked at.
    draft_tokens : Tensor
        int32 or int64 [B, K], K may be 0, or [D] with ``packing``; with ``parents`` [B, N], as for ``verify_tree``.
    key : int or Tensor
        int64 or int32 [B], a secret. 0: no watermark, and all rows have the request's own noise.
    seed, position : int or Tensor
        int64 or int32 [B], as for ``verify_chain``: ``position`` is how many tokens are committed. It may be an
        ``InputPositions``.
    window : int
        From 1 to 8.
    ordered : bool
        Whether the order of the window's tokens counts. Otherwise they are a set that may hold a token several times.
    start : int or Tensor
        int64 or int32 [B]: from which position on contexts count as having been there: the length of the prompt.
    parents : Tensor, optional
        int32 or int64 [N] or [B, N]: that drafts are trees.
    packing : Packing, optional
        As for ``verify_chain``.
    request_index : Tensor, optional
        int32 or int64 [B], as for ``verify_chain``: ``text``, ``key``, ``seed``, ``position`` and ``start`` then have S
        entries. Rows of an idle request, and of one outside, have 0.
    out : RowSeeds, optional
        int64, preallocated, contiguous; None among them is made anew.

    Returns
    -------
    RowSeeds
        int64 [B, K+1] or [B, N]: ``seed=`` of ``verify_chain`` or ``verify_tree``; of ``race_sample`` ``seed`` and
        ``position``.

    References
    ----------
    Aaronson 2022 (the watermark); Kuditipudi et al. 2023, Kirchenbauer et al. 2023 (contexts, repeats); Bernstein 1999,
    "How to stretch random functions: the security of protected counter sums".

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import context_seeds, race_sample, verify_chain
    >>> text, drafts, logits = torch.tensor([[5, 3, 8, 1]]), torch.tensor([[2, 7]]), torch.zeros(1, 3, 9)
    >>> rows = context_seeds(text, drafts, key=42, seed=7, position=4, window=2)
    >>> plain = context_seeds(text, drafts[:, :0], key=42, seed=7, position=4, window=2)
    >>> verdict = verify_chain(drafts, logits, method="race", seed=rows, position=0)
    >>> first = race_sample(logits[:, 0], seed=plain.seeds[:, 0], position=plain.positions[:, 0])
    >>> torch.equal(verdict.tokens[:, 0], first)
    True
    """
    raw = text, draft_tokens, key, seed, position, window, ordered, start, parents, packing, request_index, out
    CONTEXT_SEEDS.direct(False, *raw)
    ends, tokens_by_row, most = ends_of(packing)
    sizes = inputs.beside(text)
    if ends is not None:
        sizes["packed"] = True
    CONTEXT_SEEDS.check(sizes, draft_tokens=draft_tokens)
    device = draft_tokens.device
    if ends is not None:
        batch, width = _packed(ends, tokens_by_row, most, draft_tokens, parents, device)
        sizes["L"] = draft_tokens.shape[0] + (0 if tokens_by_row else batch)
    else:
        batch, width = draft_tokens.shape
        if parents is not None:
            trees.check_parents(parents, (batch, width))
            inputs.check_device("parents", parents, device)
            width -= 1
    sizes["B"], sizes["P"], entries = batch, width + 1, batch
    if request_index is not None:
        laws.check_index(request_index, batch, device)
        inputs.check_tensor("text", text, inputs.TOKEN_DTYPES, 2)
        entries = text.shape[0]
    sizes["E"] = entries
    CONTEXT_SEEDS.check(sizes, text=text)
    key, start = (
        CONTEXT_SEEDS.number(name, x, (entries,), device) for name, x in (("key", key), ("start", start))
    )  # fmt: skip
    positions = None
    if isinstance(position, InputPositions):
        positions, nonces = position
        CONTEXT_SEEDS.check(sizes, input_positions=positions)
        if nonces is not None:
            raise ValueError(f"position.nonces: expected None, for rows have nonce 0; got {inputs.shown(nonces)}")
        position = 0
    noise = Noise(
        inputs.counter("seed", seed, (entries,), device), inputs.counter("position", position, (entries,), device), 0
    )  # fmt: skip
    window = CONTEXT_SEEDS.size("window", window, "an int from {least} to {most}", 8)
    rows = CONTEXT_SEEDS.outputs(out, device, (batch, width + 1), (batch, width + 1))
    CONTEXT_SEEDS(
        text, draft_tokens, ends, tokens_by_row, parents, request_index, key, noise, positions, start, window,
        inputs.flag("ordered", ordered), *rows, given=out is not None,
    )  # fmt: skip
    return rows


def _packed(ends, tokens_by_row, most, draft_tokens, parents, device):
    """(requests, drafts a request at most) of packed chains."""
    name = "packing.cu_rows" if tokens_by_row else "packing.cu_drafts"
    inputs.check_tensor(name, ends, (torch.int32,), 1)
    inputs.check_device(name, ends, device)
    if parents is not None:
        raise ValueError(f"packing: expected None with parents; got {inputs.shown(parents)}")
    if not ends.is_contiguous() or ends.shape[0] == 0:
        raise ValueError(f"{name}: expected contiguous int32 [B+1]; got {inputs.shown(ends)}")
    if most is None:
        raise ValueError("packing.max_drafts: expected an int of 0 or more; got None")
    return ends.shape[0] - 1, inputs.whole("packing.max_drafts", most, "an int of 0 or more", 0)
