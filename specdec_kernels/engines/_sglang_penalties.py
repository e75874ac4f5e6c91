"""Penalties in SGLang as in plain sampling: all tokens of the output count, once. It imports SGLang.

SGLang's scheduler counts one token of each request before a round, the last one on the host. Here it counts all that
are not counted yet (`cumulate_penalty_output_tokens`, `begin`). With overlap scheduling a round's tokens reach the host
only after the next round was launched. Those are stored on the device, and are counted there (`apply`, `count_late`).
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.utils.common import is_pin_memory_available

import specdec_kernels as specdec
from specdec_kernels.engines._methods import refuse

RING = 256  # tokens stored for each request slot: more than a path has


def _counts(kind: str, penalizer: Any, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Add a token for each pair of request and token: frequencies count each, the others count one."""
    numbers, sums = (getattr(penalizer, f"{name}{kind}_penalties") for name in ("", "cumulated_"))
    sums.index_put_((rows, tokens), numbers[rows, 0], accumulate=kind == "frequency")


def _length(penalizer: Any, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    lengths = penalizer.len_output_tokens[:, 0]
    lengths.index_add_(0, rows, torch.ones_like(rows, dtype=lengths.dtype))


COUNT = {
    penaltylib.BatchedFrequencyPenalizer: functools.partial(_counts, "frequency"),
    penaltylib.BatchedPresencePenalizer: functools.partial(_counts, "presence"),
    penaltylib.BatchedRepetitionPenalizer: functools.partial(_counts, "repetition"),
    penaltylib.BatchedMinNewTokensPenalizer: _length,
}


def cumulate_penalty_output_tokens(batch: Any) -> None:
    """``ScheduleBatch.cumulate_penalty_output_tokens``: count all output tokens that are not counted yet."""
    count(batch.reqs, batch.sampling_info.penalizer_orchestrator)


def begin(info: Any, cls: type, batch: Any, *rest: Any) -> None:
    """After ``SamplingBatchInfo.from_schedule_batch``, which made new penalizers without counts.

    A request that comes back after a retraction, or from another server, has an output already.
    """
    for req in batch.reqs:
        req.specdec_counted = 0
    if info.penalizer_orchestrator.is_required:
        count(batch.reqs, info.penalizer_orchestrator)


def count(reqs: list[Any], orchestrator: Any) -> None:
    """Count the output tokens of `reqs` since their last count.

    Each request holds the number of counted tokens, as ``specdec_counted``: SGLang filters and merges penalizers with
    their requests, and `begin` handles new ones. A penalizer outside of `COUNT` can only be given one token of every
    request, no more and no less, so it is refused.
    """
    penalizers = {kind: each for kind, each in orchestrator.penalizers.items() if each.is_prepared()}
    refuse(**{kind.__name__: kind not in COUNT for kind in penalizers})
    new = [req.output_ids[counted(req) :] for req in reqs]
    for req in reqs:
        req.specdec_counted = len(req.output_ids)
    rows = [row for row, tokens in enumerate(new) for _ in tokens]
    if not rows:
        return
    tokens = [token for of_request in new for token in of_request]
    pairs = _sent([rows, tokens], torch.int64, orchestrator.device)
    for kind, penalizer in penalizers.items():
        COUNT[kind](penalizer, *pairs)


def counted(req: Any) -> int:
    """The number of output tokens that its penalizers have counted."""
    return getattr(req, "specdec_counted", 0)


def _sent(numbers: list[Any], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """To the device, without waiting."""
    tensor = torch.tensor(numbers, dtype=dtype, pin_memory=is_pin_memory_available(device), device="cpu")
    return tensor.to(device, non_blocking=True)


class Recent:
    """The last tokens of the requests in a pool's slots, on the device: that of position i at i mod `RING`."""

    def __init__(self, pool: Any) -> None:
        table = pool.req_to_token
        self.tokens = torch.zeros(len(table), RING, dtype=torch.int64, device=table.device)
        self.width = 1  # columns of the widest path so far


_recent: weakref.WeakKeyDictionary[Any, Recent] = weakref.WeakKeyDictionary()


def keep(batch: Any, predict: torch.Tensor, accept_index: torch.Tensor) -> None:
    """Store the tokens of a round. Padding behind a path is overwritten before it is read."""
    width, pool = accept_index.shape[1], batch.req_to_token_pool
    if width > RING:
        raise ValueError(f"max_tree_depth: expected {RING} at most with penalties; got {width}")
    if pool not in _recent:
        _recent[pool] = Recent(pool)
    recent = _recent[pool]
    recent.width = max(recent.width, width)
    ring = (batch.seq_lens[:, None] + torch.arange(1, width + 1, device=predict.device, dtype=torch.int64)) % RING
    recent.tokens[batch.req_pool_indices[:, None], ring] = predict[accept_index.long().clamp(min=0)].long()


def late(
    pool: Any, slots: torch.Tensor, last: torch.Tensor, token: torch.Tensor, counted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, W] up to `token` at position `last`, and whether they come after the first `counted` ones."""
    recent = _recent.get(pool)
    width = 1 if recent is None else recent.width
    positions = last[:, None] - torch.arange(width - 1, -1, -1, device=last.device, dtype=torch.int64)
    tokens = token[:, None]
    if recent is not None:
        tokens = recent.tokens[slots[:, None], positions % RING]
        tokens[:, -1] = token
    return tokens, positions >= counted[:, None]


class Changes(NamedTuple):
    """The changes by a request's tokens since its last count, for each row."""

    tokens: torch.Tensor  # [B, N, M]; a column without a token repeats another one
    added: torch.Tensor  # float32 [B, N, M], of these tokens
    scale: torch.Tensor
    free: torch.Tensor | None  # [B, N]: rows beyond the minimum length of the output; None if it binds none


def changes_of(
    info: Any, reqs: list[Any], said: torch.Tensor, in_row: torch.Tensor, lengths: torch.Tensor, before: torch.Tensor
) -> Changes:
    """Changes by tokens `said` [B, M], which row n counts where `in_row` [B, N, M], after `before` [B, N] tokens.

    SGLang's accumulated penalties do not say whether a token was counted: it was if they add to it or scale it.
    (Frequency and presence penalties that sum up to 0 look like none.) -inf marks a minimum length alone.
    """
    names = "frequency_penalty", "presence_penalty", "repetition_penalty"
    numbers = [[getattr(req.sampling_params, name) for name in names] for req in reqs]
    frequency, presence, repetition = _sent(numbers, torch.float32, said.device)[..., None, None].unbind(1)
    tokens = torch.where(in_row, said[:, None], said[:, None, :1])
    times = ((tokens[..., None] == said[:, None, None]) & in_row[:, :, None]).sum(-1)
    added, scale = torch.zeros_like(tokens, dtype=torch.float32), torch.ones_like(tokens, dtype=torch.float32)
    if info.acc_additive_penalties is not None:
        added = info.acc_additive_penalties[:, None].expand(-1, tokens.shape[1], -1).gather(-1, tokens)
    if info.acc_scaling_penalties is not None:
        scale = info.acc_scaling_penalties[:, None].expand(-1, tokens.shape[1], -1).gather(-1, tokens)
    free = None
    if any(req.sampling_params.min_new_tokens > counted(req) for req in reqs):
        free = before - lengths[:, :1] >= lengths[:, 1:2]
        added = torch.where(free[..., None] & added.isneginf(), 0, added)
    new = (times > 0) & (added == 0) & (scale == 1)
    return Changes(tokens, added - frequency * times - presence * new, torch.where(times > 0, repetition, scale), free)


def lengths_of(reqs: list[Any], device: Any) -> torch.Tensor:
    """int64 [B, 3]: the prompt's length, the output's minimum, and the length that the penalizers have counted."""
    prompts = [len(req.origin_input_ids) for req in reqs]
    rows = [[n, req.sampling_params.min_new_tokens, n + counted(req)] for n, req in zip(prompts, reqs, strict=True)]
    return _sent(rows, torch.int64, device)


def apply(
    rows: torch.Tensor, candidates: torch.Tensor, parents: torch.Tensor | None, batch: Any, columns: slice
) -> None:
    """Penalise `rows` [B, N, V] of a round, in place: by SGLang's accumulated penalties, and by tokens not in them.

    These are the tokens of the round before that have not reached the host, and the drafts on the path to a row.
    `parents` is None for chains; `columns` are the columns of the vocabulary that the rows have.
    """
    info = batch.sampling_info
    if parents is None:
        parents = torch.arange(-1, candidates.shape[1] - 1, device=rows.device, dtype=torch.int64)
    on_path = specdec.tree_mask(parents)[..., 1:].expand(len(rows), -1, -1)  # the drafts up to each node, it included
    lengths = lengths_of(batch.reqs, rows.device)
    tokens, are_late = late(
        batch.req_to_token_pool, batch.req_pool_indices, batch.seq_lens, candidates[:, 0], lengths[:, 2]
    )
    added, scale = info.acc_additive_penalties, info.acc_scaling_penalties
    vocabulary = (scale if added is None else added).shape[-1]
    said = torch.cat((tokens, candidates[:, 1:]), 1).long().clamp(0, vocabulary - 1)
    in_row = torch.cat((are_late[:, None].expand(-1, candidates.shape[1], -1), on_path), 2)
    before = batch.seq_lens[:, None] + 1 + on_path.sum(-1)
    change = changes_of(info, batch.reqs, said, in_row, lengths, before)
    first = columns.start
    at = change.tokens if first is None else (change.tokens - first).clamp(0, rows.shape[-1] - 1)
    x = (rows.gather(-1, at).float() + change.added).to(rows.dtype)
    x = torch.where(x < 0, x * change.scale, x / change.scale).to(rows.dtype)
    if added is not None:
        added = added[:, None, columns]
        rows += added if change.free is None else _freed(added, change.free[..., None])
    if scale is not None:
        apply_scaling_penalties(rows, scale[:, None, columns])
    if first is not None:  # a token outside of these columns repeats the write of one inside
        inside = at == change.tokens - first
        one, some = inside.int().argmax(-1, keepdim=True), inside.any(-1, keepdim=True)
        x = torch.where(inside, x, torch.where(some, x.gather(-1, one), rows.gather(-1, at[..., :1])))
        at = torch.where(inside, at, torch.where(some, at.gather(-1, one), at[..., :1]))
    rows.scatter_(-1, at, x)


def attach(given: Any, info: Any) -> None:
    """After ``SamplingBatchInfo.copy_for_forward``: attaches the requests, which a forward's batch lacks."""
    if info.penalizer_orchestrator.is_required:
        given.specdec_reqs = list(info.penalizer_orchestrator.reqs())


def count_late(runner: Any, logits_output: Any, forward: Any) -> None:
    """Before ``ModelRunner.sample``: counts a row's input token, and those of a round before, if they are not yet.

    SGLang's accumulated penalties of this forward are changed in place; SGLang applies them then.
    """
    info, mode = forward.sampling_info, forward.forward_mode
    reqs, info.specdec_reqs = getattr(info, "specdec_reqs", None), None
    if reqs is None or not (mode.is_decode() or mode.is_mixed()):
        return
    if mode.is_decode():
        last, tokens = forward.positions[: len(reqs)], forward.input_ids[: len(reqs)]
    else:
        last = forward.seq_lens[: len(reqs)] - 1
        tokens = forward.input_ids[forward.extend_seq_lens[: len(reqs)].cumsum(0) - 1]
    lengths, slots = lengths_of(reqs, last.device), forward.req_pool_indices[: len(reqs)]
    said, are_late = late(runner.req_to_token_pool, slots, last.long(), tokens.long(), lengths[:, 2])
    added, scale = info.acc_additive_penalties, info.acc_scaling_penalties
    said = said.clamp(0, added.shape[-1] - 1)
    change = changes_of(info, reqs, said, are_late[:, None], lengths, last[:, None] + 1)
    if change.free is not None:
        added.copy_(_freed(added, change.free))
    added.scatter_(1, change.tokens[:, 0], change.added[:, 0])
    if scale is not None:
        scale.scatter_(1, change.tokens[:, 0], change.scale[:, 0])


def _freed(added: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    return torch.where(free & added.isneginf(), 0, added)
