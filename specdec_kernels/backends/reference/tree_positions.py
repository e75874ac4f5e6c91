"""Position ids of the nodes of trees."""

import torch

from specdec_kernels.backends.reference import trees
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def tree_positions(call: "typed.TreePositions"):
    """prefix_len + depth; the root and absent nodes have depth 0."""
    parents, prefix_len, positions, status = call
    requests, nodes = positions.shape
    lengths = trees.prefix_lens(prefix_len, requests, most=2**63 - 1 - nodes)
    for b, entries in enumerate(parents.expand(requests, nodes).tolist()):
        tree, bad = trees.parents_of(entries)
        prefix, bad_prefix = lengths[b]
        depths: list[int] = []
        for parent in tree:
            depths.append(0 if parent is None else depths[parent] + 1)
        positions[b] = prefix + torch.tensor(depths, dtype=torch.int64, device="cpu")
        status[b] = (bad or bad_prefix) * Status.PARAMETER
