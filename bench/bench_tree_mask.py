"""Masks, positions and parents of a batch of trees, against loops over depths or siblings in torch."""

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
        assert torch.equal(call(*inputs).long(), contenders["torch"](*inputs).long())

    case = {"B": BATCH, "nodes": NODES, "prefix": PREFIX, "threads": threads}
    written = BATCH * NODES * (COLUMNS if op == "tree_mask" else 8)
    measure(op, contender, case, contenders[contender], [inputs], check, bytes=written)
