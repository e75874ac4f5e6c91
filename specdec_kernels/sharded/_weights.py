"""What a walk makes of p and q, rounded as csrc/include/specdec/traversal.h and walk.h do. On tensors, float32."""

import torch

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
UNIT = 2.0**42  # of sums of weights (csrc/include/specdec/residual.h)
ACCEPT_STREAM, LEAF_COINS = 4, 1 << 30  # of coins (csrc/include/specdec/noise.h, traversal.h)


def units_of(weights):
    """Weights of at most 1 as whole numbers, to the nearest: sums of these do not depend on their order."""
    return (weights.clamp(max=1).double() * UNIT).round().long()


def sum_of(units):
    """A sum of such weights."""
    return units.float() * (1 / UNIT)


def residual_weight(p, drafted):
    """(p - drafted)^+."""
    weight = p - drafted
    return torch.where(weight >= SMALLEST, weight, 0.0)


def share_of(left, untried):
    """The multiple of q that the next child's law takes from p."""
    return torch.where(untried >= SMALLEST, (left / untried).clamp(max=LARGEST), 0.0)


def child_weight(weight, p, q, taken=0.0, share=1.0):
    """Of a child under a node of ``weight``; 0 if it was not drawn from q."""
    drafted = share * q
    ratio = residual_weight(p, taken * q) / torch.where(drafted > 0, drafted, 1.0)
    return torch.where(drafted > 0, (weight * ratio).clamp(max=1.0), 0.0)


def taken_after(taken, share, weight):
    """The multiple of q taken from p once a child was removed under a node of ``weight``."""
    return (taken + share / weight).clamp(max=LARGEST)


def weight_after(weight, before, left):
    """The weight of a node once a child was removed, which left ``left`` of ``before``."""
    s = weight * torch.where(before >= SMALLEST, left / before, 0.0)
    return torch.where(weight >= 1, 1.0, s / (s + (1 - weight)))


def untried_after(untried, p):
    """One-hot drafts: the mass of p on tokens not tried, once a token of probability p was."""
    return (untried - p.clamp(min=0)).clamp(min=0)


def accepts(coin, p, drafted):
    """Whether a draft is accepted."""
    return (drafted > 0) & (coin * drafted < p)
