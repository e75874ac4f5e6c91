"""compact_kv over all layers of a cache in one call, against a gather and a copy per tensor in torch."""

import pytest
import torch
from harness import OURS, SEED

import specdec_kernels as sd

BATCH, HEADS, SLOTS, WIDTH, LAYERS, NODES = 4, 8, 512, 64, 16, 31
PATH = torch.tensor([[0, 2, 6, 14, 30]], dtype=torch.int32).expand(BATCH, 5).contiguous()
LENGTHS = torch.tensor([100, 200, 300, 400])


def torch_compact(cache, path, lengths):
    source = (lengths[:, None] + path)[:, None, :, None].expand(BATCH, HEADS, path.shape[1], WIDTH)
    target = (lengths[:, None] + torch.arange(path.shape[1]))[:, None, :, None].expand_as(source)
    for part in cache:
        part.scatter_(2, target, part.gather(2, source))


CONTENDERS = {OURS: lambda cache, p, n: sd.compact_kv(cache, p, prefix_len=n), "torch": torch_compact}

PAGE = 16  # slots
TABLE = torch.randperm(BATCH * SLOTS // PAGE, generator=torch.Generator().manual_seed(SEED)).view(BATCH, -1).int()


def torch_compact_pages(cache, path, lengths):
    def places(slots):
        return TABLE.long().gather(1, slots // PAGE), slots % PAGE

    (source, i), (target, j) = places(lengths[:, None] + path), places(lengths[:, None] + torch.arange(path.shape[1]))
    for part in cache:
        part[target, :, j] = part[source, :, i]


IN_PAGES = {
    OURS: lambda cache, p, n: sd.compact_kv(cache, p, prefix_len=n, block_table=TABLE),
    "torch": torch_compact_pages,
}


@pytest.mark.parametrize("contender", IN_PAGES)
def bench_pages(measure, contender, threads):
    generator = torch.Generator().manual_seed(SEED)
    cache = [torch.randn(TABLE.numel(), HEADS, PAGE, WIDTH, generator=generator) for _ in range(2 * LAYERS)]

    def check(call):
        found, expected = [part.clone() for part in cache], [part.clone() for part in cache]
        call(found, PATH, LENGTHS)
        torch_compact_pages(expected, PATH, LENGTHS)
        assert all(map(torch.equal, found, expected))

    case = {"B": BATCH, "tensors": 2 * LAYERS, "path": PATH.shape[1], "page": PAGE, "threads": threads}
    moved = 2 * 4 * BATCH * HEADS * WIDTH * PATH.shape[1] * 2 * LAYERS
    measure("compact_kv, pages", contender, case, IN_PAGES[contender], [(cache, PATH, LENGTHS)], check, bytes=moved)


@pytest.mark.parametrize("contender", CONTENDERS)
def bench_peers(measure, contender, threads):
    generator = torch.Generator().manual_seed(SEED)
    cache = [torch.randn(BATCH, HEADS, SLOTS, WIDTH, generator=generator) for _ in range(2 * LAYERS)]

    def check(call):
        found, expected = [part.clone() for part in cache], [part.clone() for part in cache]
        call(found, PATH, LENGTHS)
        torch_compact(expected, PATH, LENGTHS)
        assert all(map(torch.equal, found, expected))

    case = {"B": BATCH, "tensors": 2 * LAYERS, "path": PATH.shape[1], "threads": threads}
    moved = 2 * 4 * BATCH * HEADS * WIDTH * PATH.shape[1] * 2 * LAYERS
    measure("compact_kv", contender, case, CONTENDERS[contender], [(cache, PATH, LENGTHS)], check, bytes=moved)
