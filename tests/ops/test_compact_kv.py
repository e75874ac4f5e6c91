"""compact_kv: accepted entries move together, in place, and nothing else moves."""

import pytest
import torch

from specdec_kernels import compact_kv
from tests.support.calls import cache
from tests.support.cases import UNTOUCHED

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
    """A long path one slot off: each entry moves to where the one before it was."""
    cache = torch.arange(64.0).reshape(1, 1, 64, 1)
    compact_kv(cache, path_of([0, *range(2, 60)]), prefix_len=3)
    assert cache.flatten().tolist() == [*range(4), *range(5, 63), 62, 63]


def test_all_layers_at_once():
    """Keys and values of layers that differ in heads, size, length and type."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 3, 30, 16), (2, 1, 25, 8), (2, 4, 40, 5)]
    layers = [
        (random_cache(*shape, generator=generator), random_cache(*shape, dtype=dtype, generator=generator))
        for shape, dtype in zip(shapes, DTYPES, strict=False)
    ]
    path, prefix_len = path_of([0, 3, 4, 9], [0, 1, 7]), torch.tensor([10, 4])
    wanted = [expected(x, path, [10, 4]) for layer in layers for x in layer]
    compact_kv(layers, path, prefix_len=prefix_len)
    for got, right in zip((x for layer in layers for x in layer), wanted, strict=True):
        assert torch.equal(got, right)


def test_caches_of_any_strides():
    """Slots before heads, rows inside larger ones."""
    generator = torch.Generator().manual_seed(2)
    room = random_cache(3, 20, 2, 11, generator=generator)
    before = room.clone()
    cache = room.transpose(1, 2)[..., 2:9]
    path, prefix_len = path_of([0, 2, 5], [0, 1], [0, 4, 6]), [5, 0, 13]
    wanted = expected(cache, path, prefix_len)
    compact_kv(cache, path, prefix_len=torch.tensor(prefix_len))
    assert torch.equal(cache, wanted)
    assert torch.equal(room[..., :2], before[..., :2])
    assert torch.equal(room[..., 9:], before[..., 9:])


def test_path_inside_a_larger_tensor():
    cache = random_cache(2, 1, 12, 4, generator=torch.Generator().manual_seed(3))
    path = path_of([0, 2, 3], [0, 1, 4])
    room = torch.full((2, 9), UNTOUCHED, dtype=torch.int32)
    room[:, 2:5] = path
    wanted = expected(cache, path, [4, 4])
    compact_kv(cache, room[:, 2:5], prefix_len=4)
    assert torch.equal(cache, wanted)


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


def test_nothing_to_move():
    compact_kv([], path_of([0, 1]), prefix_len=0)
    compact_kv(torch.empty(0, 1, 4, 2), torch.empty(0, 3, dtype=torch.int32), prefix_len=0)
    cache = torch.arange(8.0).reshape(1, 1, 8, 1)
    compact_kv(cache, path_of([0, 1, 2, -1]), prefix_len=2)
    assert torch.equal(cache.flatten(), torch.arange(8.0))


def test_bad_input():
    cache, path = torch.zeros(2, 1, 8, 4), path_of([0, 1], [0, 2])
    for arguments, error, message in (
        ((cache[0], path), ValueError, r"cache: expected shape \[2, H, S, E\]; got float32 \[1, 8, 4\]"),
        ((cache[:1], path), ValueError, r"cache: expected shape \[2, H, S, E\]"),
        ((cache.transpose(2, 3), path), ValueError, "cache: expected unit stride along the last dimension"),
        (([cache, None], path), TypeError, "cache: expected a tensor or a sequence of them; got None"),
        ((cache.to("meta"), path), ValueError, "cache: expected a tensor on cpu"),
        ((cache, path.long()), TypeError, "path: expected a tensor of int32; got int64"),
        ((cache, path[0]), ValueError, "path: expected 2 dimensions"),
        ((cache, path_of([0, 1, 2], [0, 2, 3])[:, ::2]), ValueError, "path: expected unit stride along the depth"),
    ):
        with pytest.raises(error, match=message):
            compact_kv(*arguments, prefix_len=0)
    with pytest.raises(ValueError, match=r"prefix_len: expected 0 to .*; got -1"):
        compact_kv(cache, path, prefix_len=-1)
