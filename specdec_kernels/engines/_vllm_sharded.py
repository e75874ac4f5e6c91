"""vLLM's V1 runner where each tensor-parallel rank computes on its slice of the logits: ``SPECDEC_VLLM_SHARDED=1``."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from specdec_kernels import Packing, sharded
from specdec_kernels._constants import MASS_TILE
from specdec_kernels.engines._methods import SHARDED, refuse
from specdec_kernels.engines._ranks import RankSlices
from specdec_kernels.engines._vllm_rounds import first_positions


def padded(pad: Callable[..., int], ranks: Callable[[], int]) -> Callable[..., int]:
    """vLLM's ``pad_vocab_size``, so that each rank's slice begins with a tile of masses."""

    def pad_vocab_size(vocab_size: int, pad_to: int = 64) -> int:
        count = ranks()
        return pad(vocab_size, pad_to if count == 1 else math.lcm(pad_to, MASS_TILE * count))

    return pad_vocab_size


class Slices(RankSlices):
    """The ops of a step, over this rank's slice of the rows, which the runner's model gives from then on.

    Grammars are cut to the slice. The logits of prompts are gathered as before, others by `whole` on demand.
    """

    def __init__(self, runner: Any) -> None:
        from vllm.distributed import get_tp_group

        refuse(
            **{
                f"LoRA beside {SHARDED}": runner.lora_config is not None,
                f"pipeline_parallel_size beside {SHARDED}": runner.parallel_config.pipeline_parallel_size > 1,
                f"VLLM_COMPUTE_NANS_IN_LOGITS beside {SHARDED}": os.environ.get("VLLM_COMPUTE_NANS_IN_LOGITS") == "1",
            }
        )
        super().__init__(get_tp_group(), SHARDED)
        self.runner = runner
        self.take("the model", runner.model, runner.model_config.get_hidden_size())
        runner.sample_tokens = functools.partial(self._sample_tokens, runner.sample_tokens)
        runner._get_prompt_logprobs_dict = functools.partial(self._of_prompts, runner._get_prompt_logprobs_dict)

    def take(self, what: str, model: Any, hidden_size: int) -> None:
        """Make this model return slices of logits. A row then shows whether it does."""
        own_map = getattr(model, "draft_id_to_target_id", None)
        refuse(**{f"a drafter's own vocabulary beside {SHARDED}": own_map is not None})
        hidden = torch.linspace(-1, 1, hidden_size, device=self.runner.device, dtype=torch.float32)
        hidden = hidden.to(self.runner.model_config.dtype)[None]
        with torch.inference_mode():
            whole = model.compute_logits(hidden)
            for head in model.modules():
                if hasattr(head, "_gather_logits"):
                    head._gather_logits = functools.partial(self.skip_gather, head._gather_logits, whole.shape[-1])
            self.check(what, model, model.compute_logits(hidden), whole)

    def verify_chain(
        self, *, out: tuple[torch.Tensor, None, None], packing: Packing | None = None, **call: Any
    ) -> None:
        """`verify_chain`'s tokens, written into int32 ones."""
        if packing is not None:
            packing = packing._replace(max_drafts=out[0].shape[1] - 1)
        position, index = first_positions(call["position"], packing), call.get("request_index")
        if index is not None:
            position = position.new_zeros(len(call["seed"])).index_copy_(0, index, position)
        call["position"] = position
        out[0].copy_(sharded.verify_chain(**call, packing=packing, shard=self.shard).tokens)

    def _sample_tokens(self, sample: Callable[..., Any], grammar: Any) -> Any:
        if grammar is not None:
            first = self.shard.vocab_start // 32
            columns = grammar.grammar_bitmask[:, first : first + self.width // 32]
            grammar = dataclasses.replace(grammar, grammar_bitmask=columns)
        return sample(grammar)

    def _of_prompts(self, scores: Callable[..., Any], *given: Any) -> Any:
        self.keeps = False
        try:
            return scores(*given)
        finally:
            self.keeps = True
