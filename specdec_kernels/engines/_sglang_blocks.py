"""SGLang's drafters that draft a block at once, DFLASH and DSPARK, on our verification. It imports SGLang.

Greedy batches without penalties stay SGLang's.
"""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel

import specdec_kernels as specdec
from specdec_kernels import Draft, Sampling
from specdec_kernels.engines._methods import method_of
from specdec_kernels.engines._noise import positions
from specdec_kernels.engines._sglang import Block, eagle_sample, key_of, of_rows, sampling_of

MOST = 2**16  # requests in a batch


def worker(worker_class: type, algorithm: Any, *rest: Any) -> type | None:
    """After ``SpeculativeAlgorithm.create_worker``: a worker class with our methods."""
    return dflash(worker_class) if algorithm.is_dflash() else dspark(worker_class) if algorithm.is_dspark() else None


def is_plain(info: Any) -> bool:
    """Whether a batch is greedy, and its requests have no penalties."""
    return info is None or (info.is_all_greedy and getattr(info, "specdec_penalties", None) is None)


class Noise:
    """Seeds, nonces and first positions of a round's requests, int64 [MOST] each, at addresses that graphs capture."""

    def __init__(self, device: Any) -> None:
        self.seed, self.nonce, self.position = torch.zeros(3, MOST, dtype=torch.int64, device=device)

    def begin(self, batch: Any) -> None:
        """Begin a round: without request seeds its drafts and their verification share the noise drawn here."""
        if batch.sampling_info is not None:
            size = len(batch.seq_lens)
            key = key_of(batch.sampling_info, size)
            self.seed[:size], self.nonce[:size], self.position[:size] = key["seed"], key["nonce"], batch.seq_lens + 1

    def at(self, size: int, index: int | torch.Tensor) -> dict[str, torch.Tensor]:
        """The noise of the drafts at this index in the blocks: one for all requests, or [K] for each."""
        rows = (x[:size] if isinstance(index, int) else x[:size, None] for x in (self.seed, self.nonce, self.position))
        seed, nonce, position = rows
        return {"seed": seed, "nonce": nonce, "position": position + index}

    def verified(
        self, batch: Any, tokens: torch.Tensor, logits: torch.Tensor, draft: Draft | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Accepted drafts and emitted tokens int32 [B], the last one int64 [B], all of them int64 [B, N], then 0."""
        size, width = tokens.shape
        index = positions(tokens, size * width).view(size, width)
        key = {"seed": self.seed[:size], "nonce": self.nonce[:size]}
        rows = SimpleNamespace(next_token_logits=logits)
        predict, emitted, _ = eagle_sample(Block(tokens, width, width, index, draft, key), batch, rows)
        emitted_tokens, accepted = predict.view(size, width).long(), emitted - 1
        return accepted, emitted, emitted_tokens.gather(1, accepted[:, None].long())[:, 0], emitted_tokens


def dflash(base: type) -> type:
    """Drafts are the likeliest tokens; in a race they are drawn by its noise, on one rank, which has whole rows."""
    is_dense = importlib.import_module("sglang.srt.speculative.dflash_utils").is_dense_head_weight

    class Worker(base):  # type: ignore[misc]
        def _validate_phase1_sampling_support(self, batch: Any) -> None:  # it would warn of greedy verification
            self.specdec_batch, self.specdec_noise = batch, getattr(self, "specdec_noise", None) or Noise(self.device)
            self.specdec_noise.begin(batch)

        def _maybe_build_draft_sampler(self) -> Any:  # a captured argmax, or heads that draft from more than rows
            has_sampler = self.selector is not None or self.lilicorr is not None or self._is_domino
            return super()._maybe_build_draft_sampler() if has_sampler or method_of() != "race" else None

        def _greedy_sample_from_vocab_parallel_head(self, *, hidden_states: torch.Tensor, lm_head: Any) -> torch.Tensor:
            info, size = self.specdec_batch.sampling_info, len(self.specdec_batch.seq_lens)
            shard, weight = getattr(lm_head, "shard_indices", None), getattr(lm_head, "weight", None)
            whole = get_parallel().tp_group.world_size == 1 and not (shard and shard.num_added_elements)
            if method_of() != "race" or is_plain(info) or not (whole and is_dense(weight)):
                return super()._greedy_sample_from_vocab_parallel_head(hidden_states=hidden_states, lm_head=lm_head)
            rows = hidden_states.to(weight.dtype) @ weight[: shard.num_org_elements if shard else None].T
            rows = rows.view(size, -1, rows.shape[-1])
            noise = self.specdec_noise.at(size, torch.arange(rows.shape[1], device=rows.device, dtype=torch.int64))
            return specdec.race_sample(rows, sampling=Sampling(*map(of_rows, sampling_of(info))), **noise).flatten()

        def _accept_block(
            self, *, candidates: torch.Tensor, next_token_logits: torch.Tensor, sampling_info: Any, **rest: Any
        ) -> Any:
            has_laws = self._selector_sample is not None and method_of() != "race"
            if has_laws or rest["target_predict"] is not None or is_plain(sampling_info):
                given = {"candidates": candidates, "next_token_logits": next_token_logits}
                return super()._accept_block(**given, sampling_info=sampling_info, **rest)
            return *self.specdec_noise.verified(self.specdec_batch, candidates, next_token_logits, None), None

    return Worker


def dspark(base: type) -> type:
    """Drafts are drawn column by column; in a race by its noise, and then their logits are not stored."""
    parts = "sglang.srt.speculative.dspark_components"
    drafting, outs = importlib.import_module(f"{parts}.dspark_draft"), f"{parts}.dspark_verify"
    drafting._draft_step = functools.partial(draft_step, drafting._draft_step)

    class Worker(base):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.specdec_noise, self._sampling_accept_graph = Noise(self.device), None
            if self._hosts_draft:
                executor = self._verify_executor
                executor.accept_and_finalize = functools.partial(self.specdec_accept, executor.accept_and_finalize)
                if method_of() == "race" and self.draft_model.markov_head.vocab_shard is None:
                    self._greedy_draft = self._proposer._greedy_draft = True  # else SGLang stores logits
                    self._proposer._noise = self.specdec_noise

        def _forward_decode(self, batch: Any, *given: Any, **named: Any) -> Any:
            self.specdec_batch = batch
            self.specdec_noise.begin(batch)
            return super()._forward_decode(batch, *given, **named)

        def specdec_accept(self, original: Any, **given: Any) -> Any:
            """``TargetVerifyExecutor.accept_and_finalize``."""
            simulated = self._simulated_correct_len is not None
            if given["folded_accept"] or simulated or is_plain(given["sampling_info"]):
                return original(**given)
            tokens, block, draft = given["verify_ids_2d"], given["draft_block"], None
            if given["layout"] is not None:  # the target has not read all drafts
                each = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.int64)
                tokens = tokens.masked_fill(each >= given["layout"].verify_lens[:, None], -1)
            if not block.greedy_draft:
                draft = Draft(block.corrected_logits, sampling=Sampling(block.temperatures))
            verified = self.specdec_noise.verified(self.specdec_batch, tokens, given["target_logits"], draft)
            accepted, emitted, last, tokens = verified
            return importlib.import_module(outs).AcceptOuts(
                correct_len=accepted, bonus=last, cap_trim_lens=torch.zeros_like(accepted), commit_lens=emitted,
                new_seq_lens=given["prefix_lens"] + emitted, out_tokens=tokens,
            )  # fmt: skip

    return Worker


def draft_step(
    original: Any, markov_head: Any, prev_tokens: torch.Tensor, base_logits: torch.Tensor, *, noise: Any, **given: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``dspark_draft._draft_step`` with our noise: a draft for each request."""
    if not isinstance(noise, Noise):
        return original(markov_head, prev_tokens, base_logits, noise=noise, **given)
    bias, state = markov_head.step_bias(prev_tokens, hidden_states=given["hidden_states"], state=given["state"])
    rows, draw_position = base_logits[:, : bias.shape[1]] + bias, noise.at(len(prev_tokens), given["step"])
    return specdec.race_sample(rows, temperature=given["temperatures"], **draw_position), state
