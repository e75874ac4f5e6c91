"""Weights as integers, and the mass of a row: sums that do not depend on their order.

NumPy on one row at a time. A fused multiply-add takes the exact product in float64, adds with rounding to odd, then
rounds to float32. The result is that of a single rounding.
"""

import numpy as np

from specdec_kernels._constants import MASS_TILE

MAGIC = np.float32(1.5 * 2**23)
LOG2_E = np.float32(1.44269504)
COEFFICIENTS = [
    np.float32(2.0**22 * float.fromhex(c))
    for c in ("0x1.5bba24p-10", "0x1.3cea98p-7", "0x1.c6b70ep-5", "0x1.ebf9bep-3", "0x1.62e42ap-1")
]


def fma(a, b, c):
    """a * b + c in float32, rounded once."""
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    # Rounding to odd: if the sum is not exact, its last bit is set to 1, so that the next rounding has no false tie.
    even = (total.view(np.int64) & 1) == 0
    nudged = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where(even & np.isfinite(total) & (lost != 0), nudged, total).astype(np.float32)


def exponential(v, largest):
    """(q, n), uint64: exp(d) is q * 2^-31 * 2^-n for d = v - largest <= 0, float32. For NaN and -inf n is huge."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = v - largest
        t = fma(d, LOG2_E, MAGIC)
        n = MAGIC.view(np.uint32) - t.view(np.uint32)
        f = fma(d, LOG2_E, MAGIC - t)
        r = np.full_like(d, COEFFICIENTS[0])
        for coefficient in (*COEFFICIENTS[1:], MAGIC):
            r = fma(r, f, coefficient)
    q = r.view(np.uint32) << np.uint32(9)
    return q.astype(np.uint64), n.astype(np.uint64)


def shifted(value, n):
    """value >> n; 0 from 64 on."""
    return np.where(n < 64, value >> np.minimum(n, np.uint64(63)), np.uint64(0))


def weights(v, largest):
    """The weight of each token, uint64, in units of 2^-42 of the largest."""
    q, n = exponential(v, largest)
    return shifted(q << np.uint64(11), n)


def units(tile, top):
    """The weights of a tile whose largest value is `top`, in 2^-30 of its weight: their sum."""
    q, n = exponential(tile, top)
    return int(shifted(q, n + np.uint64(1)).sum())


def mass(v, largest):
    """The row's mass in the same unit, by tiles of 1,024 tokens: each is first summed in 2^-30 of its largest."""
    tiles = [v[first : first + MASS_TILE] for first in range(0, len(v), MASS_TILE)]
    return mass_of_tiles(((tile.max(), units(tile, tile.max())) for tile in tiles if tile.max() > -np.inf), largest)


def mass_of_tiles(tiles, largest):
    """The row's mass from each tile's largest value, more than -inf, and its units."""
    total = 0
    for top, weight in tiles:
        q, n = exponential(top, largest)
        total += weight * (int(q) >> 9) >> 10 + min(int(n), 63)
    return total


def share(p, whole):
    """The mass that is p of the whole: ceil(floor(p * 2^32) * whole / 2^32)."""
    return -(-int(float(p) * 2**32) * whole >> 32)


def log(x):
    """log of a positive float32 by the contract: additions and multiplications, rounded one by one."""
    bits = np.float32(x).view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1.0)
    r = np.float32(-0.07622108608484268)
    for coefficient in (
        0.12904690206050873, -0.13242976367473602, 0.14181779325008392, -0.16609077155590057, 0.20001976191997528,
        -0.25001582503318787, 0.33333325386047363, -0.49999988079071045,
    ):  # fmt: skip
        r = r * f + np.float32(coefficient)
    r = r * (f * f)
    e = np.float32(exponent)
    r = r + e * np.float32(-2.12194440e-4)
    return (r + f) + e * np.float32(0.693359375)
