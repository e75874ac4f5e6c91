"""Penalties in SGLang as in plain sampling: all tokens of the output count, once. It imports SGLang.

SGLang's penalizers count one token of each request before a round, the last one on the host, in tables as wide as the
vocabulary, which all rows of a round read. Here a request has a list of its tokens and their counts, and a row is
changed at these tokens alone. With overlap scheduling a round's tokens reach the host only after the next round was
launched. Those are stored on the device, and are counted there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

import specdec_kernels as specdec
from specdec_kernels.engines._methods import refuse
from specdec_kernels.engines._sglang_sharded import slices_of
from specdec_kernels.engines._vllm_rows import moved

RING = 256  # tokens stored for each request slot: more than a path has
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
KINDS = {f"Batched{kind}Penalizer" for kind in ("Frequency", "Presence", "Repetition", "MinNewTokens")}


def begin(info: Any, cls: type, batch: Any, *rest: Any) -> None:
    """After ``SamplingBatchInfo.from_schedule_batch``: releases SGLang's penalizers, and begins to count.

    A request that comes back after a retraction, or from another server, has an output already.
    """
    orchestrator = info.penalizer_orchestrator
    for kind, penalizer in orchestrator.penalizers.items():
        refuse(**{kind.__name__: penalizer.is_prepared() and kind.__name__ not in KINDS})
        penalizer.teardown()
    orchestrator.is_required = False
    for req in batch.reqs:
        req.specdec_counts = Counts()


class Counts:
    """How often a request's output has which tokens: ``times`` in the order of ``columns``."""

    def __init__(self) -> None:
        self.length, self.columns, self.times = 0, {}, []

    def update(self, output: Any) -> dict[int, tuple[int, int]]:
        """Count the tokens since the last call; returns the changed columns as (token, times)."""
        changed = {} if self.columns else {0: (0, 0)}  # what another request left there
        for token in output[self.length :]:
            column = self.columns.setdefault(token, len(self.columns))
            if column == len(self.times):
                self.times.append(0)
            self.times[column] += 1
            changed[column] = token, self.times[column]
        self.length = len(output)
        return changed


class Slots:
    """On the device, for the requests in a pool's slots: their counts, and their last tokens.

    ``counts`` int32 [2, slots, W] are tokens and times. The token of position i is in ``recent`` at i mod `RING`.
    """

    def __init__(self, pool: Any) -> None:
        table = pool.req_to_token
        self.counts = torch.zeros(2, len(table), 0, dtype=torch.int32, device=table.device)
        self.recent = torch.zeros(len(table), RING, dtype=torch.int64, device=table.device)
        self.width = 1  # columns of the widest path so far


def slots_of(pool: Any) -> Slots:
    """The `Slots` of a pool."""
    if not hasattr(pool, "specdec_slots"):
        pool.specdec_slots = Slots(pool)
    return pool.specdec_slots


def is_penalised(req: Any) -> bool:
    """Whether a request has penalties."""
    return any(getattr(req.sampling_params, name) != neutral for name, neutral in NEUTRAL.items())


def attach(given: Any, info: Any) -> None:
    """After ``SamplingBatchInfo.copy_for_forward``: attaches the penalties that hold before this forward's tokens."""
    batch = info.penalizer_orchestrator.batch
    given.specdec_penalties = None
    if batch is not None and any(map(is_penalised, batch.reqs)):
        given.specdec_penalties = penalties_of(batch.reqs, slots_of(batch.req_to_token_pool))


def penalties_of(reqs: list[Any], slots: Slots) -> Penalties:
    """Count what the host has learnt, and copy these requests' counts: the next forward's may change before they are
    read."""
    device, changes, rows = slots.counts.device, [], []
    for req in reqs:
        slot, counts, params, prompt = (
            req.kv.req_pool_idx, req.specdec_counts, req.sampling_params, len(req.origin_input_ids)
        )  # fmt: skip
        if is_penalised(req):
            changes += [(slot, column, *change) for column, change in counts.update(req.output_ids).items()]
        factors = params.frequency_penalty, params.presence_penalty, params.repetition_penalty
        last = max(len(counts.times) - 1, 0)
        rows.append((slot, last, prompt + counts.length, prompt, params.min_new_tokens, *factors))
    width = max(last for _, last, *_ in rows) + 1
    if width > slots.counts.shape[2]:
        slots.counts = pad(slots.counts, (0, max(2 * width, 64) - slots.counts.shape[2]))
    numbers = moved(np.array([x for row in (*changes, *rows) for x in row], dtype=np.float64), device)  # in one copy
    slot, column, *change = numbers[: 4 * len(changes)].view(-1, 4).long().unbind(1)
    slots.counts[:, slot, column] = torch.stack(change).int()
    numbers = numbers[4 * len(changes) :].view(-1, 8)
    slot, last, *lengths = numbers[:, :5].long().unbind(1)
    columns = torch.arange(width, device=device, dtype=torch.int64).minimum(last[:, None])  # the last one is repeated
    tokens, times = slots.counts[:, slot[:, None], columns].unbind(0)
    factors = numbers[:, 5:, None, None].float().unbind(1)
    return Penalties(tokens.long(), times.float(), factors, *lengths, stops_of(reqs, device))


def stops_of(reqs: list[Any], device: Any) -> torch.Tensor | None:
    """int64 [B, S]: the tokens that may not end a short output; None if no output is short.

    Lists are filled up with their first token.
    """
    stops = []
    for req in reqs:
        ends: set[Any] = set()
        if req.sampling_params.min_new_tokens > req.specdec_counts.length:
            tokenizer = req.tokenizer
            for more in (req.sampling_params.stop_token_ids, req.eos_token_ids, tokenizer.additional_stop_token_ids):
                ends |= set(more or ())
            ends.add(tokenizer.eos_token_id)
        stops.append(sorted(ends - {None}))
    longest = max(map(len, stops))
    if not longest:
        return None
    return moved(np.array([each + (each or [0])[:1] * (longest - len(each)) for each in stops]), device)


class Penalties(NamedTuple):
    """Penalties of requests, by the tokens that the host has counted."""

    tokens: torch.Tensor  # int64 [B, W]; the last one of a request is repeated, with its count
    counts: torch.Tensor  # float32 [B, W]
    factors: tuple[torch.Tensor, ...]  # float32 [B, 1, 1] each: frequency, presence, repetition
    counted: torch.Tensor  # int64 [B]: prompt and counted output
    prompt: torch.Tensor  # int64 [B]
    least: torch.Tensor  # int64 [B]: of the output
    stops: torch.Tensor | None  # int64 [B, S]

    def apply(
        self, rows: torch.Tensor, said: torch.Tensor, in_row: torch.Tensor, length: torch.Tensor, first: int | None
    ) -> None:
        """Penalise `rows` [B, N, V] in place, as SGLang does: additions first.

        Row n counts the tokens `said` [B, M] where `in_row` [B, N, M], too, after a text of `length` [B, N].
        `first` is the token of the rows' first column; None: they have the whole vocabulary.
        """
        if first is None:
            said = said.clamp(0, rows.shape[-1] - 1)
        tokens = torch.cat((self.tokens, said), 1)
        same = said[..., None] == tokens[:, None]
        times = torch.where(same[..., : self.tokens.shape[1]], self.counts[:, None], 0).amax(-1)
        counts = torch.cat((self.counts, times), 1)[:, None] + in_row.float() @ same.float()
        columns, counts = columns_of(tokens, counts, rows, first)
        frequency, presence, repetition = self.factors
        seen = counts > 0
        x = rows.gather(-1, columns).float() - (frequency * counts + presence * seen)
        scale = torch.where(seen, repetition, 1)
        rows.scatter_(-1, columns, torch.where(x < 0, x * scale, x / scale).to(rows.dtype))
        if self.stops is not None:
            short = length - self.prompt[:, None] < self.least[:, None]
            columns, short = columns_of(self.stops, short[..., None].expand(-1, -1, self.stops.shape[1]), rows, first)
            rows.scatter_(-1, columns, torch.where(short, -torch.inf, rows.gather(-1, columns)))


def columns_of(
    tokens: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, first: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of tokens [B, E] in rows [B, N, V] that begin with the token `first`, and their values [B, N, E].

    A token outside of these columns repeats one inside; without any the values are 0.
    """
    if first is not None:
        tokens = tokens - first
        inside = (tokens >= 0) & (tokens < rows.shape[-1])
        each = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.int64)
        entry = torch.where(inside, each, inside.int().argmax(-1, keepdim=True))
        tokens = tokens.gather(1, entry).clamp(0, rows.shape[-1] - 1)
        values = values.gather(-1, entry[:, None].expand_as(values)) * inside.any(-1)[:, None, None]
    return tokens[:, None].expand(-1, rows.shape[1], -1), values


def late(
    slots: Slots, indices: torch.Tensor, last: torch.Tensor, token: torch.Tensor, counted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, W] up to `token` at position `last`, and whether they come after the first `counted` ones."""
    positions = last[:, None] - torch.arange(slots.width - 1, -1, -1, device=last.device, dtype=torch.int64)
    tokens = slots.recent[indices[:, None], positions % RING]
    tokens[:, -1] = token
    return tokens, positions >= counted[:, None]


def penalise_step(runner: Any, logits_output: Any, forward: Any) -> None:
    """Before ``ModelRunner.sample``: penalises the logits of a step without drafts."""
    info = forward.sampling_info
    if info.penalizer_orchestrator is not None:  # a copy for this forward has none
        attach(info, info)
    penalties, info.specdec_penalties = getattr(info, "specdec_penalties", None), None
    if penalties is None:
        return
    size = len(penalties.tokens)
    if forward.forward_mode.is_decode():
        last, token = forward.positions[:size].long(), forward.input_ids[:size]
    else:
        last = forward.seq_lens[:size].long() - 1
        token = forward.input_ids[forward.extend_seq_lens[:size].cumsum(0) - 1]
    rows, slots = logits_output.next_token_logits[:size, None], slots_of(runner.req_to_token_pool)
    said, are_late = late(slots, forward.req_pool_indices[:size], last, token, penalties.counted)
    slices = slices_of(rows)
    penalties.apply(rows, said, are_late[:, None], last[:, None] + 1, None if slices is None else slices.columns.start)


def penalise_round(
    penalties: Penalties, rows: torch.Tensor, candidates: torch.Tensor, parents: torch.Tensor | None, batch: Any,
    first: int | None,
) -> None:  # fmt: skip
    """Penalise `rows` [B, N, V] of a round, in place, by the drafts on the path to a row, too.

    `parents` is None for chains.
    """
    if parents is None:
        parents = torch.arange(-1, candidates.shape[1] - 1, device=rows.device, dtype=torch.int64)
    on_path = specdec.tree_mask(parents)[..., 1:].expand(len(rows), -1, -1)  # the drafts up to each node, it included
    slots = slots_of(batch.req_to_token_pool)
    tokens, are_late = late(slots, batch.req_pool_indices, batch.seq_lens, candidates[:, 0], penalties.counted)
    in_row = torch.cat((are_late[:, None].expand(-1, candidates.shape[1], -1), on_path), 2)
    length = batch.seq_lens[:, None] + 1 + on_path.sum(-1)
    penalties.apply(rows, torch.cat((tokens, candidates[:, 1:]), 1).long(), in_row, length, first)


def keep(batch: Any, predict: torch.Tensor, accept_index: torch.Tensor) -> None:
    """Store the tokens of a round. Padding behind a path is overwritten before it is read."""
    width, slots = accept_index.shape[1], slots_of(batch.req_to_token_pool)
    if width > RING:
        raise ValueError(f"max_tree_depth: expected {RING} at most with penalties; got {width}")
    slots.width = max(slots.width, width)
    ring = (batch.seq_lens[:, None] + torch.arange(1, width + 1, device=predict.device, dtype=torch.int64)) % RING
    slots.recent[batch.req_pool_indices[:, None], ring] = predict[accept_index.long().clamp(min=0)].long()
