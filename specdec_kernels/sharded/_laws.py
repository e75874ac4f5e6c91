"""Laws (distributions) of sliced rows: normalisers, probabilities of some tokens, sums over pairs of rows.

Every rank weighs the tiles of its columns, and the owner of a token sends its logit. From these all ranks compute the
same numbers. Where filters are on, the numbers come from the lists that decided the support (_filters.py).
"""

import functools
import itertools
from typing import NamedTuple

import torch

from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.ops._laws import check_one_temperature
from specdec_kernels.sampling import LogitEdits, Sampling, undivided
from specdec_kernels.sharded import _parts as parts
from specdec_kernels.sharded._cached_tensors import filled
from specdec_kernels.sharded._filters import Support, inverse_of, may_filter, of_each_row, scaled, support_of
from specdec_kernels.sharded._races import race_partial
from specdec_kernels.sharded._wire import any_of, sent, tiles_of
from specdec_kernels.status import Status

KEEPS_ALL = torch.tensor(-torch.inf, dtype=torch.float32, device="cpu").view(torch.int32).item()


def check_space(name, space):
    if space != "logits":
        raise ValueError(f"{name}: expected 'logits', for slices of probabilities have no row's sum; got {space!r}")


def law_of(space, temperature, sampling):
    """The Sampling of an argument, or of a temperature."""
    check_space("space", space)
    if sampling is None:
        return Sampling(1.0 if temperature is None else temperature)
    check_one_temperature(temperature, sampling)
    return undivided(sampling)


def draft_law_of(draft, target):
    """The draft's Sampling. Temperature 0 becomes top_k = 1 at temperature 1: the argmax alone has weight."""
    check_space("draft.space", "logits" if draft.space is None else draft.space)
    if draft.sampling is None:
        return Sampling(target.temperature)
    law = undivided(draft.sampling)
    if not isinstance(law.temperature, torch.Tensor):
        return law if law.temperature >= SMALLEST else Sampling(1.0, top_k=1)
    sampled = law.temperature >= SMALLEST
    top_k = torch.as_tensor(law.top_k, dtype=torch.int64, device=sampled.device)
    return law._replace(temperature=torch.where(sampled, law.temperature, 1.0), top_k=torch.where(sampled, top_k, 1))


def check_draft(name, draft, target, rows, more=False):
    """Raise unless draft rows called ``name`` have the target's columns, and ``rows`` [1] rows a request."""
    # With ``more`` there may be more rows.
    inputs.check_rows(name, draft, 3 if more else target.ndim)
    if draft.shape[-1] != target.shape[-1]:
        raise ValueError(f"{name}: expected the target's {target.shape[-1]} columns; got {inputs.shown(draft)}")
    if draft.shape[-2:-1] != rows and not (more and draft.shape[-2] > rows[0]):
        raise ValueError(f"{name}: expected rows for {rows[0]} drafts; got {inputs.shown(draft)}")


class Side(NamedTuple):
    """Rows of the target or of the draft, and the tokens whose probabilities are needed."""

    rows: torch.Tensor  # [..., n]: this rank's columns
    sampling: Sampling  # with the rows' numbers
    index: torch.Tensor | None  # request_index of an op on rows: rows with -1 are not read
    # both int64 [P]: the row (an index into all rows; None: the rows in order) and the token of each probability
    row_indices: torch.Tensor | None
    tokens: torch.Tensor
    edits: LogitEdits | None = None  # of the slice's columns, with an entry for each row

    def at(self, of_rows):
        """Values of rows, gathered for each probability."""
        return of_rows if self.row_indices is None else of_rows[self.row_indices]

    def every_row_index(self):
        """int64 [P]."""
        if self.row_indices is not None:
            return self.row_indices
        return torch.arange(len(self.tokens), device=self.tokens.device, dtype=torch.int64)


class Laws(NamedTuple):
    """The law of each row of a Side, the same on all ranks."""

    side: Side
    row_stats: torch.Tensor  # float32 [rows, 2]: as from ``tile_laws``
    row_status: torch.Tensor  # int32 [rows]: status
    logits: torch.Tensor  # both float32 [P]: of the side's tokens; 0 for a token outside of the vocabulary
    probs: torch.Tensor
    support: Support | None  # where filters may be on

    def temperature(self, row_indices):
        """The temperature of some rows: a number for all, or a tensor."""
        temperature = self.side.sampling.temperature
        return of_each_row(temperature, self.side.rows)[row_indices] if torch.is_tensor(temperature) else temperature

    def inverse(self, row_indices):
        """1 / temperature of some rows."""
        inverse = inverse_of(self.side.sampling.temperature, self.side.rows.shape[:-1], self.row_stats.device)
        return inverse.flatten()[row_indices]

    def contains(self):
        """bool [P]: whether the side's tokens are in the support."""
        tokens, logits = self.side.tokens.unsqueeze(-1), self.logits.unsqueeze(-1)
        return self.support.contains(self.side.every_row_index(), tokens, logits).squeeze(-1)

    def cut_at(self, row_indices, vocab_start):
        """int32 [P, 3]: the cuts of some rows in this slice, as residual_race takes them."""
        value, last, order = (
            at_any(x.flatten(), row_indices)
            for x in (self.support.cut.value, self.support.cut.last, self.support.order)
        )
        return torch.stack([value.view(torch.int32), (last - vocab_start).int(), order.view(torch.int32)], dim=-1)


def cuts_of(shard, *sides):
    """int32 [P, 6]: the cuts of (Laws or None, rows) of both sides; None where no filter may be on."""
    if all(laws is None or laws.support is None for laws, _ in sides):
        return None
    row_indices, device = sides[0][1], sides[0][1].device
    all_kept = torch.tensor([KEEPS_ALL, 0, 0], dtype=torch.int32, device=device).expand(len(row_indices), 3)
    return torch.cat([
        all_kept if laws is None or laws.support is None else laws.cut_at(some, shard.vocab_start) for laws,
        some in sides
    ], dim=-1)  # fmt: skip


def at_any(values, indices):
    """``values`` at some indices; an index out of range gives any value."""
    if not (count := values.shape[0]):
        return values.new_zeros(len(indices), *values.shape[1:])
    return values.index_select(0, indices.clamp(0, count - 1))


def probabilities(raw, inverse, row_stats):
    """The probabilities of logits [n, k], in rows with these ``row_stats`` [n, 2]."""
    log = scaled(raw, inverse.unsqueeze(-1)) - row_stats[:, :1] - row_stats[:, 1:]
    return exp(log.flatten()).view(raw.shape)


def exp(log):
    """exp as every backend computes it: probabilities of a row with log-sum-exp 0, which is one tile of one token."""
    tile = torch.tensor([[[0], [1 << 30], [0]]], dtype=torch.int32, device=log.device)
    rows = log.view(len(log) // 64, 64) if len(log) % 64 == 0 else log.unsqueeze(-1)
    return parts.tile_laws(tile.repeat(len(rows), 1, 1), rows)[1].view(log.shape)


def laws_of(shard, sides, *also):
    """[Laws of each side] and the gathered tensors ``also``, from one gather; filters need more gathers before."""
    support = [
        support_of(shard, side.rows, side.sampling, side.index, side.edits) if may_filter(side.sampling) else None
        for side in sides
    ]
    weighed = [tiles_of(side.rows, side.sampling.temperature, shard, side.index, side.edits) for side in sides]
    tiles, row_status = zip(*weighed, strict=True)
    rows, num_tokens = [x.shape[0] for x in tiles], [side.tokens.shape[0] for side in sides]
    reported = [*(x.flatten() for x in row_status), *(logits_of(side, shard) for side in sides)]
    tiles, row_status, *also = sent([tiles, reported, *([part] for part in also)], shard)
    tiles = tiles.permute(1, 2, 0, 3).flatten(-2)
    row_status, logits = any_of(row_status).split_with_sizes([sum(rows), sum(num_tokens)])
    logits = logits.view(torch.float32)
    row_stats, probs = _row_stats_and_probs(sides, rows, tiles, logits)
    weightless = row_stats.select(-1, 1) == filled(torch.inf, row_stats)
    row_status = torch.where(weightless, row_status | filled(Status.NON_FINITE, row_status), row_status)
    each = zip(sides, support, row_stats.split_with_sizes(rows), row_status.split_with_sizes(rows),
               logits.split_with_sizes(num_tokens), probs.split_with_sizes(num_tokens), strict=True)  # fmt: skip
    return [_laws(side, support, *of_side) for side, support, *of_side in each], also


def logits_of(side, shard):
    """int32 [P]: the bits of the logit of each token of the side; 0 where the slice lacks the token."""
    tokens = side.tokens.view(side.rows.shape[:-1]) if side.row_indices is None else side.tokens
    return parts.token_logits(
        side.rows, tokens, row_indices=side.row_indices, vocab_start=shard.vocab_start, edits=side.edits
    ).view(torch.int32)


def _row_stats_and_probs(sides, rows, tiles, logits):
    """(float32 [rows, 2], [P]): the statistics of both sides' rows, and the probabilities of their tokens."""
    temperature = [side.sampling.temperature for side in sides]
    if any(isinstance(x, torch.Tensor) for x in temperature) or len(set(temperature)) > 1:
        each = [of_each_row(x, side.rows) for x, side in zip(temperature, sides, strict=True)]
        temperature = [torch.cat(each)]
    temperature = temperature_of_rows = temperature[0]
    if all(side.row_indices is None for side in sides):
        row_stats, probs = parts.tile_laws(tiles, logits.unsqueeze(-1), temperature=temperature)
        return row_stats, probs.squeeze(-1)
    begins = itertools.accumulate(rows[:-1], initial=0)
    row_indices = torch.cat([side.every_row_index() + begin for side, begin in zip(sides, begins, strict=True)])
    if isinstance(temperature, torch.Tensor):
        temperature_of_rows = temperature[row_indices]
    _, probs = parts.tile_laws(tiles[row_indices], logits.unsqueeze(-1), temperature=temperature_of_rows)
    row_stats, _ = parts.tile_laws(tiles, tiles.new_zeros(len(tiles), 1, dtype=torch.float32), temperature=temperature)
    return row_stats, probs.squeeze(-1)


def _laws(side, support, row_stats, row_status, logits, probs):
    """The Laws of a side, restricted to the filters' support."""
    if support is None:
        return Laws(side, row_stats, row_status, logits, probs, None)
    row_status = row_status | support.status.flatten()
    row_stats = torch.where(support.on.flatten().unsqueeze(-1), support.row_stats(side.sampling), row_stats)
    laws = Laws(side, row_stats, row_status, logits, logits, support)
    probs = probabilities(logits.unsqueeze(-1), side.at(laws.inverse(slice(None))), side.at(row_stats)).squeeze(-1)
    return laws._replace(probs=torch.where(laws.contains(), probs, 0.0))


def argmax_of(rows, shard, index, edits=None):
    """The argmax of the slice of each row, as a RowPartial."""
    seed = torch.zeros(rows.shape[:-1], dtype=torch.int64, device=rows.device)
    return race_partial(
        rows, vocab_start=shard.vocab_start, seed=seed, position=0, temperature=0.0, edits=edits, request_index=index
    )


def with_parameters(status, requests, *given):
    """The status, int32 [B], with that of numbers and of those of Samplings."""
    numbers = [number for x in given for number in ((x[0], *x[2:4]) if isinstance(x, Sampling) else (x,))]
    bad = [~(requests.of_requests(x) >= 0) for x in numbers if isinstance(x, torch.Tensor)]
    if not bad:
        return status
    return status | torch.where(functools.reduce(torch.logical_or, bad) & requests.live(), Status.PARAMETER, 0).int()


# ---- sums over pairs of rows -----------------------------------------------------------------------------------------


def left_in_slices(shard, target, draft, row_indices, draft_row_indices, subtracted):
    """int64 [n, 2] of pairs of rows: the units of (p - subtracted q)^+ and of q, over the whole vocabulary."""
    if len(row_indices) == 0:
        return torch.zeros(0, 2, dtype=torch.int64, device=subtracted.device)
    sides = (target, row_indices), (draft, draft_row_indices)
    sums, _ = parts.residual_sums(
        target.side.rows, draft.side.rows, row_indices.int(), draft_row_indices.int(), subtracted=subtracted,
        temperature=target.temperature(row_indices), draft_temperature=draft.temperature(draft_row_indices),
        cuts=cuts_of(shard, *sides), edits=target.side.edits,
        row_stats=torch.cat([side.row_stats[some] for side, some in sides], dim=-1),
    )  # fmt: skip
    return shard.gather(sums).sum(dim=0)
