"""Sampling by a race: the first arrival under the target's law."""

from specdec_kernels.backends.reference import laws, noise


def race_scores(logits_or_probs, space, temperature, seed, position, nonce):
    """Scores [A, R, V] of every token in the race that draft and target share; -inf cannot win."""
    rows, device = logits_or_probs.shape[:-1], logits_or_probs.device
    temperature, _ = laws.temperatures(temperature, rows, device)
    seed, position, nonce = (laws.per_row(value, rows, None, device).long() for value in (seed, position, nonce))
    arrivals = noise.arrivals(seed, position, nonce, noise.RACE, logits_or_probs.shape[-1])
    return laws.scores(laws.log_weights(logits_or_probs, temperature, space), arrivals, temperature)


def race_sample(target, space, temperature, seed, position, nonce, tokens):
    """argmin over tokens of arrival / p, the lowest token on ties; 0 in a row without weight."""
    tokens.copy_(race_scores(target, space, temperature, seed, position, nonce).argmax(dim=-1))
