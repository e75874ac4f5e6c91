"""race_topk: the first k arrivals, in order."""

import numpy as np
import pytest
import torch

from specdec_kernels import race_topk
from tests.support.calls import noise, rows
from tests.support.cases import DTYPES, SIZES, adversarial_rows, seeds
from tests.support.laws import Q, assert_law
from tests.support.races import log_arrivals, race_scores


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """The k tokens with the largest p / E, the largest first; E are the arrivals of the seed.

    seed 0: 0.4 / 0.21 = 1.9   0.3 / 0.09 = 3.3   0.2 / 4.45 = 0.0   0.1 / 1.02 = 0.1: tokens 1, 0, 3, 2
    seed 9: 0.4 / 1.95 = 0.2   0.3 / 1.09 = 0.3   0.2 / 0.20 = 1.0   0.1 / 0.05 = 2.0: tokens 3, 2, 1, 0
    """
    p, seed = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 9])
    arrivals = np.exp([log_arrivals(4, int(s), position=0) for s in seed])
    np.testing.assert_allclose(arrivals, [[0.21, 0.09, 4.45, 1.02], [1.95, 1.09, 0.20, 0.05]], rtol=0, atol=0.006)
    assert race_topk(p.expand(2, 4), 3, seed=seed, position=0, space="probs").tolist() == [[1, 0, 3], [3, 2, 1]]
    without = torch.tensor([0.4, 0.0, 0.2, 0.1])  # token 1 never arrives
    assert race_topk(without, 4, seed=0, position=0, space="probs").tolist() == [0, 3, 2, -1]


CALLS = {"race_topk": (race_topk, {"draft": rows()["draft"], "k": 4, **noise()})}

TRIALS = 100_000


def in_order(scores, k):
    """The k best tokens, lower ones first on ties, -1 for those without weight."""
    order = np.argsort(-scores, kind="stable")[:k]
    order = np.where(scores[order] > -np.inf, order, -1)
    return np.pad(order, (0, k - len(order)), constant_values=-1)


def assert_order(tokens, scores, backend):
    expected = in_order(scores, len(tokens))
    if backend != "reference":
        assert tokens == expected.tolist()
        return
    # In float64 two tokens may change places whose float32 scores are a rounding apart.
    assert sorted(t for t in tokens if t >= 0) == sorted(set(tokens) - {-1})
    assert [t >= 0 for t in tokens] == (expected >= 0).tolist()
    taken, wanted = scores[[t for t in tokens if t >= 0]], scores[expected[expected >= 0]]
    np.testing.assert_allclose(taken, wanted, rtol=2.0**-21, atol=1e-5)


@pytest.mark.parametrize("size, k", [(size, k) for size in SIZES for k in (1, 2, 5, 64) if k <= size] + [(300, 200)])
def test_order_of_the_full_race(backend, size, k):
    rows = torch.stack([*adversarial_rows(size).values(), torch.full((size,), -torch.inf)])
    seed = torch.full((len(rows),), 3)
    noise = log_arrivals(size, 3, position=5, nonce=1)
    for temperature, dtype in (
        (1.0, DTYPES[0]),
        (0.3, DTYPES[0]),
        (0.0, DTYPES[0]),
        (1.0, DTYPES[1]),
        (1.0, DTYPES[2]),
    ):
        logits = rows.to(dtype)
        tokens = race_topk(logits, k, seed=seed, position=5, nonce=1, temperature=temperature)
        for row, drawn in zip(logits, tokens.tolist(), strict=True):
            assert_order(drawn, race_scores(row, noise, temperature=temperature), backend)


def test_draws_without_replacement(quick_backend):
    """The law of the first two: p(i) p(j) / (1 - p(i))."""
    pairs = race_topk(Q.expand(TRIALS, -1), 2, seed=seeds(TRIALS), position=0, space="probs")
    law = Q[:, None] * Q / (1 - Q[:, None])
    assert_law(4 * pairs[:, 0] + pairs[:, 1], law.fill_diagonal_(0).flatten())


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("values", [10**6, 40], ids=["all different", "many alike"])
def test_long_orders(fast_backend, values, temperature):
    """Many places, up to all, of a wide row: of tokens that tie at temperature 0 the lower one is first."""
    row = torch.randint(values, (7000,), generator=torch.Generator().manual_seed(2)) / (values / 8)
    row[::9] = -torch.inf
    order = in_order(race_scores(row, log_arrivals(7000, 3, position=5, nonce=1), temperature=temperature), 7000)
    for k in (7000, 6000, 1500, 600, 513, 512):
        found = race_topk(row, k, seed=3, position=5, nonce=1, temperature=temperature)
        assert found.tolist() == order[:k].tolist()


@pytest.mark.interpreted
def test_temperature_zero_orders_by_logit(backend):
    row = torch.tensor([1.0, 3.0, torch.nan, 3.0, -torch.inf, 2.0])
    assert race_topk(row, 6, seed=0, position=0, temperature=0.0).tolist() == [1, 3, 5, 0, -1, -1]
