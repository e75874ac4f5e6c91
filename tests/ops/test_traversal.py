"""verify_chain(method="block") and verify_tree(method="traversal"): their uniforms, and the rows that they read."""

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

from specdec_kernels import Status
from tests.support.cases import seeds
from tests.support.laws import P, Q
from tests.support.ops import verify_chain, verify_tree

BLOCK, TRAVERSAL = {"method": "block"}, {"method": "traversal"}


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
