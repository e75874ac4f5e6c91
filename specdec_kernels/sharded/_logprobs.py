"""logprobs over a vocabulary of which each rank has a slice."""

from collections.abc import Sequence

import torch

from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.calls.denormals import with_denormals
from specdec_kernels.calls.values import Number
from specdec_kernels.ops.logprobs import LOGPROBS, Logprobs
from specdec_kernels.sampling import LogitEdits, Sampling
from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._checks import check_logits, written
from specdec_kernels.sharded._edits import of_rows as edits_of_rows
from specdec_kernels.sharded._filters import largest_of_slice, lists_of, of_each_row, scaled
from specdec_kernels.sharded._laws import Side, argmax_of, law_of, laws_of
from specdec_kernels.sharded._races import of_rows
from specdec_kernels.sharded._shard import VocabShard, with_a_column
from specdec_kernels.status import Status


@with_denormals
def logprobs(
    rows: torch.Tensor,
    tokens: torch.Tensor,
    *,
    shard: VocabShard,
    temperature: Number | None = None,
    sampling: Sampling | None = None,
    edits: LogitEdits | None = None,
    top: int = 0,
    request_index: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    status: torch.Tensor | None = None,
    check: bool = False,
) -> Logprobs:
    """``specdec_kernels.logprobs`` on slices of rows: 12 bytes a tile, and one more round for the rank.

    Parameters
    ----------
    rows : Tensor
        [..., n]: this rank's columns.
    shard : VocabShard
        Which columns these are; slices begin with multiples of 1,024.
    top : int
        At most the whole vocabulary.
    tokens, temperature, sampling, ...
        As for ``specdec_kernels.logprobs``, the same on every rank.

    Returns
    -------
    Logprobs
        Of the whole rows, on every rank.
    """
    rows, empty = with_a_column(rows)
    inputs.check_rows("rows", rows)
    lead, device = rows.shape[:-1], rows.device
    LOGPROBS.check({"*": lead, "device": device}, tokens=tokens)
    top = inputs.whole("top", top, "an int from 0 to the vocabulary's {most}", 0, shard.vocab)
    shard.check("logprobs", rows, empty)
    shard.check_tiles("logprobs")
    if check:
        check_logits(shard, rows=rows)
    how = {"sampling": law_of("logits", temperature, sampling), "request_index": request_index}
    edits_of_slice = None if edits is None else edits_of_rows(edits, shard, rows, how)
    how = of_rows(how, lead, edits)
    result, row_status = _figures(shard, rows, tokens, top, how["sampling"], how["request_index"], edits_of_slice)
    if status is not None:
        inputs.output("status", status, torch.int32, lead, device)
        status.copy_(row_status)
    return written("logprobs", result, out, check, row_status)


def _figures(shard, rows, tokens, top, sampling, index, edits):
    """(Logprobs, status) of rows; ``sampling`` has the rows' numbers."""
    lead, device = rows.shape[:-1], rows.device
    row_indices, flat_tokens = torch.arange(lead.numel(), device=device, dtype=torch.int64), tokens.long().flatten()
    temperature = of_each_row(sampling.temperature, rows)
    greedy = ~(temperature >= SMALLEST)
    of_lists = torch.where(greedy, 1.0, temperature).view(lead)
    letter = [largest_of_slice(shard, rows, of_lists, top, index, edits)] if top else []
    if isinstance(sampling.temperature, torch.Tensor) or sampling.temperature < SMALLEST:
        letter.append(argmax_of(rows, shard, index, edits).packed())
    (law,), every = laws_of(shard, [Side(rows, sampling, index, None, flat_tokens, edits)], *letter)

    row_stats, inverse, status = law.row_stats, law.inverse(row_indices), law.row_status
    inside = (flat_tokens >= 0) & (flat_tokens < shard.vocab)
    x = scaled(law.logits, inverse)
    support, cut = inside & (x > -torch.inf), None
    if law.support is not None:
        cut = law.support.on.flatten() & ~greedy
        support &= law.contains() | ~cut
    logprob = torch.where(support, x - row_stats[:, 0] - row_stats[:, 1], -torch.inf)
    rank = torch.where(support, _rank(shard, law, cut, x, inverse), 0)
    top_tokens = top_logprobs = row_stats.new_empty(len(row_indices), 0)
    if top:
        top_tokens, top_x = _top(law, cut, top, inverse, *lists_of(every[0]))
        top_logprobs = torch.where(top_tokens < 0, -torch.inf, top_x - row_stats[:, :1] - row_stats[:, 1:])
    if len(every) > bool(top):
        winner, row_status, no_winner = parts.first_arrivals(every[-1].contiguous())
        winner = torch.where(no_winner > 0, -1, winner).flatten()
        status = torch.where(greedy, status & Status.PARAMETER | row_status.flatten(), status)
        won = inside & (flat_tokens == winner)
        logprob = torch.where(greedy, torch.zeros_like(logprob).masked_fill(~won, -torch.inf), logprob)
        rank = torch.where(greedy & won, 1, torch.where(greedy & (winner < 0), 0, rank))
        alone = torch.full_like(top_tokens, -1)
        alone[:, :1] = winner.unsqueeze(-1)
        top_tokens = torch.where(greedy.unsqueeze(-1), alone, top_tokens)
        only = torch.zeros_like(top_logprobs).masked_fill(alone < 0, -torch.inf)
        top_logprobs = torch.where(greedy.unsqueeze(-1), only, top_logprobs)

    status = status | (~inside & (flat_tokens != -1)).int() * Status.TOKEN_RANGE
    read = (flat_tokens != -1) | (top > 0)
    if index is not None:
        index = index.view(-1, *[1] * (len(lead) - 1)).expand(lead).flatten()
        read &= index >= 0
        logprob, rank = torch.where(index >= 0, logprob, -torch.inf), torch.where(index >= 0, rank, 0)
        top_tokens = torch.where((index >= 0).unsqueeze(-1), top_tokens, -1)
        top_logprobs = torch.where((index >= 0).unsqueeze(-1), top_logprobs, -torch.inf)
    status = torch.where(read, status, 0)
    if index is not None:
        status = torch.where(index < -1, Status.PARAMETER, status)
    figures = (logprob.view(lead), rank.int().view(lead), top_tokens.long().view(*lead, top))
    return Logprobs(*figures, top_logprobs.view(*lead, top)), status.int().view(lead)


def _rank(shard, law, cut, x, inverse):
    """How many tokens are at least as large as x [rows]: ranks add up the counts of their slices."""
    side = law.side
    rank = shard.gather(parts.count_at_least(
        side.rows, x.view(side.rows.shape[:-1]), temperature=side.sampling.temperature, edits=side.edits,
        request_index=side.index,
    ).flatten()).sum(dim=0)  # fmt: skip
    if cut is None:
        return rank
    values, _ = _listed(law, inverse)
    among = (values >= x.unsqueeze(-1)).sum(dim=-1)
    return torch.where(cut, among, rank)


def _listed(law, inverse):
    """(x, tokens) of the lists; x is -inf for tokens outside of the support."""
    support = law.support
    row_indices = torch.arange(len(support.tokens), device=support.tokens.device, dtype=torch.int64)
    in_support = support.contains(row_indices, support.tokens, support.logits) & (support.tokens >= 0)
    return torch.where(in_support, scaled(support.logits, inverse.unsqueeze(-1)), -torch.inf), support.tokens


def _top(law, cut, top, inverse, tokens, logits):
    """(tokens, x) of the ``top`` largest of each row; of equal ones the lower token comes first."""
    tokens = tokens.flatten(0, -2)
    largest = _largest(scaled(logits.flatten(0, -2), inverse.unsqueeze(-1)), tokens, top)
    if cut is None:
        return largest
    filtered = _largest(*_listed(law, inverse), top)
    return [torch.where(cut.unsqueeze(-1), a, b) for a, b in zip(filtered, largest, strict=True)]


def _largest(x, tokens, top):
    """The ``top`` largest of lists by rising token, which keep their order where equal."""
    order = x.argsort(dim=-1, descending=True, stable=True)[:, :top]
    room = (0, top - order.shape[-1])
    tokens, x = tokens.gather(-1, order), x.gather(-1, order)
    tokens = torch.where(x > -torch.inf, tokens, -1)
    return torch.nn.functional.pad(tokens, room, value=-1), torch.nn.functional.pad(x, room, value=-torch.inf)
