"""Tensor parallelism of the LM head: each rank has some columns of it, and verifies by `specdec_kernels.sharded`."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import specdec_kernels as specdec
from specdec_kernels import Draft, sharded
from specdec_kernels.generate.policies import FixedLength, FixedTree
from specdec_kernels.generate.protocols import ChainPolicy, TreePolicy

if TYPE_CHECKING:
    from specdec_kernels.generate.models import LanguageModel

TIMEOUT = datetime.timedelta(seconds=60)


def join(ranks: int, device: str) -> int:
    """Join the other processes that torchrun started, of which there must be as many; returns the rank of this one."""
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started != ranks:
        raise ValueError(
            f"expected {ranks} processes (torchrun --nproc-per-node {ranks} -m specdec_kernels.cli ...); got {started}"
        )
    if not dist.is_initialized() and ranks > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=TIMEOUT)
    return int(os.environ.get("RANK", 0))


def split_head(target: LanguageModel) -> LanguageModel:
    """The model with this rank's columns of its LM head: its logits are a slice of the vocabulary's.

    All other layers are whole on every rank. The model's `shard` is the slice. ValueError for a vocabulary with fewer
    than 128 tokens for each rank but the last.
    """
    from specdec_kernels.generate.derived import of_tokens

    shard = sharded.VocabShard.even(len(target.model.get_output_embeddings().weight))
    end = min(end for end in shard.bounds(shard.vocab, shard.ranks) if end > shard.vocab_start)
    split = of_tokens(target, slice(shard.vocab_start, end))
    split.shard = shard
    return split


def check_split(
    target: LanguageModel, method: str, policy: ChainPolicy | TreePolicy, edits: object, logprobs: int | None,
    watermark: object,
) -> None:  # fmt: skip
    """Raise ValueError for arguments that need whole rows of a target whose head is split."""
    if target.shard is None:
        return
    wanted = {"edits": edits, "logprobs": logprobs, "paths": method if method == "paths" else None}
    wanted |= {"watermark": watermark, "policy": None if isinstance(policy, (FixedLength, FixedTree)) else policy}
    for name, value in wanted.items():
        if value is not None:
            split = "a target whose head is split, which has no whole rows"
            raise ValueError(f"{name}: expected none with {split}; got one")


def verify(
    op: str, target: LanguageModel, drafts: torch.Tensor, logits: torch.Tensor, draft: Draft | None, **how: Any
) -> Any:
    """The verdict of an op on the target's logits, which may be a slice of the vocabulary."""
    if target.shard is None:
        return getattr(specdec, op)(drafts, logits, draft, **how)
    first = target.shard.vocab_start
    draft_slice = None if draft is None else draft._replace(rows=draft.rows[..., first : first + logits.shape[-1]])
    return getattr(sharded, op)(drafts, logits, draft_slice, shard=target.shard, **how)
