"""What verify_tree emits follows the target's law: exactly for the oracle, by chi-squared for every backend."""

import inspect

import pytest
import torch

from specdec_kernels import race_sample, race_topk, verify_tree
from specdec_kernels.backends.reference import naive
from specdec_kernels.conformance import Contexts
from tests.support.cases import seeds
from tests.support.enumeration import acceptance_by_child, drafts, emitted_law, page_law, tree_law
from tests.support.laws import P, Q, assert_law, assert_rate, random_laws
from tests.support.texts import joint, texts
from tests.support.traversal_enumeration import output_law as traversal_law
from tests.support.trees import depths, shapes

TRIALS = 200_000
METHODS = tree_law, traversal_law
SMALL_SHAPES = [parents for nodes in range(1, 6) for parents in shapes(nodes)]


def named(parents):
    return "".join(map(str, parents[1:])) or "root"


def one_law(p=P, q=Q, depth=1):
    """Two laws after whatever was said."""
    return Contexts.of(p, q, depth)


def assert_lossless(contexts, law, length):
    assert contexts.distance(emitted_law(law), length) < 1e-11


def is_lossless(contexts, law, length):
    return contexts.distance(emitted_law(law), length) < 1e-3


@pytest.mark.one_backend
class TestExactly:
    """Every draft, every uniform and every draw of the oracle, enumerated."""

    @pytest.mark.parametrize("with_replacement", [False, True], ids=["without", "with"])
    @pytest.mark.parametrize("parents", SMALL_SHAPES, ids=named)
    def test_lossless(self, parents, with_replacement):
        depth = max(depths(parents))
        contexts = Contexts(3, depth, seed=len(parents))
        for law_of in METHODS:
            law = law_of(contexts, parents, drawn_with_replacement=with_replacement)
            assert sum(law.values()) == pytest.approx(1, abs=1e-12)
            assert_lossless(contexts, law, depth + 1)

    @pytest.mark.parametrize("with_replacement", [False, True], ids=["without", "with"])
    @pytest.mark.parametrize("parents", shapes(4), ids=named)
    def test_children_that_are_certain(self, parents, with_replacement):
        """Without draft laws: however the children were chosen, repeated or not."""
        depth = max(depths(parents))
        contexts = Contexts(3, depth, seed=7)
        law = tree_law(contexts, parents, drawn_with_replacement=with_replacement, certain=True)
        assert_lossless(contexts, law, depth + 1)

    def test_certain_children_are_accepted_with_their_share_of_what_is_left(self):
        law = tree_law(one_law(), (-1, 0, 0), certain=True)
        p, q = P.double(), Q.double()
        first = (q * p).sum()
        assert acceptance_by_child(law)[0] == pytest.approx(float(first))

    @pytest.mark.parametrize("parents", [(-1, 0, 0), (-1, 0, 0, 0), (-1, 0, 0, 1, 1)], ids=named)
    def test_independent_siblings_may_be_verified_as_distinct_ones(self, parents):
        """A repeated token is skipped, and what then is tried was drawn without replacement."""
        contexts = Contexts(3, max(depths(parents)), seed=8)
        for law_of in METHODS:
            law = law_of(contexts, parents, drawn_with_replacement=True, replacement=False)
            assert_lossless(contexts, law, max(depths(parents)) + 1)

    def test_a_draft_that_cannot_say_everything(self):
        """Its support is used up by two children; what it never says is left."""
        contexts = one_law(torch.tensor([0.5, 0.2, 0.2, 0.1]), torch.tensor([0.6, 0.4, 0.0, 0.0]))
        assert_lossless(contexts, tree_law(contexts, (-1, 0, 0, 0)), 2)

    @pytest.mark.parametrize(
        "count, with_replacement, acceptance",
        [
            (1, False, 3 / 5), (2, False, 107 / 140), (3, False, 14117 / 16800),
            (1, True, 3 / 5), (2, True, 18 / 25), (3, True, 96 / 125),
        ],
    )  # fmt: skip
    def test_acceptance(self, count, with_replacement, acceptance):
        parents = (-1,) + (0,) * count
        contexts = one_law()
        law = tree_law(contexts, parents, drawn_with_replacement=with_replacement)
        assert sum(acceptance_by_child(law)) == pytest.approx(acceptance, abs=1e-7)
        assert_lossless(contexts, law, 2)

    def test_acceptance_by_child(self):
        """What every child adds is what the next larger tree accepts more: 3/5, then 107/140, then 14117/16800."""
        by_child = acceptance_by_child(tree_law(one_law(), (-1, 0, 0, 0)))
        assert by_child == pytest.approx([3 / 5, 107 / 140 - 3 / 5, 14117 / 16800 - 107 / 140], abs=1e-7)


@pytest.mark.one_backend
class TestBiasIsCaughtExactly:
    """Rules known to be wrong fail the check above."""

    STAR = (-1, 0, 0)

    def test_sibling_mass_not_removed(self):
        """Distinct siblings, verified as if each were drawn from the whole of q."""
        contexts = one_law()
        assert not is_lossless(contexts, tree_law(contexts, self.STAR, replacement=True), 2)

    def test_duplicate_siblings_dropped(self):
        """Independent siblings, verified as such, but a repeated one thrown away first."""
        contexts = one_law()
        law = tree_law(contexts, self.STAR, drawn_with_replacement=True, repeats=False)
        assert not is_lossless(contexts, law, 2)

    def test_one_uniform_for_all_siblings(self):
        contexts = one_law()
        assert not is_lossless(contexts, tree_law(contexts, self.STAR, shared_uniforms=True), 2)

    def test_duplicate_siblings_subtracted_twice(self):
        """The elder's token again cannot come from what is left of q. To subtract it again would bias the output."""
        contexts = one_law()
        text, names = inspect.getsource(naive.rejection), dict(vars(naive))
        exec(text.replace("(x in tried and not (q is not None and replacement))", "False"), names)

        def twice(p, q, tokens, u, draw):
            return names["rejection"](p, q, tokens, self.STAR, u, draw)

        drafted = drafts(contexts, self.STAR, True)
        assert not is_lossless(contexts, page_law(contexts, self.STAR, drafted, twice), 2)
        repeated = tree_law(contexts, (-1, 0, 0), drawn_with_replacement=True, replacement=False)
        assert_lossless(contexts, repeated, 2)


def star(width, seed, q=Q, replacement=False):
    """One level of ``width`` children drawn from q, per seed: tokens [B, width + 1], parents."""
    rows, noise = q.expand(len(seed), -1), {"seed": seed, "position": 0, "space": "probs"}
    if replacement:
        drawn = torch.stack([race_sample(rows, nonce=m + 1, **noise) for m in range(width)], dim=1)
    else:
        drawn = race_topk(rows, width, **noise)
    tokens, parents = torch.nn.functional.pad(drawn, (1, 0), value=-1), torch.tensor([-1] + [0] * width)
    return tokens, parents


def one_round(method, p, q, seed, width, replacement=False, **options):
    tokens, parents = star(width, seed, q, replacement)
    draft = None if method == "race" else q.expand(len(seed), width + 1, -1)
    target = p.expand(len(seed), width + 1, -1)
    verdict = verify_tree(
        tokens, target, draft, parents=parents, method=method, replacement=replacement, space="probs", seed=seed,
        position=0, **options,
    )  # fmt: skip
    return tokens, verdict


@pytest.mark.usefixtures("quick_backend")
class TestByFrequency:
    @pytest.mark.parametrize(
        "method, width, replacement, acceptance",
        [
            ("rejection", 2, False, 107 / 140), ("rejection", 3, False, 14117 / 16800),
            ("rejection", 2, True, 18 / 25), ("rejection", 3, True, 96 / 125),
            ("race", 1, False, 19 / 35), ("race", 2, False, 163 / 210),
        ],
    )  # fmt: skip
    def test_table(self, method, width, replacement, acceptance):
        _, verdict = one_round(method, P, Q, seeds(TRIALS // 4), width, replacement)
        accepted = verdict.num_accepted == 1
        assert_rate(accepted, acceptance)
        assert_law(verdict.tokens[:, 0], P)
        assert_law(verdict.tokens[accepted, 1], P)
        assert (verdict.status == 0).all()

    @pytest.mark.parametrize("method, replacement", [("rejection", False), ("rejection", True), ("race", False)])
    def test_several_rounds(self, method, replacement):
        """The joint law of four tokens of a Markov chain, cut into rounds as acceptance has it."""
        p, q = random_laws(torch.Generator().manual_seed(4), 2, 3, 3)
        options = {"method": method, "replacement": replacement, "fresh": False, "apart": False}
        assert_law(*joint(texts(p, q, TRIALS // 4, 4, parents=(-1, 0, 0, 1, 1, 2), **options), p))
