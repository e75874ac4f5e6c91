"""tree_positions: the depth of each node after the prefix, from good and bad parents."""

import pytest
import torch

from specdec_kernels import tree_mask, tree_positions
from tests.ops.test_tree_mask import ancestors, batch
from tests.support.calls import PARENTS
from tests.support.cases import UNTOUCHED

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """The root stands after a prefix of ten tokens. Nodes 1 and 2 follow it, and node 3 follows node 1."""
    assert tree_positions(torch.tensor([-1, 0, 0, 1]), prefix_len=10).tolist() == [[10, 11, 11, 12]]


CALLS = {"tree_positions": (tree_positions, {"parents": PARENTS, "prefix_len": torch.arange(3)})}


@pytest.mark.usefixtures("backend")
class TestPositions:
    def test_prefix_and_depth(self):
        parents, prefix_len = batch(7)
        positions = tree_positions(parents, prefix_len=prefix_len)
        assert positions.dtype == torch.int64
        for b, tree in enumerate(parents.tolist()):
            for node in range(len(tree)):
                assert positions[b, node] == prefix_len[b] + len(ancestors(tree, node)) - 1

    def test_shared_tree_and_shared_prefix(self):
        assert tree_positions(torch.tensor([-1, 0, 1]), prefix_len=4).tolist() == [[4, 5, 6]]
        lens = torch.tensor([4, 9])
        assert tree_positions(torch.tensor([-1, 0, 1]), prefix_len=lens).tolist() == [[4, 5, 6], [9, 10, 11]]

    def test_beyond_32_bits(self):
        assert tree_positions(torch.tensor([-1, 0]), prefix_len=2**40).tolist() == [[2**40, 2**40 + 1]]

    def test_no_position_overflows(self):
        """A chain of four after the longest prefix that leaves room for it, and after longer ones."""
        parents, most = torch.arange(-1, 3), 2**63 - 5
        status = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        lens = torch.tensor([most - 1, most, most + 1, 2**63 - 1])
        positions = tree_positions(parents, prefix_len=lens, status=status)
        assert positions[:, 0].tolist() == [most - 1, most, most, most]
        assert (positions - positions[:, :1] == torch.arange(4)).all()
        assert status.tolist() == [0, 0, 8, 8]
        assert tree_positions(parents, prefix_len=most).tolist() == positions[1:2].tolist()
        for op in (tree_mask, tree_positions):
            with pytest.raises(
                ValueError, match=r"^prefix_len: expected 0 to 2\*\*63 - 1 - 4, the number of nodes; got"
            ):
                op(parents, prefix_len=most + 1)


def test_prefixes_out_of_range(backend):
    status = torch.full((3,), UNTOUCHED, dtype=torch.int32)
    lens = torch.tensor([-4, 9, 3])
    assert tree_positions(PARENTS[:2], prefix_len=lens, status=status).tolist() == [[0, 1], [9, 10], [3, 4]]
    assert status.tolist() == [8, 0, 0]


CHAIN = torch.tensor([-1, 0, 1])
REFUSED = {
    "tree_positions": (tree_positions, {"parents": CHAIN, "prefix_len": 0}, [
        ({"prefix_len": 1.5}, TypeError, "prefix_len: expected an int or a tensor of int64 or int32; got 1.5"),
        ({"parents": CHAIN[:0]}, ValueError, "parents: expected shape .*; got"),
    ]),
}  # fmt: skip
