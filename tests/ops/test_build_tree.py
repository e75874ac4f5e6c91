"""build_tree: links, positions and masks of trees from the numbers of the candidates that were selected."""

import itertools

import pytest
import torch

from specdec_kernels import DraftTree, build_tree
from tests.support.cases import UNTOUCHED

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """Candidates come in groups of two: 0 and 1 follow the root, 2 and 3 follow candidate 0.

    Candidates 0, 1 and 3 are selected as nodes 1, 2 and 3. So nodes 1 and 2 follow the root, and node 3 follows node 1.
    Five tokens stand before the root.
    """
    trees = build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 1, 3]]), topk=2, prefix_len=5)
    assert trees.mask.int().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]]
    assert trees.positions.tolist() == [[5, 6, 6, 7]]
    assert trees.node_index.tolist() == [[0, 1, 2, 3]]
    assert trees.first_child.tolist() == [[1, 3, -1, -1]]
    assert trees.next_sibling.tolist() == [[-1, 2, -1, -1]]


# Groups of two. Request 0: the root has 1 and 2, node 1 has 3 and 4, node 3 has 5. Request 1: a chain.
SELECTED = torch.tensor([[0, 1, 2, 3, 6], [0, 2, 6, 8, 10]])
PARENT_LIST = torch.tensor([[-1, 0, 1, 2, 3, 6, 7], [-1, 0, 1, 2, 6, 8, 9]])
PARENTS = [[-1, 0, 0, 1, 1, 3], [-1, 0, 1, 2, 3, 4]]
LENGTHS = torch.tensor([7, 3])
NUMBERS = {"parent_list": PARENT_LIST, "selected": SELECTED, "topk": 2, "prefix_len": LENGTHS}
FULL = 6 * (7 + 6) + 6 * (3 + 6)  # bytes of the full masks of these

CALLS = {
    "build_tree": (build_tree, NUMBERS),
    "build_tree, bits": (build_tree, NUMBERS | {"layout": "bits"}),
}


def drafted(topk, depth, count, generator):
    """(parent list, selected numbers, parents of the nodes): a draft of EAGLE's, level by level, by random scores.

    A candidate is less likely than the one it follows. So the likeliest ``count`` make a tree.
    """
    score, follows = {}, {}
    groups, beams = [-1], [None]  # of whom a group is
    for _ in range(depth):
        level = []
        for beam in beams:
            for _ in range(topk):
                number = len(score)
                share = float(torch.rand((), generator=generator, dtype=torch.float64))
                score[number], follows[number] = share * score.get(beam, 1.0), beam
                level.append(number)
        beams = sorted(sorted(level, key=score.get)[-topk:])
        groups += beams
    selected = sorted(sorted(score, key=score.get)[-count:] if count else [])
    node_of = {None: 0} | {number: 1 + i for i, number in enumerate(selected)}
    return groups, selected, [-1, *(node_of[follows[number]] for number in selected)]


def lists_of(parents):
    """(first children, next siblings)."""
    nodes = range(len(parents))
    children = [[j for j in nodes if parents[j] == i] for i in nodes]
    sibling = [-1] * len(parents)
    for mine in children:
        for elder, younger in itertools.pairwise(mine):
            sibling[elder] = younger
    return [mine[0] if mine else -1 for mine in children], sibling


def assert_trees(found, parents, lengths):
    """All but the mask; `parents` as nested lists in which each node stands behind its parent."""
    for b, (tree, length) in enumerate(zip(parents, lengths, strict=True)):
        depths = []
        for parent in tree:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        assert found.positions[b].tolist() == [length + depth for depth in depths]
        assert found.node_index[b].tolist() == list(range(b * len(tree), (b + 1) * len(tree)))
        assert [found.first_child[b].tolist(), found.next_sibling[b].tolist()] == [*lists_of(tree)]


def rows_of(parents):
    """bool [N, N]: ancestors, and the node itself."""
    rows = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node] |= rows[parent]
    return rows


@pytest.mark.usefixtures("backend")
class TestTrees:
    @pytest.mark.parametrize(
        "topk, depth, nodes", [(1, 1, 1), (1, 6, 7), (2, 3, 8), (4, 4, 33), (8, 5, 64), (10, 8, 131)]
    )
    def test_drafts_of_eagle(self, topk, depth, nodes):
        """Numbers of any strides and widths; what lies between is no number."""
        generator = torch.Generator().manual_seed(nodes)
        groups, selected, parents = zip(*(drafted(topk, depth, nodes - 1, generator) for _ in range(3)), strict=True)
        groups, selected = torch.tensor(groups), torch.tensor(selected, dtype=torch.int64)
        lengths, layouts = torch.tensor([5, 0, 1000]), ["nodes", "full"] + ["bits"] * (nodes <= 32)
        apart = torch.full((groups.shape[1], 3, 2), 2**30, dtype=torch.int32)
        apart[:, :, 1] = groups.T
        masks = {}
        for layout in layouts:
            out = None
            if layout == "full":
                masks[layout] = torch.ones(int(((lengths + nodes) * nodes).sum()) + 5, dtype=torch.bool)
                out = (masks[layout], None, None, None, None)
            status = torch.full((3,), UNTOUCHED, dtype=torch.int32)
            found = build_tree(
                apart[:, :, 1].T, selected, topk=topk, prefix_len=lengths, layout=layout, out=out, status=status
            )
            assert_trees(found, parents, lengths.tolist())
            assert status.tolist() == [0, 0, 0]
            masks[layout] = found.mask
        expected = torch.stack([rows_of(tree) for tree in parents])
        assert torch.equal(masks["nodes"], expected)
        begin = 0
        for tree, length in zip(expected, lengths.tolist(), strict=True):
            rows = masks["full"][begin : begin + nodes * (length + nodes)].view(nodes, length + nodes)
            assert rows[:, :length].all()
            assert torch.equal(rows[:, length:], tree)
            begin += rows.numel()
        assert masks["full"][begin:].all()
        if nodes <= 32:
            bits = masks["bits"].long()[..., None] >> torch.arange(nodes) & 1
            assert torch.equal(bits.bool(), expected)

    def test_of_draft_tree(self):
        found = build_tree(**NUMBERS)
        assert_trees(found, PARENTS, [7, 3])
        for b, parents in enumerate(PARENTS):
            links = DraftTree.from_parents(parents).to_sglang()
            assert torch.equal(found.first_child[b], links.retrive_next_token[0])
            assert torch.equal(found.next_sibling[b], links.retrive_next_sibling[0])
            assert torch.equal(found.mask[b], DraftTree.from_parents(parents).mask())

    @pytest.mark.parametrize(
        "nodes, dtype", [(8, torch.uint8), (9, torch.uint16), (17, torch.uint32), (32, torch.uint32)]
    )
    def test_words_of_bits(self, nodes, dtype):
        """All of one group, which has no list of parents; and a mask that is larger than what is written."""
        selected = torch.arange(nodes - 1).expand(2, -1)
        call = {"parent_list": torch.zeros(2, 0, dtype=torch.int64), "selected": selected, "topk": 40, "layout": "bits"}
        found = build_tree(**call)
        assert found.mask.dtype == dtype
        expected = [1] + [1 | 1 << node for node in range(1, nodes)]
        assert found.mask.tolist() == [expected] * 2
        for kind in (dtype, torch.uint8):
            mask = torch.full((found.mask.nbytes // kind.itemsize + 3,), 77).to(kind)
            assert build_tree(**call, out=(mask, None, None, None, None)).mask is mask
            assert (
                mask.view(torch.uint8)[: found.mask.nbytes].tolist() == found.mask.view(torch.uint8).flatten().tolist()
            )
            assert mask[-3:].tolist() == [77] * 3

    def test_no_requests(self):
        none = torch.empty(0, 3, dtype=torch.int64)
        found = build_tree(none, none, topk=2)
        assert [x.shape for x in found] == [(0, 4, 4), *[(0, 4)] * 4]


# What is wrong: numbers, the list of parents, and the tree that they are. Good: nodes 0 and 2 of groups of two.
BAD = {
    "its parent was not selected": ([0, 4], [-1, 0, 1], [-1, 0, -1]),
    "its parent comes behind it": ([2, 0], [-1, 0, 1], [-1, -1, 0]),
    "its own parent": ([0, 2], [-1, 2, 1], [-1, 0, -1]),
    "no such group": ([0, 6], [-1, 0, 1], [-1, 0, -1]),
    "a number below 0": ([-1, 0], [-1, 0, 1], [-1, -1, 0]),
    "below 0 on both sides": ([-3, 2], [-1, -3, -1], [-1, -1, -1]),
    "beyond 32 bits": ([0, 2**33], [-1, 0, 1], [-1, 0, -1]),
    "a parent beyond 32 bits": ([1, 2], [-1, 2**32 + 1, 1], [-1, 0, -1]),
}


@pytest.mark.usefixtures("backend")
class TestBadNumbers:
    def test_of_every_kind(self):
        """Each beside a good neighbour, which does not notice. The layout makes no difference.

        Who reads a group too many of the list before a neighbour's gets candidate 0, and so a parent.
        """
        good = [0, 2], [0, 0, 1], [-1, 0, 1]
        selected, groups, parents = zip(*(case for bad in BAD.values() for case in (bad, good)), strict=True)
        batch = len(selected)
        for layout, out in (("nodes", None), ("bits", None), ("full", torch.ones(3 * 4 * batch, dtype=torch.uint8))):
            status = torch.full((batch,), UNTOUCHED, dtype=torch.int32)
            found = build_tree(
                torch.tensor(groups), torch.tensor(selected), topk=2, prefix_len=1, layout=layout, status=status,
                out=None if out is None else (out, None, None, None, None),
            )  # fmt: skip
            assert_trees(found, parents, [1] * batch)
            assert status.tolist() == [8, 0] * len(BAD)
            expected = torch.stack([rows_of(tree) for tree in parents])
            if layout == "nodes":
                assert torch.equal(found.mask, expected)
            elif layout == "full":
                assert torch.equal(found.mask.view(batch, 3, 4)[..., 1:].bool(), expected)

    def test_nodes_that_follow_them(self):
        """Of two nodes that are one candidate the first has the children; a node without a parent has its own."""
        found = build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 0, 2]]), topk=2)
        assert_trees(found, [[-1, 0, 0, 1]], [0])
        found = build_tree(torch.tensor([[-1, 9, 2]]), torch.tensor([[2, 4]]), topk=2)
        assert_trees(found, [[-1, -1, 1]], [0])

    @pytest.mark.parametrize("topk", [2**63 - 1, 2**63, 2**64, 2**70])
    def test_a_group_of_all(self, topk):
        """A number of more than 64 bits is no error: every candidate follows the root."""
        found = build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 5, 2**62]]), topk=topk)
        assert_trees(found, [[-1, 0, 0, 0]], [0])

    @pytest.mark.parametrize("room", [0, 1, 13, 77, 78, 79, FULL - 1, FULL, FULL + 9])
    def test_masks_that_are_too_short(self, room):
        """Rows are written as long as there is room; nothing behind it is."""
        memory = torch.full((FULL + 32,), 77, dtype=torch.uint8)
        status = torch.full((2,), UNTOUCHED, dtype=torch.int32)
        out = (memory[:room], None, None, None, None)
        assert_trees(build_tree(**NUMBERS, layout="full", out=out, status=status), PARENTS, [7, 3])
        end = 0
        for b, (tree, length) in enumerate(zip(PARENTS, (7, 3), strict=True)):
            left_out = False
            for row in rows_of(tree):
                end += length + 6
                fits = end <= room
                left_out |= not fits
                assert (memory[end - 6 - length : end - 6] == 77).all()
                assert memory[end - 6 : end].tolist() == (row.tolist() if fits else [77] * 6)
            assert status[b] == 8 * left_out
        assert (memory[end:] == 77).all()

    @pytest.mark.parametrize("wrong, nearest", [(-1, 0), (-(2**63), 0), (2**63 - 1, 2**63 - 7), (2**40, 2**40)])
    def test_lengths_out_of_range(self, wrong, nearest):
        """A length that no mask has room for leaves out the rows of its request, and of those behind it."""
        status = torch.full((3,), UNTOUCHED, dtype=torch.int32)
        lengths, call = torch.tensor([3, wrong, 3]), {"topk": 2, "status": status}
        numbers = PARENT_LIST[[1, 0, 1]], SELECTED[[1, 0, 1]]
        found = build_tree(*numbers, prefix_len=lengths, **call)
        assert found.positions[:, 0].tolist() == [3, nearest, 3]
        assert status.tolist() == [0, 8 * (wrong != nearest), 0]
        mask = torch.full((3 * 6 * 9,), 77, dtype=torch.uint8)
        build_tree(*numbers, prefix_len=lengths, layout="full", out=(mask, None, None, None, None), **call)
        chain = rows_of(PARENTS[1])
        assert torch.equal(mask[:54].view(6, 9)[:, 3:].bool(), chain)
        if nearest == 0:
            assert status.tolist() == [0, 8, 0]
            assert torch.equal(mask[54:90].view(6, 6).bool(), rows_of(PARENTS[0]))
            assert torch.equal(mask[90:144].view(6, 9)[:, 3:].bool(), chain)
        else:
            assert status.tolist() == [0, 8, 8]
            assert (mask[54:] == 77).all()


REFUSED = {
    "build_tree": (build_tree, NUMBERS, [
        ({"selected": SELECTED[0]}, ValueError, r"selected: expected 2 dimensions; got int64 \[5\]"),
        ({"topk": 0}, ValueError, "topk: expected an int of 1 or more; got 0"),
        ({"topk": 2.0}, ValueError, "topk: expected an int of 1 or more; got 2.0"),
        ({"layout": "words"}, ValueError, "layout: expected one of 'full', 'nodes', 'bits'; got 'words'"),
        ({"layout": "bits", "selected": torch.zeros(2, 32).long()}, ValueError,
         "layout: expected 'full' or 'nodes' with more than 32 nodes; got 'bits'"),
        ({"layout": "full"}, ValueError, "out.mask: expected a tensor with layout='full'; got None"),
        ({"prefix_len": -1}, ValueError, r"prefix_len: expected 0 to 2\*\*63 - 1 - 6, the number of nodes; got -1"),
        ({"out": SELECTED}, TypeError, r"out: expected \(mask, positions, node_index, first_child, next_sib"),
        ({"layout": "bits", "out": (torch.zeros(2, 6), *[None] * 4)}, TypeError,
         "out.mask: expected a tensor of bool or uint8 or uint16 or uint32; got float32"),
        ({"out": (torch.zeros(71).bool(), *[None] * 4)}, ValueError, "out.mask: expected 72 bytes at least; got bool"),
        ({"out": (torch.zeros(72, 2).bool()[:, 0], *[None] * 4)}, ValueError,
         r"out.mask: expected contiguous; got strides \(2,\)"),
    ]),
}  # fmt: skip
