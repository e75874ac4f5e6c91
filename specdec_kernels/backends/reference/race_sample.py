"""Sampling by a race: the first arrival under the target's law."""

import torch

from specdec_kernels.backends.reference import laws, noise, requests
from specdec_kernels.backends.reference.edits import Edits
from specdec_kernels.status import Status


def race(call):
    """(requests, scores [n, R, V] of every token in the race that draft and target share, status): -inf cannot win."""
    batch, inner, vocabulary = call.rows.shape
    who = requests.of(call, batch, call.rows.device, inner=(inner,))
    law, bad = laws.decoded(call.law, who)
    edits = Edits(call, who, call.rows)
    rows, map_ = edits.rows(call.rows[who.live]), call.draft_map
    arrivals = noise.arrivals(who.noise(call.noise), noise.RACE, vocabulary if map_ is None else int(map_[-1]) + 1)
    if map_ is not None:
        arrivals = arrivals[..., map_.long()]
    status = laws.unfit(rows, law.space).int() * Status.NON_FINITE | (bad | edits.bad).int() * Status.PARAMETER
    return who, laws.scores(laws.log_weights(rows, law), arrivals, law.temperature), status


def tokens_of(columns, draft_map):
    """The target's tokens of a draft row's."""
    return columns if draft_map is None else torch.where(columns < 0, -1, draft_map.long()[columns])


def race_sample(call):
    """argmin over tokens of arrival / p, the lowest token on ties; 0 in a row without weight."""
    who, scores, status = race(call)
    tokens = tokens_of(scores.argmax(dim=-1), call.draft_map)
    tokens = torch.where((scores == -torch.inf).all(dim=-1), 0, tokens)
    who.write(call.tokens, tokens, idle=-1)
    if call.status is not None:
        who.write(call.status, status, outside=Status.PARAMETER)
