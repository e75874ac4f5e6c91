"""verify_linked_tree: link order, given uniforms and given tokens decide as the docstring says, whatever the links
are."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import DraftTree, OutputFormat, verify_chain, verify_linked_tree, verify_tree
from specdec_kernels.ops import TreeVerdict
from tests.ops.test_tree_parents import BAD, FIRST, SIBLING, links_of
from tests.support.cases import DTYPES, UNTOUCHED, assert_as_the_oracle, assert_same, by_the_oracle, poisoned, seeds
from tests.support.laws import assert_law, follows_law, random_laws
from tests.support.trees import random_parents

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """A node's one uniform falls on the probabilities of its children, side by side in the order of the links.

    The root's children are node 2, token 0, and then node 1, token 1. u < 0.4 accepts node 2, u < 0.4 + 0.3 = 0.7
    accepts node 1, and a larger u neither. Without tokens 0 and 1 the distribution (0.4, 0.3, 0.3, 0) has token 2
    alone. After node 1 comes token 3, after node 2 token 0: their rows have no other.
    """
    target = torch.stack([torch.tensor([0.4, 0.3, 0.3, 0.0]), torch.eye(4)[3], torch.eye(4)[0]])
    verdict = verify_linked_tree(
        torch.tensor([-1, 1, 0]).repeat(3, 1),
        target.repeat(3, 1, 1),
        first_child=torch.tensor([2, -1, -1]).repeat(3, 1),
        next_sibling=torch.tensor([-1, -1, 1]).repeat(3, 1),
        uniforms=torch.tensor([[0.39, 0.5, 0.5], [0.69, 0.5, 0.5], [0.71, 0.5, 0.5]]),
        seed=torch.arange(3),
    )
    assert verdict.path.tolist() == [[0, 2, -1], [0, 1, -1], [0, -1, -1]]
    assert verdict.tokens.tolist() == [[0, 0, -1], [1, 3, -1], [2, -1, -1]]
    assert verdict.num_accepted.tolist() == [1, 1, 0]


N = len(FIRST)


def call_of(seed, requests=3, nodes=N, vocabulary=33, links=None, dtype=torch.float32, **changed):
    """Trees of likely tokens, some that repeat an elder's, some absent, some out of range."""
    generator = torch.Generator().manual_seed(seed)
    target = (2 * torch.randn(requests, nodes, vocabulary, generator=generator)).softmax(-1).to(dtype)
    drafts = torch.multinomial(target.float().flatten(0, 1), 1, generator=generator).view(requests, nodes)
    odd = torch.rand(requests, nodes, generator=generator)
    drafts = torch.where(odd < 0.08, -1, torch.where(odd > 0.96, vocabulary + 3, drafts))
    drafts = torch.where((odd > 0.94) & (odd < 0.96), -5, drafts)
    if links is None:
        trees = random_parents(requests, nodes, generator).tolist()
        links = torch.tensor([links_of(tree, generator)[:2] for tree in trees]).transpose(0, 1)
    first, sibling = (x.repeat(requests, 1) if x.ndim == 1 else x for x in links)
    return {
        "draft_tokens": drafts, "target": target, "first_child": first, "next_sibling": sibling,
        "uniforms": torch.rand(requests, nodes, generator=generator), "seed": seeds(requests, first=seed),
        "position": torch.randint(0, 2**31, (requests,), generator=generator),
    } | changed  # fmt: skip


def by_tokens(call):
    """These trees by tokens that were drawn before."""
    wanted = call["draft_tokens"].roll(1, dims=1) % call["target"].shape[-1]
    links = {name: call[name] for name in ("draft_tokens", "first_child", "next_sibling")}
    children = call["first_child"].clamp(0, wanted.shape[1] - 1)
    follow = torch.rand(wanted.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    return links | {"target_tokens": torch.where(follow, call["draft_tokens"].gather(1, children), wanted)}


VALID = torch.tensor([True, False, True])
ONE_TREE = call_of(1, links=(FIRST, SIBLING))
CALLS = {
    "verify_linked_tree by uniforms": (
        verify_linked_tree,
        ONE_TREE | {
            "tree_valid": VALID, "nonce": seeds(3), "threshold_single": torch.tensor([1.0, 0.2, 0.0]),
            "threshold_total": torch.tensor([1.0, 0.5, 0.0]),
        },
    ),
    "verify_linked_tree by tokens": (verify_linked_tree, by_tokens(ONE_TREE) | {"tree_valid": VALID}),
    "verify_linked_tree by noise": (verify_linked_tree, ONE_TREE | {"uniforms": None, "tree_valid": VALID}),
}  # fmt: skip


def untouched(requests, width):
    return TreeVerdict(
        torch.full((requests, width), UNTOUCHED), torch.full((requests, width), UNTOUCHED, dtype=torch.int32),
        *torch.full((2, requests), UNTOUCHED, dtype=torch.int32),
    )  # fmt: skip


def listed(call, b, node):
    """The children of a node, in link order."""
    child = call["first_child"][b, node].item()
    while child > 0:
        yield child
        child = call["next_sibling"][b, child].item()


@pytest.mark.usefixtures("backend")
class TestWalks:
    def test_one_tree(self):
        """The root's children are 4, then 1; thresholds let more through."""
        rows = torch.tensor([0.375, 0.375, 0.25]).expand(1, N, 3)
        tree = {"first_child": FIRST[None], "next_sibling": SIBLING[None], "seed": 3, "position": 0}
        tokens = torch.tensor([[9, 1, 0, 1, 2, 2, 0]])

        def path(uniform, **thresholds):
            uniforms = torch.full((1, N), uniform)
            return verify_linked_tree(tokens, rows, uniforms=uniforms, **tree, **thresholds).path[0].tolist()

        nothing = [0, -1, -1, -1, -1, -1, -1]
        assert path(0.0) == [0, 4, 2, 3, -1, -1, -1]
        assert path(0.25) == path(0.62) == [0, 1, -1, -1, -1, -1, -1]  # below p(2) + p(1); node 1 is a leaf
        assert path(0.625) == path(0.9) == nothing
        assert path(0.9, threshold_total=0.5) == [0, 1, -1, -1, -1, -1, -1]
        assert path(1.0, threshold_single=0.375) == [0, 1, -1, -1, -1, -1, -1]
        assert path(1.0, threshold_single=0.376) == nothing
        assert path(1.0, threshold_single=0.25) == [0, 4, 2, 3, -1, -1, -1]

    def test_by_given_tokens(self):
        wanted = torch.tensor([[4, 0, 5, 8, 2, 7, 1], [1, 6, 0, 0, 0, 0, 1], [7, 0, 0, 0, 0, 0, 1]])
        found = verify_linked_tree(
            torch.arange(N).repeat(3, 1), target_tokens=wanted.int(), first_child=FIRST.repeat(3, 1).int(),
            next_sibling=SIBLING.repeat(3, 1),
        )  # fmt: skip
        assert found.num_accepted.tolist() == [3, 1, 0]
        assert found.path[:, :5].tolist() == [[0, 4, 2, 5, -1], [0, 1, -1, -1, -1], [0, -1, -1, -1, -1]]
        assert found.tokens[:, :5].tolist() == [[4, 2, 5, 7, -1], [1, 6, -1, -1, -1], [7, -1, -1, -1, -1]]
        assert found.status.tolist() == [0, 0, 0]

    def test_the_last_token_is_that_of_verify_tree(self):
        """Where both end at the same node, with the same tokens tried: its noise is that of the node's depth."""
        generator = torch.Generator().manual_seed(4)
        parents = torch.tensor([-1, 0, 0, 1, 1, 3])
        first, sibling = torch.tensor([1, 3, -1, 5, -1, -1]), torch.tensor([-1, 2, -1, 4, -1, -1])
        rows = random_laws(generator, 48, 6, 7)
        tokens = torch.stack([torch.randperm(7, generator=generator)[:6] for _ in range(48)])
        noise = {"seed": seeds(48), "position": 5, "nonce": 2}
        wanted = verify_tree(tokens, rows, parents=parents, space="probs", max_depth=5, **noise)
        found = verify_linked_tree(
            tokens, rows, first_child=first.repeat(48, 1), next_sibling=sibling.repeat(48, 1),
            uniforms=torch.rand(48, 6, generator=generator), **noise,
        )  # fmt: skip
        same = (found.path == wanted.path).all(1)
        assert (found.num_accepted[same] == 0).any()
        assert (found.num_accepted[same] > 0).any()
        assert torch.equal(found.tokens[same], wanted.tokens[same])

    def test_outputs_that_are_given(self):
        """Only they are written; the path's width is the depth that is allowed."""
        call = call_of(
            5, requests=6, nodes=9, links=(torch.tensor([1, 2, 3, 4, -1, -1, -1, -1, -1]), torch.full((9,), -1))
        )
        call["uniforms"][:3] = 0.0
        call["draft_tokens"] = call["target"].argmax(-1).roll(1, dims=1)
        whole = verify_linked_tree(**call)
        assert (whole.num_accepted[:3] == 4).all()
        for width in (1, 3, 9):
            out = untouched(6, width)
            verify_linked_tree(**call, out=out)
            cut = (whole.num_accepted >= width - 1) & (width < 5)  # node 4 is a leaf
            assert torch.equal(out.num_accepted, whole.num_accepted.clamp(max=width - 1))
            assert torch.equal(out.path, whole.path[:, :width])
            assert torch.equal(out.tokens[:, : width - 1], whole.tokens[:, : width - 1])
            assert out.status.tolist() == [8 * each for each in cut.tolist()]

    def test_poison_around_and_off_the_path(self):
        """Strides of any kind; what the walk does not come by is not looked at."""
        call = call_of(6, requests=8, nodes=7, vocabulary=130, links=(FIRST, SIBLING))
        expected = verify_linked_tree(**call)
        off = torch.ones(8, 7, dtype=torch.bool).scatter(1, expected.path.clamp(min=0).long(), False)
        spoiled = poisoned(call["target"])
        spoiled[off] = torch.nan
        apart = {
            name: torch.full((7, 8, 3), 7, dtype=call[name].dtype).transpose(0, 1)[..., 1].copy_(call[name])
            for name in ("draft_tokens", "first_child", "next_sibling", "uniforms")
        }
        assert_same(verify_linked_tree(**call | apart | {"target": spoiled}), expected)


@pytest.mark.usefixtures("backend")
class TestStatus:
    def test_bad_links_end(self):
        """Of every kind, beside good neighbours, which do not notice. Paths stay among the request's nodes."""
        first, sibling = (torch.tensor(x) for x in list(zip(*BAD.values(), strict=True))[:2])
        count = len(first)
        links = [torch.stack((x, torch.tensor(good).expand_as(x)), 1).flatten(0, 1)
                 for x, good in ((first, [1, 2, -1, -1]), (sibling, [-1, 3, -1, -1]))]  # fmt: skip
        tokens = torch.tensor([9, 1, 2, 3]).repeat(2 * count, 1)
        call = {"draft_tokens": tokens, "first_child": links[0], "next_sibling": links[1]}
        rows = torch.tensor([0.0, 0.1, 0.1, 0.1, 0.7]).expand(2 * count, 4, 5)
        for uniform in (0.05, 0.15, 0.95):
            uniforms = torch.full((2 * count, 4), uniform)
            found = verify_linked_tree(**call, target=rows, uniforms=uniforms, seed=seeds(2 * count), position=0)
            assert (found.path[1::2] == found.path[1]).all()
            assert (found.status[1::2] == 0).all()
            assert ((found.path >= -1) & (found.path < 4)).all()
        status = dict(zip(BAD, found.status[::2].tolist(), strict=True))
        assert status["a cycle of siblings"] == status["its own sibling"] == 8
        assert status["a cycle beside the tree"] == status["links of a node in no tree"] == 0
        for wanted in (torch.arange(4), torch.full((4,), 3)):
            verify_linked_tree(**call, target_tokens=wanted.expand(2 * count, 4))

    def test_a_circle_of_parents_ends_at_the_width(self):
        first, none = torch.tensor([[1, 2, 1]]), torch.full((1, 3), -1)
        found = verify_linked_tree(
            torch.tensor([[9, 4, 4]]), target_tokens=torch.full((1, 3), 4), first_child=first, next_sibling=none
        )
        assert found.path.tolist() == [[0, 1, 2]]
        assert found.status.tolist() == [8]

    def test_invalid_trees_are_their_root(self):
        """Their links are not looked at."""
        call = call_of(7, links=(FIRST, SIBLING), tree_valid=torch.tensor([False, True, False]))
        call["uniforms"][:] = 0.0
        call["draft_tokens"] = torch.arange(N).repeat(3, 1)
        call["first_child"] = call["first_child"].clone()
        call["first_child"][2] = 10**9
        found = verify_linked_tree(**call)
        assert found.num_accepted.tolist() == [0, 3, 0]
        assert found.status.tolist() == [0, 0, 0]

    def test_of_rows_and_tokens(self):
        links = {"first_child": torch.tensor([[1, -1, -1]]).repeat(6, 1), "next_sibling": torch.tensor([[-1, 2, -1]])}
        links["next_sibling"] = links["next_sibling"].repeat(6, 1)
        tokens = torch.tensor([[9, 0, 1]]).repeat(6, 1)
        tokens[1, 1], tokens[2, 1] = 3, -2
        rows = torch.tensor([0.25, 0.25, 0.5]).repeat(6, 3, 1)
        rows[3, 0, 2] = torch.nan  # looked at by the last token alone; nothing else is left
        rows[4, 0] = torch.tensor([0.5, 0.4, 0.0])  # and nothing is left
        rows[5, 0] = 0.0
        uniforms = torch.full((6, 3), 0.95)
        found = verify_linked_tree(tokens, rows, uniforms=uniforms, **links, seed=seeds(6), position=1)
        assert found.num_accepted.tolist() == [0] * 6
        assert found.status.tolist() == [0, 4, 4, 3, 2, 1]
        assert found.tokens[0, 0] == 2
        assert found.tokens[4, 0] in (0, 1)
        assert found.tokens[5, 0] == 0
        absent = tokens.clone()
        absent[:, 1] = -1
        assert verify_linked_tree(absent, rows[:1].expand(6, -1, -1), uniforms=uniforms, **links, seed=1,
                            position=seeds(6)).status.tolist() == [0] * 6  # fmt: skip


@pytest.mark.usefixtures("other_backend")
class TestEqualsTheOracle:
    @pytest.mark.parametrize("vocabulary", [1, 5, 65, 300, 2049])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows(self, vocabulary, dtype):
        call = call_of(8, requests=16, nodes=9, vocabulary=vocabulary, dtype=dtype)
        assert_as_the_oracle(verify_linked_tree, call)

    @pytest.mark.parametrize("nodes", [1, 2, 33, 130])
    def test_trees(self, nodes):
        """With numbers of each request; links of trees, and any links."""
        single, total = torch.rand(2, 16, generator=torch.Generator().manual_seed(nodes))
        links = torch.randint(-2, nodes + 2, (2, 16, nodes), generator=torch.Generator().manual_seed(nodes))
        more = {"threshold_single": single, "threshold_total": total, "tree_valid": torch.arange(16) % 5 > 0}
        for each in (None, links):
            call = call_of(9, requests=16, nodes=nodes, vocabulary=12, links=each, nonce=seeds(16, first=5)) | more
            assert_as_the_oracle(verify_linked_tree, call)
            assert_as_the_oracle(verify_linked_tree, by_tokens(call))

    def test_rows_that_are_no_laws(self):
        generator = torch.Generator().manual_seed(11)
        call = call_of(11, requests=64, nodes=9, vocabulary=20)
        strange = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, 0.0, 1e-42])
        where = torch.rand(call["target"].shape, generator=generator) < 0.02
        kinds = strange[torch.randint(0, 6, where.shape, generator=generator)]
        call["target"] = torch.where(where, kinds, call["target"])
        call["target"][torch.rand(64, 9, generator=generator) < 0.1] = 0.0
        found, expected = verify_linked_tree(**call), by_the_oracle(verify_linked_tree, **call)
        assert set(expected.status.tolist()) >= {0, 1, 4, 5}
        assert_same(found, expected)


def uniforms_of(call, nonce):
    """The accept uniforms of the nodes, each at its depth."""
    requests, nodes = call["draft_tokens"].shape
    depths = torch.zeros(requests, nodes, dtype=torch.int64)
    for b in range(requests):
        below = [0]
        for node in below:  # which grows
            children = [*listed(call, b, node)]
            depths[b, children] = depths[b, node] + 1
            below += children
    position = call["position"][:, None] + depths
    index, stream = torch.arange(nodes), 4
    return specdec_kernels.uniform(call["seed"][:, None], position, nonce[:, None], index=index, stream=stream)


@pytest.mark.usefixtures("backend")
class TestUniformsOfTheNoise:
    @pytest.mark.parametrize("thresholds", [{}, {"threshold_total": 0.6, "threshold_single": 0.5}])
    def test_each_at_the_depth_of_its_node(self, thresholds):
        call, nonce = call_of(13, requests=48, nodes=11, vocabulary=3), torch.arange(48)
        given = verify_linked_tree(**call | {"uniforms": uniforms_of(call, nonce)}, nonce=nonce, **thresholds)
        assert_same(verify_linked_tree(**call | {"uniforms": None}, nonce=nonce, **thresholds), given)
        assert given.num_accepted.max() >= 3

    def test_chains_are_those_of_verify_chain(self):
        """Without draft laws: the same uniforms, and the same noise of the last token."""
        links = DraftTree.chain(5).to_sglang(48)[1:]
        call = call_of(14, requests=48, nodes=6, vocabulary=3, links=links) | {"uniforms": None}
        chain = {name: call[name] for name in ("target", "seed", "position")}
        expected = verify_chain(call["draft_tokens"][:, 1:], **chain, space="probs")
        found = verify_linked_tree(**call)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.num_accepted, expected.num_accepted)
        assert set(expected.num_accepted.tolist()) >= {0, 1, 2}


@pytest.mark.parametrize("given", [True, False])
def test_law(given, quick_backend):
    """The first token has the target's law with thresholds of 1, and another below. False alarms: 1e-6 each."""
    many, law = 1_500 if quick_backend == "reference" else 20_000, torch.tensor([0.4, 0.3, 0.1, 0.0, 0.2])
    call = {
        "draft_tokens": torch.tensor([9, 1, 2, 0, 0, 4, 0]).expand(many, N), "target": law.expand(many, N, 5),
        "first_child": FIRST.expand(many, N), "next_sibling": SIBLING.expand(many, N), "position": 0,
        "uniforms": torch.rand(many, N, generator=torch.Generator().manual_seed(0)) if given else None,
        "seed": seeds(many),
    }  # fmt: skip
    found = verify_linked_tree(**call)
    assert_law(found.tokens[:, 0], law)
    assert_law(found.tokens[found.num_accepted > 0, 1], law)
    assert not follows_law(verify_linked_tree(**call, threshold_total=0.5).tokens[:, 0], law)


NO_TREE = {name: x[:0] if torch.is_tensor(x) and x.ndim else x for name, x in ONE_TREE.items()}
REFUSED = {
    "verify_linked_tree": (verify_linked_tree, ONE_TREE, [
        ({"first_child": FIRST[None]}, ValueError, r"first_child: expected shape \[3, 7\]; got int64 \[1, 7\]"),
        ({"tree_valid": torch.ones(3, 2, dtype=torch.bool)[:, 0]}, ValueError,
         r"tree_valid: expected a contiguous tensor; got strides \(2,\)"),
        ({"target": ONE_TREE["target"][:, 1:]}, ValueError, r"target: expected shape \[3, 7, V\]; got float32 \[3, 6"),
        ({"target_tokens": FIRST.repeat(3, 1)}, ValueError, "target: expected None beside target_tokens; got float32"),
        ({"target_tokens": FIRST.repeat(3, 1), "target": None}, ValueError,
         "uniforms: expected None beside target_tokens; got float32"),
        ({"target_tokens": FIRST[None], "target": None, "uniforms": None}, ValueError,
         r"target_tokens: expected shape \[3, 7\]; got int64 \[1, 7\]"),
        ({"threshold_total": 1.5}, ValueError, r"threshold_total: expected a number \[0, 1\]; got 1.5"),
        ({"seed": 1, "position": 1}, ValueError, "seed: expected one seed per request"),
        ({"output_format": OutputFormat(path=torch.zeros(3, 7).int())}, ValueError,
        r"output_format.path: expected None for trees; got"),
        ({"out": (FIRST, None)}, TypeError, r"out: expected \(tokens, path, num_accepted, status\); got"),
    ]),
    "links of no tree": (verify_linked_tree, NO_TREE, [
        ({"target": None}, TypeError, "target: expected"),
    ]),
}  # fmt: skip
