"""Laws: from a raw logit or probability to a weight. Only this module scales values."""

from collections import namedtuple
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _math

Law = namedtuple(
    "Law", ("inverse", "greedy", "cuts", "row", "edited", "place", "edits"),
    defaults=(None, None, None, 0, None, None, None),
)  # fmt: skip
Law.__doc__ = """How values become weights.

``inverse`` is 1/T, None if rows hold probabilities. ``greedy`` says whether T = 0, so that the argmax has all the
weight; None if T cannot be 0. Weights that are already clean count as probabilities. ``cuts`` points to what filters
keep of rows, None without filters; ``row`` says which of them is meant. ``edited`` is None if no value is edited; else
the row's ``Place`` and the ``LogitEdits`` say how.
"""

Row = namedtuple("Row", ("at", "columns", "law", "map", "known"), defaults=(None, None, None, None, None))
Row.__doc__ = """A row, or each row of a block: pointer, number of columns, law.

``map`` has the token of each column of a draft row, if that is another. ``known`` is a ``Known``, or None.
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
    return 0.0 if law.inverse is None else -_math.INFINITY


@triton.jit
def keeps(x, columns, there, law):
    """Which raw values of a row its filters keep."""
    # The words of a cut: the smallest value kept, the last column kept that has it, what raw values are multiplied by
    # before they are compared.
    cut = law.cuts + CUT * law.row
    value = tl.load(cut, mask=there, other=0.0)
    last = tl.load(cut + 1, mask=there, other=0.0).to(tl.int32, bitcast=True)
    v = _math.scaled(x, tl.load(cut + 2, mask=there, other=0.0))
    return (v > value) | ((v == value) & (columns <= last))


@triton.jit
def kept(x, columns, there, law):
    """Raw values of a row, with -inf in place of those that its filters drop."""
    if law.cuts is None:
        return x
    else:
        return tl.where(keeps(x, columns, there, law), x, -_math.INFINITY)


@triton.jit
def epsilon_at(epsilon, x, there, law):
    """The epsilon of tokens with these values: over-acceptance does not bring back what filters or edits took out."""
    if law.edited is not None:
        epsilon = tl.where(x > -_math.INFINITY, epsilon, 0.0)
    elif law.cuts is not None:
        cut = tl.load(law.cuts + CUT * law.row, mask=there, other=0.0)
        epsilon = tl.where(x > -_math.INFINITY, epsilon, tl.where(cut > -_math.INFINITY, 0.0, epsilon))
    return epsilon


@triton.jit
def keys(x, law):
    """Logits over T as they are: a NaN stays one."""
    return x * law.inverse


@triton.jit
def clean(x, law):
    """Values in the order of their weights: logits over T, or weights."""
    return _math.clean_probability(x) if law.inverse is None else _math.scaled(x, law.inverse)


@triton.jit
def log_weights(x, law):
    """The log weights of values that ``clean`` returned."""
    return _math.log_weight(x) if law.inverse is None else x


@triton.jit
def greedy_scores(x, law):
    """Scores at temperature 0, whose largest is the argmax: the clean values themselves."""
    return x if law.inverse is not None else tl.where(x >= _math.SMALLEST, x, -_math.INFINITY)


@triton.jit
def unclean_groups(x, tops, law):
    """Which groups hold a value that is impossible in a law; ``tops`` are their largest values."""
    unclean = (tops < _math.INFINITY) == 0
    if law.inverse is None:
        unclean = unclean | (tl.min(x, axis=1) < 0.0)
    return unclean


@triton.jit
def known_at(figures, law, there):
    """What is known of a row, from memory."""
    if law.inverse is not None:
        return Known(tl.load(figures, mask=there, other=0.0), tl.load(figures + 1, mask=there, other=0.0))
    elif law.greedy is not None:
        return Known(tl.load(figures, mask=_math.both(there, law.greedy), other=0.0), 0.0)
    else:
        return Known(0.0, 0.0)


@triton.jit
def argmax_known(key, draft_map):
    """The ``Known`` of a row at T = 0, from the key of its best column; token -1 if no column has weight."""
    token = _math.key_token(key)
    if draft_map is not None:
        token = tl.load(draft_map + token)
    token = tl.where(key == _math.NOBODY, -1, token)
    return Known(token.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def probabilities(x, tokens, law, known):
    """The probabilities of raw values; ``tokens`` are the tokens that have them."""
    if law.inverse is None:
        p = _math.clean_probability(x)
    else:
        p = _math.probability(_math.scaled(x, law.inverse), known.top, known.log_sum)
    if law.greedy is not None:
        argmax = tl.cast(known.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, (tokens == argmax).to(tl.float32), p)
    return p


@triton.jit
def weighed(x, tokens, law, known):
    """(probabilities; their logarithms: -inf without weight, else finite, also where a probability is too small)."""
    if law.inverse is None:
        p = _math.clean_probability(x)
        logs = _math.log_weight(p)
    else:
        v = _math.scaled(x, law.inverse)
        logs = tl.maximum(_math.log_probability(v, known.top, known.log_sum), _math.LEAST_LOG_PROB)
        logs = tl.where(v > -_math.INFINITY, logs, -_math.INFINITY)
        p = _math.exp_or_zero(logs)
    if law.greedy is not None:
        certain = tokens == tl.cast(known.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, certain.to(tl.float32), p)
        logs = tl.where(law.greedy, tl.where(certain, 0.0, -_math.INFINITY), logs)
    return p, logs


@triton.jit
def log_bound(x, law, known):
    """Upper bounds of the logarithms of the probabilities of raw values."""
    if law.inverse is None:
        return _math.log_weight(_math.clean_probability(x))
    else:
        log_p = _math.log_probability(_math.scaled(x, law.inverse), known.top, known.log_sum)
        return log_p + _math.LOG_PROB_ERROR


@triton.jit
def unlike(x, law):
    """Whether a value cannot be a probability. Never for logits: the launch that took their sum checked them."""
    if law.inverse is None:
        return ((x >= 0.0) & (x < _math.INFINITY)) == 0
    else:
        return x < -_math.INFINITY  # never
