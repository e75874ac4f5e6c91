"""Races over a vocabulary of which each rank has a slice."""

from typing import NamedTuple

import torch

from specdec_kernels._constants import NO_TOKEN, PART_UNIT, SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.calls.values import Counter, Number, Space
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.ops.race_sample import RACE_SAMPLE
from specdec_kernels.ops.race_topk import RACE_TOPK
from specdec_kernels.sampling import LogitEdits, Sampling, undivided
from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._cached_tensors import filled
from specdec_kernels.sharded._filters import may_filter, support_of
from specdec_kernels.sharded._requests import looked_up, mapped
from specdec_kernels.sharded._wire import any_of
from specdec_kernels.status import Status

NO_SCORE, ANY_SCORE = -0x7F800001, 0x7F800000  # -inf and +inf as keys of ``keys_of``


class RowPartial(NamedTuple):
    """The candidates of a rank's slice of each row: the local half of a race.

    Attributes
    ----------
    tokens : Tensor
        int64 [..., k]: the slice's first arrivals, padded with -1.
    scores : Tensor
        float32 [..., k]: arrivals are compared by these; -inf beside the padding. An idle request, and one whose
        index is out of range, has +inf in its first column.
    status : Tensor
        int32 [...]: status bits of the slice.
    """

    tokens: torch.Tensor
    scores: torch.Tensor
    status: torch.Tensor

    def without(self, nothing, status):
        """These candidates, but none in rows where ``nothing`` holds, with more status bits."""
        raced = nothing & (self.scores < torch.inf)
        scores, tokens = torch.where(raced, -torch.inf, self.scores), torch.where(raced, -1, self.tokens)
        return RowPartial(tokens, scores, self.status | status)

    def packed(self) -> torch.Tensor:
        """int32 [..., 2 k + 1], contiguous: the message to other ranks, 12 bytes a row for k = 1."""
        return torch.cat([self.tokens.int(), self.scores.view(torch.int32), self.status.unsqueeze(-1)], dim=-1)


@with_denormals
def race_partial(
    rows: torch.Tensor,
    k: int | None = None,
    *,
    vocab_start: int,
    seed: Counter,
    position: Counter,
    nonce: Counter = 0,
    space: Space = "logits",
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    request_index: torch.Tensor | None = None,
) -> RowPartial:
    """The local half of ``race_sample`` (``k`` None) and ``race_topk``: the first arrivals in a slice of each row.

    One launch, no communication. ``race_finish`` takes the candidates of all ranks.

    Parameters
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., n]: columns of the tokens from ``vocab_start`` on.
    k : int, optional
        How many arrivals; beyond n they are padding.
    vocab_start : int
        A multiple of 128.
    seed, position, nonce, space, temperature, sampling, request_index
        As for ``race_sample``. Filters apply to the slice as to a whole row: ``top_k`` is how many of its tokens
        have weight.
    edits : LogitEdits, optional
        As for ``race_sample``, of the slice's columns: masks begin with the slice's words, tokens with 0.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels.sharded import race_finish, race_partial
    >>> logits = torch.randn(3, 2048)
    >>> noise = dict(seed=1, position=torch.arange(3))
    >>> halves = [race_partial(logits[:, i : i + 1024], vocab_start=i, **noise).packed() for i in (0, 1024)]
    >>> bool((race_finish(torch.stack(halves))[0] == specdec_kernels.race_sample(logits, **noise)).all())
    True
    """
    vocab_start = inputs.whole("vocab_start", vocab_start, "a multiple of {step}", 0, step=PART_UNIT)
    inputs.check_rows("rows", rows)
    if k is not None:
        k = inputs.whole("k", k, "an int of 1 or more", 1)
    lead, device, size = rows.shape[:-1], rows.device, rows.shape[-1]
    op, k_or_none, wide = (RACE_SAMPLE, (), lead) if k is None else (RACE_TOPK, (min(k, size),), (*lead, min(k, size)))
    tokens = torch.empty(wide, dtype=torch.int64, device=device)
    scores = torch.empty(wide, dtype=torch.float32, device=device)
    status = torch.empty(lead, dtype=torch.int32, device=device)
    op.direct(
        False, rows, vocab_start, None, request_index, space, temperature, sampling, edits, seed, position, nonce,
        *k_or_none, tokens, status, scores,
    )  # fmt: skip
    if k is None:
        return RowPartial(tokens[..., None], scores[..., None], status)
    if k > size:
        tokens = torch.nn.functional.pad(tokens, (0, k - size), value=-1)
        scores = torch.nn.functional.pad(scores, (0, k - size), value=-torch.inf)
    return RowPartial(tokens, scores, status)


@with_denormals
def race_finish(packed: torch.Tensor, k: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The other half: (tokens, status) of whole rows from all ranks' ``packed``, [ranks, ..., 2 k + 1].

    Tokens are int64 [...] for ``k`` None, as by ``race_sample``, else [..., k], as by ``race_topk``. Status is int32
    [...]. No communication: equal messages give equal results on every rank.
    """
    if k is None:
        return parts.first_arrivals(packed.contiguous())[:2]
    tokens, scores, status = packed.split([packed.shape[-1] // 2, packed.shape[-1] // 2, 1], dim=-1)
    best = keys_of(tokens, scores).movedim(0, -2).flatten(-2).topk(k).values
    no_winner, row_status = best[..., 0] >> 32 == NO_SCORE, any_of(status.squeeze(-1))
    tokens = NO_TOKEN - (best & 0xFFFFFFFF)
    tokens[..., 1:].masked_fill_(best[..., :1] >> 32 == ANY_SCORE, -1)  # idle: every rank sends one token
    return tokens, torch.where(no_winner, row_status | filled(Status.NON_FINITE, row_status), row_status)


def keys_of(tokens, scores):
    """int64: a larger key comes first; equal scores are ordered by the lower token."""
    bits = (scores.view(torch.float32) + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ordered = bits ^ (bits >> 31 & NO_TOKEN)
    return (ordered.long() << 32) | (NO_TOKEN - tokens.long())


def race(shard, rows, k=None, edits=None, **how):
    """(tokens, status) of a race over the whole vocabulary, or over the filters' support."""
    return race_finish(gathered(shard, rows, k, edits, **how), k)


def winners(packed):
    """(int32 [rows], status [rows]) from all ranks' ``packed``: the winner, -1 where no token has weight."""
    token, status, empty = parts.first_arrivals(packed.contiguous())
    return token.masked_fill(empty.bool(), -1).flatten(), status.flatten()


def gathered(shard, rows, k=None, edits=None, **how):
    """All ranks' ``packed`` candidates of the race that ``race`` runs."""
    # With ``edits`` of the slice, which have an entry for each row, all numbers are the rows', too.
    sampling, reported = how.get("sampling"), None
    if may_filter(sampling):
        laws.check_one_temperature(how.get("temperature"), sampling)
        how["sampling"] = undivided(sampling)
        how = of_rows(how, rows.shape[:-1])
        support = support_of(shard, rows, how["sampling"], how["request_index"], edits)
        temperature, reported = how["sampling"].temperature, support.status
        how["sampling"] = Sampling(temperature, support.num_in_slice, at_temperature=sampling.at_temperature)
    part = race_partial(rows, k, vocab_start=shard.vocab_start, edits=edits, **how)
    if reported is not None:
        # At temperature 0 the order of logits has all tokens.
        filtered = torch.as_tensor(temperature, dtype=torch.float64, device=rows.device) >= SMALLEST
        part = part.without((filtered & (support.num_in_slice == 0)).unsqueeze(-1), reported)
    return shard.gather(part.packed())


def of_rows(how, lead, edits=None):
    """Arguments with the rows' numbers, instead of entries that ``request_index`` points to."""
    # ``edits``, those of the call, may be the only argument that tells the number of entries.
    index = how["request_index"]
    if index is None:
        return dict(how)
    laws.check_index(index, lead[0], index.device)
    numbers = laws.numbers_in(*(x for name, x in how.items() if name not in ("request_index", "space")))
    _, entry, index = looked_up(index, len(lead), [*numbers, *edit.lists(edits)])

    def at(x):
        if isinstance(x, Sampling):
            return mapped(x, at)
        by_row = isinstance(x, torch.Tensor) and x.ndim == len(lead) and len(x) > 1
        return x[entry] if by_row else x

    return {name: index if name == "request_index" else at(x) for name, x in how.items()}
