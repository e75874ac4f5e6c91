"""Sampling by a race: the first arrival under the target's law."""

import torch

from specdec_kernels.backends.reference import laws, noise
from specdec_kernels.backends.reference.edits import edited_rows
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def race(call):
    """(requests, scores [n, R, V] of every token in the race that draft and target share, status): -inf cannot win."""
    (active, rows, law, bad), map_ = edited_rows(call), call.draft_map
    last = call.vocab_start + rows.shape[-1] if map_ is None else int(map_[-1]) + 1
    arrivals = noise.arrivals(active.noise(call.noise), noise.RACE, last)
    arrivals = arrivals[..., call.vocab_start :] if map_ is None else arrivals[..., map_.long()]
    unfit = laws.unfit(rows, law.space) if call.scores is None else laws.non_finite(rows, law.space).any(dim=-1)
    status = unfit.int() * Status.NON_FINITE | bad.int() * Status.PARAMETER
    return active, laws.scores(laws.log_weights(rows, law), arrivals, law.temperature), status


def tokens_of(columns, call):
    """The target's tokens of a row's columns."""
    tokens = columns + call.vocab_start if call.draft_map is None else call.draft_map.long()[columns]
    return torch.where(columns < 0, -1, tokens)


def race_sample(call: "typed.RaceSample"):
    """argmin over tokens of arrival / p, the lowest token on ties; 0 in a row without weight."""
    active, scores, status = race(call)
    best, columns = scores.max(dim=-1)
    no_winner = 0 if call.scores is None else -1
    active.write(call.tokens, torch.where(best == -torch.inf, no_winner, tokens_of(columns, call)), idle=-1)
    if call.scores is not None:
        active.write(call.scores, best, idle=torch.inf, outside=torch.inf)
    active.report(call.status, status)
