"""tree_mask: which columns a node attends to, in every layout, from good and bad parents."""

import pytest
import torch

from specdec_kernels import tree_mask, tree_positions
from tests.support.calls import PARENTS
from tests.support.cases import UNTOUCHED
from tests.support.trees import depths, random_parents

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """A node attends to the prefix, here of two tokens, to its ancestors and to itself. Node 3 follows 1, and 1 and 2
    follow the root.
    """
    parents = torch.tensor([-1, 0, 0, 1])
    attended = [
        # prefix, nodes 0 to 3
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0, 1],
    ]
    assert tree_mask(parents, prefix_len=2).int().tolist() == [attended]
    bits = [0b000111, 0b001111, 0b010111, 0b101111]  # column 0 is the lowest bit
    assert tree_mask(parents, prefix_len=2, layout="bits").tolist() == [[[word] for word in bits]]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        added = tree_mask(parents, prefix_len=2, layout="additive", dtype=dtype)
        assert added.tolist() == [[[0.0 if bit else -torch.inf for bit in row] for row in attended]]


CALLS = {
    "tree_mask": (tree_mask, {"parents": PARENTS.repeat(3, 1), "prefix_len": torch.arange(3), "columns": 6}),
    "tree_mask additive": (tree_mask, {"parents": PARENTS, "layout": "additive", "dtype": torch.bfloat16}),
    "tree_mask bits": (tree_mask, {"parents": PARENTS, "layout": "bits"}),
}


def ancestors(parents, node):
    found = {node}
    while parents[node] >= 0:
        node = parents[node]
        found.add(node)
    return found


def expected_mask(parents, prefix_len, columns):
    mask = torch.zeros(len(parents), len(parents[0]), columns, dtype=torch.bool)
    for b, (tree, prefix) in enumerate(zip(parents, prefix_len, strict=True)):
        for node in range(len(tree)):
            slots = [*range(prefix), *(prefix + a for a in ancestors(tree, node))]
            mask[b, node, slots] = True
    return mask


def unpacked(words, columns):
    """Bit j of word w is column 32 w + j; all bits past the last column are 0."""
    bits = (words.unsqueeze(-1) >> torch.arange(32) & 1).bool().flatten(-2)
    assert not bits[..., columns:].any()
    return bits[..., :columns]


def batch(seed, requests=5, nodes=9):
    generator = torch.Generator().manual_seed(seed)
    return random_parents(requests, nodes, generator), torch.randint(0, 40, (requests,), generator=generator)


@pytest.mark.usefixtures("backend")
class TestMask:
    @pytest.mark.parametrize("nodes", [1, 2, 9, 31, 32, 33, 70])
    @pytest.mark.parametrize("columns", [None, 127, 128, 200])
    def test_each_layout(self, nodes, columns):
        """Columns are cache slots: behind the last node nothing is attended to."""
        parents, prefix_len = batch(nodes, nodes=nodes)
        width = columns or int(prefix_len.max()) + nodes
        expected = expected_mask(parents.tolist(), prefix_len.tolist(), width)
        for given in (parents, parents.int(), parents.T.contiguous().T):
            assert torch.equal(tree_mask(given, prefix_len=prefix_len, columns=columns), expected)
        words = tree_mask(parents, prefix_len=prefix_len, columns=columns, layout="bits")
        assert words.dtype == torch.int32
        assert torch.equal(unpacked(words, width), expected)
        for dtype in (None, torch.float32, torch.bfloat16, torch.float16):
            added = tree_mask(parents, prefix_len=prefix_len, columns=columns, layout="additive", dtype=dtype)
            assert added.dtype == (dtype or torch.float32)
            assert torch.equal(added.float(), torch.zeros(expected.shape).masked_fill(~expected, -torch.inf))

    @pytest.mark.parametrize("layout", ["bool", "additive", "bits"])
    def test_shared_tree_and_shared_prefix(self, layout):
        parents, _ = batch(4)
        one = tree_mask(parents[0], layout=layout)
        assert one.shape[0] == 1
        assert torch.equal(one, tree_mask(parents[:1], prefix_len=0, layout=layout))
        each = tree_mask(parents[0].repeat(5, 1), prefix_len=torch.full((5,), 7), layout=layout)
        assert torch.equal(tree_mask(parents[0], prefix_len=7, layout=layout).expand_as(each), each)
        assert torch.equal(tree_mask(parents[0], prefix_len=torch.full((5,), 7), layout=layout), each)

    def test_every_row_attends_to_something(self):
        mask = tree_mask(torch.tensor([-1, -1, -1, 0]))
        assert mask.any(dim=-1).all()

    def test_no_requests(self):
        assert tree_mask(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 3)
        lens = torch.empty(0, dtype=torch.int64)
        assert tree_mask(torch.empty(0, 3, dtype=torch.int64), prefix_len=lens).shape == (0, 3, 3)


def test_prefixes_out_of_range(backend):
    status = torch.full((3,), UNTOUCHED, dtype=torch.int32)
    parents, lens = torch.tensor([-1, 0]), torch.tensor([-4, 9, 3])
    mask = tree_mask(parents, prefix_len=lens, columns=8, status=status)
    assert status.tolist() == [8, 8, 0]
    assert torch.equal(mask, tree_mask(parents, prefix_len=torch.tensor([0, 6, 3]), columns=8))


CHAIN = torch.tensor([-1, 0, 1])
REFUSED = {
    "tree_mask": (tree_mask, {"parents": CHAIN}, [
        ({"layout": "words"}, ValueError, "layout: expected one of 'bool', 'additive', 'bits'; got 'words'"),
        ({"dtype": torch.float32}, ValueError, "dtype: expected None with layout='bool'"),
        ({"layout": "additive", "dtype": torch.float64}, TypeError, "dtype: expected float32, bfloat16 or"),
        ({"columns": 2}, ValueError, "columns: expected an int of at least the 3 nodes; got 2"),
        ({"columns": 2.0}, ValueError, "columns: expected an int of at least the 3 nodes; got 2.0"),
        ({"parents": CHAIN.expand(0, 3), "columns": 2}, ValueError, "columns: expected an int of at least the 3 nodes"),
        ({"out": torch.zeros(1, 3, 3).bool().mT}, ValueError, "out: expected contiguous; got strides"),
        ({"parents": 1 - CHAIN}, ValueError, "parents.0.: expected -1"),
        ({"prefix_len": -1}, ValueError, "prefix_len: expected 0 to .*; got -1"),
        ({"parents": CHAIN.to("meta"), "prefix_len": torch.tensor([3], device="meta")}, ValueError,
         "columns: expected an int where the host does not look"),
    ]),
}  # fmt: skip


@pytest.mark.one_backend
def test_a_forward_under_the_mask_is_many_chain_forwards():
    """Attention of a node over prefix and ancestors, alone and under the mask: the same numbers."""
    generator = torch.Generator().manual_seed(8)
    parents, prefix = random_parents(1, 12, generator, absent=0.0), 5
    keys, values, queries = torch.randn(3, 1, 1, 17, 8, generator=generator, dtype=torch.float64)
    mask = tree_mask(parents, prefix_len=prefix)
    attend = torch.nn.functional.scaled_dot_product_attention
    together = attend(queries[:, :, prefix:], keys, values, attn_mask=mask[:, None])
    added = tree_mask(parents, prefix_len=prefix, layout="additive").double()
    torch.testing.assert_close(attend(queries[:, :, prefix:], keys, values, attn_mask=added[:, None]), together)
    for node in range(12):
        slots = [*range(prefix), *(prefix + a for a in sorted(ancestors(parents[0].tolist(), node)))]
        alone = attend(queries[:, :, [prefix + node]], keys[:, :, slots], values[:, :, slots])
        torch.testing.assert_close(together[:, :, [node]], alone)
    assert depths(parents[0].tolist()) == (tree_positions(parents, prefix_len=0)[0]).tolist()
