"""overlap: acceptance, total variation, Kullback-Leibler divergence and the harmonic bound."""

import pytest
import torch

from specdec_kernels import backend as running
from specdec_kernels import overlap, race_sample
from tests.support.calls import rows
from tests.support.cases import DTYPES, SIZES, adversarial_pairs, poisoned, seeds
from tests.support.laws import P, Q, assert_rate, random_laws

CALLS = {"overlap": (overlap, rows())}

pytestmark = pytest.mark.interpreted


def close(actual, expected, rtol=1e-5, atol=2e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


def test_table(backend):
    figures = overlap(P, Q, space="probs")
    close(figures.accept, 0.6)
    close(figures.tv, 0.4)
    close(figures.harmonic, 0.4)
    close(figures.kl, (P * (P / Q).log()).sum())


def test_named_fields_in_order(backend):
    assert overlap(P, Q, space="probs")._fields == ("accept", "tv", "kl", "harmonic")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.interpreted(False)
def test_equals_the_oracle(backend, size, temperature):
    target, draft = adversarial_pairs(size)
    figures = overlap(target, draft, temperature=temperature)
    with running("reference"):
        expected = overlap(target, draft, temperature=temperature)
    for got, wanted in zip(figures, expected, strict=True):
        close(got, wanted)


def test_laws_agree_with_each_other(backend):
    p, q = random_laws(torch.Generator().manual_seed(0), 2, 50, 300)
    figures = overlap(p, q, space="probs")
    close(figures.accept + figures.tv, torch.ones(50))
    assert (figures.harmonic <= figures.accept + 1e-6).all()
    assert (figures.kl >= 2 * figures.tv**2 - 1e-6).all()  # Pinsker


def test_harmonic_bounds_the_acceptance_of_a_race(quick_backend):
    p, q = random_laws(torch.Generator().manual_seed(1), 2, 16)
    figures = overlap(p, q, space="probs")
    seed = seeds(100_000)
    winners = [race_sample(law.expand(len(seed), -1), seed=seed, position=0, space="probs") for law in (p, q)]
    rate = (winners[0] == winners[1]).float().mean()
    assert figures.harmonic - 0.01 < rate < figures.accept + 0.01
    exact = (1 / torch.maximum(p[None] / p[:, None], q[None] / q[:, None]).sum(dim=1)).sum()
    assert_rate(winners[0] == winners[1], float(exact))


def test_infinite_divergence_where_the_draft_cannot_go(backend):
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    figures = overlap(p, q, space="probs")
    assert figures.kl[0] == torch.inf
    close(figures.kl[1], torch.tensor(2.0).log())


def test_smaller_draft_vocabulary(backend):
    generator = torch.Generator().manual_seed(2)
    target, draft = torch.randn(4, 200, generator=generator), torch.randn(4, 70, generator=generator)
    whole = torch.nn.functional.pad(draft, (0, 130), value=-torch.inf)
    for got, expected in zip(overlap(target, draft), overlap(target, whole), strict=True):
        close(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_anywhere_in_memory(backend, dtype):
    target, draft = torch.randn(2, 3, 2, 130, generator=torch.Generator().manual_seed(3)).to(dtype)
    for got, expected in zip(overlap(poisoned(target), poisoned(draft)), overlap(target, draft), strict=True):
        assert (got == expected).all()


def test_temperatures_per_row(backend):
    target, draft = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(4))
    together = overlap(target, draft, temperature=torch.tensor([0.0, 0.5, 2.0]))
    for i, temperature in enumerate((0.0, 0.5, 2.0)):
        for got, expected in zip(together, overlap(target[i], draft[i], temperature=temperature), strict=True):
            assert got[i] == expected


def test_no_rows(backend):
    assert all(figure.shape == (0,) for figure in overlap(torch.zeros(0, 9), torch.zeros(0, 9)))
