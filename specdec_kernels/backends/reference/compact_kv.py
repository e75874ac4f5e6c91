"""Moving the cache entries of accepted nodes together."""

from itertools import pairwise

from specdec_kernels.status import Status


def compact_kv(call):
    """Copy slots prefix_len + path[d] to prefix_len + d, all of them read before any is written."""
    caches, path, prefix_len, status = call
    slots = min((cache.shape[2] for cache in caches), default=None)
    prefix_len = prefix_len.expand(len(path)).tolist() if hasattr(prefix_len, "expand") else [prefix_len] * len(path)
    for b, (nodes, prefix) in enumerate(zip(path.tolist(), prefix_len, strict=True)):
        nodes = nodes[: nodes.index(-1)] if -1 in nodes else nodes
        good = [
            prefix >= 0 and node > before and (slots is None or prefix + node < slots)
            for before, node in pairwise([-1, *nodes])
        ]
        moved = nodes[: good.index(False)] if False in good else nodes
        status[b] = (len(moved) < len(nodes)) * Status.PARAMETER
        slots_of_path = range(prefix, prefix + len(moved))
        for cache in caches:
            cache[b, :, list(slots_of_path)] = cache[b, :, [prefix + node for node in moved]].clone()
