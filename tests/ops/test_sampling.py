"""How rows become laws: sampling= in place of temperature=, and a law of the draft's own."""

import pytest
import torch

from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from specdec_kernels.calls.values import Law
from specdec_kernels.conformance import Contexts
from specdec_kernels.sampling import undivided
from tests.support.cases import assert_same, chain_call, seeds
from tests.support.enumeration import PROBS, Given, output_law
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

TEMPERATURES = (0.0, 0.7, torch.tensor([1.0, 0.5, 0.0, 1.7]))


def rows_of(requests, vocabulary=33, seed=0):
    return 2 * torch.randn(requests, vocabulary, generator=torch.Generator().manual_seed(seed))


def without_temperature(call):
    return {name: value for name, value in call.items() if name != "temperature"}


CHAIN = without_temperature(chain_call(1, requests=4, slots=3, vocabulary=33))
TREE = without_temperature(tree_call(1, requests=4, nodes=5, vocabulary=33))
NOISE = {"seed": seeds(4), "position": 5}
CALLS = {
    "verify_chain": (verify_chain, CHAIN),
    "verify_chain race": (verify_chain, CHAIN | {"draft": None, "method": "race"}),
    "verify_tree": (verify_tree, TREE),
    "race_sample": (race_sample, {"target": rows_of(4)} | NOISE),
    "race_topk": (race_topk, {"draft": rows_of(4), "k": 3} | NOISE),
    "residual": (residual, {"target": rows_of(4), "draft": rows_of(4, seed=1)}),
    "overlap": (overlap, {"target": rows_of(4), "draft": rows_of(4, seed=1)}),
}
DIVIDED = CALLS | {
    "cutoff": (cutoff, {"rows": rows_of(4)}),
    "logprobs": (logprobs, {"rows": rows_of(4), "tokens": torch.arange(4), "top": 3}),
}
SAMPLINGS = Sampling(), Sampling(1.0, torch.tensor([5, 0, 9, 1]), 0.9)
WITH_DRAFT = ("verify_chain", "verify_tree", "residual", "overlap")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("op, call", CALLS.values(), ids=CALLS)
class TestShortForm:
    @pytest.mark.parametrize("temperature", TEMPERATURES)
    def test_says_the_same(self, op, call, temperature):
        assert_same(op(**call, sampling=Sampling(temperature)), op(**call, temperature=temperature))

    def test_default_is_one(self, op, call):
        assert_same(op(**call), op(**call, temperature=1.0))
        assert_same(op(**call, sampling=Sampling()), op(**call, temperature=1.0))


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("op, call", DIVIDED.values(), ids=DIVIDED)
@pytest.mark.parametrize("temperature", [*TEMPERATURES, torch.tensor([0.0, torch.nan, 0.3, -1.0])])
class TestDivided:
    """Of logits that are divided already a temperature says no more than whether it is 0."""

    def test_is_a_temperature_of_one(self, op, call, temperature):
        for sampling in SAMPLINGS[: 1 + (op is not overlap)]:  # filters under a NaN have a meaning there, no gradient
            divided = sampling._replace(temperature=temperature, divided=True)
            assert_same(op(**call, sampling=divided), op(**call, sampling=undivided(divided)))

    def test_drafts_may_be_at_another(self, op, call, temperature):
        if op.__name__ not in WITH_DRAFT or call["draft"] is None:
            return
        own, ours = Sampling(temperature), Sampling(temperature, divided=True)
        for one, other in ((ours, own), (own, ours), (ours, None)):
            wanted = undivided(one if other is None else other)
            assert_same(
                op(**call, sampling=one, **{"draft.sampling": other}),
                op(**call, sampling=undivided(one), **{"draft.sampling": wanted}),
            )


COLDEST, TINY = 2.0**-64, torch.tensor([2.0**-126, 1.5e-38, 1e-25, 2.0**-64])


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestTinyTemperatures:
    """They count as the smallest one at which logits do not end at the largest float, where all would be equal."""

    @pytest.mark.parametrize("op, call", DIVIDED.values(), ids=DIVIDED)
    def test_count_as_one(self, op, call):
        """And large ones as the largest: over infinity an infinite logit is a NaN."""
        assert_same(op(**call, sampling=Sampling(TINY)), op(**call, sampling=Sampling(COLDEST)))
        hot = torch.tensor([torch.inf, 3e38, 2.0**100, 2.0**64])
        for name in {"target", "draft", "rows"} & {name for name, x in call.items() if isinstance(x, torch.Tensor)}:
            call = call | {name: call[name].index_fill(-1, torch.tensor([3]), torch.inf)}
        assert_same(op(**call, sampling=Sampling(hot)), op(**call, sampling=Sampling(1 / COLDEST)))

    def test_the_largest_logit_wins(self):
        rows = torch.tensor([[1.0, 8.0, 9.0], [9.0, 1.0, 9.0], [-90.0, -80.0, -10.0], [1e19, 2e18, 1.5e19]])
        status = torch.empty(4, dtype=torch.int32)
        assert race_sample(rows, **NOISE, temperature=TINY, status=status).tolist() == [2, 0, 2, 2]
        assert status.tolist() == [0] * 4
        drafts = torch.tensor([[2]] * 4)  # a certain draft is accepted with its probability
        found = [
            verify_chain(drafts, rows[:, None].expand(4, 2, 3), seed=seeds(4) + i, position=0, temperature=TINY)
            for i in range(0, 40, 4)
        ]
        accepted = torch.stack([one.num_accepted for one in found])
        assert (accepted[:, [0, 2, 3]] == 1).all()
        assert 0 < accepted[:, 1].sum() < len(found)  # of two equal tokens each has half


@pytest.mark.one_backend
def test_the_gradient_at_a_tiny_temperature():
    found = []
    for temperature in (1.5e-38, COLDEST):
        target, draft = rows_of(4).requires_grad_(), rows_of(4, seed=1).requires_grad_()
        target.data[0, 0] = draft.data[0, :2] = 9.0
        overlap(target, draft, temperature=temperature).tv.sum().backward()
        found.append((target.grad, draft.grad))
    assert_same(*found)
    assert found[0][1][0].isfinite().all()
    assert found[0][1][0].any()


@pytest.mark.one_backend
def test_divided_in_words():
    found = undivided(Sampling(torch.tensor([0.0, 0.3, 2.0]), 7, divided=True))
    assert found.temperature.tolist() == [0.0, 1.0, 1.0]
    assert found[1:] == Sampling(top_k=7)[1:]
    assert [undivided(Sampling(x, divided=True)).temperature for x in (0.0, 0.3)] == [0.0, 1.0]
    assert undivided(own := Sampling(0.3)) is own
    with pytest.raises(TypeError, match=r"sampling\.divided: expected a bool; got 1"):
        race_sample(rows_of(4), **NOISE, sampling=Sampling(divided=1))


@pytest.mark.one_backend
def test_the_gradient_of_divided_logits():
    target, draft = rows_of(4).requires_grad_(), rows_of(4, seed=1).requires_grad_()
    for temperature in (0.3, torch.tensor([0.3, 0.0, 2.0, 1.0])):
        divided = Sampling(temperature, divided=True)
        ours, wanted = (
            torch.autograd.grad(sum(x.sum() for x in overlap(target, draft, sampling=sampling)), (target, draft))
            for sampling in (divided, undivided(divided))
        )
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0, equal_nan=True)


BAD_LAWS = [
    ({"temperature": 0.5, "sampling": Sampling()}, ValueError,
     "temperature: expected None beside sampling=, which has one; got 0.5"),
    ({"sampling": 0.5}, TypeError, "sampling: expected a Sampling; got 0.5"),
    ({"sampling": (0.5,)}, TypeError, "sampling: expected a Sampling; got tuple"),
    ({"sampling": Sampling(-1.0)}, ValueError,
     r"sampling\.temperature: expected a number at least 0 and finite; got -1.0"),
    ({"sampling": Sampling(0.7), "space": "probs"}, ValueError,
     r"sampling\.temperature: expected 0 or 1 with space='probs'.*; got 0.7"),
]  # fmt: skip


BAD_DRAFT_LAWS = [
    ({"draft.space": "words"}, ValueError, "draft.space: expected one of 'logits', 'probs'; got 'words'"),
    ({"draft.sampling": 1.0}, TypeError, "draft.sampling: expected a Sampling; got 1.0"),
    ({"draft.sampling": Sampling(float("nan"))}, ValueError,
     r"draft\.sampling\.temperature: expected a number at least 0 and finite; got nan"),
    ({"draft.sampling": Sampling(torch.ones(4).double())}, TypeError,
     r"draft\.sampling\.temperature: expected float32; got float64"),
    ({"draft.sampling": Sampling(0.5), "draft.space": "probs"}, ValueError,
     r"draft\.sampling\.temperature: expected 0 or 1 with draft.space='probs'.*; got 0.5"),
]  # fmt: skip
REFUSED = {
    f"law of {name}": (op, call, BAD_LAWS + BAD_DRAFT_LAWS * (name in WITH_DRAFT)) for name, (op, call) in CALLS.items()
}


@pytest.mark.one_backend
@pytest.mark.parametrize("changes", [{"draft.sampling": Sampling()}, {"draft.space": "probs"}], ids=str)
@pytest.mark.parametrize("name", ["verify_chain", "verify_tree"])
def test_a_law_of_no_draft(name, changes):
    op, call = CALLS[name]
    with pytest.raises(TypeError, match=r"draft\.rows: expected a tensor of float32 or bfloat16 or float16; got None"):
        op(**call | {"draft": None}, **changes)


# Spaces and temperatures of target and draft.
LAWS = {
    "two temperatures": Given(Law("logits", 0.5), Law("logits", 2.0)),
    "draft of probabilities": Given(Law("logits", 0.7), PROBS),
    "target of probabilities": Given(PROBS, Law("logits", 1.3)),
}
GREEDY_DRAFTS = {
    "logits": Given(Law("logits", 0.7), Law("logits", 0.0)),
    "probabilities": Given(PROBS, Law("probs", 0.0)),
}


def greedy(contexts):
    """These contexts with a draft that has one token in each."""
    contexts.q = {said: (law == law.max()).double() for said, law in contexts.q.items()}
    return contexts


@pytest.mark.one_backend
class TestExactly:
    """Every uniform and every draw of the oracle, enumerated; scaled logits are rounded to float32."""

    def is_lossless(self, contexts, given, draft_lengths, draft_prob=1.0):
        law = output_law(contexts, draft_lengths, draft_prob, given=given)
        return contexts.distance(law, len(draft_lengths)) < 2e-6

    @pytest.mark.parametrize("given", LAWS.values(), ids=LAWS)
    def test_chains(self, given):
        assert self.is_lossless(Contexts(3, 2), given, [0.0, 0.0, 1.0])
        assert self.is_lossless(Contexts(3, 2), given, [0.25, 0.1875, 0.5625], torch.tensor([0.75, 0.75]))

    @pytest.mark.parametrize("given", GREEDY_DRAFTS.values(), ids=GREEDY_DRAFTS)
    def test_chains_of_greedy_drafts(self, given):
        assert self.is_lossless(greedy(Contexts(3, 2)), given, [0.0, 0.0, 1.0])

    @pytest.mark.parametrize("given", LAWS.values(), ids=LAWS)
    def test_a_draft_law_that_was_not_drawn_from_is_caught(self, given):
        """Rows made for one law and verified as another."""
        wrong = given._replace(draft=Law("logits", 1.1 * given.draft.temperature))

        class Mistaken(Given):
            def rows(self, p, q):
                return given._replace(draft=Law("logits", given.draft.temperature)).rows(p, q)

        assert not self.is_lossless(Contexts(3, 2), Mistaken(*wrong), [0.0, 0.0, 1.0])


def softmax(rows, temperature):
    """float64 laws of rows at temperatures [n], one-hot at 0."""
    temperature = torch.as_tensor(temperature).expand(len(rows))[:, None].double()
    law = (rows.double() / temperature.clamp(min=1e-9)).softmax(-1)
    top = torch.nn.functional.one_hot(rows.argmax(-1), rows.shape[-1]).double()
    return torch.where(temperature > 0, law, top)


PAIRS = {
    "two temperatures": (0.5, 2.0),
    "greedy draft": (1.0, 0.0),
    "greedy target": (0.0, 1.0),
    "one each": (torch.tensor([1.0, 0.5, 0.0, 1.7]), torch.tensor([0.0, 0.9, 1.3, 0.0])),
}


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("temperatures", PAIRS.values(), ids=PAIRS)
class TestFigures:
    """residual and overlap by their formulas."""

    target, draft = rows_of(4), rows_of(4, seed=1)

    def laws(self, temperatures):
        return softmax(self.target, temperatures[0]), softmax(self.draft, temperatures[1])

    def calls(self, temperatures):
        """Two laws: both of logits, and one of them or both as probabilities."""
        p, q = (law.float() for law in self.laws(temperatures))
        one, other = (Sampling(t) for t in temperatures)
        yield (self.target, self.draft), {"sampling": one, "draft.sampling": other}
        yield (self.target, q), {"sampling": one, "draft.space": "probs", "draft.sampling": Sampling()}
        yield (p, self.draft), {"space": "probs", "draft.space": "logits", "draft.sampling": other}
        yield (p, q), {"space": "probs"}

    def test_residual(self, temperatures):
        p, q = self.laws(temperatures)
        excess = (p - 0.8 * q).clamp(min=0)
        for rows, options in self.calls(temperatures):
            probs, mass = residual(*rows, draft_prob=0.8, **options)
            torch.testing.assert_close(probs.double(), excess / excess.sum(-1, keepdim=True), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(mass.double(), excess.sum(-1), rtol=1e-5, atol=1e-6)

    def test_overlap(self, temperatures):
        p, q = self.laws(temperatures)
        for rows, options in self.calls(temperatures):
            found = overlap(*rows, **options)
            torch.testing.assert_close(found.accept.double(), torch.minimum(p, q).sum(-1), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.tv.double(), (p - q).abs().sum(-1) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestOfTheDraft:
    def test_final_draft_laws_need_no_temperature(self):
        """The target's temperature says nothing of probabilities."""
        call = CHAIN | {"draft": CHAIN["draft"].softmax(-1), "draft.space": "probs"}
        expected = verify_chain(**call, temperature=0.5, **{"draft.sampling": Sampling()})
        assert_same(verify_chain(**call, temperature=0.5), expected)

    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_a_greedy_draft_is_one_hot(self, space):
        hot = torch.nn.functional.one_hot(CHAIN["draft"].argmax(-1), 33).float()
        draft = CHAIN["draft"] if space == "logits" else CHAIN["draft"].softmax(-1)
        call = CHAIN | {"temperature": 0.8}
        assert_same(
            verify_chain(**call | {"draft": draft, "draft.space": space, "draft.sampling": Sampling(0.0)}),
            verify_chain(**call | {"draft": hot, "draft.space": "probs", "draft.sampling": Sampling()}),
        )

    @pytest.mark.parametrize("temperature, status", [(1.0, 0), (0.0, 1)])
    def test_an_argmax_reads_the_whole_row(self, temperature, status):
        """From probabilities an accepted token reads p(x) and q(x) alone, unless q is an argmax."""
        target = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]])
        draft = torch.tensor([[[0.25, 0.0, torch.nan]]])
        verdict = verify_chain(
            torch.tensor([[0]]),
            target,
            draft,
            space="probs",
            **{"draft.sampling": Sampling(temperature)},
            seed=1,
            position=0,
        )
        assert verdict.num_accepted.tolist() == [1]  # p(0) = 1
        assert verdict.status.tolist() == [status]

    @pytest.mark.parametrize("name", WITH_DRAFT)
    def test_a_bad_temperature_is_reported(self, name):
        op, call = CALLS[name]
        bad = Sampling(torch.tensor([1.0, -1.0, torch.nan, 0.0]))
        status = torch.full((4,), -77, dtype=torch.int32)
        found = op(**call, **{"draft.sampling": bad}, **({} if "seed" in call else {"status": status}))
        status = found.status if "seed" in call else status
        assert (status & 8).tolist() == [0, 8, 8, 0]
