"""What filters keep of rows, from short lists: each rank's largest tokens travel, 8 bytes each.

A filter keeps the first tokens of one order. So of a slice it keeps the first of the slice's own order, and a race over
the slice needs to know only how many: that is its ``top_k``.
"""

from typing import NamedTuple

import torch

from specdec_kernels import ops
from specdec_kernels.ops import Cut
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.status import Status

LISTED = 64  # tokens of each rank's first list, where filters do not say how many are needed
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
LARGEST = torch.finfo(torch.float32).max


class Kept(NamedTuple):
    """What filters keep of rows, and of this rank's slice."""

    cut: Cut  # of whole rows
    here: torch.Tensor  # int64 [...]: how many tokens of the slice; all where filters are off
    status: torch.Tensor  # int32 [...]: of the filters' numbers


def may_filter(sampling):
    """Whether a Sampling has a filter that is on, or a tensor, which may be."""
    return sampling is not None and any(may_be_on(sampling, name) for name in OFF)


def may_be_on(sampling, name):
    value = getattr(sampling, name)
    return isinstance(value, torch.Tensor) or (value > 0 if name == "top_k" else value != OFF[name])


def kept_of(shard, rows, sampling, request_index=None):
    """What the filters of ``sampling`` keep of [..., n] rows.

    ``top_k`` bounds the lists. Where nothing does, longer ones are asked for until they decide: one more round each,
    and the host waits to know.
    """
    vocab, size = shard.vocab, rows.shape[-1]
    sampling = sampling._replace(top_k=_within(sampling.top_k, vocab))
    _check_row_wide(sampling)
    listed, bounded = _list_size(sampling)
    while True:
        tokens, logits = _gathered(shard, rows, sampling, min(listed, vocab), request_index)
        order = torch.where(tokens < 0, vocab, tokens).argsort(dim=-1)
        tokens, logits = tokens.gather(-1, order), logits.gather(-1, order)
        tokens = torch.nn.functional.pad(tokens, (0, 1), value=-1)  # so that no top_k is all of the list
        logits = torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)
        status = torch.empty(rows.shape[:-1], dtype=torch.int32, device=rows.device)
        cut = ops.cutoff(logits, sampling=sampling, request_index=request_index, status=status)
        last = tokens.gather(-1, cut.last.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        cut = cut._replace(last=torch.where(cut.last < 0, -1, last))
        if bounded or bool(_decided(cut, tokens, logits, sampling, request_index, shard, min(listed, vocab)).all()):
            break
        listed *= 8
    first = shard.first_token
    mine = _keeps(cut, tokens, logits, sampling, request_index) & (tokens >= first) & (tokens < first + size)
    here = torch.where(cut.value == -torch.inf, size, mine.sum(dim=-1))
    return Kept(cut, here, status & Status.PARAMETER)


def _within(top_k, vocab):
    """``top_k``, or 0 where it means all."""
    if isinstance(top_k, torch.Tensor):
        return torch.where(top_k >= vocab, 0, top_k)
    return top_k if 0 < top_k < vocab else 0


def _check_row_wide(sampling):
    """``top_p`` of a whole row needs the row's mass, which no list has."""
    if not may_be_on(sampling, "top_p"):
        return
    alone = torch.as_tensor(sampling.top_p) < 1
    for name in sampling.top_p_after:
        cut = torch.as_tensor(getattr(sampling, name)) > OFF[name]
        if cut.device != alone.device:
            alone, cut = alone.cpu(), cut.cpu()
        alone = alone & ~cut
    if bool(alone.any()):
        raise ValueError(
            "sampling.top_p: expected top_k or min_p before it on slices (top_p_after), since lists of tokens do not "
            f"tell the mass of a whole row; got top_p={inputs.shown(sampling.top_p)} without"
        )


def _list_size(sampling):
    """(tokens of each list, whether so many always decide)."""
    top_k = sampling.top_k
    if isinstance(top_k, torch.Tensor):
        most, all_on = int(top_k.max()) if top_k.numel() else 1, bool((top_k > 0).all())
    else:
        most, all_on = top_k, top_k > 0
    if all_on and sampling.ties == "first":
        return most, True
    return max(most + 1, LISTED), False


def _gathered(shard, rows, sampling, listed, request_index):
    """(tokens, logits) [..., ranks * listed] of all ranks' largest; -1 and -inf where a slice has not so many."""
    size = rows.shape[-1]
    nobody = torch.full(rows.shape[:-1], -1, device=rows.device)
    tokens = ops.logprobs(
        rows, nobody, temperature=_divisor(sampling), top=min(listed, size), request_index=request_index
    ).top_tokens
    logits = rows.gather(-1, tokens.clamp(min=0)).float()
    logits = torch.where(tokens < 0, -torch.inf, logits)
    tokens = torch.where(tokens < 0, -1, tokens + shard.first_token).int()
    room = (0, listed - tokens.shape[-1])
    tokens = torch.nn.functional.pad(tokens, room, value=-1)
    logits = torch.nn.functional.pad(logits, room, value=-torch.inf)
    every = shard.gather(torch.stack([tokens, logits.view(torch.int32)], dim=-2))
    every = every.movedim(0, -2).flatten(-2)
    return every[..., 0, :].long(), every[..., 1, :].contiguous().view(torch.float32)


def _divisor(sampling):
    """What logits are divided by where filters order them; rows of temperature 0 keep their order."""
    if not sampling.at_temperature:
        return 1.0
    temperature = sampling.temperature
    if not isinstance(temperature, torch.Tensor):
        return temperature if temperature >= torch.finfo(torch.float32).tiny else 1.0
    return torch.where(temperature >= torch.finfo(torch.float32).tiny, temperature, 1.0)


def _values(logits, sampling, request_index):
    """v of docs/filters.md."""
    divisor = torch.as_tensor(_divisor(sampling), dtype=torch.float32, device=logits.device)
    if divisor.ndim and request_index is not None:
        divisor = divisor[request_index.long().clamp(0, len(divisor) - 1)] if len(divisor) > 1 else divisor
    return (logits * (1 / divisor).unsqueeze(-1)).clamp(max=LARGEST)


def _keeps(cut, tokens, logits, sampling, request_index):
    v, value = _values(logits, sampling, request_index), cut.value.unsqueeze(-1)
    return (v > value) | ((v == value) & (tokens <= cut.last.unsqueeze(-1)) & (tokens >= 0))


def _decided(cut, tokens, logits, sampling, request_index, shard, listed):
    """Whether no token outside of the lists can be kept: each rank's list ends with one that is not, or has all."""
    kept = _keeps(cut, tokens, logits, sampling, request_index)
    found = []
    ends = [*shard.slices[1:], shard.vocab]
    for first, end in zip(shard.slices, ends, strict=True):
        mine = (tokens >= first) & (tokens < end)
        found.append((mine.sum(-1) < min(listed, end - first)) | (mine & ~kept).any(-1) | (listed >= end - first))
    return torch.stack(found).all(dim=0) | (cut.value == -torch.inf)
