"""residual: the law of a replacement and how often one is needed."""

import pytest
import torch

from specdec_kernels import backend as running
from specdec_kernels import overlap, residual
from tests.support.calls import rows
from tests.support.cases import SIZES, adversarial_pairs
from tests.support.laws import random_laws


def test_rule_by_hand(backend):
    """(p - h q)+ and its sum: the mass, by which it is divided.

    h = 1:   (0.4 - 0.1,  0.3 - 0.2,  0,           0) = (0.30, 0.10, 0,    0), mass 0.4
    h = 0.5: (0.4 - 0.05, 0.3 - 0.1,  0.2 - 0.15,  0) = (0.35, 0.20, 0.05, 0), mass 0.6
    """
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    probs, mass = residual(p.expand(2, 4), q.expand(2, 4), space="probs", draft_prob=torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(mass, torch.tensor([0.4, 0.6]))
    torch.testing.assert_close(probs * mass[:, None], torch.tensor([[0.3, 0.1, 0, 0], [0.35, 0.2, 0.05, 0]]))


CALLS = {
    "residual": (residual, rows()),
    "residual options": (
        residual,
        rows() | {"draft_prob": torch.rand(3), "temperature": torch.rand(3)},
    ),
}

pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.interpreted]


def close(actual, expected):
    """Equal but for float32 sums of probabilities, which pairwise lose less than this."""
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("draft_prob", [1.0, 0.6])
@pytest.mark.interpreted(False)
def test_accepted_and_replaced_make_the_target(draft_prob):
    """min(p, a q) + mass * probs = p, to rounding: no sampling needed to see that nothing is lost."""
    generator = torch.Generator().manual_seed(0)
    p, q = random_laws(generator, 2, 20, 500)
    probs, mass = residual(p, q, space="probs", draft_prob=draft_prob)
    close(torch.minimum(p, draft_prob * q) + mass.unsqueeze(-1) * probs, p)
    close(residual(p, q, space="probs")[1], overlap(p, q, space="probs").tv)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.interpreted(False)
def test_equals_the_oracle(size, temperature):
    target, draft = adversarial_pairs(size)
    for options in ({}, {"draft_prob": 0.7}):
        probs, mass = residual(target, draft, temperature=temperature, **options)
        with running("reference"):
            expected_probs, expected_mass = residual(target, draft, temperature=temperature, **options)
        torch.testing.assert_close(mass, expected_mass, rtol=1e-5, atol=2e-6)
        # Normalising by a small mass magnifies the rounding of p - a q.
        error = (probs - expected_probs).abs().amax(dim=-1) * expected_mass
        assert error.max() < 2e-6


@pytest.mark.parametrize("space", ["logits", "probs"])
def test_no_residual_gives_the_target(space):
    row = random_laws(torch.Generator().manual_seed(1), 300)
    values = row if space == "probs" else row.log()
    probs, mass = residual(values, values, space=space)
    close(probs, row)
    assert mass == 0


def test_temperature_zero():
    target, draft = torch.tensor([[1.0, 2.0, 2.0], [0, 0, 5]]), torch.tensor([[0.0, 3.0, 1.0], [1, 0, 0]])
    probs, mass = residual(target, draft, temperature=0.0)
    assert probs.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert mass.tolist() == [0, 1]


def test_smaller_draft_vocabulary():
    generator = torch.Generator().manual_seed(2)
    target, draft = torch.randn(4, 200, generator=generator), torch.randn(4, 70, generator=generator)
    whole = torch.nn.functional.pad(draft, (0, 130), value=-torch.inf)
    for got, expected in zip(residual(target, draft), residual(target, whole), strict=True):
        close(got, expected)
