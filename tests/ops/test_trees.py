"""DraftTree: shapes, the best of them, and the layouts of other engines."""

import heapq
import itertools
import pickle

import numpy as np
import pytest
import torch

from specdec_kernels import DraftTree, tree_mask, tree_positions
from specdec_kernels.theory.trees import optimal_nodes
from tests.support.trees import shapes

pytestmark = pytest.mark.one_backend

R = (0.5, 0.2, 0.12, 0.08, 0.06, 0.04)


class TestShapes:
    def test_named_shapes(self):
        assert (
            DraftTree.chain(0).parents == DraftTree.alternatives(0).parents == DraftTree.specinfer(()).parents == (-1,)
        )
        assert DraftTree.chain(4).depths == (0, 1, 2, 3, 4)
        assert DraftTree.alternatives(4).depths == (0, 1, 1, 1, 1)
        default = DraftTree.specinfer()
        assert (default.size, default.depth) == (2 + 3 * 6, 8)
        assert [len(below) for below in default.children].count(3) == 1
        assert DraftTree.specinfer((2, 3)).parents == (-1, 0, 0, 1, 1, 1, 2, 2, 2)

    def test_paths(self):
        """Numbered by depth, then by path, as Medusa, TensorRT-LLM and vLLM number their choices."""
        choices = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0]]
        tree = DraftTree.from_paths(choices)
        assert tree.parents == (-1, 0, 0, 0, 1, 1, 2, 4)
        assert tree.to_paths() == sorted(map(tuple, choices), key=lambda path: (len(path), path))
        assert tree == DraftTree.from_paths(str(tree.to_paths())) == DraftTree.from_paths(map(np.array, choices))
        assert DraftTree.from_paths([]) == DraftTree.chain(0)
        deep = DraftTree.chain(1100)
        assert DraftTree.from_paths(deep.to_paths()) == deep

    @pytest.mark.parametrize(
        "paths, message",
        [
            ([[0], [0]], r"each path once; got \(0,\)"),
            ([[]], r"each path once; got \(\)"),
            ([[-1]], r"child indices from 0 on, .* got \(-1,\)"),
            ([[0], [2]], r"paths: expected \(1,\) too, as \(2,\) is there; got none"),
            ([[0, 0]], r"paths: expected \(0,\) too, as \(0, 0\) is there; got none"),
            ("0, 0, 1)", r"paths: expected a list like \[\(0,\), \(0, 0\)\]; got '0, 0, 1\)'"),
            ("[0]", r"paths: expected paths of child indices; got \[0\]"),
            (3, r"paths: expected paths of child indices; got 3"),
        ],
    )
    def test_what_is_no_list_of_paths(self, paths, message):
        with pytest.raises((ValueError, TypeError), match=message):
            DraftTree.from_paths(paths)

    def test_derived(self):
        tree = DraftTree.from_parents(torch.tensor([-1, 0, 0, 1, 2, 1]))
        assert tree.size == 5
        assert tree.depth == 2
        assert tree.depths == (0, 1, 1, 2, 2, 2)
        assert tree.children == ((1, 2), (3, 5), (4,), (), (), ())
        assert tree.child_indices == (-1, 0, 1, 0, 0, 1)
        assert tree.first(3) == DraftTree((-1, 0, 0, 1))
        assert torch.equal(tree_positions(tree.tensor(), prefix_len=0)[0], torch.tensor(tree.depths))

    def test_values(self):
        """Equal shapes are equal, also as keys and after a journey."""
        tree = DraftTree.chain(3)
        assert {tree: 1}[DraftTree.from_parents(np.array([-1, 0, 1, 2]))] == 1
        assert tree != DraftTree.alternatives(3)
        assert pickle.loads(pickle.dumps(tree)) == tree

    def test_tensors(self):
        tree = DraftTree.from_parents([-1, 0, 0])
        assert tree.tensor().dtype == torch.int32
        assert tree.tensor(dtype=torch.int64).tolist() == [-1, 0, 0]
        stacked = DraftTree.stack([tree, DraftTree.chain(3), DraftTree.chain(0)])
        assert stacked.tolist() == [[-1, 0, 0, -1], [-1, 0, 1, 2], [-1, -1, -1, -1]]
        assert stacked.dtype == torch.int32

    @pytest.mark.parametrize(
        "parents, message",
        [
            ([], "parents: expected a root at least; got none"),
            ([0], r"parents\[0\]: expected -1 \(the root\); got 0"),
            ([-1, -1], r"parents\[1\]: expected a node before it, 0 to 0; got -1"),
            ([-1, 0, 2], r"parents\[2\]: expected a node before it, 0 to 1; got 2"),
            ([-1, 2, 0], r"parents\[1\]: .* got 2"),
        ],
    )
    def test_what_is_no_tree(self, parents, message):
        with pytest.raises(ValueError, match=message):
            DraftTree.from_parents(parents)

    def test_bad_sizes(self):
        for make in (
            DraftTree.chain,
            DraftTree.alternatives,
            lambda k: DraftTree.optimal(R, k),
            DraftTree.chain(3).first,
        ):
            with pytest.raises(ValueError, match="k: expected 0 or more; got -1"):
                make(-1)
            with pytest.raises(TypeError, match=r"k: expected an int; got 1.5"):
                make(1.5)
        with pytest.raises(ValueError, match="expansions: expected 0 or more"):
            DraftTree.specinfer((1, -2))


class TestOptimal:
    @pytest.mark.parametrize("k, tokens", [(4, 2.0750), (8, 2.4750), (12, 2.7175)])
    def test_numbers(self, k, tokens):
        assert DraftTree.optimal(R, k).expected_tokens(R) == pytest.approx(tokens, abs=1e-12)

    @pytest.mark.parametrize("nodes", range(1, 8))
    @pytest.mark.parametrize(
        "acceptance", [R, (0.9,), (0.4, 0.4, 0.1), (0.34, 0.33, 0.33), (1.0,), (0.6, 0.0)], ids=str
    )
    def test_no_shape_is_better(self, nodes, acceptance):
        best = max(DraftTree(parents).expected_tokens(acceptance) for parents in shapes(nodes))
        tree = DraftTree.optimal(acceptance, nodes - 1)
        assert tree.size == nodes - 1
        assert tree.expected_tokens(acceptance) == pytest.approx(best, abs=1e-12)

    def test_agrees_with_the_theory(self):
        for k in (1, 7, 50, 500):
            assert DraftTree.optimal(R, k).expected_tokens(R) == pytest.approx(1 + optimal_nodes(R, k).values.sum())

    def test_the_first_nodes_are_the_best(self):
        large = DraftTree.optimal(R, 200)
        for k in (0, 1, 10, 57):
            assert large.first(k) == DraftTree.optimal(R, k)

    def test_acceptance_that_depends_on_the_path(self):
        """A first guess that is right makes the next more likely to be; brute force over all sets of nodes."""

        def acceptance(path):
            if path[-1] > 1:
                return None
            easy = all(step == 0 for step in path[:-1])
            return (0.8 if easy else 0.3) if path[-1] == 0 else 0.1

        values = {(): 1.0}
        for length in range(1, 8):
            for path in itertools.product(range(2), repeat=length):
                values[path] = values[path[:-1]] * acceptance(path)
        for k in range(8):
            best = 1 + sum(heapq.nlargest(k, (value for path, value in values.items() if path)))
            tree = DraftTree.optimal(acceptance, k)
            assert tree.expected_tokens(acceptance) == pytest.approx(best, abs=1e-12)
        assert DraftTree.optimal(
            lambda path: acceptance((0,) * len(path)) if path[-1] == 0 else None, 3
        ) == DraftTree.chain(3)

    def test_callable_and_sequence_agree(self):
        by_path = lambda path: R[path[-1]] if path[-1] < len(R) else None  # noqa: E731
        assert DraftTree.optimal(by_path, 300) == DraftTree.optimal(R, 300)
        assert DraftTree.chain(5).expected_tokens(by_path) == DraftTree.chain(5).expected_tokens(R)

    def test_twenty_thousand_nodes(self):
        tree = DraftTree.optimal(R, 20_000)
        assert tree.size == 20_000
        assert tree.first(12).expected_tokens(R) == pytest.approx(2.7175)

    @pytest.mark.parametrize("container", [list, np.array, torch.tensor])
    def test_sequences_of_any_kind(self, container):
        assert DraftTree.optimal(container([0.5, 0.25]), 5) == DraftTree.optimal((0.5, 0.25), 5)

    @pytest.mark.parametrize(
        "acceptance, message",
        [
            ((0.2, 0.5), "acceptance: expected no child more likely than its elder sibling; got 0.5.* after 0.2"),
            ((0.5, -0.1), "acceptance: expected probabilities; got -0.1"),
            ((1.5,), "acceptance: expected probabilities; got 1.5"),
            ((float("nan"),), "acceptance: expected probabilities; got nan"),
            ((0.5, 0.4, 0.3), "acceptance: expected a sum of at most 1.*; got 1.2"),
            ((), "acceptance: expected at least 5 nodes; got 0"),
            (lambda path: 0.1 * (path[-1] + 1), "acceptance: expected no child more likely than its elder sibling"),
            (lambda path: float("nan"), "acceptance: expected probabilities; got -?nan"),
            (
                lambda path: None if len(path) > 1 or path[-1] > 2 else 0.2,
                "acceptance: expected at least 5 nodes; got 3",
            ),
        ],
    )
    def test_refused(self, acceptance, message):
        with pytest.raises(ValueError, match=message):
            DraftTree.optimal(acceptance, 5)

    def test_errors_inside_a_callable_come_through(self):
        with pytest.raises(KeyError, match="missing"):
            DraftTree.optimal(lambda path: {}["missing"], 3)


TREES = [DraftTree(parents) for nodes in (1, 2, 3, 4) for parents in shapes(nodes)]
TREES += [DraftTree.optimal(R, 40), DraftTree.chain(32), DraftTree.specinfer()]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.size))
class TestLayouts:
    def test_masks(self, tree):
        assert DraftTree.from_mask(tree.mask()) == tree

    def test_sglang(self, tree):
        index, first, sibling = tree.to_sglang(batch=3)
        nodes = len(tree.parents)
        assert index.tolist() == torch.arange(3 * nodes).view(3, nodes).tolist()
        for b in range(3):
            assert DraftTree.from_sglang(first[b], sibling[b]) == tree
        for node, below in enumerate(tree.children):
            walked, child = [], first[0, node].item()
            while child != -1:
                walked.append(child)
                child = sibling[0, child].item()
            assert tuple(walked) == below

    def test_tensorrt_llm(self, tree):
        packed = tree.to_tensorrt_llm()
        nodes = len(tree.parents)
        assert packed.dtype == torch.int32
        assert packed.shape == (nodes, (nodes + 31) // 32)
        for i in range(nodes):
            for j in range(nodes):
                assert bool(packed[i, j // 32].item() >> (j % 32) & 1) == bool(tree.mask()[i, j])
        assert DraftTree.from_tensorrt_llm(packed) == tree

    @pytest.mark.parametrize("prefix_len", [0, 3, 8])
    def test_flashinfer(self, tree, prefix_len):
        packed = tree.to_flashinfer(prefix_len)
        mask = tree_mask(tree.tensor(), prefix_len=prefix_len)[0].flatten().tolist()
        assert packed.dtype == torch.uint8
        assert packed.tolist() == [
            sum(bit << i for i, bit in enumerate(mask[byte : byte + 8])) for byte in range(0, len(mask), 8)
        ]
        assert DraftTree.from_flashinfer(packed, len(tree.parents), prefix_len) == tree


class TestLayoutsThatAreNoTrees:
    def test_mask(self):
        for wrong in ([[1, 1], [1, 1]], [[0, 0], [1, 1]], [[1, 0], [0, 1]], [[1, 0], [1, 0]]):
            with pytest.raises(ValueError, match=r"mask: expected|parents\[1\]: expected"):
                DraftTree.from_mask(torch.tensor(wrong).bool())

    def test_sglang(self):
        for first, sibling in (
            ([1, 0], [-1, -1]),  # a cycle
            ([1, 1], [-1, -1]),  # a node with itself as child
            ([2, -1, -1], [-1, -1, 1]),  # siblings against their order
            ([1, 5], [-1, -1]),  # out of range
            ([1, -1, -1], [-1, 2, 2]),  # a node twice
            ([1, -1, -1], [-1, -1, -1]),  # a node that hangs on nothing
        ):
            with pytest.raises(ValueError, match=r"retrive arrays: expected|parents\[2\]: expected"):
                DraftTree.from_sglang(torch.tensor(first), torch.tensor(sibling))

    def test_flashinfer_without_its_prefix(self):
        packed = DraftTree.chain(2).to_flashinfer(4).clone()
        packed[0] ^= 1
        with pytest.raises(ValueError, match="packed: expected every node to attend to all 4 tokens"):
            DraftTree.from_flashinfer(packed, 3, 4)
