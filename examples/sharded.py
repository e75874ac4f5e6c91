"""Tensor parallelism in an engine's own communicator: the local halves around a gather that is not ours.

    python examples/sharded.py

Four ranks are played in one process. Each samples from its slice of the logits, and all get the token of the whole row.
"""

import torch

import specdec_kernels
from specdec_kernels.sharded import VocabShard, race_finish, race_partial

RANKS, VOCAB, BATCH = 4, 10_000, 3


def all_gather(mine: list[torch.Tensor]) -> torch.Tensor:
    """In place of the engine's own: a custom all-reduce, NVSHMEM, a ring in a CUDA graph."""
    return torch.stack(mine)


def main() -> None:
    logits = torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(1)).bfloat16()
    seed, position = torch.arange(BATCH), 17
    bounds = VocabShard.bounds(VOCAB, RANKS)

    # On every rank: one launch over its slice, then 12 bytes a row.
    packed = [
        race_partial(
            logits[:, bounds[rank] : bounds[rank + 1]], vocab_start=bounds[rank], seed=seed, position=position
        ).packed()
        for rank in range(RANKS)
    ]
    gathered = all_gather(packed)
    # On every rank: the same tokens.
    tokens, status = race_finish(gathered)

    assert torch.equal(tokens, specdec_kernels.race_sample(logits, seed=seed, position=position))
    print(f"tokens {tokens.tolist()}, status {status.tolist()}, {packed[0].nbytes} bytes sent by each rank")


if __name__ == "__main__":
    main()
