"""Tensor-parallel ranks that keep their slices of the logits: what vLLM's and SGLang's have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from specdec_kernels import sharded
from specdec_kernels.sharded import VocabShard


def shard_of(group: Any, width: int, vocabulary: int) -> VocabShard:
    """The shard of this rank of an engine's group, if each has `width` columns; the last ones may be padding."""
    return VocabShard(vocabulary, group.rank_in_group * width, group.device_group)


class RankSlices:
    """This rank's columns of the logits, after the engine's model has returned some, and the ops over them."""

    shard: VocabShard | None = None
    keeps = True  # else rows are gathered

    def __init__(self, group: Any, switch: str) -> None:
        self.group, self.switch = group, switch  # errors name the switch

    def skip_gather(self, gather: Callable[..., torch.Tensor], vocabulary: int, rows: torch.Tensor) -> torch.Tensor:
        """Replaces an engine's gather: returns the rows of this rank, without the padding of the vocabulary."""
        if not self.keeps:
            return gather(rows)
        if self.shard is None:
            ranks, width = self.group.world_size, rows.shape[-1]
            if width * (ranks - 1) >= vocabulary:  # all ranks raise, so that none waits for another
                raise ValueError(
                    f"{self.switch}: expected columns on each of {ranks} ranks; got a vocabulary of {vocabulary} in "
                    f"slices of {width}, which the last ranks have none of"
                )
            self.width, self.shard = rows.shape[-1], shard_of(self.group, rows.shape[-1], vocabulary)
            self.columns = slice(self.shard.vocab_start, self.shard.vocab_start + self.width)
            self.shard.check_tiles(self.switch)
            self.race_sample = functools.partial(sharded.race_sample, shard=self.shard)
            self.logprobs = functools.partial(sharded.logprobs, shard=self.shard)
        return rows[..., : max(vocabulary - self.columns.start, 0)]

    def check(self, what: str, model: Any, mine: torch.Tensor | None, whole: torch.Tensor | None) -> None:
        """Raise NotImplementedError unless a model's rows are the slice of those that it gave when it gathered."""
        if self.shard is not None and whole.shape[-1] == self.shard.vocab and torch.equal(mine, whole[:, self.columns]):
            return
        columns = "" if self.shard is None else f" {self.columns.start} to {self.columns.stop} of {self.shard.vocab}"
        raise NotImplementedError(
            f"{self.switch}: expected logits of {what} that are columns{columns} before they are gathered; got others "
            f"of {type(model).__name__}"
        )

    def whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all ranks' columns."""
        room = self.width - rows.shape[-1]
        return self.group.all_gather(pad(rows, (0, room)), dim=-1)[..., : self.shard.vocab]
