"""verify_chain(method="block") and verify_tree(method="traversal") with every other argument."""

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

from specdec_kernels import LogitEdits, Sampling, Status
from tests.support.cases import assert_same, chain_call, ragged, seeds
from tests.support.laws import P, Q
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import tree_call

BLOCK, TRAVERSAL = {"method": "block"}, {"method": "traversal"}
CERTAIN = pytest.mark.parametrize("certain", [{}, {"draft": None}], ids=["drawn", "certain"])


def as_tree(call):
    """A chain_call as the call of verify_tree that means the same."""
    tokens = torch.nn.functional.pad(call["draft_tokens"], (1, 0), value=-77)
    draft = None if call["draft"] is None else torch.nn.functional.pad(call["draft"], (0, 0, 0, 1), value=torch.nan)
    return call | {"draft_tokens": tokens, "draft": draft, "parents": torch.arange(-1, tokens.shape[1] - 1)} | TRAVERSAL


@pytest.mark.usefixtures("backend")
class TestMeansTheSame:
    """As another call, bit for bit."""

    @pytest.mark.parametrize("space", ["logits", "probs"])
    @CERTAIN
    def test_a_chain_is_a_tree(self, certain, space):
        call = chain_call(8, requests=96, slots=6, vocabulary=90, space=space) | certain
        chain, tree = verify_chain(**call | BLOCK), verify_tree(**as_tree(call))
        assert_same(chain, (tree.tokens, tree.num_accepted, tree.status))

    def test_ragged(self):
        call, counts = chain_call(2), torch.arange(32) % 5
        short = torch.where(torch.arange(4) < counts[:, None], call["draft_tokens"], -1)
        flat = ragged(call | BLOCK, counts)
        assert_same(verify_chain(**flat), verify_chain(**call | BLOCK | {"draft_tokens": short}))
        cut = verify_chain(**flat, **{"packing.max_drafts": 3})
        assert_same(cut[:2], verify_chain(**ragged(call | BLOCK, counts.clamp(max=3)))[:2])
        assert (cut.status[counts > 3] & Status.PARAMETER).all()

    @pytest.mark.parametrize("options", [{}, {"draft": None}, {"replacement": True}], ids=["drawn", "certain", "again"])
    def test_temperature_zero_is_greedy(self, options):
        call = tree_call(3, replacement=options.get("replacement", False)) | options | {"temperature": 0.0}
        assert_same(verify_tree(**call | TRAVERSAL), verify_tree(**call))

    def test_a_draft_vocabulary(self):
        draft_map = torch.arange(0, 66, 3, dtype=torch.int32)
        call = chain_call(5, vocabulary=66, draft_vocabulary=22)
        wide = torch.full((32, 4, 66), -torch.inf)
        wide[..., draft_map.long()] = call["draft"]
        call["draft_tokens"] = torch.where(call["draft_tokens"] >= 0, call["draft_tokens"] // 3 * 3, -1)
        assert_same(
            verify_chain(**call | BLOCK, **{"draft.map": draft_map}), verify_chain(**call | BLOCK | {"draft": wide})
        )

    def test_rows_by_index(self):
        index = torch.tensor([3, -1, 0, 3, 9, 1], dtype=torch.int32)
        call, kept = tree_call(6, requests=6, nodes=7) | TRAVERSAL, index.long() % 6
        found = verify_tree(**call, request_index=index)
        of_request = {name: call[name][kept] for name in ("draft", "temperature", "seed", "position")}
        expected = verify_tree(**call | of_request)
        live = (index >= 0) & (index < 6)
        assert_same([x[live] for x in found], [x[live] for x in expected])
        assert found.num_accepted.tolist()[1::3] == [-1, 0]
        assert found.tokens[4, 0] == 0
        assert found.status.tolist()[1::3] == [0, int(Status.PARAMETER)]

    @CERTAIN
    def test_edits_follow_each_path(self, certain):
        """A row counts the drafts above it, also after the walk has come back from another branch."""
        call = tree_call(7, requests=24, nodes=8, vocabulary=40) | certain
        call["draft_tokens"] = call["draft_tokens"].clamp(-1, 39)
        edited = call["target"].clone()
        parents = call["parents"].tolist()
        for b in range(24):
            for node in range(1, 8):
                above, at = [], node
                while at > 0:
                    above.append(int(call["draft_tokens"][b, at]))
                    at = parents[b][at]
                for token in above:
                    edited[b, node, token] -= 1.5 * (token >= 0)
        expected = verify_tree(**call | TRAVERSAL | {"target": edited})
        assert_same(verify_tree(**call, **TRAVERSAL, edits=LogitEdits(frequency=1.5)), expected)

    def test_filters(self):
        """Where filters keep all tokens but some, as with rows that lack these."""
        call = chain_call(9, vocabulary=40) | {"temperature": None}
        kept = call["target"] >= call["target"].topk(5).values[..., -1:]
        drawn = call["draft"] >= call["draft"].topk(9).values[..., -1:]
        cut = {"target": call["target"].masked_fill(~kept, -torch.inf)}
        cut["draft"] = call["draft"].masked_fill(~drawn, -torch.inf)
        found = verify_chain(**call | BLOCK, sampling=Sampling(top_k=5), **{"draft.sampling": Sampling(top_k=9)})
        assert_same(found, verify_chain(**call | BLOCK | cut))

    def test_whoever_shares_the_batch(self):
        call = tree_call(10, nodes=7) | TRAVERSAL
        whole = verify_tree(**call, max_depth=6)
        for b in range(0, 32, 5):
            alone = {name: x[b : b + 1] if isinstance(x, torch.Tensor) else x for name, x in call.items()}
            assert_same(verify_tree(**alone, max_depth=6), [x[b : b + 1] for x in whole])


@pytest.mark.usefixtures("backend")
class TestUniforms:
    def test_each_leaf_has_its_own_uniform(self):
        """Leaf i uses uniform 2^30 + i - 1 at the position of its token, and is accepted strictly below its weight."""
        count = 1 << 10
        p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
        verdict = verify_chain(
            torch.zeros(count, 3, dtype=torch.int64), p.expand(count, 4, -1), q.expand(count, 3, -1), space="probs",
            seed=seeds(count), position=11, nonce=2, **BLOCK,
        )  # fmt: skip
        # w = 1/2, 1/4, 1/8. Z = (w/2 - 1)^+ + w/2 = w/2, so h = (w/2) / (1 - w/2): 1/3, 1/7 and, for the last, w = 1/8.
        uniforms = np.array([[maths.uniform(s, 2**30 + i, 11 + i, 2, 4) for i in range(3)] for s in range(count)])
        below = uniforms < np.array([1 / 3, 1 / 7, 1 / 8])
        np.testing.assert_array_equal(verdict.num_accepted, (below * np.array([1, 2, 3])).max(axis=1))

    def test_first_leaves_first(self):
        count = 1 << 10
        verdict = verify_tree(
            torch.tensor([-1, 0, 1, 0]).expand(count, -1), P.expand(count, 4, -1), Q.expand(count, 4, -1),
            parents=torch.tensor([-1, 0, 0, 2]), space="probs", seed=seeds(count), position=5, **TRAVERSAL,
        )  # fmt: skip
        assert verdict.path[:, 1].eq(1).all()  # p(0) >= q(0): the first leaf weighs 1


@pytest.mark.usefixtures("backend")
class TestStatus:
    def test_a_token_out_of_range(self):
        for token in (4, -2, 2**40):
            tokens = torch.tensor([[-1, token, 0]])
            verdict = verify_tree(
                tokens, P.expand(1, 3, -1), Q.expand(1, 3, -1), parents=torch.tensor([-1, 0, 1]), space="probs", seed=1,
                position=0, **TRAVERSAL,
            )  # fmt: skip
            assert (verdict.num_accepted.item(), verdict.status.item()) == (0, Status.TOKEN_RANGE)

    def test_rows_that_decide_nothing_are_not_read(self):
        """Below a draft of weight 0, which rejection does not reach either."""
        target, draft = P.expand(1, 3, -1).clone(), Q.expand(1, 3, -1).clone()
        target[0, 1:], draft[0, 1:] = torch.nan, torch.nan
        draft[0, 0, 2] = 0.0
        call = {"parents": torch.tensor([-1, 0, 1]), "space": "probs", "seed": 3, "position": 0} | TRAVERSAL
        verdict = verify_tree(torch.tensor([[-1, 2, 0]]), target, draft, **call)
        assert (verdict.num_accepted.item(), verdict.status.item()) == (0, 0)
        target[0, 0, 3] = torch.nan
        assert verify_tree(torch.tensor([[-1, 2, 0]]), target, draft, **call).status.item() == Status.NON_FINITE

    def test_rows_of_a_draft_that_its_uniform_refuses_are_not_summed(self):
        """A weight only falls when its sums are taken: they matter only if the uniform is below the weight before."""
        count = 64
        target, draft = torch.tensor([0.5, 0.5, 0.0]).repeat(count, 3, 1), torch.tensor([1.0, 0.0, 0.0])
        target[:, 1, 2] = torch.nan
        verdict = verify_chain(
            torch.zeros(count, 2, dtype=torch.int64), target, draft.expand(count, 2, -1), space="probs",
            seed=seeds(count), position=11, **BLOCK,
        )  # fmt: skip
        first, second = np.array(
            [[maths.uniform(s, 2**30 + i, 11 + i, 0, 4) for i in range(2)] for s in range(count)]
        ).T
        summed = (second >= 0.25) & (first < 0.5)
        assert 0 < summed.sum() < count
        np.testing.assert_array_equal(verdict.status, np.where(summed, int(Status.NON_FINITE), 0))

    @pytest.mark.interpreted
    def test_nodes_too_deep(self):
        rows = P.expand(1, 3, -1)
        call = {"parents": torch.tensor([-1, 0, 1]), "space": "probs", "seed": 3, "position": 0} | TRAVERSAL
        verdict = verify_tree(torch.tensor([[-1, 0, 0]]), rows, rows, **call, max_depth=1)
        assert (verdict.num_accepted.item(), verdict.status.item()) == (1, Status.PARAMETER)

    def test_an_empty_residual(self):
        """p like q, and a token that q never draws: nothing is left of p."""
        half = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 2, -1)
        verdict = verify_chain(torch.tensor([[2]]), half, half[:, :1], space="probs", seed=3, position=0, **BLOCK)
        assert (verdict.num_accepted.item(), verdict.status.item()) == (0, Status.EMPTY_RESIDUAL)
        assert verdict.tokens[0, 0] in (0, 1)
