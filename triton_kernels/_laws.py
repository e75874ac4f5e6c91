"""Laws: from a raw logit or probability to a weight. Only this module scales values.

A law, its row and what is known of the row are separate arguments. Before Triton 3.7 a tuple that holds a None cannot
be part of another tuple, cannot be returned and cannot be compared with None.
"""

from collections import namedtuple
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels._edits import Edits, Place
from specdec_kernels.triton_kernels._math import (
    INFINITY,
    LEAST_LOG_PROB,
    LOG_PROB_ERROR,
    NOBODY,
    SMALLEST,
    clean_probability,
    key_token,
    log_probability,
    log_weight,
    probability,
    scaled,
)

_EDITED = (*Place._fields, *Edits._fields)
Law = namedtuple("Law", ("inverse", "greedy", "cuts", "row", *_EDITED), defaults=(None, 0, *(None for _ in _EDITED)))
Law.__doc__ = """How values become weights.

``inverse`` is 1/T, None if rows hold probabilities. ``greedy`` says whether T = 0, so that the argmax has all the
weight; None if T cannot be 0. Weights that are already clean count as probabilities. ``cuts`` points to what filters
keep of rows, None without filters; ``row`` says which of them is meant. The rest is the row's ``Place`` and the
``Edits``.
"""


CUT = tl.constexpr(4)  # words of a row's cut; the last one is not used
CUT_WORDS = tl.constexpr(6)  # of the cuts of a target's and a draft's row, where a call has them


class Known(NamedTuple):
    """What is known of a whole row: its largest logit over T and the log of the sum. At T = 0 ``top`` holds the argmax.

    The argmax is stored as the bits of a float.
    """

    top: tl.tensor
    log_sum: tl.tensor


@triton.jit
def nothing(law):
    """A raw value without weight."""
    return 0.0 if law.inverse is None else -INFINITY


@triton.jit
def keeps(x, columns, there, law):
    """Which raw values of a row its filters keep.

    The words of a cut: the smallest value kept, the last column kept that has it, what raw values are multiplied by
    before they are compared.
    """
    cut = law.cuts + CUT * law.row
    value = tl.load(cut, mask=there, other=0.0)
    last = tl.load(cut + 1, mask=there, other=0.0).to(tl.int32, bitcast=True)
    v = scaled(x, tl.load(cut + 2, mask=there, other=0.0))
    return (v > value) | ((v == value) & (columns <= last))


@triton.jit
def kept(x, columns, there, law):
    """Raw values of a row, with -inf in place of those that its filters drop."""
    if law.cuts is None:
        return x
    else:
        return tl.where(keeps(x, columns, there, law), x, -INFINITY)


@triton.jit
def epsilon_at(epsilon, x, there, law):
    """The epsilon of tokens with these values: over-acceptance does not bring back what filters or edits took out."""
    if law.by_row is not None:
        epsilon = tl.where(x > -INFINITY, epsilon, 0.0)
    elif law.cuts is not None:
        cut = tl.load(law.cuts + CUT * law.row, mask=there, other=0.0)
        epsilon = tl.where(x > -INFINITY, epsilon, tl.where(cut > -INFINITY, 0.0, epsilon))
    return epsilon


@triton.jit
def keys(x, law):
    """Logits over T as they are: a NaN stays one."""
    return x * law.inverse


@triton.jit
def clean(x, law):
    """Values in the order of their weights: logits over T, or weights."""
    return clean_probability(x) if law.inverse is None else scaled(x, law.inverse)


@triton.jit
def log_weights(x, law):
    """The log weights of values that ``clean`` returned."""
    return log_weight(x) if law.inverse is None else x


@triton.jit
def greedy_scores(x, law):
    """Scores at temperature 0, whose largest is the argmax: the clean values themselves."""
    return x if law.inverse is not None else tl.where(x >= SMALLEST, x, -INFINITY)


@triton.jit
def unclean_groups(x, tops, law):
    """Which groups hold a value that is impossible in a law; ``tops`` are their largest values."""
    unclean = (tops < INFINITY) == 0
    if law.inverse is None:
        unclean = unclean | (tl.min(x, axis=1) < 0.0)
    return unclean


@triton.jit
def known_at(own, law, there):
    """What is known of a row, from memory at ``own``."""
    if law.inverse is not None:
        return Known(tl.load(own, mask=there, other=0.0), tl.load(own + 1, mask=there, other=0.0))
    elif law.greedy is not None:
        return Known(tl.load(own, mask=there & law.greedy, other=0.0), 0.0)
    else:
        return Known(0.0, 0.0)


@triton.jit
def argmax_known(key, draft_map):
    """The ``Known`` of a row at T = 0, from the key of its best column; token -1 if no column has weight."""
    token = key_token(key)
    if draft_map is not None:
        token = tl.load(draft_map + token)
    token = tl.where(key == NOBODY, -1, token)
    return Known(token.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def probabilities(x, tokens, law, known):
    """The probabilities of raw values; ``tokens`` are the tokens that have them."""
    if law.inverse is None:
        p = clean_probability(x)
    else:
        p = probability(scaled(x, law.inverse), known.top, known.log_sum)
    if law.greedy is not None:
        argmax = tl.cast(known.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, (tokens == argmax).to(tl.float32), p)
    return p


@triton.jit
def log_probabilities(x, tokens, law, known):
    """Their logarithms: -inf without weight, else finite, though a probability may be so small that it is 0."""
    if law.inverse is None:
        logs = log_weight(clean_probability(x))
    else:
        v = scaled(x, law.inverse)
        logs = tl.where(
            v > -INFINITY, tl.maximum(log_probability(v, known.top, known.log_sum), LEAST_LOG_PROB), -INFINITY
        )
    if law.greedy is not None:
        argmax = tl.cast(known.top, tl.float32).to(tl.int32, bitcast=True)
        logs = tl.where(law.greedy, tl.where(tokens == argmax, 0.0, -INFINITY), logs)
    return logs


@triton.jit
def log_bound(x, law, known):
    """Upper bounds of the logarithms of the probabilities of raw values."""
    if law.inverse is None:
        return log_weight(clean_probability(x))
    else:
        return log_probability(scaled(x, law.inverse), known.top, known.log_sum) + LOG_PROB_ERROR


@triton.jit
def unlike(x, law):
    """Whether a value cannot be a probability. Never for logits: the launch that took their sum checked them."""
    if law.inverse is None:
        return ((x >= 0.0) & (x < INFINITY)) == 0
    else:
        return x < -INFINITY  # never
