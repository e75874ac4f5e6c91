"""verify_tree: every decision is the oracle's, and every option means what it says."""

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

import specdec_kernels
from specdec_kernels import OutputFormat, Status
from tests.support.calls import PARENTS, tree
from tests.support.cases import UNTOUCHED, assert_as_the_oracle, assert_same, by_the_oracle, seeds, spoilt
from tests.support.laws import P, Q
from tests.support.ops import verify_tree
from tests.support.races import log_arrivals, log_weights
from tests.support.trees import depths, random_parents, tree_call


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """The root's children are tried in order. A rejection makes p norm((p - q)+), and takes the child's token from q.

    Node 1, token 2, is accepted iff u < p / q = 0.2 / 0.4 = 0.5. Otherwise (p - q)+ = (0.3, 0.1, 0, 0), so p becomes
    (0.75, 0.25, 0, 0); q without token 2 is (0.1, 0.3, 0, 0.2) / 0.6 = (1/6, 1/2, 0, 1/3). Node 2, token 1, is accepted
    iff u < 0.25 / 0.5 = 0.5. Otherwise (p - q)+ = (0.58, 0, 0, 0), which leaves token 0. After node 1 comes token 3,
    after node 2 token 2: their rows have no other.
    """
    p, q = torch.tensor([0.4, 0.4, 0.2, 0.0]), torch.tensor([0.1, 0.3, 0.4, 0.2])
    seed, child = torch.tensor([1, 9, 10]), torch.arange(2)
    uniforms = specdec_kernels.uniform(seed[:, None], 0, stream=4, index=child)
    assert (uniforms * 100).round().tolist() == [[31, 20], [94, 47], [59, 57]]
    target = torch.stack([p, torch.eye(4)[3], torch.eye(4)[2]]).repeat(3, 1, 1)
    tokens, parents = torch.tensor([-1, 2, 1]).repeat(3, 1), torch.tensor([-1, 0, 0])
    verdict = verify_tree(tokens, target, q.expand(3, 3, 4), parents=parents, space="probs", seed=seed, position=0)
    assert verdict.path.tolist() == [[0, 1], [0, 2], [0, -1]]
    assert verdict.tokens.tolist() == [[2, 3], [1, 2], [0, -1]]
    assert verdict.num_accepted.tolist() == [1, 1, 0]


IN_ONE_ROW = (  # zeros at the places of nodes off the path
    tuple(torch.zeros(*shape, dtype=torch.int32) for shape in ((12,), (3, 3), (3,), (3,))),
    OutputFormat(index=torch.arange(12).view(3, 4), zeros=True),
)
CALLS = {
    "verify_tree rejection": (verify_tree, tree()),
    "verify_tree replacement": (verify_tree, tree(replacement=True) | {"parents": PARENTS.repeat(3, 1)}),
    "verify_tree race": (verify_tree, tree(method="race", draft=None)),
    "verify_tree seeds of rows": (
        verify_tree,
        tree(method="race", draft=None, seed=torch.arange(12).view(3, 4), position=0),
    ),
    "verify_tree traversal": (verify_tree, tree(method="traversal", nonce=4)),
    "verify_tree rows": (
        verify_tree,
        {name: value for name, value in tree().items() if name != "position"}
        | {"position.positions": torch.arange(12).view(3, 4), "request_index": torch.tensor([2, 0, 1])},
    ),
    "verify_tree in one row": (verify_tree, tree(out=IN_ONE_ROW[0], output_format=IN_ONE_ROW[1])),
}

OPTIONS = {
    "distinct": {},
    "independent": {"replacement": True},
    "race": {"method": "race", "draft": None},
    "certain": {"draft": None},
    "traversal": {"method": "traversal"},
    "traversal, independent": {"method": "traversal", "replacement": True},
    "traversal, certain": {"method": "traversal", "draft": None},
}
DOWNWARDS = {name: options for name, options in OPTIONS.items() if options.get("method") != "traversal"}


def made(seed, options=None, **changes):
    """A call whose siblings were drawn as the options say."""
    options = options or {}
    return tree_call(seed, replacement=options.get("replacement", False), **changes) | options


def untouched(requests, width):
    return (
        torch.full((requests, width), UNTOUCHED),
        torch.full((requests, width), UNTOUCHED, dtype=torch.int32),
        torch.full((requests,), UNTOUCHED, dtype=torch.int32),
        torch.full((requests,), UNTOUCHED, dtype=torch.int32),
    )


@pytest.mark.usefixtures("other_backend")
class TestEqualsTheOracle:
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_many_children(self, options):
        """More siblings than fit any list of fixed size; some repeat a token, and the vocabulary runs out."""
        call = made(3, options, requests=8, nodes=130, vocabulary=90, parents=[-1] + 100 * [0] + 29 * [3])
        call["temperature"] = torch.full((8,), 1.3)
        assert_as_the_oracle(verify_tree, call)

    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_rows_that_are_no_laws(self, space):
        """NaN, infinities, negative probabilities and rows without weight, anywhere."""
        call = spoilt(made(7, requests=64, space=space))
        for options in OPTIONS.values():
            certain, traversal = options.get("draft", 0) is None, options.get("method") == "traversal"
            if traversal and space == "probs":  # a weight above 1 counts as 1 in its sums
                call["target"] = call["target"].nan_to_num(nan=torch.nan, posinf=0.5)
            found, expected = verify_tree(**call | options), by_the_oracle(verify_tree, **call | options)
            if (certain and (traversal or space == "probs")) and options.get("method") != "race":
                # A row of infinite mass, or of none, has no share not yet tried: what it gives is a status and a token.
                lawful = (expected.status == 0) & (found.status == 0)
                assert 0 < lawful.sum() < len(lawful)
                last = found.tokens.gather(-1, found.num_accepted[:, None].long())
                assert ((last >= 0) & (last < call["target"].shape[-1])).all()
                found, expected = ([part[lawful] for part in verdict] for verdict in (found, expected))
            assert_same(found, expected)


@pytest.mark.usefixtures("backend")
class TestUniforms:
    """The accept test, uniform by uniform: a step at p(x) / q(x), not a frequency."""

    def test_each_node_has_its_own_uniform(self):
        """Node i uses uniform i - 1, at the position of its parent's row."""
        count = 1 << 11
        parents = [-1, 0, 0, 1, 1, 2]
        p, q = torch.tensor([0.25, 0.25, 0.5]), torch.tensor([0.5, 0.5, 0.0])
        tokens = torch.tensor([-1, 0, 1, 0, 1, 0]).expand(count, -1)
        verdict = verify_tree(
            tokens, p.expand(count, 6, -1), q.expand(count, 6, -1), parents=torch.tensor(parents), space="probs",
            seed=seeds(count), position=11, nonce=2,
        )  # fmt: skip
        # The first child is accepted below 1/2. Then (p - q)+ leaves only token 2, and no sibling is accepted.
        uniform = np.array(
            [[maths.uniform(s, i - 1, 11 + depths(parents)[parents[i]], 2, 4) for i in (1, 3)] for s in range(count)]
        )
        first, second = uniform[:, 0] < 0.5, uniform[:, 1] < 0.5
        np.testing.assert_array_equal(verdict.num_accepted, first + (first & second).astype(int))
        np.testing.assert_array_equal(verdict.path[:, 1], np.where(first, 1, -1))
        np.testing.assert_array_equal(verdict.path[:, 2], np.where(first & second, 3, -1))

    def test_steps_of_the_second_sibling(self, backend):
        """u q^2(x) < p^2(x) with p^2 = (.75, .25, 0, 0) and q^2 = (1/7, 2/7, 0, 4/7) after token 2 was rejected."""
        count = 1 << 12
        uniforms = np.array([[maths.uniform(s, i, 7, 0, 4) for i in (0, 1)] for s in range(count)])
        for x, ratio in ((0, 1.0), (1, 0.875), (3, 0.0)):
            verdict = verify_tree(
                torch.tensor([-1, 2, x]).expand(count, -1), P.expand(count, 3, -1), Q.expand(count, 3, -1),
                parents=torch.tensor([-1, 0, 0]), space="probs", seed=seeds(count), position=7,
            )  # fmt: skip
            first = uniforms[:, 0] < 2 / 3
            expected = np.where(first, 1, np.where(uniforms[:, 1] < ratio, 2, -1))
            np.testing.assert_array_equal(np.where(verdict.num_accepted == 1, verdict.path[:, 1], -1), expected)


def test_what_is_drawn_last_races_on_its_own_stream(other_backend):
    """Bit for bit, which float64 could not answer."""
    count, vocabulary = 200, 300
    p, q = torch.rand(2, count, vocabulary, generator=torch.Generator().manual_seed(8))
    q[:, 5], p[:, 5] = 1.0, 0.0
    for options in ({}, {"replacement": True}):
        verdict = verify_tree(
            torch.tensor([-1, 5]).expand(count, -1), p[:, None].expand(-1, 2, -1), q[:, None].expand(-1, 2, -1),
            parents=torch.tensor([-1, 0]), space="probs", seed=seeds(count), position=3, nonce=1, **options,
        )  # fmt: skip
        for b, token in enumerate(verdict.tokens[:, 0].tolist()):
            score = log_weights((p[b] - q[b]).numpy()) - log_arrivals(vocabulary, b, position=3, nonce=1, stream=2)
            assert token == score.argmax()


@pytest.mark.usefixtures("backend")
class TestMeaning:
    @pytest.mark.parametrize(
        "tokens, path, emitted",
        [
            ([-1, 2, 1, 2], [0, 2, 3], [1, 2, 0]),
            ([-1, 2, 1, 0], [0, 2, -1], [1, 2, -1]),
            ([-1, 2, 3, 2], [0, -1, -1], [1, -1, -1]),
            ([-1, 1, 1, 2], [0, 1, -1], [1, 3, -1]),
        ],
    )
    def test_temperature_zero_is_greedy(self, tokens, path, emitted):
        """The first child that has the argmax, the lowest of equal ones; what the draft's law says does not matter."""
        target = torch.tensor([[[1.0, 4, 4, 0], [0, 0, 0, 1], [0, 0, 9, 0], [5, 1, 1, 5]]])
        draft = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(14))
        for options in (
            {"draft": draft}, {}, {"method": "race"}, {"draft": draft, "replacement": True}, {"method": "traversal"},
            {"draft": draft, "method": "traversal"}, {"draft": draft, "method": "traversal", "replacement": True},
        ):  # fmt: skip
            verdict = verify_tree(
                torch.tensor([tokens]), target, parents=torch.tensor([-1, 0, 0, 2]), temperature=0.0, seed=1,
                position=0, **options,
            )  # fmt: skip
            assert verdict.path.tolist() == [path]
            assert verdict.tokens.tolist() == [emitted]
            assert verdict.status.tolist() == [0]

    def test_one_tree_for_all_or_one_each(self):
        call = made(15, parents=[-1, 0, 0, 1, 2, 2, 4, 4, 7])
        one = verify_tree(**call)
        assert_same(verify_tree(**call | {"parents": call["parents"].expand(32, -1)}), one)
        assert_same(verify_tree(**call | {"parents": call["parents"].repeat(32, 1).int()}), one)

    def test_smaller_trees_are_padded(self):
        call = made(16, nodes=6, parents=[-1, 0, 0, 1, 2, 2])
        small = verify_tree(**call)
        wide = {
            name: torch.nn.functional.pad(call[name], (0, 0, 0, 5), value=torch.nan) for name in ("target", "draft")
        }
        wide["draft_tokens"] = torch.nn.functional.pad(call["draft_tokens"], (0, 5), value=-1)
        wide["parents"] = torch.nn.functional.pad(call["parents"], (0, 5), value=-1)
        assert_same(verify_tree(**call | wide), small)

    def test_what_hangs_on_an_absent_node_is_absent(self):
        call = made(17, nodes=5, parents=[-1, 0, 1, 0, 3])
        call["draft_tokens"][:, 1] = -1
        verdict = verify_tree(**call)
        assert not ((verdict.path == 1) | (verdict.path == 2)).any()
        pruned = call | {"parents": torch.tensor([-1, -1, -1, 0, 3])}
        pruned["target"], pruned["draft"] = pruned["target"].clone(), pruned["draft"].clone()
        pruned["target"][:, 1:3], pruned["draft"][:, 1:3] = torch.nan, torch.nan
        assert_same(verify_tree(**pruned), verdict)

    def test_a_repeated_sibling_is_skipped(self):
        """Distinct siblings: the token again, at any place, changes nothing but the indices."""
        call = made(18, nodes=4, parents=[-1, 0, 0, 0]) | {"temperature": 1.0}
        call["draft_tokens"][:, 3] = -1
        once = verify_tree(**call)
        call["draft_tokens"][:, 3] = call["draft_tokens"][:, 1]
        for options in ({}, {"draft": None}):
            call_once = call | options | {"draft_tokens": call["draft_tokens"].clone()}
            call_once["draft_tokens"][:, 3] = -1
            assert_same(verify_tree(**call | options), verify_tree(**call_once))
        assert_same(verify_tree(**call), once)

    def test_a_sibling_repeated_far_behind_is_skipped(self):
        """Half of the mass was tried at node 40; if node 51 tried it again, it would always be accepted."""
        tokens = torch.tensor([-1, *range(50), 39]).expand(64, -1)
        target = torch.full((200,), 0.5 / 199).index_fill(0, torch.tensor(39), 0.5).expand(64, 52, -1)
        verdict = verify_tree(
            tokens, target, parents=torch.tensor([-1] + 51 * [0]), space="probs", seed=seeds(64), position=0
        )
        assert (verdict.path[:, 1] == 40).any()
        assert not (verdict.path[:, 1] == 51).any()

    def test_peaked_drafts_keep_what_they_put_on_others(self):
        """What q leaves once its peak is tried is summed, not 1 minus the peak, which float32 would round away."""
        count = 4000
        q = torch.tensor([1 - 3e-8, 2e-8, 1e-8, 0.0]).expand(count, 3, -1)
        p = torch.tensor([0.0, 0.3, 0.2, 0.5]).expand(count, 3, -1)
        verdict = verify_tree(
            torch.tensor([-1, 0, 1]).expand(count, -1), p, q, parents=torch.tensor([-1, 0, 0]), space="probs",
            seed=seeds(count), position=0,
        )  # fmt: skip
        # p^2 = p and q^2 = (0, 2/3, 1/3, 0): accepted below .45.
        accepted = np.array([maths.uniform(s, 1, 0, 0, 4) < 0.45 for s in range(count)])
        assert (accepted == (verdict.num_accepted == 1).numpy()).mean() > 0.999


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestStatus:
    @pytest.mark.parametrize("replacement", [False, True])
    def test_no_draft_of_a_law_of_nans_is_accepted(self, replacement):
        rows, parents = torch.zeros(1, 4, 3), torch.tensor([-1, 0, 0, 1])
        call = {"parents": parents, "replacement": replacement, "seed": 1, "position": 0}
        verdict = verify_tree(torch.tensor([[-1, 0, 1, 2]]), rows, torch.nan * rows, **call)
        assert (verdict.num_accepted.item(), verdict.status.item() & 1) == (0, 1)
        assert verdict.tokens[0, 0] in (0, 1, 2)

    def test_nodes_too_deep(self):
        """p like q accepts all: the path ends where the room does."""
        rows = P.expand(1, 3, -1)
        call = {"parents": torch.tensor([[-1, 0, 1]]), "space": "probs", "seed": 3, "position": 0, "max_depth": 1}
        for options in ({}, {"method": "traversal"}, {"method": "paths", "leaves": torch.tensor([[2]])}):
            verdict = verify_tree(torch.tensor([[-1, 0, 0]]), rows, rows, **call | options)
            assert (verdict.num_accepted.item(), verdict.status.item()) == (1, Status.PARAMETER)

    @pytest.mark.interpreted(False)
    def test_trees_deeper_than_there_is_room_for(self):
        call = made(23, nodes=4, parents=[-1, 0, 1, 2])
        whole = verify_tree(**call)
        cut = verify_tree(**call, max_depth=1)
        assert cut.tokens.shape == (32, 2)
        deeper = (whole.num_accepted >= 1) & (call["draft_tokens"][:, 2] != -1)
        assert (cut.status[deeper] & 8 == 8).all()
        assert (cut.status[~deeper] & 8 == 0).all()
        assert (cut.num_accepted == whole.num_accepted.clamp(max=1)).all()
        wide = verify_tree(**call, max_depth=9)
        assert_same((wide.tokens[:, :4], wide.path[:, :4], *wide[2:]), whole)
        assert (wide.tokens[:, 4:] == -1).all()


@pytest.mark.costly
@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_thousand_nodes(options):
    """As many as an engine would ever draft, in one deep and one wide tree."""
    generator = torch.Generator().manual_seed(33)
    for parents in (torch.arange(-1, 1023), random_parents(1, 1024, generator, absent=0.0)[0]):
        target = torch.randn(1, 1024, 32, generator=generator)
        tokens = torch.randint(0, 32, (1, 1024), generator=generator)
        draft = None if options.get("draft", 0) is None else target.roll(1, dims=-1)
        call = {"draft_tokens": tokens, "target": target, "draft": draft, "parents": parents, "seed": 5, "position": 0}
        call |= {k: v for k, v in options.items() if k != "draft"}
        assert_as_the_oracle(verify_tree, call)


REFUSED = {
    "verify_tree": (verify_tree, made(34, requests=3, nodes=4, vocabulary=10), [
        ({"draft_tokens": torch.zeros(3, 5).int()}, ValueError, r"parents: expected shape \[5\] or \[3, 5\]"),
        ({"target": torch.zeros(3, 5, 10)}, ValueError, r"target: expected shape \[3, 4, V\]; got .*\[3, 5, 10\]"),
        ({"draft": torch.zeros(3, 3, 10)}, ValueError, r"draft: expected shape \[3, 4, 'V'\]"),
        ({"draft": torch.zeros(3, 4, 11)}, ValueError, "draft: expected a vocabulary no larger"),
        ({"method": "race"}, ValueError, "draft: expected None with method='race'"),
        ({"method": "greedy"}, ValueError, "method: expected one of"),
        ({"parents": torch.zeros(4, 4).int() - 1}, ValueError, r"parents: expected shape \[4\] or \[3, 4\]"),
        ({"parents": torch.zeros(1, 1, 4).int()}, ValueError, r"parents: expected shape \[N\] or \[B, N\]"),
        ({"replacement": 1}, TypeError, "replacement: expected a bool; got 1"),
        ({"max_depth": -1}, ValueError, "max_depth: expected an int of 0 or more; got -1"),
        ({"seed": 1, "position": 2}, ValueError, "seed: expected one seed per request"),
        ({"out": untouched(3, 4)[:3]}, TypeError, "out: expected .tokens, path, num_accepted, status."),
    ]),
}  # fmt: skip
