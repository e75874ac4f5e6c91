"""The maths of csrc/include/specdec in Triton, with the same order of roundings.

Launches pass ``enable_fp_fusion=False``: every multiply and add then rounds separately, and the functions here give
the bits of ``specdec_kernels._C`` (tests/backends/test_triton_math.py). They work on scalars and on blocks.
"""

from typing import NamedTuple

import triton
import triton.language as tl

if triton.knobs.runtime.interpret:
    from specdec_kernels.triton_kernels._interpreted import fma
else:
    fma = tl.fma

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
GROUP = tl.constexpr(64)  # tokens that share a first arrival
MASS_TILE = tl.constexpr(1024)  # tokens whose weights are first summed in units of the largest of them
LARGEST = tl.constexpr(3.4028234663852886e38)
SMALLEST = tl.constexpr(2.0**-126)
LOG_PROB_ERROR = tl.constexpr(1e-5)  # bound of the roundings of log p, where it bounds other weights
LEAST_LOG_PROB = tl.constexpr(-(2.0**127))  # smaller ones count as this, so that a mean of them is finite
COLDEST = tl.constexpr(2.0**-64)  # temperatures are clamped to [COLDEST, 1 / COLDEST]
INFINITY = tl.constexpr(float("inf"))
NO_TOKEN = tl.constexpr(0x7FFFFFFF)
NO_GROUP = tl.constexpr(0x1FFFFFF)  # its tokens are behind all columns
NO_CANDIDATE = tl.constexpr(0)  # the key of no candidate

STREAM_RACE = tl.constexpr(0)
STREAM_RESIDUAL = tl.constexpr(2)
STREAM_ACCEPT = tl.constexpr(4)
STREAM_CONTEXT = tl.constexpr(8)

NON_FINITE = tl.constexpr(1)
EMPTY_RESIDUAL = tl.constexpr(2)
TOKEN_RANGE = tl.constexpr(4)
PARAMETER = tl.constexpr(8)


@triton.jit
def any_of(condition):
    return tl.max(condition.to(tl.int32), axis=0)


@triton.jit
def both(lanes, condition):
    """``lanes & condition``, as a mask for memory, where ``condition`` is a scalar.

    The interpreter broadcasts a scalar comparison as numbers of the compared type, which Triton 3.9 refuses as a mask.
    """
    return tl.where(condition, lanes, lanes != lanes)


# philox.h, noise.h


class Noise(NamedTuple):
    """The address of random numbers."""

    seed: tl.tensor  # int64
    position: tl.tensor  # uint32
    nonce: tl.tensor  # uint32
    first: tl.tensor  # the token of a row's column 0, a multiple of 128


@triton.jit
def later(noise, steps):
    """The noise ``steps`` positions later, for one number or a block."""
    return Noise(noise.seed, noise.position + steps.to(tl.uint32), noise.nonce, noise.first)


@triton.jit
def random_words(noise, index, stream):
    """The four random words of a stream at a uint32 index, by Philox4x32-10, which Triton has from Random123."""
    return tl.philox(noise.seed, index, noise.position, noise.nonce, stream)


@triton.jit
def truncated(n, scale):
    """n * scale for uint64 ``n``, rounded toward zero to 24 significant bits."""
    nearest = n.to(tl.float32)
    above = nearest.to(tl.uint64) > n
    bits = tl.sub(nearest.to(tl.int32, bitcast=True), above.to(tl.int32), sanitize_overflow=False)
    return bits.to(tl.float32, bitcast=True) * scale


@triton.jit
def group_uniform(a, b):
    low = ((b & 0xFFFFFF) << 1) | 1
    return truncated((a.to(tl.uint64) << 25) | low.to(tl.uint64), 2.0**-57)


@triton.jit
def first_arrival(a, b):
    return neg_log1p_neg(group_uniform(a, b)) * 0.015625


@triton.jit
def first_winner(b):
    return (b >> 26).to(tl.int32)


@triton.jit
def later_by(word):
    return neg_log1p_neg(truncated((word.to(tl.uint64) << 1) | 1, 2.0**-33))


@triton.jit
def random_group_words(noise, first_group, stream, GROUPS: tl.constexpr):
    """Random words (a, b) [GROUPS] of the groups from the even ``first_group`` on: one Philox call for two groups."""
    pair = (noise.first // 128 + first_group // 2 + tl.arange(0, GROUPS // 2)).to(tl.uint32)
    w0, w1, w2, w3 = random_words(noise, pair, stream)
    return tl.reshape(tl.join(w0, w1), [GROUPS]), tl.reshape(tl.join(w2, w3), [GROUPS])


@triton.jit
def random_words_of_groups(noise, groups, stream):
    """Random words (a, b) of a block of groups, in any order."""
    w0, w1, w2, w3 = random_words(noise, (noise.first // 128 + groups // 2).to(tl.uint32), stream)
    odd = groups % 2 == 1
    return tl.where(odd, w1, w0), tl.where(odd, w3, w2)


@triton.jit
def second_random_words(noise, token, stream):
    """The random word of each token that does not win its group."""
    token = token.to(tl.uint32)
    w0, w1, w2, w3 = random_words(noise, token >> 2, stream + 1)
    low = tl.where(token & 1 == 1, w1, w0)
    high = tl.where(token & 1 == 1, w3, w2)
    return tl.where(token & 2 == 2, high, low)


@triton.jit
def uniform_of(word):
    return tl.where(word < 0x1000000, word.to(tl.float32) * 2.0**-32, (word >> 8).to(tl.float32) * 2.0**-24)


@triton.jit
def accept_uniform(noise, index):
    return uniform_of(random_words(noise, index.to(tl.uint32), STREAM_ACCEPT)[0])


# logarithm.h, exponential.h


@triton.jit
def log(x):
    """For normal, positive x."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = tl.sub(bits, 0x3F3504F3, sanitize_overflow=False) >> 23
    f = tl.sub(bits, exponent << 23, sanitize_overflow=False).to(tl.float32, bitcast=True) - 1.0
    r = f * -0.07622108608484268 + 0.12904690206050873
    r = r * f + -0.13242976367473602
    r = r * f + 0.14181779325008392
    r = r * f + -0.16609077155590057
    r = r * f + 0.20001976191997528
    r = r * f + -0.25001582503318787
    r = r * f + 0.33333325386047363
    r = r * f + -0.49999988079071045
    e = exponent.to(tl.float32)
    r = r * (f * f) + e * -2.12194440e-4
    return (r + f) + e * 0.693359375


@triton.jit
def neg_log1p_neg(u):
    y = 1.0 - u
    lost = (1.0 - y) - u
    return 0.0 - (log(y) + lost * (2.0 - y))


@triton.jit
def exp_or_zero(x):
    """exp(x), 0 below -87.3 and for a NaN."""
    y = tl.minimum(tl.maximum(x, -88.0), 88.0)
    shifted = fma(y, 1.4426950216293335, 12582912.0)
    whole = shifted - 12582912.0
    f = fma(y, 1.9259629911266175e-8, fma(y, 1.4426950216293335, 0.0 - whole))
    r = fma(f, 0.001327647129073739, 0.009675540961325169)
    r = fma(r, f, 0.05550713092088699)
    r = fma(r, f, 0.24022120237350464)
    r = fma(r, f, 0.6931469440460205)
    r = fma(r, f, 1.0000001192092896)
    raised = shifted.to(tl.int32, bitcast=True) << 23
    r = tl.add(r.to(tl.int32, bitcast=True), raised, sanitize_overflow=False).to(tl.float32, bitcast=True)
    return tl.where(x >= -87.3, r, 0.0)


# mass.h


@triton.jit
def integer_exp(d):
    """(q, n) as uint32 with exp(d) = q 2^-31 2^-n, for d <= 0. A NaN and -inf have a large n."""
    rounded = fma(d, 1.4426950216293335, 12582912.0)
    f = fma(d, 1.4426950216293335, 12582912.0 - rounded)
    r = fma(f, 5563.6337890625, 40565.296875)
    r = fma(r, f, 232814.109375)
    r = fma(r, f, 1007565.9375)
    r = fma(r, f, 2907269.25)
    r = fma(r, f, 12582912.0)  # rounds to an integer in the low bits
    n = tl.sub(0x4B400000, rounded.to(tl.uint32, bitcast=True), sanitize_overflow=False)
    return r.to(tl.uint32, bitcast=True) << 9, n


@triton.jit
def unit_weight(below_tile_max):
    """exp of a value below its tile's maximum, in units of 2^-30, uint32; the sum of two fits 32 bits."""
    q, n = integer_exp(below_tile_max)
    return (q >> 1) >> tl.minimum(n, 31)


@triton.jit
def row_weight(below_max):
    """exp of a value below its row's maximum, in units of 2^-42, int64."""
    q, n = integer_exp(below_max)
    return (q.to(tl.int64) << 11) >> tl.minimum(n, 63).to(tl.int64)


@triton.jit
def tile_mass(units, tile_below_max):
    """The mass that a tile adds to its row, int64, from its units and how far its maximum is below the row's."""
    q, n = integer_exp(tile_below_max)
    return (units * (q >> 9).to(tl.int64)) >> (tl.minimum(n, 53) + 10).to(tl.int64)


@triton.jit
def of_units(units):
    """int64 units of 2^-42 as float32."""
    return units.to(tl.float32) * 2.0**-42


@triton.jit
def sum_in_any_order(x):
    """The sum of a block of float32, rounded to units of 2^-40 of the power of two below its largest."""
    # A sum of floats depends on the block's layout, which depends on the addresses of rows; a sum of integers does not.
    flat = tl.reshape(x, [x.numel])
    largest = tl.max(tl.abs(flat), axis=0)
    power = tl.maximum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 0x00800000)  # as float32
    power = tl.minimum(power, 0x7E800000)  # 2^126, whose inverse is a normal number
    scaled_values = flat * (0x7F000000 - power).to(tl.float32, bitcast=True)  # within (-4, 4)
    total = tl.sum((scaled_values * 2.0**40).to(tl.int64), axis=0).to(tl.float32) * 2.0**-40
    return tl.where(largest < INFINITY, total * power.to(tl.float32, bitcast=True), INFINITY)


@triton.jit
def unit_sums(w):
    """Sums [rows], int64, of a block [rows, columns] of weights, each clipped at 1 and rounded to a multiple of 2^-42.

    Rounding takes two float32 steps, to 2^-20 and the rest to 2^-42, so that no token needs 64 bits. The sums of 512
    columns fit.
    """
    w = tl.minimum(w, 1.0)
    coarse = w + 12.0  # its last bit is 2^-20
    fine = (w - (coarse - 12.0)) + 1.5 * 2.0**-19  # its last bit is 2^-42
    coarse = tl.sum(coarse.to(tl.int32, bitcast=True) - 0x41400000, axis=1)  # the bits of 12
    fine = tl.sum(fine.to(tl.int32, bitcast=True) - 0x36400000, axis=1)  # those of 1.5 * 2^-19
    return (coarse.to(tl.int64) << 22) + fine.to(tl.int64)


# softmax.h, race.h, residual.h, accept.h


@triton.jit
def scaled(logit, inverse_temperature):
    """A logit over T: NaN is -inf, +inf the largest finite number."""
    x = logit.to(tl.float32) * inverse_temperature
    return tl.where(x == x, tl.minimum(x, LARGEST), -INFINITY)


@triton.jit
def clean_probability(p):
    p = p.to(tl.float32)
    return tl.where(p >= SMALLEST, tl.minimum(p, LARGEST), 0.0)


@triton.jit
def log_weight(w):
    return tl.where(w >= SMALLEST, log(w), -INFINITY)


@triton.jit
def slack(a, b):
    """A bound of all roundings of a score whose terms are about ``a`` and ``b``."""
    return 2e-5 + 4e-7 * (tl.abs(a) + tl.abs(b))


@triton.jit
def log_sum_of(mass):
    """The log of the sum of a row's weights, in units of the largest."""
    return log(of_units(mass))


@triton.jit
def log_probability(x, peak, log_sum):
    return (x - peak) - log_sum


@triton.jit
def probability(x, peak, log_sum):
    return exp_or_zero(log_probability(x, peak, log_sum))


@triton.jit
def residual_weight(p, drafted):
    w = p - drafted
    return tl.where(w >= SMALLEST, w, 0.0)


@triton.jit
def bucket_of(p, q):
    """The bucket of p / q in half octaves (paths.h), from the exponent of its square."""
    has_draft = q >= SMALLEST
    ratio = tl.div_rn(p, tl.where(has_draft, q, 1.0))
    square = tl.where(has_draft, ratio * ratio, 256.0)
    return (tl.minimum(tl.maximum(square, 2.0**-12), 256.0).to(tl.int32, bitcast=True) >> 23) - 115


@triton.jit
def entropy_term(p, log_p, log_q):
    """p log(p / q), 0 where p is 0."""
    return p * tl.where(p > 0.0, log_p - log_q, 0.0)


@triton.jit
def harmonic_term(p, q):
    """p q / (p + q)."""
    return p * q / tl.maximum(p + q, SMALLEST)


@triton.jit
def draft_scale(residual_mass, untried_mass):
    """The factor that scales q to p^m, from sum (p - T q)^+ and the mass of q not tried (tree.h)."""
    ratio = tl.div_rn(residual_mass, tl.maximum(untried_mass, SMALLEST))
    return tl.where(untried_mass >= SMALLEST, tl.minimum(ratio, LARGEST), 0.0)


@triton.jit
def accepts(uniform, p, drafted, epsilon):
    return (drafted > 0.0) & (uniform * drafted < p + epsilon)


# traversal.h


@triton.jit
def child_weight(weight, p, q, subtracted, scale):
    """The weight of a child: min(weight p^m / q^m, 1)."""
    drafted = scale * q
    ratio = tl.div_rn(residual_weight(p, subtracted * q), tl.where(drafted > 0.0, drafted, 1.0))
    return tl.where(drafted > 0.0, tl.minimum(weight * ratio, 1.0), 0.0)


@triton.jit
def subtracted_after(subtracted, scale, weight):
    return tl.minimum(subtracted + tl.div_rn(scale, weight), LARGEST)


@triton.jit
def weight_after(weight, before, residual_mass):
    """The weight of a node after one of its children was refused, which left ``residual_mass`` of ``before``."""
    s = weight * tl.where(before >= SMALLEST, tl.div_rn(residual_mass, tl.maximum(before, SMALLEST)), 0.0)
    return tl.where(weight >= 1.0, 1.0, tl.div_rn(s, s + (1.0 - weight)))


@triton.jit
def untried_after(untried_mass, p):
    """The mass of p on tokens not tried, after a one-hot draft of probability p."""
    return tl.maximum(untried_mass - tl.maximum(p, 0.0), 0.0)


# chain.h


@triton.jit
def inverse_temperature(t):
    """(1/T, argmax wanted, status)."""
    greedy = (t >= SMALLEST) == 0
    inverse = tl.minimum(tl.maximum(tl.div_rn(1.0, tl.where(greedy, 1.0, t)), COLDEST), 1.0 / COLDEST)
    return tl.where(greedy, 1.0, inverse), greedy, tl.where(t >= 0.0, 0, PARAMETER)


@triton.jit
def draft_prob_of(h):
    """(h in [0, 1], status): NaN counts as 1."""
    good = (h >= 0.0) & (h <= 1.0)
    return tl.where(good, h, tl.where(h < 0.0, 0.0, 1.0)), tl.where(good, 0, PARAMETER)


@triton.jit
def epsilon_of(e):
    good = e >= 0.0
    return tl.where(good, tl.minimum(e, 1.0), 0.0), tl.where(good, 0, PARAMETER)


# Candidates as integers
# A score and its token make one uint64 in the order of `better` of race.h: the larger score, then the lower token. So
# one maximum, in a block or as an atomic, finds the winner. A fresh workspace holds 0, which is no candidate.


@triton.jit
def ordered(x):
    """float32 as uint32 of the same order; -0 equals 0."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def from_ordered(key):
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def key_of(score, token):
    key = (ordered(score).to(tl.uint64) << 32) | (token.to(tl.uint32) ^ 0xFFFFFFFF).to(tl.uint64)
    return tl.where(score > -INFINITY, key, NO_CANDIDATE)


@triton.jit
def key_score(key):
    return tl.where(key == NO_CANDIDATE, -INFINITY, from_ordered((key >> 32).to(tl.uint32)))


@triton.jit
def key_token(key):
    """The token; 0 if there was no candidate."""
    return tl.where(key == NO_CANDIDATE, 0, ((key & 0xFFFFFFFF).to(tl.uint32) ^ 0xFFFFFFFF).to(tl.int32))


# Rising lists


@triton.jit
def first_not_below(entries, low, count, token):
    """The index of the first of ``count`` rising entries from ``low`` that is at least ``token``, or the one behind."""
    while count > 1:
        half = count // 2
        low = tl.where(tl.load(entries + low + (half - 1)) < token, low + half, low)
        count -= half
    return low + (tl.load(entries + low) < token).to(tl.int32)
