"""merge_chains: chains that begin alike share nodes, in the order of the chains."""

import pytest
import torch

from specdec_kernels import merge_chains
from tests.support.cases import UNTOUCHED
from tests.support.path_enumeration import merged


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """Chains 5 7, 5 8 and 6: the second shares node 1 with the first and adds node 3, the third adds node 4.

    ::

        root 0 ── 1 (token 5) ── 2 (token 7)
               │             └── 3 (token 8)
               └─ 4 (token 6)
    """
    tree = merge_chains(torch.tensor([[[5, 7], [5, 8], [6, -1]]]))
    assert tree.draft_tokens.tolist() == [[-1, 5, 7, 8, 6, -1, -1]]
    assert tree.parents.tolist() == [[-1, 0, 1, 1, 0, -1, -1]]
    assert tree.leaves.tolist() == [[2, 3, 4]]


CALLS = {"merge_chains": (merge_chains, {"paths": torch.tensor([[[1, 2], [1, 3]], [[4, -1], [4, 5]]])})}


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestMergeChains:
    @pytest.mark.parametrize("chains, length", [(1, 1), (1, 4), (3, 1), (4, 3), (40, 5)])
    def test_random_chains(self, chains, length):
        generator = torch.Generator().manual_seed(chains)
        paths = torch.randint(-1, 3, (5, chains, length), generator=generator)
        tree = merge_chains(paths)
        for b, rows in enumerate(paths.tolist()):
            ended = [tuple(row[: row.index(-1)] if -1 in row else row) for row in rows]
            tokens, parents, leaves, _ = merged(ended, chains * length + 1)
            assert tree.draft_tokens[b].tolist() == tokens
            assert tree.parents[b].tolist() == parents
            assert tree.leaves[b].tolist() == [leaf or -1 for leaf in leaves]

    def test_what_follows_an_end_is_not_looked_at(self):
        tree = merge_chains(torch.tensor([[[7, -1, 7], [7, 7, -1], [-1, 7, 7], [7, -1, 9]]]))
        assert tree.draft_tokens[0, :4].tolist() == [-1, 7, 7, -1]
        assert tree.leaves.tolist() == [[1, 2, -1, 1]]

    @pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
    def test_empty(self, shape):
        tree = merge_chains(torch.zeros(shape, dtype=torch.int64))
        assert tree.draft_tokens.shape == (shape[0], shape[1] * shape[2] + 1)
        assert all((part == -1).all() for part in tree)

    def test_rows_of_a_wider_tensor(self):
        wide = torch.full((3, 2, 8), UNTOUCHED, dtype=torch.int32)
        wide[:, :, ::2] = torch.arange(24).view(3, 2, 4) // 6
        view = wide.view(3, 16)[:, ::2].view(3, 2, 4)
        assert all(map(torch.equal, merge_chains(view), merge_chains(view.contiguous().long())))


REFUSED = {
    "merge_chains": (merge_chains, {"paths": torch.zeros(2, 3, 4, dtype=torch.int64)}, [
        ({"paths": torch.zeros(2, 3)}, TypeError, "paths: expected"),
        ({"paths": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, "paths: expected"),
        ({"paths": torch.zeros(2, 3, 8, dtype=torch.int64)[:, :, :4]}, ValueError, "paths: .*chains 4 steps apart"),
    ]),
}  # fmt: skip
