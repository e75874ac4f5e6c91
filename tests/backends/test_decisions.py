"""CUDA's chains accept drafts by functions of their own, trees by ``walk.h``: both decide alike, bit for bit, on random
tables of p, q, u, h and epsilon. That walk.h has the rule, tests/ops/test_chain_laws.py and its like show.
"""

import ctypes
import os
import shutil
from typing import NamedTuple

import numpy as np
import pytest
import torch

from specdec_kernels._constants import LEAF_UNIFORMS
from specdec_kernels.backends.reference import noise
from specdec_kernels.calls.values import Noise
from tests.backends.host_cuda.build import build

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")

V, F = 4, np.float32
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
    return Tables(tokens.astype("i4"), p, None if certain else q, h, epsilon, seeds, winners.astype("i4"))


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
        arrays = [*tables, decisions]
        pointers = [None if x is None else np.ascontiguousarray(x).ctypes.data_as(ctypes.c_void_p) for x in arrays]
        sizes = ctypes.c_int64(len(tables.tokens)), tables.tokens.shape[1], V
        assert library.decide(by_walk, RULES[rule], chunk, *sizes, *pointers), library.fault().decode()
        return decisions

    return run


SIZES = {"rejection": (5_000, 31), "block": (4_800, 12), "race": (6_000, 40), "greedy": (6_000, 40)}  # chains, drafts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_chains_decide_as_walks_do(decide, rule):
    for certain in [True] if rule in ("race", "greedy") else [False, True]:
        tables = make(rule, *SIZES[rule], certain)
        chain, walk = (decide(by_walk, rule, tables, 13 if rule == "greedy" else 31) for by_walk in (False, True))
        for name in DECISION.names:
            np.testing.assert_array_equal(chain[name], walk[name], name)
        if tables.q is not None:
            assert 0.02 < (chain["residual"] == 1).mean() < 0.98
        assert np.unique(chain["node"]).size == SIZES[rule][1] + 1
