"""tree_parents: trees from the links by which engines keep them, whatever the links are."""

from itertools import product

import pytest
import torch

import specdec_kernels
from specdec_kernels import DraftTree, tree_parents
from tests.support.cases import UNTOUCHED, assert_same
from tests.support.trees import random_parents

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """The root's first child is node 2, whose next sibling is node 1; node 2's first child is node 3.

    So 2 and 1 have the parent 0, and are its children of rank 0 and 1; 3 has the parent 2, and is its child of rank 0.
    """
    parents, ranks = tree_parents(torch.tensor([[2, -1, 3, -1]]), torch.tensor([[-1, -1, 1, -1]]))
    assert parents.tolist() == [[-1, 0, 0, 2]]
    assert ranks.tolist() == [[0, 1, 0, 0]]


# The root has children 4, then 1; node 4 has 2, node 2 has 3 and 5; node 6 is in no tree.
FIRST = torch.tensor([4, -1, 3, -1, 2, -1, -1])
SIBLING = torch.tensor([-1, -1, -1, 5, 1, -1, -1])

CALLS = {
    "tree_parents": (
        tree_parents,
        {
            "first_child": FIRST.repeat(3, 1), "next_sibling": SIBLING.repeat(3, 1),
        },
    ),
    "tree_parents int32": (
        tree_parents, {"first_child": FIRST.int().repeat(3, 1), "next_sibling": SIBLING.int().repeat(3, 1)},
    ),
}  # fmt: skip

# name -> links, and the tree that they are.
BAD = {
    "a cycle of siblings": ([1, -1, -1, -1], [-1, 2, 1, -1], [-1, -1, -1, -1], [0, -1, -1, -1]),
    "a cycle beside the tree": ([1, -1, 3, 2], [-1, -1, -1, -1], [-1, 0, -1, -1], [0, 0, -1, -1]),
    "a cycle of parents and siblings": ([-1, 2, -1, 1], [-1, -1, 3, -1], [-1, -1, -1, -1], [0, -1, -1, -1]),
    "below itself": ([1, 1, -1, -1], [-1, -1, -1, -1], [-1, -1, -1, -1], [0, -1, -1, -1]),
    "its own sibling": ([1, -1, -1, -1], [-1, 1, -1, -1], [-1, -1, -1, -1], [0, -1, -1, -1]),
    "out of range": ([1, 4, -9, 99], [-1, 7, -1, -1], [-1, 0, -1, -1], [0, 0, -1, -1]),
    "beyond 32 bits": ([1, 2**32 + 2, -(2**63), -1], [-1, 2**33 + 3, -1, -1], [-1, 0, -1, -1], [0, 0, -1, -1]),
    "back to the root": ([1, 0, -1, -1], [-1, 2, -1, -1], [-1, 0, 0, -1], [0, 0, 1, -1]),
    "a sibling of the root": ([1, -1, -1, -1], [2, -1, -1, -1], [-1, 0, -1, -1], [0, 0, -1, -1]),
    "a child of two": ([1, 3, 3, -1], [-1, 2, -1, -1], [-1, 0, 0, 2], [0, 0, 1, 0]),
    "a sibling of two": ([1, 2, -1, -1], [-1, 3, 3, -1], [-1, 0, 1, 1], [0, 0, 0, 1]),
    "child and sibling": ([1, 2, -1, -1], [-1, 2, -1, -1], [-1, 0, 0, -1], [0, 0, 1, -1]),
    "links of a node in no tree": ([1, -1, 3, -1], [-1, -1, -1, -1], [-1, 0, -1, -1], [0, 0, -1, -1]),
}


def links_of(parents, generator):
    """(first_child, next_sibling, parents, ranks) of a tree [N] whose nodes got new places, siblings in any order."""
    nodes = len(parents)
    place = [0, *(1 + torch.randperm(nodes - 1, generator=generator)).tolist()]
    first, sibling, above, ranks = [-1] * nodes, [-1] * nodes, [-1] * nodes, [-1] * nodes
    ranks[0] = 0
    linked = {0}
    for node in range(nodes):
        mine = [child for child in range(1, nodes) if parents[child] == node]
        if node not in linked or not mine:
            continue
        mine = [mine[i] for i in torch.randperm(len(mine), generator=generator)]
        linked |= set(mine)
        first[place[node]] = place[mine[0]]
        for rank, child in enumerate(mine):
            above[place[child]], ranks[place[child]] = place[node], rank
            sibling[place[child]] = place[mine[rank + 1]] if rank + 1 < len(mine) else -1
    return first, sibling, above, ranks


def assert_as_the_oracle(first, sibling):
    status, wanted = torch.full((2, len(first)), UNTOUCHED, dtype=torch.int32)
    found = tree_parents(first, sibling, status=status)
    assert found.parents.dtype == found.ranks.dtype == torch.int32
    with specdec_kernels.backend("reference"):
        assert_same(found, tree_parents(first, sibling, status=wanted))
    assert torch.equal(status, wanted)


@pytest.mark.usefixtures("backend")
class TestTrees:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("nodes", [1, 2, 7, 64, 65, 300])
    def test_links_in_any_order(self, nodes, dtype):
        generator = torch.Generator().manual_seed(nodes)
        trees = [links_of(tree, generator) for tree in random_parents(3, nodes, generator).tolist()]
        first, sibling, parents, ranks = torch.tensor(trees).transpose(0, 1)
        status = torch.full((3,), UNTOUCHED, dtype=torch.int32)
        # Any strides, and what lies between is no link.
        apart = torch.full((nodes, 3, 4), 2**30).to(dtype)
        apart[:, :, 1], apart[:, :, 2] = first.T, sibling.T
        found = tree_parents(apart[:, :, 1].T, apart[:, :, 2].T, status=status)
        assert torch.equal(found.parents, parents.int())
        assert torch.equal(found.ranks, ranks.int())
        assert status.tolist() == [0, 0, 0]

    def test_shapes_of_draft_tree(self):
        shapes = [DraftTree.chain(13), DraftTree.alternatives(13), DraftTree.specinfer((2, 2, 2)), DraftTree.chain(0)]
        for tree in shapes:
            links = tree.to_sglang()
            found = tree_parents(links.retrive_next_token, links.retrive_next_sibling)
            assert found.parents.tolist() == [list(tree.parents)]
            assert found.ranks[0, 1:].tolist() == list(tree.child_indices[1:])

    def test_no_requests(self):
        found = tree_parents(torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 3, dtype=torch.int32))
        assert [x.shape for x in found] == [(0, 3), (0, 3)]


@pytest.mark.usefixtures("backend")
class TestBadLinks:
    def test_of_every_kind(self):
        """Each beside good neighbours, which do not notice."""
        first, sibling, parents, ranks = torch.tensor([*BAD.values()]).transpose(0, 1)
        good = torch.tensor([1, 2, -1, -1]), torch.tensor([-1, 3, -1, -1]), torch.tensor([-1, 0, 1, 0])
        beside = [torch.stack((x, y.expand_as(x)), 1).flatten(0, 1) for x, y in ((first, good[0]), (sibling, good[1]))]
        status = torch.full((2 * len(BAD),), UNTOUCHED, dtype=torch.int32)
        found = tree_parents(*beside, status=status)
        for i, name in enumerate(BAD):
            assert found.parents[2 * i].tolist() == parents[i].tolist(), name
            assert found.ranks[2 * i].tolist() == ranks[i].tolist(), name
            assert found.parents[2 * i + 1].tolist() == good[2].tolist(), name
        assert status.tolist() == [8, 0] * len(BAD)

    @pytest.mark.parametrize("nodes", [2, 5, 70])
    def test_at_random(self, nodes):
        generator = torch.Generator().manual_seed(nodes)
        assert_as_the_oracle(*torch.randint(-2, nodes + 2, (2, 12, nodes), generator=generator))
        trees = random_parents(12, nodes, generator).tolist()
        mostly = torch.tensor([links_of(tree, generator)[:2] for tree in trees])
        at = torch.rand(mostly.shape, generator=generator) < 1 / nodes
        wrong = torch.randint(-1, nodes, mostly.shape, generator=generator)
        assert_as_the_oracle(*torch.where(at, wrong, mostly).transpose(0, 1))

    def test_long_cycles_end(self):
        """Of siblings, of parents, and of both in turn."""
        around = torch.arange(1, 201) % 200
        around[199] = 1
        none, odd = torch.full((200,), -1), torch.arange(200) % 2 == 1
        first = torch.stack((none, around, torch.where(odd, around, none)))
        sibling = torch.stack((around, none, torch.where(odd, none, around)))
        found = tree_parents(first, sibling)
        assert (found.parents == -1).all()
        assert (found.ranks[:, 1:] == -1).all()


@pytest.mark.usefixtures("quick_backend")
def test_all_links_of_three_nodes():
    links = torch.tensor([*product((-1, 0, 1, 2), repeat=6)]).view(-1, 2, 3)
    assert_as_the_oracle(links[:, 0], links[:, 1])


REFUSED = {
    "tree_parents": (tree_parents, {"first_child": FIRST[None], "next_sibling": SIBLING[None]}, [
        ({"first_child": FIRST}, ValueError, r"first_child: expected 2 dimensions; got int64 \[7\]"),
        ({"first_child": FIRST[None, :0], "next_sibling": SIBLING[None, :0]}, ValueError,
         r"first_child: expected shape \[B, N\], N at least 1; got int64 \[1, 0\]"),
        ({"out": FIRST}, TypeError, r"out: expected \(parents, ranks\); got"),
    ]),
}  # fmt: skip
