"""The CUDA tree ops on the played machine: the CPU backend's bits, on every machine and in every order of threads."""

import pytest
import torch

from specdec_kernels import compact_kv, tree_mask, tree_positions, verify_tree
from tests.backends import test_cuda_ops
from tests.backends.host_cuda.played import MACHINES
from tests.backends.test_cuda_ops import assert_same, on_cpu
from tests.ops import test_verify_tree
from tests.support.cases import DTYPES, UNTOUCHED, seeds
from tests.support.trees import leaves_of, random_parents, tree_call

pytestmark = test_cuda_ops.pytestmark

OPTIONS = test_verify_tree.OPTIONS | {"paths": {"method": "paths", "replacement": True}}
LAYOUTS = (
    {"layout": "bool"},
    {"layout": "bits"},
    *({"layout": "additive", "dtype": dtype} for dtype in (torch.float32, torch.bfloat16, torch.float16)),
)


def trees_of(nodes, requests=3):
    """Parents, int32 and one of them no tree, and prefixes of which one is out of range."""
    generator = torch.Generator().manual_seed(nodes)
    parents = random_parents(requests, nodes, generator).int()
    if nodes > 2:
        parents[0, nodes // 2] = nodes
    prefix_len = torch.randint(0, 2000, (requests,), generator=generator)
    prefix_len[-1] = -5
    return parents, prefix_len


def statuses():
    return [torch.full((3,), UNTOUCHED, dtype=torch.int32) for _ in range(2)]


@pytest.fixture
def unseen(monkeypatch):
    """As on a device: the host does not look into a tensor."""
    monkeypatch.setattr("specdec_kernels.ops._trees.host_sees", lambda tensor: False)


@pytest.mark.usefixtures("unseen")
class TestTheSameBits:
    @pytest.mark.parametrize("nodes", [1, 5, 40, 300])
    def test_tree_positions(self, machine, nodes):
        parents, prefix_len = trees_of(nodes)
        mine, theirs = statuses()
        found = tree_positions(parents, prefix_len=prefix_len, status=mine)
        assert_same(found, on_cpu(tree_positions, parents, prefix_len=prefix_len, status=theirs))
        assert_same(mine, theirs)

    def test_shared_memory_that_only_just_needs_to_be_allowed(self, machine):
        """A bit a token is 48 KiB less some bytes here, and what the kernel declares comes on top."""
        call = tree_call(1, requests=1, nodes=2, vocabulary=392_000) | {"draft": None}
        assert_same(verify_tree(**call), on_cpu(verify_tree, **call))
        # It was allowed when the kernels were loaded. Another thread may launch them with more.
        assert machine.counted(lambda: verify_tree(**call))["permissions"] == 0

    @pytest.mark.parametrize("nodes, columns", [(1, 1), (5, 1023), (40, 1024), (40, 2047)])
    def test_tree_mask(self, machine, nodes, columns):
        parents, prefix_len = trees_of(nodes)
        for options in LAYOUTS:
            mine, theirs = statuses()
            call = {"prefix_len": prefix_len, "columns": columns, **options}
            assert_same(tree_mask(parents, status=mine, **call), on_cpu(tree_mask, parents, status=theirs, **call))
            assert_same(mine, theirs)


def caches_of(count, heads=2):
    """Tensors of several types and sizes, so that columns of every width are moved, and paths of which one falls."""
    generator = torch.Generator().manual_seed(count)
    dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.float16)
    sizes = (64, 36, 7, 1, 12)
    shapes = [(3, 1 + i % heads, 40, sizes[i % len(sizes)]) for i in range(count)]
    caches = [(100 * torch.randn(shape, generator=generator)).to(dtypes[i % 4]) for i, shape in enumerate(shapes)]
    path = torch.tensor([[0, *range(2, 20)], [0, 1, 2, 5, 9, *[-1] * 14], [0, 3, 2, *[-1] * 16]], dtype=torch.int32)
    return caches, path, torch.tensor([3, 30, 0])


def assert_compacts(caches, path, prefix_len, **options):
    """In place, so on two copies."""
    mine, theirs = ([x.clone() for x in caches] for _ in range(2))
    my_status, their_status = statuses()
    compact_kv(mine, path, prefix_len=prefix_len, status=my_status, **options)
    on_cpu(compact_kv, theirs, path, prefix_len=prefix_len, status=their_status, **options)
    assert_same((*mine, my_status), (*theirs, their_status))


def test_compact_kv(machine):
    assert_compacts(*caches_of(7, heads=40))
    assert_compacts([], *caches_of(0)[1:])


def test_compact_kv_in_pages(machine):
    """The last request's path falls, the second's last nodes are in a page that does not exist."""
    generator = torch.Generator().manual_seed(5)
    caches, path, prefix_len = caches_of(7, heads=40)
    table = torch.randperm(9, generator=generator).view(3, 3).int()
    table[1, 2] = 9
    for size in (16, 15):
        pools = [torch.cat([x, x, x + 1])[:, :, :size] for x in caches]
        assert_compacts(pools, path, prefix_len, block_table=table)
    assert_compacts([], path, prefix_len, block_table=table)


def test_no_number_of_layers_is_too_large(device):
    """Up to 128 tensors travel with one launch."""
    for count, launches in ((128, 1), (129, 2), (260, 3)):
        found = device.counted(lambda count=count: assert_compacts(*caches_of(count)))
        assert found["launches"] == launches


def made(seed, options, **changes):
    call = tree_call(seed, replacement=options.get("replacement", False), **changes) | options
    if call.get("method") == "paths":
        call["leaves"] = leaves_of(call["parents"].expand(call["draft_tokens"].shape))
    return call


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
class TestTheSameVerdict:
    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_of_a_tree_each(self, machine, options, space):
        for (requests, vocabulary), dtype in zip(((5, 65), (2, 2500), (1, 4100)), DTYPES, strict=True):
            call = made(1, options, requests=requests, vocabulary=vocabulary, dtype=dtype, space=space)
            assert_same(verify_tree(**call), on_cpu(verify_tree, **call))

    def test_of_rows_too_wide_for_shared_memory(self, machine, options):
        """What one block alone cannot hold it reads again, for each child; several blocks can."""
        sizes = {"nodes": 8, "parents": [-1, 0, 0, 0, 0, 1, 1, 1], "vocabulary": 15_000, "draft_vocabulary": 9000}
        for requests in (1, 4):
            call = made(2, options, requests=requests, **sizes) | {"temperature": 2.0}
            assert_same(verify_tree(**call), on_cpu(verify_tree, **call))

    def test_of_a_thousand_nodes(self, machine, options):
        call = made(3, options, requests=1, nodes=1024, vocabulary=40) | {"temperature": 1.5}
        assert_same(verify_tree(**call), on_cpu(verify_tree, **call))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_verdicts_in_every_order_of_threads(device, options):
    call = made(4, options, requests=2, vocabulary=3000)
    expected = on_cpu(verify_tree, **call)
    for name in MACHINES:
        for schedule in (11, 12, 13):
            device.play(name, schedule=schedule)
            assert_same(verify_tree(**call), expected)


def calls_at_the_threshold(options):
    """Two calls that differ by one unit in the last place of p of every second sibling's token.

    Its uniform, which compares p with sums over both rows, accepts it in the first call and not in the second.
    """
    generator = torch.Generator().manual_seed(7)
    target = 2 * torch.randn(64, 1, 5000, generator=generator)
    draft = (target + torch.randn(64, 1, 5000, generator=generator)).softmax(-1).repeat(1, 3, 1)
    target = target.softmax(-1).repeat(1, 3, 1)
    target[:, 0, 0], draft[:, 0, 1] = 0.0, 0.02  # the first sibling is never accepted
    noise = {"seed": seeds(64), "position": 5, "space": "probs", "parents": torch.tensor([-1, 0, 0])}
    call = {"draft_tokens": torch.tensor([-1, 0, 1]).repeat(64, 1), "draft": draft, **noise, **options}

    def at(p):
        rows = target.clone()
        rows[:, 0, 1] = p.view(torch.float32)
        return call | {"target": rows}

    rejects, accepts = torch.zeros(64).int(), torch.ones(64).view(torch.int32)
    while (accepts - rejects).max() > 1:  # floats from 0 to 1, as integers
        middle = rejects + (accepts - rejects) // 2
        found = verify_tree(**at(middle)).num_accepted == 1
        accepts, rejects = torch.where(found, middle, accepts), torch.where(found, rejects, middle)
    return at(accepts), at(rejects)


@pytest.mark.parametrize("options", [OPTIONS["distinct"], OPTIONS["independent"], OPTIONS["traversal"]], ids=str)
def test_uniforms_of_later_siblings_at_the_threshold(machine, options):
    """A bit more or less in any sum over a pair of rows would decide otherwise."""
    for accepted, call in zip((1, 0), on_cpu(calls_at_the_threshold, options), strict=True):
        found = verify_tree(**call)
        assert (found.num_accepted == accepted).all()
        assert_same(found, on_cpu(verify_tree, **call))


def every_op():
    """One call of each op, small and odd, against the CPU backend; gives how many calls that were."""
    parents, prefix_len = random_parents(2, 70, torch.Generator().manual_seed(1)), torch.tensor([0, 45])
    assert_same(tree_positions(parents, prefix_len=prefix_len), on_cpu(tree_positions, parents, prefix_len=prefix_len))
    for options in LAYOUTS:
        call = {"prefix_len": prefix_len, "columns": 1100, **options}
        assert_same(tree_mask(parents, **call), on_cpu(tree_mask, parents, **call))
    assert_compacts(*caches_of(5))
    for dtype in DTYPES:
        for options in OPTIONS.values():
            for space in ("logits", "probs"):
                call = made(5, options, requests=3, nodes=12, vocabulary=1500, dtype=dtype, space=space)
                assert_same(verify_tree(**call), on_cpu(verify_tree, **call))
    return 2 + len(LAYOUTS) + 2 * len(DTYPES) * len(OPTIONS)


class TestTheLaunch:
    def test_only_rows_on_the_path_are_streamed(self, machine):
        call = made(6, OPTIONS["race"], requests=3, vocabulary=2048)
        accepted = int(on_cpu(verify_tree, **call).num_accepted.sum())
        found = machine.counted(lambda: verify_tree(**call))
        assert found["bytes_read"] == (3 + accepted) * 2048 * 4

    def test_later_children_are_summed_on_chip(self, machine):
        """All rejected: after the second of them no row is read until the last draw."""
        target, draft = torch.zeros(2, 1, 10, 512)  # four warps: what they hold fits into 99 KB, too
        target[..., :20], draft[..., :20] = -torch.inf, 8.0

        def verify(children):
            tokens, parents = torch.arange(children + 1)[None], torch.tensor([-1] + children * [0])
            rows = slice(children + 1)
            verify_tree(tokens, target[:, rows], draft[:, rows], parents=parents, seed=1, position=0)

        for children in (2, 9):
            found = machine.counted(lambda children=children: verify(children))
            assert found["bytes_read"] == (2 + 2 + 1) * 512 * 4

    def test_a_traversal_too_deep_for_a_small_block_is_refused(self, device):
        """As on a desktop's device: of 99 KB of shared memory a traversal takes 80 bytes for each node of a path."""
        device.play("lone")
        tree = {"requests": 1, "nodes": 1024, "vocabulary": 32}
        deep = tree_call(1, parents=[*range(-1, 1023)], **tree) | {"method": "traversal"}
        with pytest.raises(RuntimeError, match="more shared memory than the device has for it"):
            verify_tree(**deep)
        wide = deep | {"parents": torch.tensor([-1, *range(40), *[40] * 983]), "max_depth": 41}
        assert_same(verify_tree(**wide), on_cpu(verify_tree, **wide))

    def test_where_several_chains_go_on_rows_are_read_once_more(self, machine):
        """For their log-sum-exps, then for the sums by bucket; where one goes on once. The last row is drawn from."""
        rows, tokens = torch.zeros(1, 5, 512), torch.tensor([[-1, 1, 2, 3, 4]])
        tree = {"parents": torch.tensor([-1, 0, 1, 1, 2]), "leaves": torch.tensor([[4, 3]]), "method": "paths"}
        paths = []
        found = machine.counted(
            lambda: paths.append(verify_tree(tokens, rows, rows, **tree, seed=1, position=0).path.tolist())
        )
        assert paths == [[[0, 1, 2, 4]]]
        assert found["launches"] == 1
        assert found["bytes_read"] == (3 * 2 + 2 * 2 + 1) * 512 * 4
