"""Trees by their parents, from links."""

import torch

from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def tree_parents(call: "typed.TreeParents"):
    """From the root down: the children of a node are its first child, that one's next sibling, and so on."""
    links = zip(call.first_child.tolist(), call.next_sibling.tolist(), strict=True)
    for b, (first_child, next_sibling) in enumerate(links):
        # The last, and so the highest, node that links each one.
        parent = {child: node for node, child in enumerate(first_child)}
        elder = {sibling: node for node, sibling in enumerate(next_sibling)}
        nodes = range(1, len(first_child))
        tree = {0: (-1, 0)}  # node -> (parent, rank)
        reached = [0]
        for node in reached:  # which grows
            child, rank = first_child[node], 0
            follows = child in nodes and child not in elder and parent[child] == node
            while follows:
                tree[child] = node, rank
                reached.append(child)
                sibling, rank = next_sibling[child], rank + 1
                follows = sibling in nodes and elder[sibling] == child
                child = sibling
        rows = [tree.get(node, (-1, -1)) for node in range(len(first_child))]
        call.parents[b], call.ranks[b] = torch.tensor(rows, dtype=torch.int64, device="cpu").T
        # A node of the tree needs one link, the root none.
        named = sum(link != -1 for link in (*first_child, *next_sibling))
        call.status[b] = (named != len(tree) - 1) * Status.PARAMETER
