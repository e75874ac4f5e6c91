"""From rows of logits or probabilities to laws, and the race over a law.

Values that are impossible in a law have one meaning: NaN and negative probabilities have no weight, +inf counts as the
largest float32. Weights below 2**-126, the smallest normal float32, count as zero.

A law is given as a ``Law`` whose temperature is a tensor [...] beside rows [..., V]; so are its filters if one may be
on. ``decoded`` makes it from the law of a call.
"""

import numpy as np
import torch

from specdec_kernels._constants import COLDEST, HOTTEST, LARGEST, SMALLEST
from specdec_kernels.backends.reference import filters
from specdec_kernels.calls.values import BEFORE_TEMPERATURE, DIVIDED, Law, filters_of


def decoded(law, active):
    """(Law, bad) of the requests ``active``: temperature 0 where it is too small, negative or NaN; bad where not >=
    0."""
    # A top_p or min_p that is not >= 0 is bad, too, and off.
    temperature = active.numbers(law.temperature, torch.float32)
    bad = ~(temperature >= 0)
    temperature = torch.where(temperature >= SMALLEST, 1.0 if law.rules & DIVIDED else temperature, 0.0)
    if not filters_of(law):
        return Law(law.space, temperature), bad
    top_k = active.numbers(law.top_k, torch.int64)
    top_p, min_p = (active.numbers(x, torch.float32) for x in (law.top_p, law.min_p))
    bad |= ~((top_p >= 0) & (min_p >= 0))
    top_p, min_p = torch.where(top_p >= 0, top_p, 1.0), torch.where(min_p >= 0, min_p, 0.0)
    return Law(law.space, temperature, top_k, top_p, min_p, law.rules), bad


def at(law, requests):
    """The law of these requests."""
    return law._replace(**{name: x[requests] for name, x in law._asdict().items() if isinstance(x, torch.Tensor)})


def draft_probs(value):
    """(draft_prob, bad): float64 in [0, 1], NaN counts as 1; bad where it was outside."""
    value = value.double()
    return value.nan_to_num(nan=1.0).clamp(0.0, 1.0), ~((value >= 0) & (value <= 1))


def epsilons(value):
    """(epsilon, bad): float64, 0 where it is NaN or negative; bad where it was not >= 0."""
    value = value.double()
    return torch.where(value >= 0, value, 0.0), ~(value >= 0)


def non_finite(values, space):
    """Where a logit is NaN or +inf, or a probability is NaN, negative or +inf."""
    return values.isnan() | (values == torch.inf) | ((values < 0) & (space == "probs"))


def unfit(values, space):
    """Rows that are no law: one of their values is not finite, or none has weight."""
    weightless = weights(values) == 0 if space == "probs" else values.isnan() | (values == -torch.inf)
    return (non_finite(values, space) | weightless.all(dim=-1, keepdim=True)).any(dim=-1)


def empty(values, law):
    """Rows without a token that has weight."""
    return log_weights(values, law).amax(dim=-1) == -torch.inf


def weights(values):
    """Probabilities as weights, float64, without values that are impossible in a law."""
    values = values.double().nan_to_num(nan=0.0, posinf=LARGEST).clamp(min=0.0)
    return torch.where(values < SMALLEST, 0.0, values)


def log_weights(values, law):
    """Unnormalised log-law of each row, float64, -inf for no weight; temperature 0 leaves the row as it is."""
    if law.space == "probs":
        return weights(values).log()
    logs = scaled(values, law.temperature).double()
    return torch.where(in_support(values, law), logs, -torch.inf) if filters_of(law) else logs


def inverse_of(temperature):
    """The factor of logits: 1 / T, and 1 where the argmax has all the weight."""
    return torch.where(temperature >= SMALLEST, 1 / temperature.clamp(COLDEST, HOTTEST), 1.0)


def scaled(values, temperature):
    """Logits over the temperature, as float32 by contract, so that all backends race over the same numbers."""
    return (values.float() * inverse_of(temperature).unsqueeze(-1)).nan_to_num(
        nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf
    )


def cuts(values, law):
    """The ``filters.Cut`` of every row, in order; at temperature 0 it keeps the argmax."""
    seen = torch.ones_like(law.temperature) if law.rules & BEFORE_TEMPERATURE else law.temperature
    rows = scaled(values, seen).flatten(0, -2).cpu().numpy()
    numbers = [x.cpu().numpy() if isinstance(x, torch.Tensor) else x for x in law[1:5]]
    numbers = [np.broadcast_to(x, law.temperature.shape).ravel() for x in numbers]
    return [
        filters.cut(row, top_k, top_p, min_p, law.rules) if temperature > 0 else filters.argmax(row)
        for row, temperature, top_k, top_p, min_p in zip(rows, *numbers, strict=True)
    ]


def in_support(values, law, edited=False):
    """The support of each row's filters; at temperature 0 all tokens, for filters then change nothing."""
    # With ``edited`` rows no token of logit -inf is in it.
    has_weight = values > -torch.inf if edited else torch.ones_like(values, dtype=torch.bool)
    if not filters_of(law):
        return has_weight
    rows = [torch.from_numpy(cut.in_support) for cut in cuts(values, law)]
    every = torch.stack(rows) if rows else torch.ones(0, dtype=torch.bool, device="cpu")
    return has_weight & (every.view(values.shape).to(values.device) | (law.temperature == 0).unsqueeze(-1))


def probabilities(values, law):
    """Probabilities of each row, float64; all zero without any weight. Temperature 0: one-hot on the lowest argmax."""
    logs = log_weights(values, law)
    if law.space == "probs":
        probs = weights(values)
    else:
        probs = logs.softmax(dim=-1).nan_to_num(nan=0.0)
        probs = torch.where(probs < SMALLEST, 0.0, probs)
    top = torch.zeros_like(logs).scatter_(-1, logs.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where((law.temperature > 0).unsqueeze(-1), probs, top)


def log_probabilities(values, law):
    """Log-probabilities, float64: -inf without weight, else finite, even where the probability underflows."""
    logs = log_weights(values, law)
    if law.space == "probs":
        log_probs = logs
    else:
        below = logs - logs.amax(dim=-1, keepdim=True)  # first, as a large logit leaves no room for the log of a sum
        log_probs = torch.where(logs > -torch.inf, below - below.exp().sum(dim=-1, keepdim=True).log(), -torch.inf)
    best = torch.zeros_like(logs, dtype=torch.bool).scatter_(-1, logs.argmax(dim=-1, keepdim=True), True)
    top = torch.where(best & (logs > -torch.inf), 0.0, logs.new_full((), -torch.inf))
    return torch.where((law.temperature > 0).unsqueeze(-1), log_probs, top)


def widened(draft_law, vocabulary, draft_map, nothing=0.0):
    """A draft law over the target's vocabulary: tokens outside the draft's have probability 0, or ``nothing``."""
    if draft_map is None:
        return torch.nn.functional.pad(draft_law, (0, vocabulary - draft_law.shape[-1]), value=nothing)
    wide = draft_law.new_full((*draft_law.shape[:-1], vocabulary), nothing)
    wide[..., draft_map.long()] = draft_law
    return wide


def columns(tokens, draft_vocabulary, vocabulary, draft_map):
    """The column of each of the target's tokens in a draft row; -1 where it has none."""
    draft_columns = torch.arange(draft_vocabulary, device=tokens.device, dtype=torch.int64)
    column = torch.full((vocabulary,), -1, device=tokens.device, dtype=torch.int64)
    column[draft_columns if draft_map is None else draft_map.long()] = draft_columns
    return column[tokens]


def residual_weights(p, q, draft_prob):
    """(p - h q)+ of each row, unnormalised."""
    excess = p - draft_prob.unsqueeze(-1) * q
    return torch.where(excess < SMALLEST, 0.0, excess)


def scores(logs, arrivals, temperature):
    """Log of weight over arrival time: the largest wins the race. At temperature 0 the weight alone decides."""
    return logs - torch.where((temperature > 0).unsqueeze(-1), arrivals.log(), 0.0)


def draw(weights, arrivals):
    """The winner of the race over unnormalised weights, the lowest token on ties."""
    return (weights.log() - arrivals.log()).argmax(dim=-1)
