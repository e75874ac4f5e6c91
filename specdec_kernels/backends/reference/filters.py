"""The support of a row's filters: everything sorted, everything summed."""

from typing import NamedTuple

import numpy as np

from specdec_kernels._constants import SMALLEST
from specdec_kernels.backends.reference import mass
from specdec_kernels.calls.values import AFTER, TOGETHER


class Cut(NamedTuple):
    """The support, bool [V], and the figures of ``specdec_kernels.ops.Cut``."""

    in_support: np.ndarray
    value: float
    last: int
    count: int  # type: ignore[assignment]  # tuples have a method of this name
    mass: int
    max: float


def cut(v, top_k, top_p, min_p, rules, row_mass=mass.mass):
    """The Cut of a row: v is float32, -inf for no weight."""
    # A filter is off with top_k <= 0 or >= V, top_p >= 1, min_p below SMALLEST. ``row_mass(v, largest)`` is the mass of
    # the whole row, of which v may be a part.
    largest, some = v.max(), v > -np.inf
    by_k, by_share, by_least = 0 < top_k < len(v), top_p < 1, min_p >= SMALLEST
    if largest == -np.inf:
        return Cut(some, -np.inf, -1, 0, 0, -np.inf)
    if not (by_k or by_share or by_least):
        return Cut(some, -np.inf, -1, int(some.sum()), mass.mass(v, largest), largest)

    order = np.argsort(-v, kind="stable")[: some.sum()]  # the largest first, ties by the lower id
    ordered, weights = v[order], mass.weights(v, largest)[order]
    rank, before = np.arange(len(order)), np.cumsum(weights) - weights
    if rules & TOGETHER:  # equal tokens share the rank and the mass before the first of them
        rank = np.searchsorted(-ordered, -ordered)
        before = before[rank]
    first = rank < top_k if by_k else np.ones_like(order, dtype=bool)
    large = ordered >= largest + mass.log(min(min_p, np.float32(1))) if by_least else np.ones_like(first)
    keep = first & large
    if by_share:
        cuts = {"top_k": (by_k, first), "min_p": (by_least, large)}
        after = [keeps for name, (on, keeps) in cuts.items() if on and rules & AFTER[name]]
        whole = int(weights[np.all(after, axis=0)].sum()) if after else row_mass(v, largest)
        keep &= before < np.uint64(max(1, mass.share(top_p, whole)))

    in_support = np.zeros_like(some)
    in_support[order[keep]] = True
    last = int(order[keep][-1])
    return Cut(in_support, v[last], last, int(keep.sum()), int(weights[keep].sum()), largest)


def argmax(v):
    """The Cut of a row to its argmax."""
    last = int(v.argmax())
    if v[last] == -np.inf:
        return cut(v, 0, 1.0, 0.0, 0)
    return Cut(np.arange(len(v)) == last, v[last], last, 1, 1 << 42, v[last])
