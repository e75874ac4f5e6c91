"""Moving the cache entries of accepted nodes together."""

from itertools import pairwise

from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def compact_kv(call: "typed.CompactKv"):
    """Copy slots prefix_len + path[d] to prefix_len + d, all of them read before any is written."""
    caches, path, prefix_len, block_table, status = call
    size = min((cache.shape[2] for cache in caches), default=2**63 if block_table is None else 1)
    pages = min((len(cache) for cache in caches), default=2**31)

    def slot_of(b, slot):
        """(entry of a cache, slot in there), or None outside of it."""
        if block_table is None:
            return (b, slot) if slot < size else None
        if slot >= size * block_table.shape[1]:
            return None
        column, slot = divmod(slot, size)
        page = block_table[b, column].item()
        return (page, slot) if 0 <= page < pages else None

    lengths = prefix_len.expand(len(path)).tolist() if hasattr(prefix_len, "expand") else [prefix_len] * len(path)
    for b, (nodes, prefix) in enumerate(zip(path.tolist(), lengths, strict=True)):
        nodes = nodes[: nodes.index(-1)] if -1 in nodes else nodes
        good = [
            prefix >= 0 and node > before and None not in (slot_of(b, prefix + node), slot_of(b, prefix + d))
            for d, (before, node) in enumerate(pairwise([-1, *nodes]))
        ]
        moved = nodes[: good.index(False)] if False in good else nodes
        status[b] = (len(moved) < len(nodes)) * Status.PARAMETER
        for cache in caches:
            entries = [cache[page, :, slot].clone() for page, slot in (slot_of(b, prefix + node) for node in moved)]
            for d, entry in enumerate(entries):
                page, slot = slot_of(b, prefix + d)
                cache[page, :, slot] = entry
