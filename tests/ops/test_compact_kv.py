"""compact_kv: accepted entries move together, in place, and nothing else moves."""

import pytest
import torch

from specdec_kernels import compact_kv
from tests.support.calls import cache
from tests.support.cases import UNTOUCHED


def test_rule_by_hand(backend):
    """After a prefix of two slots the nodes 0 to 3 lie in slots 2 to 5. The path is 0, 2, 3.

    So slot 2 stays, slot 3 takes the entry of node 2 (slot 4), and slot 4 that of node 3 (slot 5). Slot 5 stays.
    """
    keys = torch.tensor([10.0, 11.0, 20.0, 21.0, 22.0, 23.0]).view(1, 1, 6, 1)
    compact_kv(keys, torch.tensor([[0, 2, 3]], dtype=torch.int32), prefix_len=2)
    assert keys.flatten().tolist() == [10.0, 11.0, 20.0, 22.0, 23.0, 23.0]


CALLS = {"compact_kv": (compact_kv, cache())}

pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.interpreted]


def path_of(*rows):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int32)


def random_paths(requests, nodes, generator):
    rows = []
    for _ in range(requests):
        chosen = torch.rand(nodes, generator=generator) < torch.rand((), generator=generator)
        rows.append([0, *(i for i in range(1, nodes) if chosen[i])])
    return path_of(*rows)


def expected(cache, path, prefix_len):
    """All entries read before any is written."""
    result = cache.clone()
    for b, (nodes, prefix) in enumerate(zip(path.tolist(), prefix_len, strict=True)):
        for d, node in enumerate(nodes):
            if node != -1:
                result[b, :, prefix + d] = cache[b, :, prefix + node]
    return result


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8)


def random_cache(*shape, dtype=torch.float32, generator=None):
    return (100 * torch.randn(*shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 8, 64, 65])
def test_moves_the_path_behind_the_prefix(dtype, size):
    generator = torch.Generator().manual_seed(size)
    cache = random_cache(6, 2, 40, size, dtype=dtype, generator=generator)
    path, prefix_len = random_paths(6, 12, generator), torch.randint(0, 28, (6,), generator=generator)
    wanted = expected(cache, path, prefix_len.tolist())
    assert compact_kv(cache, path, prefix_len=prefix_len) is None
    assert torch.equal(cache, wanted)


def test_source_and_destination_overlap():
    """A long path one slot off: each entry moves to where the one before it was. Entries of one number, and of many."""
    for width in (1, 300):
        cache = torch.arange(64.0).repeat_interleave(width).view(1, 1, 64, width)
        compact_kv(cache, path_of([0, *range(2, 60)]), prefix_len=3)
        assert cache[0, 0].T.tolist() == [[*range(4), *range(5, 63), 62, 63]] * width


def test_all_layers_at_once():
    """Keys and values of layers that differ in heads, size, length and type, of every type and up to wide entries."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 3, 30, 16), (2, 1, 25, 8), (2, 4, 40, 5), (2, 2, 30, 1), (2, 1, 30, 65), (2, 2, 25, 300)]
    layers = [
        (random_cache(*shape, generator=generator), random_cache(*shape, dtype=dtype, generator=generator))
        for shape, dtype in zip(shapes, DTYPES, strict=True)
    ]
    path, prefix_len = path_of([0, 3, 4, 9], [0, 1, 7]), torch.tensor([10, 4])
    wanted = [expected(x, path, [10, 4]) for layer in layers for x in layer]
    compact_kv(layers, path, prefix_len=prefix_len)
    for got, right in zip((x for layer in layers for x in layer), wanted, strict=True):
        assert torch.equal(got, right)


def test_caches_of_any_strides():
    """Slots before heads, rows inside larger ones, and so is the path."""
    generator = torch.Generator().manual_seed(2)
    room = random_cache(3, 20, 2, 11, generator=generator)
    before = room.clone()
    cache = room.transpose(1, 2)[..., 2:9]
    path, prefix_len = torch.full((3, 9), UNTOUCHED, dtype=torch.int32), [5, 0, 13]
    path[:, 2:5] = path_of([0, 2, 5], [0, 1], [0, 4, 6])
    wanted = expected(cache, path[:, 2:5], prefix_len)
    compact_kv(cache, path[:, 2:5], prefix_len=torch.tensor(prefix_len))
    assert torch.equal(cache, wanted)
    assert torch.equal(room[..., :2], before[..., :2])
    assert torch.equal(room[..., 9:], before[..., 9:])


@pytest.mark.parametrize(
    "path, prefix, moved",
    [
        ([0, 3, 2, 5], 2, 2),  # falls
        ([0, 2, 2], 2, 2),  # stands still
        ([0, 2, 9], 2, 2),  # past the last slot
        ([0, 2, 2**31 - 1], 2, 2),
        ([0, 2, -7, 4], 2, 2),
        ([0, 2], 2**62, 0),
        ([0, 2], -1, 0),
        ([0, 2], -(2**63), 0),
    ],
)
def test_bad_paths_stop_where_they_go_wrong(path, prefix, moved):
    cache = torch.arange(20.0).reshape(2, 1, 10, 1)
    wanted = expected(cache, path_of(path[:moved], [0, 4]), [prefix, 3])
    status = torch.full((2,), UNTOUCHED, dtype=torch.int32)
    compact_kv(cache, path_of(path, [0, 4]), prefix_len=torch.tensor([prefix, 3]), status=status)
    assert torch.equal(cache, wanted)
    assert status.tolist() == [8, 0]


def in_pages(cache, size, generator):
    """Slots in pages of a pool, in no order and with others between them, and the block table."""
    requests, heads, slots, width = cache.shape
    columns = slots // size
    pages = torch.randperm(requests * columns + 3, generator=generator)[: requests * columns]
    pool = random_cache(requests * columns + 3, heads, size, width, dtype=cache.dtype, generator=generator)
    pool[pages] = cache.unflatten(2, (columns, size)).transpose(1, 2).flatten(0, 1)
    return pool, pages.view(requests, columns).int()


def from_pages(pool, block_table):
    return pool[block_table.long()].transpose(1, 2).flatten(2, 3)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_pages(size):
    """As a cache that lies in order, whichever pages its slots are in. No other page changes."""
    generator = torch.Generator().manual_seed(size)
    whole = [
        random_cache(4, 2, 80, width, dtype=dtype, generator=generator)
        for width, dtype in ((8, DTYPES[0]), (5, DTYPES[1]))
    ]
    pools, (block_table, _) = zip(*(in_pages(x, size, torch.Generator().manual_seed(7)) for x in whole), strict=True)
    others = sorted({*range(len(pools[0]))} - {*block_table.flatten().tolist()})
    before = [pool.clone() for pool in pools]
    path, prefix_len = random_paths(4, 40, generator), torch.tensor([0, 13, 40, 31])
    wanted = [expected(x, path, prefix_len.tolist()) for x in whole]
    compact_kv(pools, path, prefix_len=prefix_len, block_table=block_table)
    for pool, old, right in zip(pools, before, wanted, strict=True):
        assert torch.equal(from_pages(pool, block_table), right)
        assert torch.equal(pool[others], old[others])


def test_pages_of_engines():
    """Keys beside values, slots before heads: a page is [2, S, H, E]. A table inside a larger one. A pool of slots."""
    generator = torch.Generator().manual_seed(9)
    whole, path = random_cache(2, 3, 12, 8, generator=generator), path_of([0, 2, 5], [0, 1, 4])
    wanted = expected(whole, path, [5, 6])
    pool, block_table = in_pages(whole, 4, generator)
    both = torch.stack([pool, pool + 1], 1).transpose(2, 3).contiguous()
    table = torch.full((2, 9), 2**31 - 1, dtype=torch.int32)  # pages that no request has
    table[:, 2:5] = block_table
    keys, values = (x.transpose(1, 2) for x in both.unbind(1))
    compact_kv([keys, values], path, prefix_len=torch.tensor([5, 6]), block_table=table[:, 2:])
    assert torch.equal(from_pages(keys, block_table), wanted)
    assert torch.equal(from_pages(values, block_table), wanted + 1)
    slots, block_table = in_pages(whole, 1, generator)
    slots = slots.squeeze(2).clone()
    compact_kv(slots.unsqueeze(2), path, prefix_len=torch.tensor([5, 6]), block_table=block_table)
    assert torch.equal(from_pages(slots.unsqueeze(2), block_table), wanted)


def test_requests_share_the_pages_of_a_prefix():
    pool = torch.arange(16.0).reshape(4, 1, 4, 1)
    table = torch.tensor([[2, 0], [2, 3]], dtype=torch.int32)
    compact_kv(pool, path_of([0, 2, 3], [0, 1, 3]), prefix_len=4, block_table=table)
    assert pool.flatten().tolist() == [0, 2, 3, *range(3, 14), 15, 15]


@pytest.mark.parametrize(
    "pages, nodes, moved",
    [
        ([0, 1, 2], [0, 3, 5, 6], 4),
        ([0, 1, 3], [0, 3, 5, 6], 2),  # there are three
        ([0, 1, -1], [0, 3, 5, 6], 2),
        ([0, -(2**31), 2], [0, 5], 1),  # an entry comes from a page, but there is none that it could go to
        ([2**31 - 1, 1, 2], [0, 1], 0),
        ([2**31 - 1, 1, 2], [1, 2], 0),
        ([-1, -1, -1], [0, 3], 0),
    ],
)
def test_bad_pages_stop_a_path(pages, nodes, moved):
    """Nothing is written from there on, and the other request is as it would be."""
    pool, prefix = torch.arange(24.0).reshape(3, 2, 4, 1), 3
    wanted = pool.clone()
    for slot, node in enumerate(nodes[:moved], prefix):
        wanted[pages[slot // 4], :, slot % 4] = pool[pages[(prefix + node) // 4], :, (prefix + node) % 4]
    status = torch.full((2,), UNTOUCHED, dtype=torch.int32)
    table = torch.tensor([pages, [0, -1, -1]], dtype=torch.int32)
    path = path_of(nodes, [0, 1])
    compact_kv(pool, path, prefix_len=torch.tensor([prefix, 0]), block_table=table, status=status)
    assert torch.equal(pool, wanted)
    assert status.tolist() == [8 * (moved < len(nodes)), 0]


def test_a_path_leaves_the_block_table():
    pool, status = torch.arange(8.0).reshape(2, 1, 4, 1), torch.full((3,), UNTOUCHED, dtype=torch.int32)
    table, paths = torch.tensor([[1], [1], [0]], dtype=torch.int32), path_of([0, 2, 3], [0, 1, 2], [0, 1, -1])
    compact_kv(pool, paths, prefix_len=torch.tensor([1, 2**62, 3]), block_table=table, status=status)
    assert pool.flatten().tolist() == [*range(6), 7, 7]
    assert status.tolist() == [8, 8, 8]


def test_no_pages():
    path, status = path_of([0, 1]), torch.full((1,), UNTOUCHED, dtype=torch.int32)
    for caches, table, wanted in (
        ([], torch.tensor([[5, 6]], dtype=torch.int32), 0),
        (torch.empty(0, 1, 4, 2), torch.tensor([[0, 1]], dtype=torch.int32), 8),
        (torch.empty(3, 1, 0, 2), torch.tensor([[0, 1]], dtype=torch.int32), 8),
        (torch.empty(3, 0, 4, 2), torch.tensor([[0, 1]], dtype=torch.int32), 0),
    ):
        compact_kv(caches, path, prefix_len=0, block_table=table, status=status)
        assert status.item() == wanted
    compact_kv(torch.ones(2, 1, 4, 2), path[:0], prefix_len=0, block_table=torch.empty(0, 3, dtype=torch.int32))


def test_nothing_to_move():
    compact_kv([], path_of([0, 1]), prefix_len=0)
    compact_kv(torch.empty(0, 1, 4, 2), torch.empty(0, 3, dtype=torch.int32), prefix_len=0)
    status = torch.full((2,), UNTOUCHED, dtype=torch.int32)
    compact_kv([], path_of([0, 3, 2], [0, 4]), prefix_len=torch.tensor([2, 3]), status=status)
    assert status.tolist() == [8, 0]
    cache = torch.arange(8.0).reshape(1, 1, 8, 1)
    compact_kv(cache, path_of([0, 1, 2, -1]), prefix_len=2)
    assert torch.equal(cache.flatten(), torch.arange(8.0))


CACHE, PATH, TABLE = torch.zeros(2, 1, 8, 4), path_of([0, 1], [0, 2]), torch.zeros(2, 3, dtype=torch.int32)
REFUSED = {
    "compact_kv": (compact_kv, {"cache": CACHE, "path": PATH, "prefix_len": 0}, [
        ({"cache": CACHE.expand(2, 3, 8, 4)}, ValueError, "cache: expected entries with memory of their own"),
        ({"cache": CACHE.transpose(2, 3)}, ValueError, "cache: expected unit stride along the last dimension"),
        ({"path": PATH[0]}, ValueError, "path: expected 2 dimensions"),
        ({"path": path_of([0, 1, 2], [0, 2, 3])[:, ::2]}, ValueError, "path: expected unit stride along the depth"),
        ({"prefix_len": -1}, ValueError, "prefix_len: expected 0 to .*; got -1"),
    ]),
    "pages": (compact_kv, {"cache": CACHE, "path": PATH, "prefix_len": 0, "block_table": TABLE}, [
        ({"block_table": TABLE.long()}, TypeError, "block_table: expected a tensor of int32; got int64"),
        ({"block_table": TABLE[:1]}, ValueError, r"block_table: expected shape \[2, M\], M > 0; got int32 \[1, 3\]"),
        ({"block_table": TABLE[:, :0]}, ValueError, r"block_table: expected shape \[2, M\], M > 0; got int32 \[2, 0\]"),
        ({"block_table": TABLE[0]}, ValueError, "block_table: expected 2 dimensions"),
        ({"block_table": TABLE.repeat(1, 2)[:, ::2]}, ValueError, "block_table: expected unit stride along pages"),
        ({"cache": [CACHE, CACHE[:, :, :4].clone()]}, ValueError,
         r"cache: expected pages of one size; got pages of \[4, 8\]"),
        ({"block_table": TABLE[:, :1].expand(2, 2**29)}, ValueError, "block_table: expected unit stride"),
    ]),
}  # fmt: skip
