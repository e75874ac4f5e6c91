"""The support of filters on sliced rows, from short lists: ranks gather their largest tokens, 8 bytes each.

A filter keeps the first tokens of one order, so of a slice it keeps the first of the slice's order. A race over the
slice then needs their number alone, which is its ``top_k``.
"""

from typing import NamedTuple

import torch

from specdec_kernels import _C, ops
from specdec_kernels._constants import COLDEST, HOTTEST, LARGEST, NO_TOKEN, SMALLEST
from specdec_kernels.calls.values import AFTER, TOGETHER
from specdec_kernels.ops import Cut
from specdec_kernels.sampling import Sampling
from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._wire import sent, tiles_of
from specdec_kernels.status import Status

LISTED = 64  # tokens of each rank's first list, where filters do not bound how many are needed
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
ON = {"top_k": 1, "min_p": SMALLEST}  # the least numbers that filter


class Support(NamedTuple):
    """The support of filters on rows [...], and of this rank's slice."""

    cut: Cut  # of the whole rows
    num_in_slice: torch.Tensor  # int64 [...]: tokens of the support in the slice; all of the slice without filters
    status: torch.Tensor  # int32 [...]: bits for the filters' numbers
    # both [rows, n]: the whole support and more tokens, by rising token, padded with -1 and -inf
    tokens: torch.Tensor
    logits: torch.Tensor
    order: torch.Tensor  # float32 [rows]: the factor of logits where filters compare them

    @property
    def on(self):
        """bool [...]: whether a filter is on."""
        return self.cut.value > -torch.inf

    def contains(self, row_indices, tokens, logits):
        """Whether tokens [P, n] of these rows, with these logits, are in the support."""
        value, last, order = (
            x.flatten()[row_indices].unsqueeze(-1) for x in (self.cut.value, self.cut.last, self.order)
        )
        v = scaled(logits, order)
        return (v > value) | ((v == value) & (tokens <= last)) | (value == -torch.inf)

    def law(self, sampling):
        """A Sampling of [rows] whose support on the lists is this one."""
        count, temperature = torch.where(self.on, self.cut.count, 0), sampling.temperature
        temperature = of_each_row(temperature, count.unsqueeze(-1))
        return Sampling(temperature, count.flatten(), at_temperature=sampling.at_temperature)

    def row_stats(self, sampling):
        """float32 [rows, 2]: maximum and log-sum-exp of the support, as from ``tile_laws``."""
        first = self.logits.argmax(dim=-1)
        log = ops.logprobs(self.logits, first, sampling=self.law(sampling)).logprob
        largest = self.logits.gather(-1, first.unsqueeze(-1)).squeeze(-1)
        inverse = inverse_of(sampling.temperature, self.cut.count.shape, largest.device).flatten()
        return torch.stack([scaled(largest, inverse), -log], dim=-1)


def may_filter(sampling):
    """Whether a Sampling has a filter that is on, or a tensor, whose values are not read here."""
    return sampling is not None and any(may_be_on(sampling, name) for name in OFF)


def may_be_on(sampling, name):
    value = getattr(sampling, name)
    return isinstance(value, torch.Tensor) or (value > 0 if name == "top_k" else value != OFF[name])


def support_of(shard, rows, sampling, request_index=None, edits=None):
    """The support of [..., n] rows, from the filters of ``sampling``, whose numbers are the rows'."""
    # ``top_k`` bounds the lists. Without a bound lists grow until they decide: each time costs a round, and the host
    # waits for its result. A top_p of the whole row needs the row's mass: tiles travel with the first lists.
    vocab, size = shard.vocab, rows.shape[-1]
    sampling = sampling._replace(top_k=_within(sampling.top_k, vocab))
    lead, order = rows.shape[:-1], inverse_of(_divisor(sampling), rows.shape[:-1], rows.device)
    row_wide, tiles = _row_wide(sampling, lead, request_index), None
    if row_wide is not None:
        shard.check_tiles("top_p of whole rows")
    listed, bounded = _list_size(sampling)
    whole = _whole_of_top_p(sampling)
    while True:
        letter = [largest_of_slice(shard, rows, _divisor(sampling), min(listed, vocab), request_index, edits)]
        if row_wide is not None and tiles is None:
            letter.append(tiles_of(rows, _divisor(sampling), shard, request_index, edits)[0])
        every, *reported = sent([[part] for part in letter], shard)
        tiles = reported[0].permute(1, 2, 0, 3).flatten(-2) if reported else tiles
        tokens, logits = lists_of(every)
        tokens = torch.nn.functional.pad(tokens, (0, 1), value=-1)  # a top_k as long as the list would be off
        logits = torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)
        status = torch.empty(lead, dtype=torch.int32, device=rows.device)
        cut = ops.cutoff(logits, sampling=sampling, request_index=request_index, status=status)
        if row_wide is not None:
            cut = _cut_shares(cut, logits, sampling, order, row_wide, tiles)
        support, stays = _support(cut, status & Status.PARAMETER, tokens, logits, order)
        if bounded and row_wide is None:
            break
        decided = _decided(support.cut, tokens, stays, shard, min(listed, vocab))
        if whole is not None:
            cut = ops.cutoff(logits, sampling=whole, request_index=request_index)
            decided &= _decided(cut, tokens, _support(cut, status, tokens, logits, order)[1], shard, min(listed, vocab))
        if bool(decided.all()):
            break
        listed *= 8
    mine = stays & (tokens >= shard.vocab_start) & (tokens < shard.vocab_start + size)
    return support._replace(num_in_slice=torch.where(support.on, mine.sum(dim=-1), size))


def _support(cut, status, tokens, logits, order):
    """(The Support by a cut of lists, but for the tokens in the slice; which of the lists are in it.)"""
    last = tokens.gather(-1, cut.last.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    cut = cut._replace(last=torch.where(cut.last < 0, -1, last))
    support = Support(cut, last, status, tokens.flatten(0, -2), logits.flatten(0, -2), order)
    every = torch.arange(len(support.tokens), device=tokens.device, dtype=torch.int64)
    stays = (support.contains(every, support.tokens, support.logits) & (support.tokens >= 0)).view(tokens.shape)
    return support, stays


def _whole_of_top_p(sampling):
    """The filters of whose support ``top_p`` is a share, which the lists must have all of; None without ``top_p``."""
    if not may_be_on(sampling, "top_p"):
        return None
    off = {name: OFF[name] for name in ON if name not in sampling.top_p_after}
    return sampling._replace(top_p=OFF["top_p"], **off)


def _within(top_k, vocab):
    """``top_k``, or 0 (off) where it is the whole vocabulary or more."""
    if isinstance(top_k, torch.Tensor):
        return torch.where(top_k >= vocab, 0, top_k)
    return top_k if 0 < top_k < vocab else 0


def _row_wide(sampling, lead, request_index):
    """bool [...]: rows whose ``top_p`` is a share of the whole row's mass; None if there are none."""
    if not may_be_on(sampling, "top_p"):
        return None
    p, temperature = (on_host(x, torch.float32, lead) for x in (sampling.top_p, sampling.temperature))
    wanted = (p >= 0) & (p < 1) & (temperature >= SMALLEST)
    for name in sampling.top_p_after:
        dtype = torch.int64 if name == "top_k" else torch.float32
        wanted &= ~(on_host(getattr(sampling, name), dtype, lead) >= ON[name])
    if request_index is not None:
        wanted &= (request_index.cpu() >= 0).view(-1, *[1] * (len(lead) - 1))
    return wanted if bool(wanted.any()) else None


def _cut_shares(cut, logits, sampling, order, row_wide, tiles):
    """``cut`` with the cuts of the rows ``row_wide`` replaced, which the host computes from the rows' tiles."""
    rules = TOGETHER * (sampling.ties == "all") | sum(AFTER[name] for name in sampling.top_p_after)
    rows = row_wide.flatten().nonzero().squeeze(-1)
    dtypes = (torch.int64, torch.float32, torch.float32)
    numbers = [
        on_host(x, dtype, row_wide.shape).flatten()[rows] for x, dtype in zip(sampling[1:4], dtypes, strict=True)
    ]
    values = scaled(logits, order.unsqueeze(-1)).flatten(0, -2)
    values, tiles = (x.cpu()[rows].contiguous() for x in (values, tiles))
    filled = [torch.empty(len(rows), dtype=part.dtype, device="cpu") for part in cut]
    arrays = (x.data_ptr() for x in (values, *numbers, tiles, *filled))
    _C.cut_lists(*values.shape, tiles.shape[-1], rules, *arrays)
    rows = rows.to(logits.device)
    return Cut(*(
        part.flatten().index_copy(0, rows, new.to(rows.device)).view_as(part)
        for part, new in zip(cut, filled, strict=True)
    ))  # fmt: skip


def on_host(x, dtype, shape):
    """A number or a tensor of numbers, as a tensor of this shape on the host."""
    return torch.as_tensor(x, dtype=dtype, device="cpu").expand(shape)


def _list_size(sampling):
    """(tokens of each list, whether a list of this length always decides)."""
    top_k = sampling.top_k
    if isinstance(top_k, torch.Tensor):
        most, all_on = int(top_k.max()) if top_k.numel() else 1, bool((top_k > 0).all())
    else:
        most, all_on = top_k, top_k > 0
    if all_on and sampling.ties == "first" and ("top_k" in sampling.top_p_after or not may_be_on(sampling, "top_p")):
        return most, True
    return max(most + 1, LISTED), False


def largest_of_slice(shard, rows, divisor, listed, request_index, edits=None):
    """int32 [..., 2, listed]: the slice's largest tokens and their logits' bits, padded with -1 and -inf."""
    size = rows.shape[-1]
    no_token = torch.full(rows.shape[:-1], -1, device=rows.device, dtype=torch.int64)
    likeliest = ops.logprobs(
        rows, no_token, temperature=divisor, edits=edits, top=min(listed, size), request_index=request_index
    )
    tokens = likeliest.top_tokens
    column = tokens.clamp(min=0)
    logits = parts.token_logits(rows, column, edits=edits)
    logits = torch.where(tokens < 0, -torch.inf, logits)
    tokens = torch.where(tokens < 0, -1, tokens + shard.vocab_start).int()
    room = (0, listed - tokens.shape[-1])
    tokens = torch.nn.functional.pad(tokens, room, value=-1)
    logits = torch.nn.functional.pad(logits, room, value=-torch.inf)
    return torch.stack([tokens, logits.view(torch.int32)], dim=-2)


def lists_of(every):
    """(tokens, logits) [..., ranks * listed] of all ranks' lists, by rising token, with the padding last."""
    every = every.movedim(0, -2).flatten(-2)
    tokens, logits = every[..., 0, :].long(), every[..., 1, :].contiguous().view(torch.float32)
    order = torch.where(tokens < 0, NO_TOKEN, tokens).argsort(dim=-1)
    return tokens.gather(-1, order), logits.gather(-1, order)


def _divisor(sampling):
    """The divisor of logits where filters order them; 1 for rows of temperature 0, which keeps their order."""
    if not sampling.at_temperature:
        return 1.0
    temperature = sampling.temperature
    if not isinstance(temperature, torch.Tensor):
        return temperature if temperature >= SMALLEST else 1.0
    return torch.where(temperature >= SMALLEST, temperature, 1.0)


def inverse_of(temperature, lead, device):
    """float32 of the shape ``lead``: the factor of logits, 1 at temperature 0."""
    temperature = torch.as_tensor(temperature, dtype=torch.float32, device=device)
    inverse = torch.where(temperature >= SMALLEST, 1 / temperature.clamp(COLDEST, HOTTEST), 1.0)
    return inverse.expand(lead)


def of_each_row(temperature, rows):
    """float32, one number for each row."""
    return torch.as_tensor(temperature, dtype=torch.float32, device=rows.device).expand(rows.shape[:-1]).flatten()


def scaled(logits, inverse):
    """x of csrc/include/specdec/law.h: NaN becomes -inf, +inf the largest number."""
    return (logits.float() * inverse).nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf)


def _decided(cut, tokens, stays, shard, listed):
    """Whether no token outside of the lists is in the support: each rank's list has a token outside, or the slice."""
    decided = []
    ends = [*shard.slices[1:], shard.vocab]
    for first, end in zip(shard.slices, ends, strict=True):
        mine = (tokens >= first) & (tokens < end)
        decided.append((mine.sum(-1) < min(listed, end - first)) | (mine & ~stays).any(-1) | (listed >= end - first))
    return torch.stack(decided).all(dim=0) | (cut.value == -torch.inf)
