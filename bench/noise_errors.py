"""Errors of the float32 functions and of the masses of docs/noise.md, against float64.

    python bench/noise_errors.py

It writes `bench/results/noise.json`, from which that page has its tables. Every machine gives the same.
"""

import numpy as np
from harness import RESULTS, write_json
from specdec_kernels._C import maths

from specdec_kernels.backends.reference import mass

AT_ONCE = 1 << 22
ROWS, TILES = 200, 50


def in_ulps(function, exact, first, end, step=1):
    """The largest error over every step-th float32 in [first, end), in ulps of the exact value."""
    first, end = (int(np.float32(x).view(np.int32)) for x in (first, end))
    worst = 0.0
    for start in range(first, end, AT_ONCE * step):
        x = np.arange(start, min(start + AT_ONCE * step, end), step, dtype=np.int32).view(np.float32)
        value, right = np.empty_like(x), exact(x.astype(np.float64))
        function(x.ctypes.data, x.size, value.ctypes.data)
        worst = max(worst, (np.abs(value - right) / np.spacing(np.abs(right).astype(np.float32))).max())
    return worst


def log():
    near, other = (2.0**-1, 2.0), [(2.0**-126, 2.0**-1), (2.0, np.float32(np.inf))]
    return max(in_ulps(maths.log, np.log, *near), *(in_ulps(maths.log, np.log, *span, step=97) for span in other))


def neg_log1p_neg():
    spans = [(2.0**-7, 1.0, 1), (2.0**-58, 2.0**-7, 13)]
    return max(in_ulps(maths.neg_log1p_neg, lambda u: -np.log1p(-u), *span) for span in spans)


def exponential():
    """(largest relative error, its d) over every 61st float32 in (-30, -2^-10], before rounding to whole units."""
    first, end = (int(np.float32(x).view(np.int32)) for x in (2.0**-10, 30.0))
    d = -np.arange(first, end, 61, dtype=np.int32).view(np.float32)
    q, n = mass.exponential(d, np.float32(0))
    error = np.abs(np.ldexp(q.astype(np.float64), -31 - n.astype(np.int32)) / np.exp(d.astype(np.float64)) - 1)
    return float(error.max()), float(d[error.argmax()])


def row_masses(rows):
    """The largest relative errors of a row's mass by tiles, and of the sum of its weights."""
    of_tiles, of_weights = 0.0, 0.0
    for row in rows:
        exact = np.exp(row.astype(np.float64) - row.max()).sum() * 2.0**42
        of_tiles = max(of_tiles, abs(mass.mass(row, row.max()) / exact - 1))
        of_weights = max(of_weights, abs(int(mass.weights(row, row.max()).sum()) / exact - 1))
    return of_tiles, of_weights


def rows(peak):
    """Normal logits of TILES tiles; with ``peak`` the largest ones of all tiles are equal, and far above the others."""
    random, width = np.random.default_rng(1), TILES * mass.MASS_TILE
    for _ in range(ROWS):
        row = random.normal(size=width).astype(np.float32)
        if peak:
            row[:: mass.MASS_TILE] = row.max() + random.uniform(1, 30)
        yield row


def main():
    error, d = exponential()
    (peaks, peak_weights), (flat, flat_weights) = row_masses(rows(True)), row_masses(rows(False))
    content = {
        "log": log(), "neg_log1p_neg": neg_log1p_neg(), "exponential": {"error": error, "d": d},
        "mass": {"peaks": peaks, "normal": flat}, "sum": max(peak_weights, flat_weights),
    }  # fmt: skip
    write_json(RESULTS / "noise.json", content)
    print(content)


if __name__ == "__main__":
    main()
