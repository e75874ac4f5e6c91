"""method="paths": lossless for every tuple of chains, the same on every backend, `block` for one chain."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import InputPositions, Status, merge_chains
from specdec_kernels.calls.values import Law
from specdec_kernels.conformance import Contexts
from tests.ops.test_traversal_laws import alike
from tests.ops.test_tree_laws import one_law
from tests.support import traversal_enumeration
from tests.support.cases import assert_as_the_oracle, assert_same, by_the_oracle, seeds
from tests.support.enumeration import PROBS, Given, expected_accepted, two_rounds
from tests.support.laws import P
from tests.support.ops import verify_chain, verify_tree
from tests.support.path_enumeration import oracle_law, path_law, two_rounds_of_one_noise


def lossless(contexts, law, length, within=1e-12):
    full = contexts.completed(law, length)
    return full == pytest.approx({x: contexts.chance(contexts.p, x) for x in full}, abs=within)


def accepted_by(law):
    return sum(chance * (len(emitted) - 1) for emitted, chance in law.items())


@pytest.mark.one_backend
class TestExactly:
    """Every tuple of chains, every number of them looked at, the two sides of every uniform and every token drawn."""

    @pytest.mark.parametrize("vocabulary", [2, 3, 4])
    @pytest.mark.parametrize("length", [1, 2, 3])
    @pytest.mark.parametrize("chains", [2, 3, 4])
    def test_formulas(self, vocabulary, length, chains):
        contexts = Contexts(vocabulary, length, seed=chains)
        law = path_law(contexts, chains, length)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert lossless(contexts, law, length + 1)

    @pytest.mark.parametrize(
        "vocabulary, length, chains",
        [(2, 2, 2), (4, 1, 4), (4, 2, 2), (3, 2, 3), (2, 3, 3), pytest.param(4, 3, 2, marks=pytest.mark.slow),
         pytest.param(2, 2, 4, marks=pytest.mark.slow)],
    )  # fmt: skip
    def test_the_oracle_follows_them(self, vocabulary, length, chains):
        contexts = Contexts(vocabulary, length, seed=chains)
        law = oracle_law(contexts, chains, length)
        assert lossless(contexts, law, length + 1)
        assert alike(law, path_law(contexts, chains, length))

    def test_over_two_rounds(self):
        contexts = Contexts(2, 5, seed=9)
        law = two_rounds(contexts, lambda left: oracle_law(left, 2, 2))
        assert lossless(contexts, contexts.completed(law, 6), 6)

    @pytest.mark.parametrize("given", [Given(Law("logits", 0.7), Law("logits", 1.3)), Given(Law("logits", 0.5), PROBS)])
    def test_rows_of_logits(self, given):
        contexts = Contexts(3, 2, seed=15)
        assert alike(oracle_law(contexts, 2, 2, given), path_law(contexts, 2, 2), within=3e-7)

    def test_laws_at_the_edge(self):
        for p, q in (
            (P, P),  # nothing is ever left
            ([0.0, 0.0, 0.5, 0.5], [0.4, 0.3, 0.2, 0.1]),  # the target forbids what is drawn
            ([0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),  # the target is certain
            ([0.0625, 0.0625, 0.375, 0.5], [0.25, 0.25, 0.25, 0.25]),  # ratios at the edges of buckets
        ):
            contexts = one_law(torch.as_tensor(p), torch.as_tensor(q), depth=2)
            law = {x: chance for x, chance in oracle_law(contexts, 2, 2).items() if chance > 0}
            first = [sum(chance for x, chance in law.items() if x[0] == token) for token in range(4)]
            assert first == pytest.approx(contexts.p[()].tolist(), abs=3e-7)

    @pytest.mark.parametrize("seed", range(3))
    def test_accepts_more_than_traversal_of_the_same_chains(self, seed):
        contexts = Contexts(3, 2, seed=seed)
        both = (-1, 0, 0, 1, 2)
        traversal = traversal_enumeration.output_law(contexts, both, drawn_with_replacement=True)
        found = accepted_by(path_law(contexts, 2, 2))
        assert found > expected_accepted(traversal) + 1e-3
        assert accepted_by(path_law(contexts, 4, 2)) > found


@pytest.mark.one_backend
class TestBiasIsCaughtExactly:
    """Rules that go wrong in one point fail the checks above."""

    @pytest.mark.parametrize("wrong", ["residual of q", "peeks", "unclipped"])
    def test_wrong_rules(self, wrong):
        contexts = one_law(depth=2)
        assert lossless(contexts, path_law(contexts, 2, 2), 3)
        assert not lossless(contexts, path_law(contexts, 2, 2, wrong=wrong), 3, within=1e-3)

    def test_the_same_nonce_in_every_round(self):
        contexts = one_law(depth=5)
        law = contexts.completed(two_rounds_of_one_noise(contexts, 2), 6)
        assert sum(law.values()) == pytest.approx(1, abs=1e-9)
        first = [sum(chance for x, chance in law.items() if x[1] == token) for token in range(4)]
        assert first != pytest.approx(P.tolist(), abs=1e-3)

    def test_dropping_chains_behind_those_looked_at_costs_tokens_but_no_law(self):
        contexts = one_law(depth=2)
        law = path_law(contexts, 4, 2, wrong="stay among those looked at")
        assert lossless(contexts, law, 3)
        assert accepted_by(law) <= accepted_by(path_law(contexts, 4, 2))


def path_call(seed, requests=24, chains=3, length=3, vocabulary=65, odd=True):
    """Arguments of a call, with chains that begin alike now and then, some short, some with tokens nobody draws."""
    generator = torch.Generator().manual_seed(seed)
    paths = torch.randint(0, vocabulary, (requests, 1, length), generator=generator).repeat(1, chains, 1)
    other = torch.randint(0, vocabulary, paths.shape, generator=generator)
    paths = torch.where(torch.rand(paths.shape, generator=generator) < 0.4, other, paths)
    if odd:
        unlikely = torch.rand(paths.shape, generator=generator)
        paths = torch.where(unlikely < 0.03, -1, paths)
        paths = torch.where((unlikely > 0.94) & (unlikely < 0.97), vocabulary + 3, paths)
        paths = torch.where(unlikely > 0.97, vocabulary - 1, paths)
    with specdec_kernels.backend("reference"):
        tokens, parents, leaves = merge_chains(paths)
    target = torch.randn(*tokens.shape, vocabulary, generator=generator)
    draft = target + torch.randn(target.shape, generator=generator)
    for child in range(1, tokens.shape[1]):  # drafts are likely
        real = (parents[:, child] >= 0).nonzero().squeeze(-1)
        place = real, parents[real, child].long(), tokens[real, child].clamp(0, vocabulary - 1)
        draft[place] += 2.5
        target[place] += 2.0
    return {
        "draft_tokens": tokens, "target": target, "draft": draft, "parents": parents, "leaves": leaves,
        "method": "paths", "seed": seeds(requests, 7 * seed), "position": 40,
        "temperature": torch.tensor([1.0, 0.6, 0.0, 1.7])[torch.arange(requests) % 4],
    }  # fmt: skip


def with_nan(call):
    call["target"][1, 0, 5] = torch.nan
    call["draft"][2, 0, 6] = torch.nan
    call["target"][3, 1] = -torch.inf
    call["draft"][5, 0, call["draft_tokens"][5, 1].clamp(0, 64)] = -torch.inf
    return call


CALLS = {
    "logits": lambda: path_call(1),
    "many chains": lambda: path_call(4, chains=20, length=2, requests=8),
    "odd values": lambda: with_nan(path_call(8)),
    "no room": lambda: path_call(10) | {"max_depth": 1},
    "positions": lambda: path_call(11) | {"position": InputPositions(torch.arange(24 * 10).view(24, 10))},
    "leaves that are none": lambda: path_call(12) | {
        "leaves": torch.tensor([[99, 1, -7]] * 24), "temperature": 1.0,
    },
    "no chains": lambda: path_call(13) | {"leaves": torch.zeros(24, 0, dtype=torch.int32)},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_like_the_oracle(name, other_backend):
    call = CALLS[name]()
    expected = by_the_oracle(verify_tree, **call)
    assert expected.num_accepted.max() > 0 or name in ("leaves that are none", "no chains")
    assert_same(verify_tree(**call), expected)


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
def test_twenty_chains():
    assert_as_the_oracle(verify_tree, path_call(4, chains=20, length=2, requests=3))


@pytest.mark.usefixtures("backend")
class TestOneChain:
    def test_is_block(self):
        call = path_call(20, chains=1, length=4, odd=False)
        tree, shape = verify_tree(**call), ("parents", "leaves", "method")
        chain = {name: x for name, x in call.items() if name not in shape}
        block = verify_chain(
            **chain | {"draft_tokens": call["draft_tokens"][:, 1:], "draft": call["draft"][:, :-1]}, method="block"
        )
        assert block.num_accepted.float().mean() > 1
        assert torch.equal(tree.tokens, block.tokens)
        assert torch.equal(tree.num_accepted, block.num_accepted)
        assert torch.equal(tree.status, block.status)


def test_a_leaf_out_of_range_shows(backend):
    status = verify_tree(**CALLS["leaves that are none"]()).status
    assert (status & Status.PARAMETER > 0).all()


REFUSED = {
    "paths": (verify_tree, path_call(1), [
        ({"leaves": None}, TypeError, "leaves: expected"),
        ({"leaves": torch.zeros(3, 3, dtype=torch.int32)}, ValueError, "leaves: expected"),
        ({"leaves": torch.zeros(24, 3)}, TypeError, "leaves: expected"),
        ({"draft": None}, ValueError, "draft: expected the laws"),
        ({"method": "traversal"}, ValueError, "leaves: expected None with method='traversal'"),
        ({"method": "path"}, ValueError, "method: expected"),
    ]),
}  # fmt: skip
