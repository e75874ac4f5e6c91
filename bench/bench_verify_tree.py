"""verify_tree on a binary tree of 15 nodes, against sampling a token of every node's row (argmax and race_sample)."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd

NODES = 15
PARENTS = torch.tensor([-1, *((i - 1) // 2 for i in range(1, NODES))])
DEPTHS = sd.tree_positions(PARENTS, prefix_len=torch.zeros(1, dtype=torch.int64))[0]


def inputs_of(kind):
    """Children are the first two arrivals of their parent's draft row."""
    result = []
    for number in range(4):
        target = logits(kind, (1, NODES, VOCABULARY), SEED + number)
        draft = draft_near(target, 0.7, SEED + 100 + number)
        position = torch.tensor([1000 * number])
        pairs = sd.race_topk(draft, 2, seed=SEED, position=position[:, None] + DEPTHS)
        tokens = torch.cat([torch.tensor([[0]]), pairs[:, : NODES // 2].flatten(1)], 1)
        result.append((tokens, target, draft, position))
    return result


CONTENDERS = {
    "race": lambda tokens, p, q, at: sd.verify_tree(tokens, p, parents=PARENTS, method="race", seed=SEED, position=at),
    "rejection": lambda tokens, p, q, at: sd.verify_tree(tokens, p, q, parents=PARENTS, seed=SEED, position=at),
    "traversal": lambda tokens, p, q, at: sd.verify_tree(
        tokens, p, q, parents=PARENTS, method="traversal", seed=SEED, position=at
    ),
}
PEERS = {
    "torch.argmax, all rows": lambda tokens, p, q, at: torch.argmax(p, -1),
    "race_sample, all rows": lambda tokens, p, q, at: sd.race_sample(p, seed=SEED, position=at[:, None] + DEPTHS),
}


@pytest.mark.parametrize("contender", [OURS, *PEERS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", CONTENDERS)
def bench_peers(measure, contender, method, kind, threads):
    inputs = inputs_of(kind)
    call = CONTENDERS[method]

    def check(_):
        for arguments in inputs:
            with sd.backend("reference"):
                expected = call(*arguments)
            assert all(map(torch.equal, call(*arguments), expected))

    visited = sum(int(call(*arguments).num_accepted) + 1 for arguments in inputs) / len(inputs)
    rows = {"race": visited, "rejection": 2 * visited, "traversal": 2 * (NODES // 2) + 1}[method]  # the last: at most
    case = {"method": method, "kind": kind, "nodes": NODES, "V": VOCABULARY, "threads": threads}
    if contender == OURS:
        measure("verify_tree", OURS, case, call, inputs, check, bytes=int(4 * VOCABULARY * rows))
    else:
        measure("verify_tree", contender, case, PEERS[contender], inputs, bytes=4 * VOCABULARY * NODES)
