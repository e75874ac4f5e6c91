"""Laws (distributions) of rows: from raw logits or probabilities to weights. Only this module scales values."""

from collections import namedtuple
from typing import NamedTuple

import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _math

Law = namedtuple(
    "Law", ("inverse", "greedy", "cuts", "row", "edited", "row_edits", "edits"),
    defaults=(None, None, None, 0, None, None, None),
)  # fmt: skip
Law.__doc__ = """How values become weights.

``inverse`` is 1/T, None if rows hold probabilities or clean weights. ``greedy`` is whether T = 0, so that the argmax
has all the weight; None if T cannot be 0. ``cuts`` points to float32 [rows, CUT], of which ``row`` is the row's index;
None without filters. ``edited`` is None without edits, else ``row_edits`` and ``edits`` are the row's ``RowEdits`` and
the call's ``LogitEdits``.
"""

Row = namedtuple("Row", ("at", "columns", "law", "map", "stats"), defaults=(None, None, None, None, None))
Row.__doc__ = """A row, or a block of rows: ``at`` points to its first column, ``columns`` counts them.

``map`` is int [columns]: the token of each column of a draft row, or None. ``stats`` is a ``RowStats`` or None.
"""

CUT = tl.constexpr(4)  # words of a row's cut, of which the last is unused
CUT_WORDS = tl.constexpr(6)  # words of two cuts, of a target's and a draft's row, as a call has them


class RowStats(NamedTuple):
    """What probabilities need of a whole row."""

    top: tl.tensor  # its largest logit over T; at T = 0 its argmax, as the bits of a float
    log_sum: tl.tensor  # log of the sum of exp(x / T - top)


@triton.jit
def nothing(law):
    """A raw value that has no weight."""
    return 0.0 if law.inverse is None else -_math.INFINITY


@triton.jit
def in_support(x, columns, there, law):
    """Which raw values of a row pass its filters."""
    # The words of a cut: the smallest value that passes, the last column with that value that does, and the factor of
    # raw values before they are compared.
    cut = law.cuts + CUT * law.row
    value = tl.load(cut, mask=there, other=0.0)
    last = tl.load(cut + 1, mask=there, other=0.0).to(tl.int32, bitcast=True)
    v = _math.scaled(x, tl.load(cut + 2, mask=there, other=0.0))
    return (v > value) | ((v == value) & (columns <= last))


@triton.jit
def drop_filtered(x, columns, there, law):
    """Raw values of a row; those that its filters drop become -inf."""
    if law.cuts is None:
        return x
    else:
        return tl.where(in_support(x, columns, there, law), x, -_math.INFINITY)


@triton.jit
def epsilon_at(epsilon, x, there, law):
    """The epsilon of tokens with values ``x``: over-acceptance accepts no token that filters or edits drop."""
    if law.edited is not None:
        epsilon = tl.where(x > -_math.INFINITY, epsilon, 0.0)
    elif law.cuts is not None:
        cut = tl.load(law.cuts + CUT * law.row, mask=there, other=0.0)
        epsilon = tl.where(x > -_math.INFINITY, epsilon, tl.where(cut > -_math.INFINITY, 0.0, epsilon))
    return epsilon


@triton.jit
def keys(x, law):
    """Logits over T, without cleaning: a NaN stays one."""
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
def load_row_stats(row_stats, law, there):
    """The ``RowStats`` of a row, from two floats in memory."""
    if law.inverse is not None:
        return RowStats(tl.load(row_stats, mask=there, other=0.0), tl.load(row_stats + 1, mask=there, other=0.0))
    elif law.greedy is not None:
        return RowStats(tl.load(row_stats, mask=_math.both(there, law.greedy), other=0.0), 0.0)
    else:
        return RowStats(0.0, 0.0)


@triton.jit
def argmax_stats(key, draft_map):
    """The ``RowStats`` of a row at T = 0, from the key of its best column; token -1 if no column has weight."""
    token = _math.key_token(key)
    if draft_map is not None:
        token = tl.load(draft_map + token)
    token = tl.where(key == _math.NO_CANDIDATE, -1, token)
    return RowStats(token.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def probabilities(x, tokens, law, stats):
    """The probabilities of raw values; ``tokens`` are the tokens that have them."""
    if law.inverse is None:
        p = _math.clean_probability(x)
    else:
        p = _math.probability(_math.scaled(x, law.inverse), stats.top, stats.log_sum)
    if law.greedy is not None:
        argmax = tl.cast(stats.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, (tokens == argmax).to(tl.float32), p)
    return p


@triton.jit
def weighed(x, tokens, law, stats):
    """(probabilities; their logarithms, which are finite for every token with weight, even if its probability is 0)."""
    if law.inverse is None:
        p = _math.clean_probability(x)
        logs = _math.log_weight(p)
    else:
        v = _math.scaled(x, law.inverse)
        logs = tl.maximum(_math.log_probability(v, stats.top, stats.log_sum), _math.LEAST_LOG_PROB)
        logs = tl.where(v > -_math.INFINITY, logs, -_math.INFINITY)
        p = _math.exp_or_zero(logs)
    if law.greedy is not None:
        certain = tokens == tl.cast(stats.top, tl.float32).to(tl.int32, bitcast=True)
        p = tl.where(law.greedy, certain.to(tl.float32), p)
        logs = tl.where(law.greedy, tl.where(certain, 0.0, -_math.INFINITY), logs)
    return p, logs


@triton.jit
def log_bound(x, law, stats):
    """Upper bounds of the logarithms of the probabilities of raw values."""
    if law.inverse is None:
        return _math.log_weight(_math.clean_probability(x))
    else:
        log_p = _math.log_probability(_math.scaled(x, law.inverse), stats.top, stats.log_sum)
        return log_p + _math.LOG_PROB_ERROR


@triton.jit
def unlike(x, law):
    """Whether a value cannot be a probability. Never for logits: the launch that took their sum checked them."""
    if law.inverse is None:
        return ((x >= 0.0) & (x < _math.INFINITY)) == 0
    else:
        return x < -_math.INFINITY  # never
