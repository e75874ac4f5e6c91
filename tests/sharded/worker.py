"""A rank in a process of its own: ``python -m tests.sharded.worker RANK RANKS STORE CASE``. Prints what it found."""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import specdec_kernels
from specdec_kernels import Sampling, sharded
from specdec_kernels.sharded import VocabShard
from tests.support.ranks import ROWS, chain_call_with_hits, tree_call_with_hits

VOCABULARY = 4 * 1024 + 77
LOSSES = 5  # of ``losses``


def same(shard):
    """Verdicts of the sharded ops, and whether they are those of the ops on whole rows."""
    bounds = shard.bounds(shard.vocab, shard.ranks)
    own = slice(shard.vocab_start, bounds[bounds.index(shard.vocab_start) + 1])
    return verified(shard, own)


def verified(shard, own):
    """Verdicts by a rank that has these columns."""
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
    none = rows["rows"][:0, own]
    sharded.race_sample(none, shard=shard, seed=1, position=torch.empty(0, dtype=torch.int64))
    return "same"


class MortalShard(VocabShard):
    """Its rank is killed instead of a collective."""

    left = None  # how many before that; None: it lives

    def _sent(self, mine):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = None if self.left is None else self.left - 1
        return super()._sent(mine)


def lost(shard, op, call, collectives):
    """What the others see of a rank that is killed during a call, after so many of its collectives."""
    own = slice(shard.vocab_start, shard.vocab_start + 1024)
    call = {name: x[..., own] if name in ROWS and x is not None else x for name, x in call.items()}
    getattr(sharded, op)(**call, shard=shard)
    if dist.get_rank() == 1:
        shard.left = collectives
    try:
        for _ in range(100):
            getattr(sharded, op)(**call, shard=shard)
    except ConnectionError as error:
        return str(error)
    return "noticed nothing"


def losses(vocabulary):
    """An op, its call, and after how many of its collectives a rank is killed."""
    chain, tree = (make(vocabulary, 4, 3) for make in (chain_call_with_hits, tree_call_with_hits))
    race = {"draft": None, "method": "race"}
    return [
        ("verify_chain", chain | race, 0),
        ("verify_chain", chain, 0),
        ("verify_chain", chain, 1),
        ("verify_tree", tree, 0),
        ("verify_tree", tree, 1),
    ]


def started(rank, ranks, store):
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30)
    )


def each_loss(rank, ranks, store):
    """Each in a process of its own, which begins with all that is imported."""
    for i in range(LOSSES):
        if not (child := os.fork()):
            started(rank, ranks, f"{store}{i}")
            print(lost(MortalShard.even(1024 * ranks), *losses(1024 * ranks)[i]), flush=True)
            os._exit(0)  # the group is broken, and would be waited for
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL:
            print("killed", flush=True)


def main(rank, ranks, store, case):
    torch.set_num_threads(1)
    rank, ranks = int(rank), int(ranks)
    if case == "lost":
        return each_loss(rank, ranks, store)
    started(rank, ranks, store)
    if case == "nothing":  # one rank has all tokens, the others stand at its end, or behind
        shard = VocabShard(VOCABULARY, 1024 * rank * (1 + VOCABULARY // 1024))
        print(verified(shard, slice(shard.vocab_start, VOCABULARY)), flush=True)
    else:
        print(same(VocabShard.even(VOCABULARY, debug=True)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
