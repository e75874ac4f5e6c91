"""race_sample: the winner is that of the full evaluation, whatever the row."""

import numpy as np
import pytest
import torch

from specdec_kernels import Sampling, race_sample
from tests.support.calls import noise, rows
from tests.support.cases import DTYPES, SIZES, adversarial_rows, seeds
from tests.support.edits import random_edits
from tests.support.laws import assert_law, assert_rate, random_laws
from tests.support.races import assert_winner, log_arrivals, race_scores


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """The token with the largest p / E is drawn; E are the arrivals of its seed, which do not depend on p.

    seed 3: 0.4 / 0.11 = 3.6   0.3 / 0.82 = 0.4   0.2 / 0.64 = 0.3   0.1 / 1.06 = 0.1: token 0
    seed 0: 0.4 / 0.21 = 1.9   0.3 / 0.09 = 3.3   0.2 / 4.45 = 0.0   0.1 / 1.02 = 0.1: token 1
    seed 12: 0.4 / 0.82 = 0.5  0.3 / 1.94 = 0.2   0.2 / 0.14 = 1.4   0.1 / 0.22 = 0.5: token 2
    seed 9: 0.4 / 1.95 = 0.2   0.3 / 1.09 = 0.3   0.2 / 0.20 = 1.0   0.1 / 0.05 = 2.0: token 3
    """
    p, seed = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([3, 0, 12, 9])
    shown = [[0.11, 0.82, 0.64, 1.06], [0.21, 0.09, 4.45, 1.02], [0.82, 1.94, 0.14, 0.22], [1.95, 1.09, 0.20, 0.05]]
    arrivals = np.exp([log_arrivals(4, int(s), position=0) for s in seed])
    np.testing.assert_allclose(arrivals, shown, rtol=0, atol=0.006)
    assert race_sample(p.expand(4, 4), seed=seed, position=0, space="probs").tolist() == [0, 1, 2, 3]
    assert race_sample(p.log().expand(4, 4), seed=seed, position=0).tolist() == [0, 1, 2, 3]  # log p - log E
    assert race_sample(p.log().expand(4, 4), seed=seed, position=0, temperature=0.0).tolist() == [0, 0, 0, 0]


CALLS = {
    "race_sample": (race_sample, {"target": rows()["target"], **noise()}),
    "race_sample one row": (race_sample, {"target": rows()["target"][0], "seed": 1, "position": 2}),
    "race_sample out": (race_sample, {"target": rows()["target"], **noise(), "out": torch.full((3,), -77)}),
    "race_sample filtered": (
        race_sample,
        {"target": rows()["target"], **noise(), "sampling": Sampling(0.5, 5, 0.75, torch.full((3,), 0.125))},
    ),
    "race_sample edited": (
        race_sample,
        {"target": rows()["target"], **noise(), "edits": random_edits(3, vocabulary=33, seed=1)},
    ),
}

REPEATS = 4


@pytest.mark.parametrize("size", SIZES)
def test_winner_of_the_full_race(backend, size):
    rows = adversarial_rows(size)
    seed = seeds(REPEATS)
    noise = [log_arrivals(size, int(s), position=5, nonce=1) for s in seed]
    for dtype in DTYPES:
        logits = torch.stack([row.to(dtype) for row in rows.values()])
        for temperature in (1.0, 0.3, 4.0, 0.0):
            tokens = race_sample(
                logits.expand(REPEATS, *logits.shape), seed=seed[:, None], position=5, nonce=1, temperature=temperature
            )
            for row, drawn in zip(logits, tokens.T.tolist(), strict=True):
                for token, log_arrival in zip(drawn, noise, strict=True):
                    assert_winner(token, race_scores(row, log_arrival, temperature=temperature), backend)


@pytest.mark.parametrize("size", SIZES)
def test_winner_of_the_full_race_over_probabilities(backend, size):
    rows = adversarial_rows(size)
    seed = seeds(REPEATS)
    noise = [log_arrivals(size, int(s)) for s in seed]
    probabilities = torch.stack([row.nan_to_num(neginf=-1e38).softmax(-1) for row in rows.values()])
    probabilities[0] *= 2.0**-126
    for dtype in DTYPES:
        law = probabilities.to(dtype)
        tokens = race_sample(law.expand(REPEATS, *law.shape), seed=seed[:, None], position=0, space="probs")
        for row, drawn in zip(law, tokens.T.tolist(), strict=True):
            for token, log_arrival in zip(drawn, noise, strict=True):
                assert_winner(token, race_scores(row, log_arrival, space="probs"), backend)


@pytest.mark.parametrize("size", [65, 2049, 20_000])
@pytest.mark.parametrize("level", [0.0, 5.0, -60.0, 1e3])
def test_every_token_ties_with_the_winner(backend, size, level):
    """Logits that follow their own arrivals: all scores are equal but for rounding, and no bound may be too tight."""
    for seed in range(10):
        noise = log_arrivals(size, seed)
        row = torch.from_numpy(noise) + level
        assert_winner(int(race_sample(row, seed=seed, position=0)), race_scores(row, noise), backend)


# Found by search: seeds whose first word (position 0, nonce 0) is so small that hardly anything lies between the
# arrival of group 0 and the bound on it.
SEEDS_OF_EARLY_GROUPS = (75465, 677491, 1686699, 3618098, 5073089, 760393872, 1397202016, 1836991927, 3594468990)


@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("seed", SEEDS_OF_EARLY_GROUPS)
def test_bounds_leave_room_for_rounding(backend, seed, space):
    """A group that arrives early, against a rival in another tile whose score is a few last places away."""
    noise = log_arrivals(4096, seed)
    early, rival = int(noise[:64].argmin()), 2048 + 5
    for level in (0.0, -80.0) if space == "probs" else (0.0, 40.0, 1e4, -3e3):
        row = torch.full((4096,), -torch.inf)
        row[rival] = level
        tie = np.float32(np.float32(level) - noise[rival]) + noise[early]
        for steps in range(-12, 13):
            row[early] = float(tie + steps * np.spacing(np.abs(tie)))
            law = row if space == "logits" else row.exp()
            token = int(race_sample(law, seed=seed, position=0, space=space))
            assert_winner(token, race_scores(law, noise, space=space), backend)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e30])
def test_every_probability_ties_with_the_winner(backend, scale):
    for seed in range(10):
        noise = log_arrivals(5000, seed)
        row = torch.from_numpy(noise).exp() * scale
        token = int(race_sample(row, seed=seed, position=0, space="probs"))
        assert_winner(token, race_scores(row, noise, space="probs"), backend)


@pytest.mark.parametrize("first", [0, 100, 2**40])
def test_wide_rows(backend, first):
    """A vocabulary of many tiles, flat, normal or peaked as a language model's."""
    size = 128_256
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(7, size, generator=generator) * torch.tensor([0.0, 1, 2, 4, 8, 1, 1])[:, None]
    rows[5, 77_777] = 20.0
    rows[6] -= 2 * torch.arange(1, size + 1).log()
    tokens = race_sample(rows, seed=seeds(7, first), position=9)
    for i, row in enumerate(rows):
        assert_winner(int(tokens[i]), race_scores(row, log_arrivals(size, first + i, position=9)), backend)


@pytest.mark.parametrize("space", ["logits", "probs"])
def test_law(quick_backend, space):
    law = random_laws(torch.Generator().manual_seed(2), 70)
    row = law if space == "probs" else law.log()
    assert_law(race_sample(row.expand(50_000, -1), seed=seeds(50_000), position=0, space=space), law)


def test_law_does_not_need_a_sum_of_one(quick_backend):
    law = torch.tensor([3.0, 0.0, 1.0])
    assert_law(race_sample(law.expand(50_000, -1), seed=seeds(50_000), position=0, space="probs"), law)


def test_weights_below_the_smallest_normal_float_count_as_none(backend):
    row = torch.full((300,), 2.0**-127)
    row[200] = 2.0**-126
    assert (race_sample(row.expand(100, -1), seed=seeds(100), position=0, space="probs") == 200).all()


def test_positions_and_nonces_count_modulo_their_words(backend):
    logits = torch.zeros(1000)
    for place in ({"position": 5, "nonce": 0}, {"position": 2**32 - 1, "nonce": 7}):
        expected = race_sample(logits, seed=1, **place)
        for turn in (2**32, -(2**32), 2**62):
            assert race_sample(logits, seed=1, **{name: x + turn for name, x in place.items()}) == expected


@pytest.mark.parametrize("number", ["position", "nonce"])
def test_positions_and_nonces_of_one_seed_are_independent(quick_backend, number):
    law = torch.tensor([0.5, 0.3, 0.2])
    noise = {"seed": seeds(50_000)[:, None], "position": 0, number: torch.arange(2)}
    pairs = race_sample(law.expand(50_000, 2, -1), **noise, space="probs")
    assert_law(3 * pairs[:, 0] + pairs[:, 1], torch.outer(law, law).flatten())


def test_tokens_18_nats_below_the_top_are_drawn(fast_backend):
    """Sixteen thousand tokens at e^-18 of the top one: one draw in 4,000 goes there, and to all of them alike."""
    size, trials = 16_384, 200_000
    row = torch.full((size,), -18.0)
    row[5] = 0.0
    tail_mass = (size - 1) * np.exp(-18.0)
    tokens = race_sample(row.expand(trials, -1), seed=seeds(trials), position=0)
    tail = tokens[tokens != 5]
    assert_rate(tokens != 5, tail_mass / (1 + tail_mass))
    assert_rate(tail < size // 2, 0.5)


@pytest.mark.interpreted
def test_temperature_zero_takes_the_lowest_of_the_largest(backend):
    row = torch.tensor([[1.0, 3.0, -torch.inf, 3.0, torch.nan], [torch.inf, torch.inf, 0, 0, 0], [-torch.inf] * 5])
    assert race_sample(row, seed=seeds(3), position=0, temperature=0.0).tolist() == [1, 0, 0]


@pytest.mark.interpreted
def test_seeds_broadcast_to_the_rows(backend):
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(4))
    seed, position = torch.tensor([[5], [6]]), torch.tensor([7, 8, 9])
    tokens = race_sample(logits, seed=seed, position=position)
    assert tokens.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert tokens[i, j] == race_sample(logits[i, j], seed=5 + i, position=7 + j)


def test_tokens_beyond_the_vocabulary_change_nothing(backend):
    """The noise of a token does not depend on the size of the vocabulary."""
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(7))
    wider = torch.nn.functional.pad(logits, (0, 2000), value=-torch.inf)
    assert (race_sample(logits, seed=seeds(20), position=0) == race_sample(wider, seed=seeds(20), position=0)).all()
