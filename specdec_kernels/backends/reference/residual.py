"""The law a rejected token is replaced from, and how often that happens."""

import torch

from specdec_kernels.backends.reference import laws


def residual(target, draft, space, temperature, draft_prob, epsilon, probs, mass):
    """norm((p - a q)+), drawn from with probability (1 - a) + sum (a q - p - eps)+; where it is empty, p and 0."""
    rows, device = target.shape[:-1], target.device
    temperature, _ = laws.temperatures(temperature, rows, device)
    draft_prob, _ = laws.draft_probs(draft_prob, rows, device)
    epsilon, _ = laws.epsilons(epsilon, rows, device)

    p = laws.law(target, temperature, space)
    q = laws.widened(laws.law(draft, temperature, space), target.shape[-1])
    excess = laws.residual_weights(p, q, draft_prob)
    total = excess.sum(dim=-1, keepdim=True)
    probs.copy_(torch.where(total > 0, excess / total, p))

    draft_prob, epsilon = draft_prob.unsqueeze(-1), epsilon.unsqueeze(-1)
    rejected = (draft_prob * q - p - epsilon).clamp(min=0.0).sum(dim=-1, keepdim=True)
    mass.copy_(torch.where(total > 0, 1 - draft_prob + rejected, 0.0).squeeze(-1))
