"""verify_tree(method="paths") on a tree of drafted chains: beside traversal of that tree, and a call for each chain."""

import pytest
import torch
from harness import KINDS, OURS, SEED, VOCABULARY, draft_near, logits

import specdec_kernels as sd

CHAINS, LENGTH = 4, 5


def inputs_of(kind):
    """Chains of the draft's tokens, merged; nodes of one depth have equal rows. Where they part differs by entry."""
    result = []
    for number in range(2):
        target = logits(kind, (1, LENGTH + 1, VOCABULARY), SEED + number)
        draft = draft_near(target, 0.7, SEED + 100 + number)
        for turn in range(4):
            position = torch.tensor([1000 * turn])
            places = {"seed": SEED, "position": position[:, None] + torch.arange(LENGTH)}
            drawn = [sd.race_sample(draft[:, :LENGTH], nonce=2 + chain, **places) for chain in range(CHAINS)]
            tree = sd.merge_paths(torch.stack(drawn, dim=1))
            rows = sd.tree_positions(tree.parents, prefix_len=0)[0].clamp(0, LENGTH)
            # A row for each depth would be read from cache: nodes have rows of their own, as in a model's output.
            result.append((tree, target[:, rows], draft[:, rows], position, target, draft))
    return result


def verified(method):
    def call(tree, target, draft, position, *_):
        own = {"leaves": tree.leaves} if method == "paths" else {}
        return sd.verify_tree(
            tree.draft_tokens, target, draft, parents=tree.parents, method=method, seed=SEED, position=position,
            nonce=1, max_depth=LENGTH, **own,
        )  # fmt: skip

    return call


def transformers(tree, _, __, ___, target, draft):
    """A call for each chain."""
    from transformers.generation.utils import _speculative_sampling

    node = tree.leaves[0].long()
    tokens = []
    for _ in range(LENGTH):
        tokens.insert(0, tree.draft_tokens[0, node])
        node = tree.parents[0, node].long()
    for chain in torch.stack(tokens, 1):
        _speculative_sampling(chain[None], draft[:, :LENGTH], LENGTH, target)


PEERS = {"traversal": verified("traversal"), "transformers, each chain": transformers}


@pytest.mark.parametrize("contender", [OURS, *PEERS])
@pytest.mark.parametrize("kind", KINDS)
def bench_paths(measure, contender, kind, threads):
    inputs, call = inputs_of(kind), verified("paths")

    def check(_):
        for arguments in inputs[::2]:
            with sd.backend("reference"):
                expected = call(*arguments)
            assert all(map(torch.equal, call(*arguments), expected))

    case = {"chains": CHAINS, "length": LENGTH, "kind": kind, "V": VOCABULARY, "threads": threads}
    if contender == OURS:
        measure("paths", OURS, case, call, inputs, check)
    else:
        measure("paths", contender, case, PEERS[contender], inputs)
