"""compact_kv: moves the cache entries of the accepted nodes behind the prefix."""

from collections.abc import Sequence

import torch

from specdec_kernels.calls import inputs, kinds
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Counter
from specdec_kernels.ops import _trees as trees

Tensors = torch.Tensor | Sequence["Tensors"]

COMPACT_KV = Op(
    "compact_kv",
    figures=True,
    caches=kinds.WRITTEN_TENSORS,
    path=kinds.ints("BD:u"),
    prefix_len=kinds.counter("E", least=0, most=2**62),
    block_table=kinds.ints("BN:u", optional=True),
    status=kinds.Output(torch.int32, "status", "B"),
)


def compact_kv(
    cache: Tensors,
    path: torch.Tensor,
    *,
    prefix_len: Counter,
    block_table: torch.Tensor | None = None,
    status: torch.Tensor | None = None,
) -> None:
    """Make the accepted path of a tree the continuation of the prefix, in place, in all layers at once.

    After a tree forward the entry of node j lies in slot ``prefix_len + j`` (as ``tree_mask`` has it). The entry of
    ``path[d]`` moves to slot ``prefix_len + d``, for d = 0, 1, … in order. A path rises from 0, so ``path[d] >= d``: a
    slot is written only after its last read. Overlap does no harm.

    With a ``block_table`` the caches are paged, as those of vLLM, SGLang and FlashInfer: slot s of request b is slot
    ``s % S`` of page ``block_table[b, s // S]``. Pages with slots before heads ("NHD") are given transposed,
    ``cache.transpose(1, 2)``; single slots [P, H, E] as pages of one slot, ``cache.unsqueeze(2)``.

    Parameters
    ----------
    cache : Tensor, or sequence of tensors or of such sequences
        Each [B, H, S, E] of any type, for instance the keys and values of every layer; only the last dimension must be
        contiguous. H, S and E may differ between tensors. No two may share memory. With a ``block_table`` [P, H, S, E]:
        P pages of S slots; S is the same for all.
    path : Tensor
        int32 [B, D+1], from ``verify_tree``: node indices from the root, -1 after the last.
    prefix_len : int or Tensor
        int64 or int32 [B]: slot of the root.
    block_table : Tensor, optional
        int32 [B, M]: the pages of each request, in order. Only pages that hold nodes are read. Requests may share the
        others.
    status : Tensor, optional
        int32 [B], overwritten: 8 where a path does not rise or leaves a cache, a page does not exist, or ``prefix_len``
        is negative. The request's move stops there.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> keys = torch.arange(6.0).view(1, 1, 6, 1)  # a prefix of 2 slots, then nodes 0 to 3
    >>> specdec_kernels.compact_kv(keys, torch.tensor([[0, 2, 3]], dtype=torch.int32), prefix_len=2)
    >>> keys.flatten().tolist()
    [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    """
    if COMPACT_KV.direct(False, cache, path, prefix_len, block_table, status) is not None:
        return
    COMPACT_KV.check({}, path=path)
    inputs.check_step("path", path, "the depth")
    batch, device = path.shape[0], path.device
    caches = list(_tensors(cache))
    for x in caches:
        inputs.check_device("cache", x, device)
        if x.ndim != 4 or (block_table is None and x.shape[0] != batch):
            entries = batch if block_table is None else "P"
            raise ValueError(f"cache: expected shape [{entries}, H, S, E]; got {inputs.shown(x)}")
        inputs.check_step("cache", x, "the last dimension")
        if 0 in x.stride() and any(x.stride(i) == 0 and x.shape[i] > 1 for i in range(4)):
            raise ValueError(f"cache: expected entries with memory of their own; got strides {tuple(x.stride())}")
    if block_table is not None:
        _check_pages(block_table, caches, batch, device)
    prefix_len = trees.prefix_lens(prefix_len, batch, device, path.shape[1])
    status = COMPACT_KV.output("status", status, (batch,), device)
    COMPACT_KV(caches, path, prefix_len, block_table, status, given=True)


def _check_pages(block_table, caches, batch, device):
    inputs.check_tensor("block_table", block_table, (torch.int32,), 2)
    inputs.check_device("block_table", block_table, device)
    columns = block_table.shape[1]
    if block_table.shape[0] != batch or columns == 0:
        raise ValueError(f"block_table: expected shape [{batch}, M], M > 0; got {inputs.shown(block_table)}")
    inputs.check_step("block_table", block_table, "pages")
    sizes = {x.shape[2] for x in caches}
    if len(sizes) > 1:
        raise ValueError(f"cache: expected pages of one size; got pages of {sorted(sizes)} slots")
    if sizes and columns * max(sizes) > 2**31 - 1:
        raise ValueError(f"block_table: expected at most 2**31 - 1 slots; got {columns} pages of {max(sizes)} slots")


def _tensors(cache):
    if isinstance(cache, torch.Tensor):
        yield cache
    elif isinstance(cache, (list, tuple)):
        for part in cache:
            yield from _tensors(part)
    else:
        raise TypeError(f"cache: expected a tensor or a sequence of them; got {inputs.shown(cache)}")
