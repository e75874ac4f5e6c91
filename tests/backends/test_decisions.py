"""CUDA's chains accept drafts by functions of their own, trees by ``walk.h``: both decide alike, bit for bit, on random
tables of p, q, u, h and epsilon, and as the rule in float32.
"""

import ctypes
import os
import shutil
from typing import NamedTuple

import numpy as np
import pytest
import torch

from specdec_kernels._constants import LARGEST, LEAF_UNIFORMS, SMALLEST
from specdec_kernels.backends.reference import noise
from specdec_kernels.calls.values import Noise
from tests.backends.host_cuda.build import build

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")

CASES, V, F = 100_000, 4, np.float32
RULES = {"rejection": 0, "block": 1, "race": 2, "greedy": 3}
DECISION = np.dtype([("node", "i4"), ("status", "i4"), ("residual", "i4"), ("token", "i4"), ("subtracted", "f4")])


class Tables(NamedTuple):
    """B chains of K drafts."""

    tokens: np.ndarray  # int32 [B, K]
    p: np.ndarray  # float32 [B, K+1, V]: rows of the target
    q: np.ndarray | None  # float32 [B, K, V]: rows of the draft
    h: np.ndarray  # float32 [B, K]
    epsilon: np.ndarray  # float32 [B]
    seeds: np.ndarray  # int64 [B]
    winners: np.ndarray  # int32 [B, K+1]
    u: np.ndarray  # float32 [B, K]


def make(rule, chains, drafts, certain):
    """Most drafts are accepted; a tenth lies within a unit in the last place of its threshold; a few are odd values."""
    rng, shape, seeds = np.random.default_rng(RULES[rule] + 10 * certain), (chains, drafts), np.arange(chains)
    counters, first = Noise(*torch.from_numpy(np.stack([seeds, 0 * seeds, 0 * seeds]))), rule == "block"
    u = [noise.uniforms(counters._replace(position=counters.position + i), noise.UNIFORM, first * LEAF_UNIFORMS + i)
         for i in range(drafts)]  # fmt: skip
    u = torch.stack(u, dim=1).numpy().astype(F)
    tokens, winners = rng.integers(V, size=shape), rng.integers(V, size=(chains, drafts + 1))
    p, q = (rng.dirichlet(np.ones(V), size).astype(F) for size in ((chains, drafts + 1), shape))
    h, epsilon = np.ones(shape, F), np.zeros(chains, F)
    if rule == "rejection":
        h[1::2] = rng.random(h[1::2].shape, F)
        epsilon[::3] = 0.1 * rng.random(epsilon[::3].shape, F)
    q_x = np.take_along_axis(q, tokens[..., None], 2)[..., 0]
    if certain:
        p_x = 1 - 0.1 * rng.random(shape, F)
    else:
        q_x[rng.random(shape) < 0.2] = 0.5
        p_x = h * q_x * F((0.5 if rule == "block" else 0.95) + rng.random(shape, F))
    near = rng.random(shape) < 0.1
    edge = u * (np.ones_like(h) if certain else h * q_x) - epsilon[:, None]
    edge = np.choose(rng.integers(3, size=shape), [edge, np.nextafter(edge, F(0)), np.nextafter(edge, F(2))])
    p_x = np.where(near, edge.clip(0), p_x)
    if rule == "block":
        set_sums(rng, tokens, p, q, p_x, np.ones_like(q_x) if certain else q_x, u, certain)
    for values in p_x, q_x:
        for odd in (0.0, np.nan, -1.0, np.inf, 1e-40):
            values[rng.random(shape) < 0.0008] = odd
    np.put_along_axis(p[:, :-1], tokens[..., None], p_x[..., None], 2)
    np.put_along_axis(q, tokens[..., None], q_x[..., None], 2)
    if rule == "rejection":
        for odd in (0.0, -0.5, 1.5, np.nan):
            h[rng.random(shape) < 0.0008] = odd
        epsilon[::101], epsilon[1::101], epsilon[2::101] = np.nan, 2.0, -1.0
    alike = rng.random(shape) < 0.95
    winners[:, :-1] = np.where(alike, tokens, winners[:, :-1])
    for odd in (-1, -7, V, V + 9):
        tokens[rng.random(shape) < 0.002] = odd
    return Tables(tokens.astype("i4"), p, None if certain else q, h, epsilon, seeds, winners.astype("i4"), u)


def set_sums(rng, tokens, p, q, p_x, q_x, u, certain):
    """Sets p so that the h of a fifth of a block's nodes lies beside their uniforms, as far as float32 can tell."""
    weight, chain = np.ones(len(tokens), F), np.arange(len(tokens))
    for node in range(1, tokens.shape[1]):
        weight = np.minimum(weight * (p_x[:, node - 1] / q_x[:, node - 1]), F(1))
        mass = u[:, node - 1] * (1 - weight) / (1 - u[:, node - 1]) / weight
        fits = (rng.random(len(tokens)) < 0.2) & (weight < 1)
        if certain:
            p_x[:, node] = np.where(fits & (mass < 1), 1 - mass, p_x[:, node])
            continue
        other = (tokens[:, node] + 1) % V
        rest = q[chain, node, other] / weight + mass - (p_x[:, node] - q_x[:, node] / weight).clip(0)
        fits &= (rest > 0) & (rest < 1)
        p[fits, node] = 0
        p[chain[fits], node, other[fits]] = rest[fits]


@pytest.fixture(scope="module")
def decide():
    library = ctypes.CDLL(str(build("decisions")))
    library.decide.restype, library.fault.restype = ctypes.c_bool, ctypes.c_char_p

    def run(by_walk, rule, tables, chunk):
        decisions = np.full(len(tables.tokens), -77, DECISION)
        arrays = [*tables[:-1], decisions]
        pointers = [None if x is None else np.ascontiguousarray(x).ctypes.data_as(ctypes.c_void_p) for x in arrays]
        sizes = ctypes.c_int64(len(tables.tokens)), tables.tokens.shape[1], V
        assert library.decide(by_walk, RULES[rule], chunk, *sizes, *pointers), library.fault().decode()
        return decisions

    return run


def probability(raw):
    """As a law of probabilities takes a value."""
    return np.where(raw >= SMALLEST, np.minimum(raw, F(LARGEST)), F(0))


def in_float32(rule, tables):
    """(the node where each chain stops, the multiple of q that is subtracted there, how many drafts were decided)."""
    x = tables.tokens.clip(0, V - 1)[..., None]
    inside = (tables.tokens >= 0) & (tables.tokens < V)
    if rule in ("race", "greedy"):
        stop = first_false(tables.tokens == tables.winners[:, :-1])
        return stop, None, decided_until(stop, tables)
    p_row, h = probability(tables.p), np.ones_like(tables.h)
    q_row = np.zeros_like(p_row[:, :-1]) if tables.q is None else probability(tables.q)
    p = np.take_along_axis(p_row[:, :-1], x, 2)[..., 0]
    q = np.ones_like(p) if tables.q is None else np.take_along_axis(q_row, x, 2)[..., 0]
    if rule == "rejection":
        if tables.q is not None:
            h = np.where((tables.h >= 0) & (tables.h <= 1), tables.h, np.where(tables.h < 0, F(0), F(1)))
        epsilon = np.where(tables.epsilon >= 0, np.minimum(tables.epsilon, F(1)), F(0))[:, None]
        stop = first_false(inside & (h * q > 0) & (tables.u * (h * q) < p + epsilon))
        h = np.pad(h, ((0, 0), (0, 1)), constant_values=1)
        return stop, h[np.arange(len(stop)), stop], decided_until(stop, tables)
    count, stop, weight, subtracted = 0, np.zeros(len(p), int), np.ones(len(p), F), np.ones((len(p), p.shape[1] + 1), F)
    reached = np.ones(len(p), bool)
    for node in range(p.shape[1] + 1):  # of Sun et al.: h_i of each node, from its weight and the sum over its rows
        drafted = node < p.shape[1]
        tried = np.zeros(len(p), bool)
        above = weight
        if drafted:
            tried = reached & (tables.tokens[:, node] != -1)
            subtracted[:, node] = np.where(tried, np.minimum(1 / weight, F(LARGEST)), 1)
            left = p_row[:, node] - subtracted[:, node, None] * q_row[:, node]
            units = np.rint(np.minimum(np.where(left >= SMALLEST, left, 0), 1).astype(float) * 2.0**42).sum(1)
            mass = units.astype(F) * F(2.0**-42)
            if tables.q is None:
                mass = np.maximum(1 - np.where(inside[:, node], p[:, node], 0), F(0))
            s = weight * mass
            above = np.where(tried & (weight < 1), s / (s + (1 - weight)), weight)
            if tables.q is not None:  # the sum is not taken where the weight before refuses
                above = np.minimum(above, weight)
        if node:
            count += reached.sum()
            stop = np.where(reached & (tables.u[:, node - 1] < above), node, stop)
        if drafted:
            fits = inside[:, node] & (q[:, node] > 0)
            child = np.where(fits, np.minimum(weight * (p[:, node] / np.where(fits, q[:, node], 1)), 1), 0)
            reached = tried & (child >= SMALLEST)
            weight = np.where(reached, child, 1).astype(F)
    return stop, subtracted[np.arange(len(p)), stop], count


def decided_until(stop, tables):
    return np.minimum(stop + 1, tables.tokens.shape[1]).sum()


def first_false(passed):
    return np.pad(passed, ((0, 0), (0, 1))).argmin(1)


SIZES = {"rejection": (5_000, 31), "block": (4_800, 12), "race": (6_000, 40), "greedy": (6_000, 40)}  # chains, drafts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_chains_decide_as_walks_do(decide, rule):
    decided = 0
    for certain in [True] if rule in ("race", "greedy") else [False, True]:
        tables = make(rule, *SIZES[rule], certain)
        chain, walk = (decide(by_walk, rule, tables, 13 if rule == "greedy" else 31) for by_walk in (False, True))
        for name in DECISION.names:
            np.testing.assert_array_equal(chain[name], walk[name], name)
        stop, subtracted, count = in_float32(rule, tables)
        np.testing.assert_array_equal(chain["node"], stop)
        if tables.q is not None:
            residual = chain["residual"] == 1
            np.testing.assert_array_equal(chain["subtracted"][residual], subtracted[residual])
            assert 0.02 < residual.mean() < 0.98
        decided += count
        assert np.unique(stop).size == SIZES[rule][1] + 1
    assert decided >= CASES
