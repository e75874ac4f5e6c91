"""The first k arrivals of a race: k draws without replacement, in order."""

import torch

from specdec_kernels.backends.reference.race_sample import race_scores


def race_topk(draft, space, temperature, seed, position, nonce, tokens):
    """The k smallest arrivals / q in order, lower tokens first on ties; -1 once no weight is left."""
    scores = race_scores(draft, space, temperature, seed, position, nonce)
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    order = torch.where(scores > -torch.inf, order, -1)[..., : tokens.shape[-1]]
    tokens.fill_(-1)
    tokens[..., : order.shape[-1]] = order
