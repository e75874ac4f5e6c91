"""Laws: from a raw logit or probability to a weight. Only here is a value scaled, and asked which of the two it is.

A law stands beside its rows and what is known of them, not inside: before Triton 3.7 a tuple with a None in it can be
neither part of another nor returned, nor compared with None.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    NOBODY,
    SMALLEST,
    clean_probability,
    key_token,
    log_probability,
    log_weight,
    probability,
    scaled,
)


class Law(NamedTuple):
    """1/T, None where rows hold probabilities; whether T = 0, so that the argmax has all weight, None where it cannot.

    Weights that are clean already may go as probabilities.
    """

    inverse: tl.tensor
    greedy: tl.tensor


class Known(NamedTuple):
    """What was learned of a row: the largest logit over T and the log of the sum; at T = 0 the bits of the argmax."""

    top: tl.tensor
    log_sum: tl.tensor


@triton.jit
def nothing(law):
    """The raw value that has no weight."""
    return 0.0 if law.inverse is None else -INFINITY


@triton.jit
def clean(x, law):
    """Values in the order of their weights: logits over T, or weights."""
    return clean_probability(x) if law.inverse is None else scaled(x, law.inverse)


@triton.jit
def log_weights(x, law):
    """Of what ``clean`` returned."""
    return log_weight(x) if law.inverse is None else x


@triton.jit
def greedy_scores(x, law):
    """What the argmax of clean values is taken of, at temperature 0: the values themselves."""
    return x if law.inverse is not None else tl.where(x >= SMALLEST, x, -INFINITY)


@triton.jit
def unclean_groups(x, tops, law):
    """Which groups, whose largest values are ``tops``, hold a value that no law can have."""
    unclean = (tops < INFINITY) == 0
    if law.inverse is None:
        unclean = unclean | (tl.min(x, axis=1) < 0.0)
    return unclean


@triton.jit
def known_at(own, law, there):
    """What was learned of a row, stored at ``own``."""
    if law.inverse is not None:
        return Known(tl.load(own, mask=there, other=0.0), tl.load(own + 1, mask=there, other=0.0))
    elif law.greedy is not None:
        return Known(tl.load(own, mask=there & law.greedy, other=0.0), 0.0)
    else:
        return Known(0.0, 0.0)


@triton.jit
def argmax_known(key, draft_map):
    """``Known`` of a row at T = 0 whose best column is in ``key``: token -1 if there is none."""
    token = key_token(key)
    if draft_map is not None:
        token = tl.load(draft_map + token)
    token = tl.where(key == NOBODY, -1, token)
    return Known(token.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def probabilities(x, tokens, law, known):
    """Of raw values, and the tokens that they are of."""
    if law.inverse is None:
        p = clean_probability(x)
    else:
        p = probability(scaled(x, law.inverse), known.top, known.log_sum)
    if law.greedy is not None:
        argmax = tl.cast(known.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, (tokens == argmax).to(tl.float32), p)
    return p


@triton.jit
def log_bound(x, law, known):
    """At least the logarithms of the probabilities of raw values."""
    if law.inverse is None:
        return log_weight(clean_probability(x))
    else:
        return log_probability(scaled(x, law.inverse), known.top, known.log_sum) + 1e-5


@triton.jit
def unlike(x, law):
    """Whether a value is no probability; logits were looked at in the launch that learned their sum."""
    if law.inverse is None:
        return ((x >= 0.0) & (x < INFINITY)) == 0
    else:
        return x < -INFINITY  # never
