"""A rank in a process of its own: ``python -m tests.sharded.worker RANK RANKS STORE CASE``. Prints what it found."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import specdec_kernels
from specdec_kernels import Sampling, sharded
from specdec_kernels.sharded import VocabShard
from tests.support.ranks import ROWS, chain_call_with_hits, tree_call_with_hits

VOCABULARY = 4 * 1024 + 77


def same(shard):
    """Verdicts of the sharded ops, and whether they are those of the ops on whole rows."""
    first = shard.first_token
    bounds = shard.bounds(shard.vocab, shard.ranks)
    own = slice(first, bounds[bounds.index(first) + 1])
    call = chain_call_with_hits(VOCABULARY, requests=8)
    call["target"][0, 0, -1] = torch.nan  # of the last slice
    tree = tree_call_with_hits(VOCABULARY, requests=8, nodes=7)
    race, filtered = {"draft": None, "method": "race"}, {"temperature": None, "sampling": Sampling(0.9, top_k=20)}
    chains = [{}, race, race | filtered, filtered, {"method": "block"}]
    trees = [{}, race, {"method": "traversal"}]
    calls = [("verify_chain", call | how) for how in chains] + [("verify_tree", tree | how) for how in trees]
    rows = {"rows": call["target"][:, 0], "tokens": call["draft_tokens"][:, 0], "top": 3}
    calls += [("logprobs", rows), ("cutoff", {"rows": rows["rows"], "sampling": Sampling(top_p=0.8)})]
    for op, whole in calls:
        mine = {name: x[..., own] if name in ROWS and x is not None else x for name, x in whole.items()}
        found, expected = getattr(sharded, op)(**mine, shard=shard), getattr(specdec_kernels, op)(**whole)
        if not all(map(torch.equal, found, expected)):
            return f"{op} differs: {whole.get('method', 'rejection')}"
    none = torch.empty(0, own.stop - own.start)
    sharded.race_sample(none, shard=shard, seed=1, position=torch.empty(0, dtype=torch.int64))
    return "same"


def lost(shard):
    """What the others see of a rank that ends."""
    rows = torch.zeros(2, 1024)
    sharded.race_sample(rows, shard=shard, seed=torch.arange(2), position=1)
    if dist.get_rank() == 1:
        os._exit(3)
    try:
        for position in range(2, 100):
            sharded.race_sample(rows, shard=shard, seed=torch.arange(2), position=position)
    except ConnectionError as error:
        return str(error)
    return "noticed nothing"


def main(rank, ranks, store, case):
    torch.set_num_threads(1)
    rank, ranks = int(rank), int(ranks)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30)
    )
    vocabulary = VOCABULARY if case == "same" else 1024 * ranks
    found = {"same": same, "lost": lost}[case](VocabShard.even(vocabulary, debug=True))
    print(found, flush=True)
    if case == "same":
        dist.destroy_process_group()
    else:
        os._exit(0)  # the group is broken, and would be waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
