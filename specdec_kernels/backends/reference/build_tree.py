"""Trees of selected candidates, by their numbers."""

import torch

from specdec_kernels.backends.reference import trees
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def build_tree(call: "typed.BuildTree"):
    """Node by node: its parent, its ancestors, its row of the mask."""
    requests, nodes = call.node_index.shape
    lengths = trees.prefix_lens(call.prefix_len, requests, most=2**63 - 1 - nodes)
    begin = 0  # the start of a request's full mask
    for b, (groups, selected) in enumerate(zip(call.parent_list.tolist(), call.selected.tolist(), strict=True)):
        parents = [-1] + [parent_of(i + 1, groups, selected, call.topk) for i in range(nodes - 1)]
        (prefix, bad), positions = lengths[b], []
        rows: list[list[int]] = []
        for node, parent in enumerate(parents):
            rows.append([0] * nodes if parent < 0 else rows[parent][:])
            rows[node][node] = 1
            positions.append(prefix + sum(rows[node]) - 1)
        bad |= -1 in parents[1:]
        for node, row in enumerate(rows):
            written: list[int] | bytes = row
            at = (b * nodes + node) * nodes
            if call.layout == "bits":
                size = 4 if nodes > 16 else 2 if nodes > 8 else 1
                written = sum(bit << j for j, bit in enumerate(row)).to_bytes(size, "little")
                at = (b * nodes + node) * size
            elif call.layout == "full":
                at = begin + node * (prefix + nodes) + prefix
            if at + len(written) > len(call.mask):
                bad = True
            else:
                call.mask[at : at + len(written)] = torch.tensor(list(written), dtype=torch.uint8, device="cpu")
        begin += nodes * (prefix + nodes)
        call.positions[b] = torch.tensor(positions, dtype=torch.int64, device="cpu")
        call.node_index[b] = b * nodes + torch.arange(nodes, dtype=torch.int64, device="cpu")
        for links, same in ((call.first_child, range(nodes)), (call.next_sibling, parents)):
            behind = [[j for j in range(i + 1, nodes) if parents[j] == above >= 0] for i, above in enumerate(same)]
            links[b] = torch.tensor([child[0] if child else -1 for child in behind], dtype=torch.int64, device="cpu")
        call.status[b] = bad * Status.PARAMETER


def parent_of(node, groups, selected, topk):
    """The last node before this one that is its group's parent candidate; -1 without one."""
    group = selected[node - 1] // topk
    if group == 0:
        return 0
    followed = groups[group] if 0 < group < len(groups) else -1
    before = selected[: node - 1]
    return before.index(followed) + 1 if followed >= 0 and followed in before else -1
