"""What verify_chain emits follows the target's law: exactly for the oracle, by chi-squared for every backend."""

import pytest
import torch

from specdec_kernels import race_sample, residual, verify_chain
from specdec_kernels.conformance import Contexts
from tests.support.cases import seeds
from tests.support.enumeration import output_law
from tests.support.laws import P, Q, assert_law, assert_rate, follows_law, random_laws
from tests.support.texts import joint, texts

TRIALS = 200_000


def accepted_and_total_variation(draft_length, draft_prob=1.0, epsilon=0.0):
    """(P(a token is drafted and accepted), TV between what is emitted first and p) for the laws P and Q, exact."""
    law = output_law(Contexts.of(P, Q, 1), draft_length, draft_prob, epsilon)
    first = torch.zeros(4, dtype=torch.float64)
    for emitted, probability in law.items():
        first[emitted[0]] += probability
    accepted = sum(probability for emitted, probability in law.items() if len(emitted) == 2)
    return accepted, float((first - P.double()).abs().sum() / 2)


@pytest.mark.one_backend
class TestExactly:
    """Every uniform and every draw of the oracle, enumerated."""

    @pytest.mark.parametrize("vocabulary, slots", [(2, 3), (3, 2), (5, 1)])
    def test_lossless(self, vocabulary, slots):
        contexts = Contexts(vocabulary, slots)
        assert contexts.distance(output_law(contexts, [0.0] * slots + [1.0]), slots + 1) < 1e-12

    @pytest.mark.parametrize(
        "draft_length, draft_prob",
        [
            pytest.param([0.25, 0.1875, 0.5625], [0.75, 0.75], id="a uniform per token"),
            pytest.param([0.25, 0.0, 0.75], [0.75, 1.0], id="one uniform for the chain"),
            pytest.param([0.25, 0.25, 0.5], [0.75, 2 / 3], id="a random length"),
            pytest.param([0.25, 0.25, 0.5], [1.0, 1.0], id="drafts that end early"),
        ],
    )
    def test_randomised_drafting_is_lossless(self, draft_length, draft_prob):
        contexts = Contexts(3, 2)
        assert contexts.distance(output_law(contexts, draft_length, torch.tensor(draft_prob)), 3) < 1e-7

    @pytest.mark.parametrize(
        "draft_length, draft_prob",
        [
            pytest.param([0.25, 0.1875, 0.5625], [0.75, 0.5625], id="powers of a"),
            pytest.param([0.25, 0.0, 0.75], [0.75, 0.75], id="one uniform, a everywhere"),
        ],
    )
    def test_biased_randomised_drafting_is_caught(self, draft_length, draft_prob):
        contexts = Contexts(3, 2)
        assert contexts.distance(output_law(contexts, draft_length, torch.tensor(draft_prob)), 3) > 1e-3

    def test_acceptance(self):
        assert accepted_and_total_variation([0.0, 1.0]) == pytest.approx((3 / 5, 0), abs=1e-7)

    @pytest.mark.parametrize("a, acceptance", [(4 / 5, 27 / 40), (1 / 2, 4 / 5), (1 / 5, 1)])
    def test_randomised_acceptance(self, a, acceptance):
        accepted, distance = accepted_and_total_variation([1 - a, a], draft_prob=a)
        assert (accepted / a, distance) == pytest.approx((acceptance, 0), abs=1e-6)

    def test_over_acceptance_loses_what_it_does_not_reject(self):
        accepted, loss = accepted_and_total_variation([0.0, 1.0], epsilon=0.1)
        assert (1 - accepted, loss) == pytest.approx((0.2, 0.2), abs=1e-6)


def drafted(laws, seed, **options):
    """One draft token per request, sampled as a draft model does: by the shared race."""
    return race_sample(laws.expand(len(seed), -1), seed=seed, position=0, space="probs", **options)


def one_round(method, p, q, seed, draft_tokens=None, **options):
    """A round with one draft slot per request, both target rows p."""
    x = drafted(q, seed) if draft_tokens is None else draft_tokens
    draft = None if method == "race" else q.expand(len(seed), 1, -1)
    target = p.expand(len(seed), 2, -1)
    return x, verify_chain(x[:, None], target, draft, method=method, space="probs", seed=seed, position=0, **options)


@pytest.mark.usefixtures("quick_backend")
class TestByFrequency:
    @pytest.mark.parametrize("method, acceptance", [("rejection", 3 / 5), ("race", 19 / 35)])
    def test_table(self, method, acceptance):
        x, verdict = one_round(method, P, Q, seeds(TRIALS))
        accepted = verdict.num_accepted == 1
        assert_rate(accepted, acceptance)
        assert_law(verdict.tokens[:, 0], P)
        assert_law(verdict.tokens[accepted, 1], P)
        assert (verdict.tokens[~accepted, 1] == -1).all()
        assert (verdict.tokens[accepted, 0] == x[accepted]).all()

    def test_race_acceptance_by_token(self):
        x, verdict = one_round("race", P, Q, seeds(TRIALS))
        for token, rate in enumerate((1 / 10, 6 / 35, 6 / 35, 1 / 10)):
            assert_rate((verdict.num_accepted == 1) & (x == token), rate)

    @pytest.mark.parametrize("a, acceptance", [(4 / 5, 27 / 40), (1 / 2, 4 / 5), (1 / 5, 1)])
    def test_randomised_drafting(self, a, acceptance):
        seed = seeds(TRIALS)
        drafts = torch.rand(TRIALS, generator=torch.Generator().manual_seed(1)) < a
        x = torch.where(drafts, drafted(Q, seed), -1)
        _, verdict = one_round("rejection", P, Q, seed, x, draft_prob=a)
        assert_law(verdict.tokens[:, 0], P)
        assert_rate(verdict.num_accepted[drafts] == 1, acceptance)
        assert (verdict.num_accepted[~drafts] == 0).all()

    def test_over_acceptance(self):
        _, verdict = one_round("rejection", P, Q, seeds(TRIALS), epsilon=0.1)
        assert_rate(verdict.num_accepted == 0, 0.2)
        assert_law(verdict.tokens[:, 0], [0.25, 0.25, 0.3, 0.2])

    @pytest.mark.parametrize("method", ["rejection", "race"])
    def test_several_rounds(self, method):
        """The joint law of four tokens of a Markov chain, cut into rounds as acceptance has it."""
        p, q = random_laws(torch.Generator().manual_seed(4), 2, 3, 3)
        options = {"method": method, "chain": True, "fresh": False, "apart": False}
        assert_law(*joint(texts(p, q, TRIALS // 2, 4, parents=(-1, 0, 1), **options), p))


@pytest.mark.usefixtures("quick_backend")
class TestBiasIsCaught:
    """Rules known to be wrong fail the checks above."""

    def test_residual_with_the_noise_of_the_draft(self):
        seed = seeds(TRIALS)
        x, verdict = one_round("rejection", P, Q, seed)
        probs, _ = residual(P, Q, space="probs")
        wrong = torch.where(verdict.num_accepted == 1, x, drafted(probs, seed))
        assert not follows_law(wrong, P)
        assert_law(wrong, [13 / 30, 8 / 30, 0.2, 0.1])

    def test_the_target_where_nothing_was_drafted(self):
        seed = seeds(TRIALS)
        drafts = torch.rand(TRIALS, generator=torch.Generator().manual_seed(1)) < 0.5
        x = torch.where(drafts, drafted(Q, seed), -1)
        _, verdict = one_round("rejection", P, Q, seed, x, draft_prob=0.5)
        plain = race_sample(P.expand(TRIALS, -1), seed=seed, position=0, nonce=1, space="probs")
        assert not follows_law(torch.where(drafts, verdict.tokens[:, 0], plain), P)
