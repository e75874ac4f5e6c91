"""The rejection sampler of vLLM's V1 runner on our ops. Seen: vLLM 0.33.0, whose default is the V2 runner (`vllm`).

`vllm` plugs in more: a whole step. vLLM need not be there. Replace its function with
``vllm.v1.sample.rejection_sampler.rejection_sample = specdec_kernels.engines.vllm_v1.rejection_sample``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import specdec_kernels as specdec
from specdec_kernels import Draft, OutputFormat, Packing, Sampling
from specdec_kernels.engines._methods import refuse
from specdec_kernels.engines._noise import mixed, seed_of

__all__ = ["rejection_sample"]


def rejection_sample(
    draft_token_ids: torch.Tensor, num_draft_tokens: Sequence[int], max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor, draft_probs: torch.Tensor | None, target_logits: torch.Tensor,
    bonus_token_ids: torch.Tensor, sampling_metadata: Any, synthetic_mode: bool = False,
    synthetic_conditional_rates: torch.Tensor | None = None, use_fp64_gumbel: bool = False,
    fly_window_size: int | None = None, fly_entropy_threshold: float | None = None, fly_entropy_top_k: int = 3,
) -> torch.Tensor:  # fmt: skip
    """Verify chains: ``vllm.v1.sample.rejection_sampler.rejection_sample``, by `verify_chain`.

    The law is the target's. There is no row for the token after the last draft, which is an argument. A request with a
    generator gets a seed from it; its tokens do not depend on the others of the batch. The others share a seed from the
    device's generator. Noise is ours: other tokens than vLLM's, of the same law. Synthetic acceptance rates and FLy
    are refused if they are on (NotImplementedError); ``use_fp64_gumbel`` makes no difference.

    Parameters
    ----------
    draft_token_ids, num_draft_tokens, max_spec_len : Tensor, list of int, int
        int32 or int64 [N], N in all; drafts of each request, on the host, so that ``cu_num_draft_tokens`` is not read;
        the most of a request.
    draft_probs, target_logits : Tensor
        float32 [N, V]: probabilities, or None where drafts are certain; logits with temperature and filters in.
    bonus_token_ids : Tensor
        int32 or int64 [B, 1]: the next token where all drafts are accepted.
    sampling_metadata : object
        With ``all_greedy``, ``all_random``, ``temperature`` (float32 [B]; read if neither is true) and
        ``generators``, a dict of ``torch.Generator`` by request. At temperature 0 the argmax decides.

    Returns
    -------
    Tensor
        int32 [B, max_spec_len + 1], -1 after the last token.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> greedy = SimpleNamespace(all_greedy=True, all_random=False, temperature=None, generators={})
    >>> rejection_sample(
    ...     torch.tensor([1, 0]), [2], 2, torch.tensor([2]), None, torch.tensor([[0.0, 9.0], [0.0, 9.0]]),
    ...     torch.tensor([[0]]), greedy,
    ... )
    tensor([[ 1,  1, -1]], dtype=torch.int32)
    """
    refuse(synthetic_mode=synthetic_mode, fly_window_size=fly_window_size is not None)
    batch, total, device = len(num_draft_tokens), len(draft_token_ids), target_logits.device
    bounds = np.zeros(batch + 1, dtype=np.int32)
    np.cumsum(num_draft_tokens, dtype=np.int32, out=bounds[1:])
    if bounds[-1] != total or target_logits.shape[0] != total or np.diff(bounds).max(initial=0) > max_spec_len:
        raise ValueError(
            f"num_draft_tokens: expected {total} in all, as many as target_logits has rows, and {max_spec_len} at most "
            f"each; got {list(num_draft_tokens)} and {target_logits.shape[0]} rows"
        )
    seeds = np.asarray(_seeds(batch, sampling_metadata, device), dtype=np.uint64)
    words = torch.from_numpy(np.concatenate([seeds.view(np.int32), bounds])).to(device, non_blocking=True)
    seed, cu_drafts = words[: 2 * batch].view(torch.int64), words[2 * batch :]

    sampling = Sampling(0.0 if sampling_metadata.all_greedy else 1.0)
    if not (sampling_metadata.all_greedy or sampling_metadata.all_random):
        sampling = Sampling(sampling_metadata.temperature, divided=True)
    draft = None if draft_probs is None else Draft(draft_probs, space="probs")
    tokens = torch.empty(batch, max_spec_len + 1, dtype=torch.int32, device=device)
    specdec.verify_chain(
        draft_token_ids, target_logits, draft, seed=seed, position=0, sampling=sampling, packing=Packing(cu_drafts),
        out=(tokens, None, None), output_format=OutputFormat(bonus=bonus_token_ids[:, 0]),
    )  # fmt: skip
    return tokens


def _seeds(batch: int, metadata: Any, device: torch.device) -> list[int]:
    """A seed for each request: from its generator, or from the device's."""
    if metadata.all_greedy:
        return [0] * batch
    shared = None if len(metadata.generators) >= batch else seed_of(None, device) % 2**64
    return [
        seed_of(metadata.generators[index], device) % 2**64 if index in metadata.generators else mixed(shared, index)
        for index in range(batch)
    ]
