"""The noise contract: published vectors, exact uniforms, arrivals to 4 ulp, and the laws they must have."""

import numpy as np
import pytest
import torch
from scipy import stats
from specdec_kernels._C import maths

from specdec_kernels.backends.reference import noise
from specdec_kernels.calls.values import Noise
from tests.support.laws import FALSE_ALARM, assert_rate

pytestmark = pytest.mark.one_backend

KNOWN_ANSWERS = [  # key (low, high), counter, words: Random123's kat_vectors
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
BOUNDARIES = sorted({0, 2**32 - 1, *(2**k + d for k in range(32) for d in (-1, 0, 1))})


def sweep(count, seed=0):
    """32-bit words: every boundary, all magnitudes evenly, and uniform ones."""
    generator = np.random.default_rng(seed)
    spread = (2.0 ** generator.uniform(0, 32, count)).astype(np.uint64)
    uniform = generator.integers(0, 2**32, count, dtype=np.uint64)
    return [*BOUNDARIES, *(int(w) for w in spread), *(int(w) for w in uniform)]


def mapped(function, values):
    """A float32 function of the headers over an array."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    out = np.full_like(values, np.nan)
    function(values.ctypes.data, values.size, out.ctypes.data)
    return out


def header_arrivals(count, seed=1, position=2, nonce=3, stream=0, vocab_start=0):
    out = np.full(count, np.nan, dtype=np.float32)
    maths.arrivals(seed, position, nonce, stream, vocab_start, count, out.ctypes.data)
    return out


def oracle_arrivals(count, seed=1, position=2, nonce=3, stream=0):
    return noise.arrivals(Noise(*map(torch.tensor, (seed, position, nonce))), stream, count).numpy()


def exact_uniform(integer, bits):
    """integer * 2**-bits cut to 24 significant bits, in Python's integers."""
    excess = max(integer.bit_length() - 24, 0)
    return (integer >> excess << excess) / 2**bits


def ulps(value, exact):
    return np.abs(value.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))


class TestPhilox:
    @pytest.mark.parametrize("key, counter, words", KNOWN_ANSWERS)
    def test_known_answers(self, key, counter, words):
        tensors = [tuple(torch.tensor(word) for word in part) for part in (key, counter)]
        assert tuple(int(word) for word in noise.philox(*tensors)) == words
        assert tuple(maths.philox(key[0] | key[1] << 32, *counter)) == words

    def test_headers_and_oracle_agree_on_any_counter(self):
        generator = np.random.default_rng(0)
        for *counter, low, high in generator.integers(0, 2**32, (1000, 6)).tolist():
            expected = noise.philox((torch.tensor(low), torch.tensor(high)), tuple(map(torch.tensor, counter)))
            assert maths.philox(low | high << 32, *counter) == [int(word) for word in expected]

    def test_negative_seeds_and_wide_positions_count_modulo_their_words(self):
        assert (header_arrivals(300, seed=-1) == header_arrivals(300, seed=-1)).all()
        np.testing.assert_allclose(header_arrivals(300, seed=-5), oracle_arrivals(300, seed=-5), rtol=4e-7)
        np.testing.assert_array_equal(oracle_arrivals(300, position=2 + 2**32), oracle_arrivals(300, position=2))


class TestUniforms:
    def test_uniforms_are_exact_and_below_one(self):
        for word in sweep(20_000):
            expected = word / 2**32 if word < 2**24 else (word >> 8) / 2**24
            assert maths.uniform_of(word) == expected < 1

    def test_uniforms_of_a_request(self):
        generator = np.random.default_rng(1)
        for seed, index, position, nonce in generator.integers(0, 2**31, (200, 4)).tolist():
            oracle = noise.uniforms(Noise(*map(torch.tensor, (seed, position, nonce))), noise.UNIFORM, index)
            assert maths.uniform(seed, index, position, nonce, 4) == float(oracle)

    def test_first_arrivals_use_56_bits_cut_to_24(self):
        assert 0 < maths.group_uniform(0, 0) < 2**-56 < maths.group_uniform(2**32 - 1, 2**32 - 1) == 1 - 2**-24
        words = sweep(200)
        others = np.random.default_rng(2).permutation(words).tolist()
        for a, b in [*zip(words, others, strict=True), *((a, b) for a in BOUNDARIES for b in BOUNDARIES)]:
            assert maths.group_uniform(a, b) == exact_uniform(2 * ((a << 24) + b % 2**24) + 1, 57)

    def test_oracle_cuts_the_same_way(self):
        integers = [2 * ((a << 24) + b % 2**24) + 1 for a in BOUNDARIES for b in BOUNDARIES]
        cut = noise.truncated(torch.tensor(integers), bits=57)
        assert [int(n) / 2**57 for n in cut] == [exact_uniform(n, 57) for n in integers]


class TestLogarithms:
    def test_first_arrival_to_4_ulp(self):
        words = sweep(20_000)
        others = np.random.default_rng(3).permutation(words).tolist()
        pairs = [*zip(words, others, strict=True), *((a, b) for a in BOUNDARIES for b in BOUNDARIES)]
        value = np.array([maths.first_arrival(a, b) for a, b in pairs], dtype=np.float32)
        uniform = np.array([exact_uniform(2 * ((a << 24) + b % 2**24) + 1, 57) for a, b in pairs])
        assert ulps(value, -np.log1p(-uniform) / 64).max() <= 4

    def test_delay_to_4_ulp(self):
        words = sweep(50_000)
        value = np.array([maths.later_by(word) for word in words], dtype=np.float32)
        uniform = np.array([exact_uniform(2 * word + 1, 33) for word in words])
        assert ulps(value, -np.log1p(-uniform)).max() <= 4

    def test_log1p_over_all_magnitudes(self):
        generator = np.random.default_rng(4)
        uniform = np.concatenate(
            [2.0 ** generator.uniform(-57, 0, 500_000), 1 - 2.0 ** generator.uniform(-24, -1, 500_000)]
        )
        uniform = np.clip(uniform.astype(np.float32), 2.0**-57, 1 - 2.0**-24).astype(np.float32)
        value = mapped(maths.neg_log1p_neg, uniform)
        assert (value > 0).all()
        assert ulps(value, -np.log1p(-uniform.astype(np.float64))).max() <= 4

    def test_log_over_all_magnitudes(self):
        generator = np.random.default_rng(5)
        x = (2.0 ** generator.uniform(-126, 127, 500_000)).astype(np.float32)
        near_one = (1 + generator.uniform(-0.3, 0.4, 500_000)).astype(np.float32)
        x = np.concatenate([x, near_one, np.float32([2.0**-126, 1.0, 3.4028235e38])])
        exact = np.log(x.astype(np.float64))
        assert (np.abs(mapped(maths.log, x) - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()


class TestArrivals:
    @pytest.mark.parametrize("stream", [0, 2])
    @pytest.mark.parametrize("seed, position, nonce", [(0, 0, 0), (-1, 2**32 - 1, 2**32 - 1), (2**63 - 1, 7, 1)])
    def test_headers_equal_the_oracle_to_4_ulp(self, seed, position, nonce, stream):
        place = {"seed": seed, "position": position, "nonce": nonce, "stream": stream}
        assert ulps(header_arrivals(10_000, **place), oracle_arrivals(10_000, **place)).max() <= 4

    def test_nothing_depends_on_where_a_slice_begins(self):
        whole = header_arrivals(1000)
        for first in (1, 63, 64, 127, 128, 500):
            np.testing.assert_array_equal(header_arrivals(1000 - first, vocab_start=first), whole[first:])

    def test_exponential(self):
        """Kolmogorov-Smirnov over two million tokens."""
        assert stats.kstest(header_arrivals(2_000_000), "expon").pvalue > FALSE_ALARM

    def test_tails(self):
        """As many arrivals below 2^-k as there should be, down to one in a million."""
        arrivals = header_arrivals(2_000_000, seed=9)
        for k in range(1, 18):
            assert_rate(arrivals < 2.0**-k, -np.expm1(-(2.0**-k)))
            assert_rate(arrivals > k * np.log(2), 2.0**-k)

    def test_independent_within_and_across_groups(self):
        """No correlation of arrivals, nor of rare early ones, at any lag up to two groups."""
        arrivals = header_arrivals(2_000_000, seed=10).astype(np.float64)
        bound = stats.norm.isf(FALSE_ALARM / 2)
        for values in (arrivals, np.exp(-arrivals), arrivals < 0.02):
            values = (values - values.mean()) / values.std()
            for lag in [*range(1, 9), 32, 63, 64, 65, 127, 128]:
                assert abs((values[lag:] * values[:-lag]).sum()) / np.sqrt(len(values) - lag) < bound

    def test_independent_inside_a_group(self):
        """The order statistics of 64 independent exponentials: the i-th gap is exponential of rate 64 - i."""
        groups = np.sort(header_arrivals(64 * 20_000, seed=11).reshape(-1, 64), axis=1)
        gaps = np.diff(groups, axis=1, prepend=0)
        for i in (0, 1, 2, 30, 62, 63):
            assert stats.kstest(gaps[:, i] * (64 - i), "expon").pvalue > FALSE_ALARM

    def test_every_place_of_a_group_is_first_equally_often(self):
        first = header_arrivals(64 * 100_000, seed=12).reshape(-1, 64).argmin(axis=1)
        assert stats.chisquare(np.bincount(first, minlength=64)).pvalue > FALSE_ALARM

    @pytest.mark.parametrize(
        "changed", [{"seed": 2}, {"seed": 1 << 32 | 1}, {"position": 3}, {"nonce": 4}, {"stream": 2}]
    )
    def test_every_part_of_the_counter_counts(self, changed):
        here, there = header_arrivals(100_000), header_arrivals(100_000, **changed)
        assert (here == there).mean() < 1e-4
        assert abs(np.corrcoef(here, there)[0, 1]) * np.sqrt(100_000) < stats.norm.isf(FALSE_ALARM / 2)
