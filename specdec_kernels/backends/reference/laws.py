"""From rows of logits or probabilities to laws, and the race over a law.

Values that no law can have are given one meaning: a NaN logit or probability and a negative probability have no weight,
+inf counts as the largest float32. Weights below 2**-126, the smallest normal float32, count as zero.
"""

import torch

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def per_row(value, rows, dtype, device):
    """A number or tensor as a tensor of one value per row."""
    return torch.as_tensor(value, dtype=dtype, device=device).expand(rows)


def temperatures(value, rows, device):
    """(temperature, bad): float32, one per row; 0 where it is too small, negative or NaN, bad where it was not >= 0."""
    value = per_row(value, rows, torch.float32, device)
    return torch.where(value >= SMALLEST, value, 0.0), ~(value >= 0)


def draft_probs(value, rows, device):
    """(draft_prob, bad): float64 in [0, 1], one per row, NaN counts as 1; bad where it was outside."""
    value = per_row(value, rows, torch.float32, device).double()
    return value.nan_to_num(nan=1.0).clamp(0.0, 1.0), ~((value >= 0) & (value <= 1))


def epsilons(value, rows, device):
    """(epsilon, bad): float64, one per row, 0 where it is NaN or negative; bad where it was not >= 0."""
    value = per_row(value, rows, torch.float32, device).double()
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


def log_weights(values, temperature, space):
    """Unnormalised log-law of each row, float64, -inf for no weight; temperature 0 leaves the row as it is."""
    if space == "probs":
        return weights(values).log()
    # The scaled logit is a float32 by contract, so that all backends race over the same numbers.
    inverse = torch.where(temperature > 0, 1 / temperature, 1.0).unsqueeze(-1)
    return (values.float() * inverse).nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf).double()


def law(values, temperature, space):
    """Probabilities of each row, float64; all zero without any weight. Temperature 0: one-hot on the lowest argmax."""
    logs = log_weights(values, temperature, space)
    if space == "probs":
        probabilities = weights(values)
    else:
        probabilities = logs.softmax(dim=-1).nan_to_num(nan=0.0)
        probabilities = torch.where(probabilities < SMALLEST, 0.0, probabilities)
    top = torch.zeros_like(logs).scatter_(-1, logs.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where((temperature > 0).unsqueeze(-1), probabilities, top)


def widened(draft_law, vocabulary):
    """A draft law over the target's vocabulary: tokens the draft does not know have probability 0."""
    return torch.nn.functional.pad(draft_law, (0, vocabulary - draft_law.shape[-1]))


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
