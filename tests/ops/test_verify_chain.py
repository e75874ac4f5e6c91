"""verify_chain: every decision is the oracle's, and every option means what it says."""

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

import specdec_kernels
from specdec_kernels import OutputFormat, race_sample
from tests.support.calls import chain
from tests.support.cases import (
    assert_as_the_oracle,
    assert_same,
    by_the_oracle,
    chain_call,
    ragged,
    seeds,
    spoilt,
    untouched_verdict,
)
from tests.support.laws import P, Q
from tests.support.ops import verify_chain
from tests.support.races import log_arrivals, log_weights


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """Draft x is accepted iff u q(x) < p(x). The first one that is not becomes a token of norm((p - q)+).

    Draft 2 is accepted iff u < 0.2 / 0.4 = 0.50, draft 3 iff u < 0.1 / 0.4 = 0.25. (p - q)+ = (0.5, 0, 0, 0): token 0.
    After both comes token 1: their last row has no other.
    """
    p, q = torch.tensor([0.6, 0.1, 0.2, 0.1]), torch.tensor([0.1, 0.1, 0.4, 0.4])
    seed, draft = torch.tensor([2, 4, 1]), torch.arange(2)
    uniforms = specdec_kernels.uniform(seed[:, None], draft, stream=4, index=draft)
    assert (uniforms * 100).round().tolist() == [[82, 91], [24, 75], [31, 11]]
    target, drafted = torch.stack([p, p, torch.eye(4)[1]]).repeat(3, 1, 1), torch.stack([q, q]).repeat(3, 1, 1)
    tokens = torch.tensor([2, 3]).repeat(3, 1)
    verdict = verify_chain(tokens, target, drafted, space="probs", seed=seed, position=0)
    assert verdict.tokens.tolist() == [[0, -1, -1], [2, 0, -1], [2, 3, 1]]
    assert verdict.num_accepted.tolist() == [0, 1, 2]


@pytest.mark.interpreted
def test_block_rule_by_hand(backend):
    """The last draft i with u_i < h_i ends the chain, whatever the uniforms before it are; p, q and drafts as above.

    w_1 = 0.2 / 0.4 = 0.5, and w_2 = w_1 0.1 / 0.4 = 0.125 = h_2. After draft 1 (w_1 p - q)+ is (0.2, 0, 0, 0): its sum
    Z_1 is 0.2, h_1 = 0.2 / (0.2 + 1 - 0.5) = 0.29, and the token is 0. After no draft it is 0, too: (p - q)+ has no
    other.
    """
    p, q = torch.tensor([0.6, 0.1, 0.2, 0.1]), torch.tensor([0.1, 0.1, 0.4, 0.4])
    seed, draft = torch.tensor([0, 3, 9]), torch.arange(2)
    uniforms = specdec_kernels.uniform(seed[:, None], draft, stream=4, index=2**30 + draft)
    assert (uniforms * 100).round().tolist() == [[72, 61], [23, 43], [68, 3]]
    target, drafted = torch.stack([p, p, torch.eye(4)[1]]).repeat(3, 1, 1), torch.stack([q, q]).repeat(3, 1, 1)
    tokens = torch.tensor([2, 3]).repeat(3, 1)
    verdict = verify_chain(tokens, target, drafted, method="block", space="probs", seed=seed, position=0)
    assert verdict.tokens.tolist() == [[0, -1, -1], [2, 0, -1], [2, 3, 1]]


@pytest.mark.interpreted
def test_race_rule_by_hand(backend):
    """The token of each row has the largest p / E; a draft is accepted iff it is that token. No draft row is needed.

    Row 0: p / E = 0.6 / 0.11, 0.1 / 0.16, 0.2 / 0.37, 0.1 / 0.08: 5.5 of token 0 is the largest.
    Row 1: p / E = 0.6 / 1.58, 0.1 / 0.87, 0.2 / 0.16, 0.1 / 0.91: 1.25 of token 2 is the largest.
    """
    p, drafts = torch.tensor([0.6, 0.1, 0.2, 0.1]), torch.tensor([[3, 2], [0, 3], [0, 2]])
    arrivals = np.exp([log_arrivals(4, 1, position=row) for row in range(2)])
    np.testing.assert_allclose(arrivals, [[0.11, 0.16, 0.37, 0.08], [1.58, 0.87, 0.16, 0.91]], rtol=0, atol=0.0051)
    target = torch.stack([p, p, torch.eye(4)[1]]).repeat(3, 1, 1)
    verdict = verify_chain(drafts, target, method="race", space="probs", seed=torch.tensor([1, 1, 1]), position=0)
    assert verdict.tokens.tolist() == [[0, -1, -1], [0, 2, -1], [0, 2, 1]]


IN_ONE_ROW = (
    (torch.zeros(9, dtype=torch.int32), *untouched_verdict(3, 3)[1:]),
    OutputFormat(index=torch.arange(9).view(3, 3), path=torch.zeros(3, 3, dtype=torch.int32)),
)  # fmt: skip
CALLS = {
    "verify_chain rejection": (verify_chain, chain()),
    "verify_chain race": (verify_chain, chain(method="race", draft=None)),
    "verify_chain seeds of rows": (
        verify_chain, chain(method="race", draft=None, seed=torch.arange(9).view(3, 3), position=0),
    ),
    "verify_chain one-hot": (verify_chain, chain(draft=None, temperature=0.5, position=3, nonce=1)),
    "verify_chain randomised": (verify_chain, chain(draft_prob=torch.rand(3, 2), epsilon=torch.rand(3))),
    "verify_chain block": (verify_chain, chain(method="block", nonce=4)),
    "verify_chain ragged": (verify_chain, ragged(chain(), torch.tensor([2, 0, 1])) | {"packing.max_drafts": 2}),
    "verify_chain rows": (
        verify_chain,
        {name: value for name, value in chain(method="race", draft=None).items() if name != "position"}
        | {
            "draft_tokens": torch.arange(6),
            "target": torch.randn(6, 33, generator=torch.Generator().manual_seed(2)),
            "packing.cu_rows": torch.tensor([0, 3, 4, 6], dtype=torch.int32), "position.positions": torch.arange(6),
            "position.nonces": torch.tensor([4, -1, 0]), "request_index": torch.tensor([2, 0, 1]),
            "packing.max_drafts": 2,
        },
    ),
    "verify_chain bfloat16": (verify_chain, chain_call(1, requests=3, slots=2, dtype=torch.bfloat16)),
    "verify_chain out": (verify_chain, chain(out=untouched_verdict(3, 3))),
    "verify_chain given": (
        verify_chain,
        chain(target=chain()["target"][:, :2], output_format=OutputFormat(bonus=torch.tensor([3, 40, 7]))),
    ),
    "verify_chain in one row": (verify_chain, chain(out=IN_ONE_ROW[0], output_format=IN_ONE_ROW[1])),
}  # fmt: skip

OPTIONS = {
    "rejection": {},
    "race": {"method": "race", "draft": None},
    "one-hot": {"draft": None},
    "randomised": {"draft_prob": 0.7},
    "over-accepting": {"epsilon": 0.05},
    "block": {"method": "block"},
    "block, one-hot": {"method": "block", "draft": None},
}


@pytest.mark.usefixtures("backend")
class TestEqualsTheOracle:
    @pytest.mark.costly
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_a_vocabulary_of_many_tiles(self, options):
        call = chain_call(31, requests=6, slots=2, vocabulary=128_256) | options
        assert_as_the_oracle(verify_chain, call)

    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_rows_that_are_no_laws(self, space):
        """NaN, infinities, negative probabilities and rows without weight, anywhere."""
        call = spoilt(chain_call(7, requests=64, space=space))
        for options in ({}, {"draft": None}, {"method": "race", "draft": None}):
            assert_as_the_oracle(verify_chain, call | options)


@pytest.mark.usefixtures("quick_backend")
class TestUniforms:
    """The accept test, uniform by uniform: a step at p(x) / (h q(x)), not a frequency."""

    @pytest.mark.parametrize("options", [{}, {"draft_prob": 0.75}, {"epsilon": 0.1}])
    def test_accepts_exactly_below_the_ratio(self, options):
        count, h, epsilon = 1 << 15, options.get("draft_prob", 1.0), options.get("epsilon", 0.0)
        uniforms = np.array([maths.uniform(seed, 0, 7, 0, 4) for seed in range(count)], dtype=np.float32)
        for x in range(4):
            verdict = verify_chain(
                torch.full((count, 1), x), P.expand(count, 2, -1), Q.expand(count, 1, -1),
                space="probs", seed=seeds(count), position=7, **options,
            )  # fmt: skip
            drafted = np.float32(h) * Q[x].numpy()
            np.testing.assert_array_equal(verdict.num_accepted, uniforms * drafted < P[x].numpy() + np.float32(epsilon))

    def test_each_slot_has_its_own_uniform(self):
        """Slot j uses uniform j at position + j."""
        count, slots = 1 << 12, 3
        p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
        verdict = verify_chain(
            torch.zeros(count, slots, dtype=torch.int64), p.expand(count, slots + 1, -1), q.expand(count, slots, -1),
            space="probs", seed=seeds(count), position=11, nonce=2,
        )  # fmt: skip
        accepted = np.array([[maths.uniform(s, j, 11 + j, 2, 4) < 0.5 for j in range(slots)] for s in range(count)])
        np.testing.assert_array_equal(verdict.num_accepted, accepted.cumprod(axis=1).sum(axis=1))


def test_replacements_and_bonus_tokens_race_on_the_second_stream(other_backend):
    """Bit for bit, which float64 could not answer."""
    count, vocabulary = 200, 300
    p, q = torch.rand(2, count, vocabulary, generator=torch.Generator().manual_seed(8))
    x = torch.where(torch.arange(count) % 2 == 0, 5, -1)
    q[:, 5], p[:, 5] = 1.0, 0.0
    verdict = verify_chain(
        x[:, None], p[:, None].expand(-1, 2, -1), q[:, None], space="probs", seed=seeds(count), position=3, nonce=1
    )
    for b, token in enumerate(verdict.tokens[:, 0].tolist()):
        weights = (p[b] - q[b] if x[b] == 5 else p[b]).numpy()
        assert token == (log_weights(weights) - log_arrivals(vocabulary, b, position=3, nonce=1, stream=2)).argmax()


def test_positions_run_over_the_end_of_their_word(backend):
    """Row j decides position + j, modulo 2^32."""
    call = chain_call(33) | {"position": torch.full((32,), 2**32 - 2)}
    for options in OPTIONS.values():
        expected = verify_chain(**call | options)
        assert_same(verify_chain(**call | options | {"position": torch.full((32,), -2)}), expected)
        assert_same(by_the_oracle(verify_chain, **call | options), expected)


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestRace:
    def test_emits_the_plain_samples_of_every_position(self):
        call = chain_call(9) | {"method": "race", "draft": None}
        verdict = verify_chain(**call)
        plain = race_sample(
            call["target"], seed=call["seed"][:, None], position=call["position"][:, None] + torch.arange(5),
            temperature=call["temperature"][:, None],
        )  # fmt: skip
        emitted = torch.arange(5) <= verdict.num_accepted[:, None]
        assert (verdict.tokens == torch.where(emitted, plain, -1)).all()
        matches = (call["draft_tokens"] == plain[:, :-1]).long().cumprod(dim=1).sum(dim=1)
        assert (verdict.num_accepted == matches).all()


@pytest.mark.usefixtures("backend")
class TestMeaning:
    def test_temperature_zero_is_greedy(self):
        """Accepted while the draft is the argmax, the lowest of equal ones; the draft's law does not matter."""
        target = torch.tensor([[[1.0, 4, 4, 0], [0, 0, 9, 0], [5, 1, 1, 5]]])
        draft = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(14))
        cases = {(1, 2): [1, 2, 0], (2, 2): [1, -1, -1], (1, 0): [1, 2, -1], (-1, 2): [1, -1, -1]}
        lossy = {"draft": draft, "epsilon": 0.5, "draft_prob": 0.5}
        for drafts, expected in cases.items():
            for options in ({"draft": draft}, {}, {"method": "race"}, lossy):
                verdict = verify_chain(torch.tensor([drafts]), target, temperature=0.0, seed=1, position=0, **options)
                assert verdict.tokens.tolist() == [expected]
                assert verdict.status.tolist() == [0]

    def test_nothing_drafted_with_probability_below_one_draws_what_the_draft_leaves(self):
        """A -1 where h < 1 stands for a round without a draft: p is not what remains of it."""
        p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
        call = {
            "draft_tokens": torch.full((100, 1), -1), "target": p.expand(100, 2, -1), "draft": q.expand(100, 1, -1),
            "space": "probs", "seed": seeds(100), "position": 0,
        }  # fmt: skip
        assert (verify_chain(**call, draft_prob=0.5).tokens[:, 0] == 1).all()
        assert (verify_chain(**call, draft_prob=1.0).tokens[:, 0] == 0).any()

    def test_a_draft_from_beyond_its_own_vocabulary_is_refused(self):
        """It has probability 0 there: it was not drawn from that law."""
        target, draft = torch.zeros(50, 2, 80), torch.zeros(50, 1, 70)
        verdict = verify_chain(torch.full((50, 1), 75), target, draft, seed=seeds(50), position=0)
        assert (verdict.num_accepted == 0).all()
        assert (verdict.status == 0).all()

    @pytest.mark.parametrize("space", ["logits", "probs"])
    @pytest.mark.parametrize("spoilt", ["all", "the token's"])
    def test_no_draft_of_a_law_of_nans_is_accepted(self, space, spoilt):
        """By its numbers it gives no token any weight, and u 0 < p(x): that must not be what accepts a draft."""
        call = chain_call(7, requests=40, slots=3, vocabulary=80) | {"temperature": 1.0}
        rows = call["draft"].softmax(-1) if space == "probs" else call["draft"]
        at = call["draft_tokens"].clamp(min=0).long().unsqueeze(-1)
        call["draft"] = torch.full_like(rows, torch.nan) if spoilt == "all" else rows.scatter(-1, at, torch.nan)
        call["target"] = call["target"].softmax(-1) if space == "probs" else call["target"]
        drafted = call["draft_tokens"][:, 0] >= 0
        verdict = verify_chain(**call | {"space": space})
        assert (verdict.num_accepted == 0).all()
        assert (verdict.status[drafted] & 1 == 1).all()
        assert (verdict.tokens[:, 0] >= 0).all()


@pytest.mark.usefixtures("backend")
class TestLayouts:
    def test_ragged_ends_where_its_drafts_end(self):
        """Also when drafting was not certain: past the last slot there is no draft law."""
        call = chain_call(28) | {"draft_prob": 0.5}
        counts = torch.arange(32) % 5
        verdict = verify_chain(**ragged(call, counts))
        assert (verdict.num_accepted <= counts).all()

    def test_max_drafts_fixes_the_width(self):
        flat = ragged(chain_call(29), torch.arange(32) % 4)
        assert verify_chain(**flat).tokens.shape == (32, 4)
        wide = verify_chain(**flat, **{"packing.max_drafts": 7})
        assert wide.tokens.shape == (32, 8)
        assert (wide.tokens[:, 4:] == -1).all()
        assert_same((wide.tokens[:, :4], *wide[1:]), verify_chain(**flat))
