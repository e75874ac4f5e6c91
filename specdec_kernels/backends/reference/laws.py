"""From rows of logits or probabilities to laws, and the race over a law.

Values that no law can have are given one meaning: a NaN logit or probability and a negative probability have no weight,
+inf counts as the largest float32. Weights below 2**-126, the smallest normal float32, count as zero.

A law comes as a ``Law`` whose temperature is a tensor [...] beside rows [..., V]: what ``decoded`` makes of a call's.
"""

import torch

from specdec_kernels.ops._declaration import Law

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def decoded(law, who):
    """(Law, bad) of the requests ``who``: temperature 0 where it is too small, negative or NaN; bad where not >= 0."""
    value = who.numbers(law.temperature, torch.float32)
    return Law(law.space, torch.where(value >= SMALLEST, value, 0.0)), ~(value >= 0)


def at(law, requests):
    """The law of some requests."""
    return Law(law.space, law.temperature[requests])


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
    """Rows that are no law: a non-finite value, or nothing with weight."""
    weightless = weights(values) == 0 if space == "probs" else values.isnan() | (values == -torch.inf)
    return (non_finite(values, space) | weightless.all(dim=-1, keepdim=True)).any(dim=-1)


def weights(values):
    """Probabilities as weights, float64, without the values that no law can have."""
    values = values.double().nan_to_num(nan=0.0, posinf=LARGEST).clamp(min=0.0)
    return torch.where(values < SMALLEST, 0.0, values)


def log_weights(values, law):
    """Unnormalised log-law of each row, float64, -inf for no weight; temperature 0 leaves the row as it is."""
    if law.space == "probs":
        return weights(values).log()
    # The scaled logit is a float32 by contract, so that all backends race over the same numbers.
    inverse = torch.where(law.temperature > 0, 1 / law.temperature, 1.0).unsqueeze(-1)
    return (values.float() * inverse).nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf).double()


def probabilities(values, law):
    """Probabilities of each row, float64; all zero without any weight. Temperature 0: one-hot on the lowest argmax."""
    logs = log_weights(values, law)
    if law.space == "probs":
        found = weights(values)
    else:
        found = logs.softmax(dim=-1).nan_to_num(nan=0.0)
        found = torch.where(found < SMALLEST, 0.0, found)
    top = torch.zeros_like(logs).scatter_(-1, logs.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where((law.temperature > 0).unsqueeze(-1), found, top)


def widened(draft_law, vocabulary, draft_map):
    """A draft law over the target's vocabulary: tokens the draft does not know have probability 0."""
    if draft_map is None:
        return torch.nn.functional.pad(draft_law, (0, vocabulary - draft_law.shape[-1]))
    wide = draft_law.new_zeros(*draft_law.shape[:-1], vocabulary)
    wide[..., draft_map.long()] = draft_law
    return wide


def columns(tokens, draft_vocabulary, vocabulary, draft_map):
    """Where the target's tokens stand in a draft row; -1 for those it does not know."""
    known = torch.arange(draft_vocabulary, device=tokens.device)
    column = torch.full((vocabulary,), -1, device=tokens.device)
    column[known if draft_map is None else draft_map.long()] = known
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
