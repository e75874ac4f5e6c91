"""Block and traversal follow the target's law, round after round, and accept no less than rejection."""

import inspect

import numpy as np
import pytest
import torch

from specdec_kernels.backends.reference import naive
from specdec_kernels.calls.values import Law
from specdec_kernels.conformance import Contexts
from tests.ops.test_tree_laws import assert_lossless, is_lossless, named, one_law
from tests.support.enumeration import (
    PROBS,
    Given,
    decided,
    drafts,
    emitted_law,
    expected_accepted,
    page_law,
    tree_law,
    two_rounds,
)
from tests.support.laws import P, Q, assert_law, counts_follow, follows_law, random_laws
from tests.support.texts import texts
from tests.support.traversal_enumeration import output_law
from tests.support.trees import depths, shapes

WITH_AND_WITHOUT = pytest.mark.parametrize("with_replacement", [False, True], ids=["without", "with"])


def chain(slots):
    return tuple(range(-1, slots))


def alike(law, other, within=1e-9):
    keys = {*law, *other}
    return {x: law.get(x, 0.0) for x in keys} == pytest.approx({x: other.get(x, 0.0) for x in keys}, abs=within)


@pytest.mark.one_backend
class TestBlockExactly:
    """Every draft, the two sides of every weight and every token drawn."""

    @pytest.mark.parametrize("vocabulary, slots", [(2, 4), (3, 3), (4, 2), (4, 4)])
    def test_lossless(self, vocabulary, slots):
        contexts = Contexts(vocabulary, slots, seed=slots)
        law = output_law(contexts, chain(slots), op="verify_chain")
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert_lossless(contexts, law, slots + 1)

    def test_lossless_over_two_rounds(self):
        contexts = Contexts(2, 5, seed=9)
        assert (
            contexts.distance(
                two_rounds(contexts, lambda left: emitted_law(output_law(left, chain(2), op="verify_chain"))), 6
            )
            < 1e-11
        )

    @pytest.mark.parametrize("slots, accepted", [(1, 3 / 5), (2, 103 / 100), (3, 673 / 500)])
    def test_expected_accepted(self, slots, accepted):
        law = output_law(one_law(depth=slots), chain(slots), op="verify_chain")
        assert expected_accepted(law) == pytest.approx(accepted, abs=1e-7)

    @pytest.mark.parametrize("seed", range(6))
    def test_accepts_no_less_than_rejection(self, seed):
        contexts = Contexts(3, 3, seed=seed)
        block = expected_accepted(output_law(contexts, chain(3), op="verify_chain"))
        assert block >= expected_accepted(tree_law(contexts, chain(3))) - 1e-12

    def test_certain_drafts_are_decided_as_by_rejection(self):
        contexts = Contexts(3, 2, seed=4)
        law = output_law(contexts, chain(2), op="verify_chain", certain=True)
        assert alike(law, tree_law(contexts, chain(2), certain=True))


@pytest.mark.one_backend
class TestTraversalExactly:
    @WITH_AND_WITHOUT
    @pytest.mark.parametrize("parents", shapes(4), ids=named)
    def test_accepts_no_less_than_rejection(self, parents, with_replacement):
        contexts = Contexts(3, max(depths(parents)), seed=11)
        drawn = {"drawn_with_replacement": with_replacement}
        rejection = expected_accepted(tree_law(contexts, parents, **drawn))
        assert expected_accepted(output_law(contexts, parents, **drawn)) >= rejection - 1e-12

    @WITH_AND_WITHOUT
    @pytest.mark.parametrize("parents", [(-1, 0, 0), (-1, 0, 1), (-1, 0, 1, 0)], ids=named)
    def test_lossless_over_two_rounds(self, parents, with_replacement):
        depth = max(depths(parents))
        contexts = Contexts(2 if depth > 1 else 3, 2 * depth + 1, seed=12)
        options = {"drawn_with_replacement": with_replacement}
        law = two_rounds(contexts, lambda left: emitted_law(output_law(left, parents, **options)))
        assert contexts.distance(law, 2 * depth + 2) < 1e-11

    @pytest.mark.parametrize("slots", [0, 1, 3])
    def test_is_block_on_a_chain(self, slots):
        contexts = Contexts(3, slots, seed=13)
        law = output_law(contexts, chain(slots))
        assert alike(law, output_law(contexts, chain(slots), op="verify_chain"))

    @WITH_AND_WITHOUT
    @pytest.mark.parametrize("parents", shapes(4), ids=named)
    def test_certain_children_are_decided_as_by_rejection(self, parents, with_replacement):
        contexts = Contexts(3, max(depths(parents)), seed=7)
        options = {"drawn_with_replacement": with_replacement, "certain": True}
        law = output_law(contexts, parents, **options)
        assert_lossless(contexts, law, max(depths(parents)) + 1)
        rejection = expected_accepted(tree_law(contexts, parents, **options))
        assert expected_accepted(law) == pytest.approx(rejection, abs=1e-9)

    def test_gain(self):
        """Two alternatives of two tokens each, p and q of the table everywhere."""
        contexts, parents = one_law(depth=2), (-1, 0, 0, 1, 2)
        rejection = expected_accepted(tree_law(contexts, parents))
        assert expected_accepted(output_law(contexts, parents)) == pytest.approx(1.30143, abs=1e-5)
        assert rejection == pytest.approx(1.22286, abs=1e-5)


@pytest.mark.one_backend
class TestLimits:
    """Laws at the edge: no token is drawn that p does not know, and nothing is divided by 0."""

    @pytest.mark.parametrize("parents", [chain(2), (-1, 0, 0), (-1, 0, 0, 1, 1), (-1, 0, 0, 0, 0)], ids=named)
    @WITH_AND_WITHOUT
    def test_laws_at_the_edge(self, parents, with_replacement):
        for p, q in (
            (P, P),  # nothing is ever left
            ([0.5, 0.2, 0.2, 0.1], [0.6, 0.4, 0.0, 0.0]),  # the draft cannot say everything
            ([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 0.0]),  # the draft says nothing right
            ([0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),  # the target is certain
            ([0.4, 0.3, 0.2, 0.1], [0.0, 0.0, 1.0, 0.0]),  # the draft is
        ):
            contexts = one_law(torch.as_tensor(p), torch.as_tensor(q), depth=2)
            law = output_law(contexts, parents, drawn_with_replacement=with_replacement)
            assert contexts.distance(emitted_law(law), max(depths(parents)) + 1) < 1e-11

    @pytest.mark.parametrize(
        "given",
        [
            Given(Law("logits", 0.7), Law("logits", 1.3)),
            Given(Law("logits", 0.5), PROBS),
            Given(PROBS, PROBS, torch.tensor([0, 2], dtype=torch.int32)),
        ],
        ids=["logits", "a draft of probabilities", "a draft vocabulary"],
    )
    @pytest.mark.parametrize("parents", [chain(2), (-1, 0, 0, 1)], ids=named)
    def test_rows_of_every_kind(self, given, parents):
        contexts = Contexts(3, 2, seed=14)  # no ties: they fall either way by the rounding of logits
        if given.draft_map is not None:
            contexts.q = {said: law * torch.tensor([1, 0, 1]) / (1 - law[1]) for said, law in contexts.q.items()}
        law = output_law(contexts, parents, given=given)
        assert contexts.distance(emitted_law(law), 3) < 1e-6
        assert alike(law, output_law(contexts, parents), within=3e-7)

    def test_p_like_q_accepts_all(self):
        law = output_law(one_law(P, P, depth=3), chain(3), op="verify_chain")
        assert expected_accepted(law) == pytest.approx(3)


# Changes of the text of `naive.block`, each of which makes a wrong rule.
WRONG = {
    "w not clipped": ("min(1.0, weights[-1] * p[node - 1][tokens[node]] / drafted)",
                      "weights[-1] * p[node - 1][tokens[node]] / drafted"),
    "residual without w": ("residual = node, left",
                           "residual = node, np.maximum(p[node] - (node < len(weights) - 1) * draft, 0.0)"),
    "stops at the first uniform refused": ("residual = node, left",
                                           "residual = node, left\n        else:\n            break"),
}  # fmt: skip


def changed_block(old, new):
    text, names = inspect.getsource(naive.block), dict(vars(naive))
    assert text.count(old) == 1
    exec(text.replace(old, new), names)
    return names["block"]


def block_law(contexts, slots, rule=naive.block):
    return page_law(contexts, chain(slots), drafts(contexts, chain(slots), False), rule)


def shared_uniform_law(contexts, slots):
    """The law if the uniform that refused a node, uniform above its h, is a place in the sums of the residual, too."""
    law = {}
    drafted = drafts(contexts, chain(slots), False)
    for tokens, chance, branch in decided(contexts, chain(slots), drafted, naive.block):
        path, share = branch.path, naive.norm(branch.weights)
        if len(path) <= slots:
            h = branch.uniforms[len(path)]
            share = np.diff(np.clip(np.cumsum([0.0, *share]), h, None)) / (1 - h)
        for token, part in enumerate(share):
            key = path, (*tokens[1 : len(path)], token)
            law[key] = law.get(key, 0.0) + chance * branch.chance * part
    return law


def two_rounds_of_one_noise(contexts):
    """{emitted tokens: probability} of two rounds of two drafts that do not depend on what was said before.

    Under one nonce a place that was drafted and not decided is drafted alike by the next round.
    """
    found, q = {}, contexts.q[()]
    anything = drafts(contexts, chain(2), False)
    for tokens, chance in anything:
        again = [((-1, tokens[2], x), float(q[x])) for x in range(contexts.vocabulary)]
        for (_, emitted), part in output_law(contexts, chain(2), drafted=[(tokens, 1.0)]).items():
            later = again if len(emitted) == 1 else anything
            for (_, more), share in output_law(contexts, chain(2), drafted=later).items():
                found[emitted + more] = found.get(emitted + more, 0.0) + chance * part * share
    return found


@pytest.mark.one_backend
class TestBiasIsCaughtExactly:
    """Rules known to be wrong fail the checks above."""

    def test_the_page_is_ours(self):
        contexts = Contexts(3, 3, seed=20)
        assert alike(output_law(contexts, chain(3), op="verify_chain"), block_law(contexts, 3))

    @pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
    def test_wrong_rules(self, change):
        contexts = one_law(depth=2)
        assert is_lossless(contexts, block_law(contexts, 2), 3)
        assert not is_lossless(contexts, block_law(contexts, 2, changed_block(*change)), 3)

    def test_uniform_shared_with_the_residual(self):
        assert not is_lossless(one_law(depth=2), shared_uniform_law(one_law(depth=2), 2), 3)

    def test_the_same_nonce_in_every_round(self):
        contexts = one_law(depth=5)
        law = contexts.completed(two_rounds_of_one_noise(contexts), 6)
        assert sum(law.values()) == pytest.approx(1, abs=1e-9)
        assert contexts.distance(law, 6) > 1e-3
        first = dict.fromkeys(range(4), 0.0)
        for emitted, chance in law.items():
            first[emitted[1]] += chance
        assert first != pytest.approx(dict(enumerate(P.tolist())), abs=1e-3)


@pytest.mark.usefixtures("fast_backend")
class TestByFrequency:
    """Whole texts, round after round; a right law is called wrong once in 1e6 (``tests/support/laws.py``)."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"method": "traversal", "parents": (-1, 0, 0, 1, 2)},
            {"method": "traversal", "parents": (-1, 0, 0, 1, 2), "replacement": True},
        ],
        ids=["block", "traversal", "with replacement"],
    )
    def test_pairs_of_tokens(self, options):
        said = texts(P, Q, 40_000, 4, **options)
        for first in (0, 1, 2):
            assert_law(4 * said[:, first] + said[:, first + 1], torch.outer(P, P).flatten())

    def test_one_nonce_for_all_rounds_is_caught(self):
        said = texts(P, Q, 200_000, 3, parents=(-1, 0, 1), fresh=False, apart=False)
        assert_law(said[:, 0], P)
        assert not follows_law(said[:, 1], P)

    def test_one_nonce_for_all_branches_is_caught(self):
        """A walk that comes back from a branch must not meet its noise again."""
        tree = {"method": "traversal", "parents": (-1, 0, 0, 1, 2)}
        assert not follows_law(texts(P, Q, 100_000, 1, **tree, apart=False)[:, 0], P)

    @pytest.mark.slow
    @pytest.mark.parametrize("method, parents", [("block", (-1, 0, 1, 2)), ("traversal", (-1, 0, 0, 1, 2))])
    def test_ten_million_tokens_of_three_hundred(self, method, parents):
        p, q = random_laws(torch.Generator().manual_seed(30), 2, 300)
        counts, batch, length = np.zeros(300, dtype=np.int64), 125_000, 8
        for part in range(10):
            said = texts(p, q, batch, length, method=method, parents=parents, first_seed=part * batch)
            counts += np.bincount(said.flatten(), minlength=300)
        assert counts.sum() == 10_000_000
        assert counts_follow(counts, p)
