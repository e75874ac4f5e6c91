"""Trees as lists: the meaning of ``parents``, and lengths of prefixes."""


def parents_of(entries):
    """(parents, bad): every node's parent, None for the root, absent nodes (-1) and bad entries (no node before it)."""
    parents = [parent if 0 <= parent < node else None for node, parent in enumerate(entries)]
    return parents, any(parent is None and entry != -1 for parent, entry in zip(parents, entries, strict=True))


def prefix_lens(prefix_len, requests, most=None):
    """(length, bad) of each request, the length in [0, most]."""
    lengths = prefix_len.expand(requests).tolist() if hasattr(prefix_len, "expand") else [prefix_len] * requests
    possible = [max(0, length if most is None else min(length, most)) for length in lengths]
    return [(fit, fit != length) for fit, length in zip(possible, lengths, strict=True)]
