"""verify_tree on a binary tree of 15 nodes, against sampling a token of every node's row (argmax and race_sample)."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd

NODES = 15
PARENTS = torch.tensor([-1, *((i - 1) // 2 for i in range(1, NODES))])
DEPTHS = sd.tree_positions(PARENTS, prefix_len=torch.zeros(1, dtype=torch.int64))[0]


def tokens_of(draft, position):
    """Children are the first two arrivals of their parent's draft row."""
    pairs = sd.race_topk(draft[:, : NODES // 2], 2, seed=SEED, position=position[:, None] + DEPTHS[: NODES // 2])
    return torch.cat([torch.zeros(len(draft), 1, dtype=torch.int64), pairs.flatten(1)], 1)


def inputs_of(kind):
    result = []
    for number in range(4):
        target = logits(kind, (1, NODES, VOCABULARY), SEED + number)
        draft = draft_near(target, 0.7, SEED + 100 + number)
        position = torch.tensor([1000 * number])
        result.append((tokens_of(draft, position), target, draft, position))
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


def bytes_read(call, inputs, method):
    """Mean bytes of the rows that a verification looks at; of a traversal at most."""
    visited = sum(int((call(*arguments).num_accepted + 1).sum()) for arguments in inputs) / len(inputs)
    rows = {"race": visited, "rejection": 2 * visited, "traversal": len(inputs[0][0]) * (2 * (NODES // 2) + 1)}[method]
    return int(inputs[0][1].element_size() * VOCABULARY * rows)


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

    case = {"method": method, "kind": kind, "nodes": NODES, "V": VOCABULARY, "threads": threads}
    if contender == OURS:
        measure("verify_tree", OURS, case, call, inputs, check, bytes=bytes_read(call, inputs, method))
    else:
        measure("verify_tree", contender, case, PEERS[contender], inputs, bytes=4 * VOCABULARY * NODES)
