"""Masks, positions, links and parents of a batch of trees, against torch, by loops over depths or siblings."""

import pytest
import torch
from harness import OURS

import specdec_kernels as sd

BATCH, NODES, PREFIX = 16, 64, 1024
PARENTS = torch.tensor([-1, *((i - 1) // 3 for i in range(1, NODES))]).expand(BATCH, NODES).contiguous()
LENGTHS = torch.arange(BATCH) * 7 + PREFIX - 200
COLUMNS = int(LENGTHS.max()) + NODES


def torch_mask(parents, lengths):
    """Each node joins its parent's row, generation by generation."""
    nodes = torch.eye(NODES, dtype=torch.bool).expand(BATCH, NODES, NODES).clone()
    above = parents
    while (above >= 0).any():
        nodes |= torch.nn.functional.one_hot(above.clamp(min=0), NODES).bool() & (above >= 0)[..., None]
        above = torch.where(above >= 0, parents.gather(1, above.clamp(min=0)), above)
    mask = (torch.arange(COLUMNS) < lengths[:, None])[:, None].repeat(1, NODES, 1)
    columns = (lengths[:, None] + torch.arange(NODES))[:, None].expand(BATCH, NODES, NODES)
    return mask.scatter_(2, columns, nodes)


def torch_positions(parents, lengths):
    depth, above = torch.zeros_like(parents), parents
    while (above >= 0).any():
        depth += above >= 0
        above = torch.where(above >= 0, parents.gather(1, above.clamp(min=0)), above)
    return lengths[:, None] + depth


def torch_parents(first_child, next_sibling):
    """Each younger sibling gets its elder's parent, until all have one."""
    index, nobody = torch.arange(NODES).expand(BATCH, NODES), torch.full((BATCH, NODES + 1), -1)
    parents, elder = (
        nobody.scatter(1, torch.where(links < 0, NODES, links), index)[:, :NODES]
        for links in (first_child, next_sibling)
    )
    while (waits := (parents < 0) & (elder >= 0)).any():
        parents = torch.where(waits, parents.gather(1, elder.clamp(min=0)), parents)
    return parents


# Of groups of three. The root's children are group 0; each node i behind them is the first of group i.
CANDIDATES = torch.tensor([-1, 0, 1, 2, *(3 * i for i in range(4, NODES))])
SELECTED = CANDIDATES[1:].expand(BATCH, -1).contiguous()
GROUPS = torch.where(PARENTS > 0, CANDIDATES[PARENTS], -1)


def torch_built(groups, selected, lengths):
    """Links, positions and the nodes' mask, by comparing all numbers with all."""
    followed = groups.gather(1, selected // 3)
    matches = selected[:, None] == followed[..., None]
    found = torch.where(matches.any(2), matches.int().argmax(2) + 1, 0)
    parents = torch.nn.functional.pad(found, (1, 0), value=-1)
    node = torch.arange(NODES)
    child = parents[:, :, None] == node
    first = torch.where(child.any(1), child.int().argmax(1), -1)
    younger = (parents[:, :, None] == parents[:, None]) & (node > node[:, None])
    sibling = torch.where(younger.any(2), younger.int().argmax(2), -1)
    mask = torch_mask(parents, torch.zeros_like(lengths))[..., :NODES]
    return mask, torch_positions(parents, lengths), torch.arange(BATCH * NODES).view(BATCH, NODES), first, sibling


# The inputs, and who works on them.
CALLS = {
    "tree_mask": (
        (PARENTS, LENGTHS),
        {OURS: lambda p, n: sd.tree_mask(p, prefix_len=n, columns=COLUMNS), "torch": torch_mask},
    ),
    "tree_positions": (
        (PARENTS, LENGTHS),
        {OURS: lambda p, n: sd.tree_positions(p, prefix_len=n), "torch": torch_positions},
    ),
    "build_tree": (
        (GROUPS, SELECTED, LENGTHS),
        {OURS: lambda g, s, n: sd.build_tree(g, s, topk=3, prefix_len=n), "torch": torch_built},
    ),
    "tree_parents": (
        sd.DraftTree.from_parents(PARENTS[0].tolist()).to_sglang(BATCH)[1:],
        {OURS: lambda first, sibling: sd.tree_parents(first, sibling).parents, "torch": torch_parents},
    ),
}


@pytest.mark.parametrize("contender", [OURS, "torch"])
@pytest.mark.parametrize("op", CALLS)
def bench_peers(measure, op, contender, threads):
    inputs, contenders = CALLS[op]

    def check(call):
        found, expected = call(*inputs), contenders["torch"](*inputs)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        assert all(torch.equal(x.long(), y.long()) for x, y in pairs)

    case = {"B": BATCH, "nodes": NODES, "prefix": PREFIX, "threads": threads}
    written = BATCH * NODES * {"tree_mask": COLUMNS, "build_tree": NODES + 4 * 8}.get(op, 8)
    measure(op, contender, case, contenders[contender], [inputs], check, bytes=written)
