"""SGLang's side of `engines.sglang.register`: our verification of drafts, and a sampler. It imports SGLang."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.dp_attention import is_dp_attention_enabled
from sglang.srt.layers.sampler import Sampler, _SamplingMaskCapture
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative import eagle_utils, spec_utils
from sglang.srt.utils.async_probe import sanitize_nan_logits

import specdec_kernels as specdec
from specdec_kernels import Draft, InputPositions, OutputFormat, Sampling
from specdec_kernels.engines import _sglang_penalties as penalties
from specdec_kernels.engines._methods import method_of, refuse
from specdec_kernels.engines._noise import positions, seed_of
from specdec_kernels.engines._sglang_sharded import Slices, _slices, slices_of
from specdec_kernels.engines._support import support_of_filters
from specdec_kernels.engines._watermark import Marks, requested_watermark
from specdec_kernels.generate.edits import bits as set_bits

LOGGER = logging.getLogger("sglang.specdec_kernels")
LENIENT = 1  # the nonce of lenient trees, whose positions are those of roots: so their noise is used once


class Block(NamedTuple):
    """Drafts of a whole block, with the fields that `eagle_sample` reads of a chain; without laws they are certain."""

    draft_token: torch.Tensor
    draft_token_num: int
    max_tree_depth: int
    retrieve_index: torch.Tensor
    draft: Draft | None
    key: dict[str, torch.Tensor]  # the round's seeds and nonces
    retrieve_next_token: None = None
    retrieve_next_sibling: None = None


def eagle_sample(
    verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None, *, watermark_state: Any = None, watermark_full_mask: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """``sglang.srt.speculative.eagle_utils.eagle_sample`` by one `verify_chain` or `verify_tree` on raw logits.

    Temperature, top-k, top-p and min-p are those of SGLang's sampler, joint, so that the law is that of plain sampling;
    SGLang's verification renormalises between them, and ignores min-p. Penalties, bias and the grammar's mask are
    written into the logits, as in SGLang; penalties are those of plain sampling (`_sglang_penalties`).
    """
    device = batch.device
    if batch.forward_mode.is_idle():
        return tuple(torch.empty(0, dtype=torch.int32, device=device) for _ in range(3))
    info, options, method = batch.sampling_info, eagle_utils.get_spec(), method_of() or "rejection"
    penalised = getattr(info, "specdec_penalties", None)
    refuse(
        watermark_state=watermark_state is not None and info.has_watermark_candidates,
        SGLANG_SIMULATE_ACC_LEN=spec_utils.SIMULATE_ACC_LEN > 0,
        penalties=penalised is not None and options.speculative_algorithm == "UNO",  # as in SGLang
    )
    slices = sanitized(logits_output, batch)
    requests, nodes, depth = len(batch.seq_lens), verify_input.draft_token_num, verify_input.max_tree_depth
    rows = logits_output.next_token_logits.view(requests, nodes, -1)
    candidates = verify_input.draft_token.view(requests, nodes)
    block = verify_input if isinstance(verify_input, Block) else None
    is_lenient = method != "race" and not (
        options.speculative_accept_threshold_single == options.speculative_accept_threshold_acc == 1
    )
    is_chain = block is not None or options.speculative_use_rejection_sampling
    is_chain = is_chain or (verify_input.tree_topk == 1 and not is_lenient)
    # SGLang's builders link siblings by rising index, behind their parents.
    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    parents = None if is_chain or (is_lenient and penalised is None) else specdec.tree_parents(*links).parents
    columns = slice(None) if slices is None else slices.columns
    if penalised is not None:
        penalties.penalise_round(penalised, rows, candidates, parents, batch, columns.start)
    if info.logit_bias is not None and block is None:  # a block's rows are biased already
        rows += info.logit_bias[:, None, columns]
    if grammar_mask is not None:
        (grammar_mask if slices is None else slices.cut(grammar_mask)).apply(logits_output.next_token_logits)

    # SGLang's draft model looks up all of `predict`, accepted or not. Zeros fill what no index leads to.
    width = min(depth, nodes) if is_chain else nodes
    predict = (torch.empty if width == nodes else torch.zeros)(requests * nodes, dtype=torch.int32, device=device)
    accept_index = torch.empty((requests, depth), dtype=torch.int32, device=device)
    outputs = predict, accept_index, torch.empty(requests, dtype=torch.int32, device=device)
    output_format = OutputFormat(index=verify_input.retrieve_index, count="emitted", zeros=width == nodes)
    ops = specdec if slices is None else slices
    marks = getattr(batch.req_to_token_pool, "specdec_marks", None)
    if is_lenient and not is_chain:
        verify_leniently(rows, candidates, links, batch, outputs, output_format)
    else:
        drafts = candidates[:, 1:width] if is_chain else candidates
        if marks is None:
            noise = dict(block.key) if block else key_of(info, requests, slices)
            noise["position"] = InputPositions(batch.seq_lens[:, None].expand(-1, width))
        else:
            marks.put(batch.req_pool_indices, batch.seq_lens, candidates[:, 0])
            noise = marks.noise(drafts, batch.seq_lens + 1, batch.req_pool_indices, own_seeds(info), parents=parents)
        call = noise | {"sampling": sampling_of(info)}
        if is_chain:
            draft = None if method == "race" else laws_of_drafts(verify_input, info, width)
            verify_chains(ops, drafts, rows[:, :width], draft, method, outputs, output_format, **call)
        else:
            tree_method = "rejection" if method == "block" else method  # "block" is for chains
            ops.verify_tree(
                drafts, rows, parents=parents, method=tree_method, out=(*outputs, None), output_format=output_format,
                **call,
            )  # fmt: skip
    group = get_parallel().attn_tp_group if is_dp_attention_enabled() else get_parallel().tp_group
    if group.world_size > 1 and slices is None:  # without request seeds each rank has drawn other tokens
        for each in outputs:
            group.broadcast(each, src=0)
    if penalised is not None:
        penalties.keep(batch, predict, accept_index)
    if marks is not None:
        each = torch.arange(1, depth + 1, device=device, dtype=torch.int64)
        slots = torch.where(accept_index >= 0, batch.req_pool_indices[:, None], -1)
        marks.put(slots, batch.seq_lens[:, None] + each, predict[accept_index.long().clamp(min=0)])
    return predict, outputs[2], accept_index


def sanitized(logits_output: Any, batch: Any) -> Slices | None:
    """Replace NaN in the target's logits; returns the ops on them if they are slices."""
    logits = logits_output.next_token_logits
    sanitize_nan_logits(logits, "verify: target model logits")
    slices = slices_of(logits)
    if slices is not None and batch.return_logprob:  # SGLang computes them from whole rows, after this call
        logits_output.next_token_logits, slices = slices.whole(logits), None
    return slices


def laws_of_drafts(verify_input: Any, info: Any, width: int) -> Draft | None:
    """The laws that chains were drawn from; None where drafts count as certain."""
    if isinstance(verify_input, Block):
        return verify_input.draft
    if not eagle_utils.get_spec().speculative_use_rejection_sampling or info.is_all_greedy:  # SGLang stores none then
        return None
    if verify_input.draft_probs is None:
        raise ValueError("draft_probs: expected the laws of the drafts with speculative_use_rejection_sampling")
    return Draft(verify_input.draft_probs[:, : width - 1], space="probs")


def verify_chains(
    ops: Any, drafts: torch.Tensor, rows: torch.Tensor, draft: Draft | None, method: str,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], output_format: OutputFormat, **call: Any,
) -> None:  # fmt: skip
    """Verify chains of at most as many nodes as paths have columns."""
    predict, accept_index, emitted = outputs
    width = rows.shape[1]
    if draft is not None:
        call["draft"] = draft
        if eagle_utils.get_spec().speculative_use_block_verification:
            method = "block"
    ops.verify_chain(
        drafts, rows, method=method, **call, out=(predict, emitted, None),
        output_format=output_format._replace(index=output_format.index[:, :width], path=accept_index[:, :width]),
    )  # fmt: skip
    if accept_index.shape[1] > width:
        accept_index[:, width:] = -1


def verify_leniently(
    rows: torch.Tensor, candidates: torch.Tensor, links: tuple[torch.Tensor, torch.Tensor], batch: Any,
    outputs: tuple[torch.Tensor, ...], output_format: OutputFormat,
) -> None:  # fmt: skip
    """Verify trees with thresholds below 1, which accept more drafts than the law allows."""
    info, options = batch.sampling_info, eagle_utils.get_spec()
    probs = specdec.residual(
        rows, rows[..., :1], sampling=Sampling(*map(of_rows, sampling_of(info))), draft_prob=0.0
    ).probs
    key = key_of(info, len(rows))
    if info.sampling_seed is not None:
        key["nonce"] = LENIENT
    specdec.verify_linked_tree(
        candidates, probs, first_child=links[0], next_sibling=links[1],
        threshold_single=options.speculative_accept_threshold_single,
        threshold_total=max(options.speculative_accept_threshold_acc, 1e-9), **key, position=batch.seq_lens,
        out=(*outputs, None), output_format=output_format,
    )  # fmt: skip


def sampling_of(info: Any) -> Sampling:
    """The filters of a batch; a filter that no request uses is a number that is off."""
    if info.is_all_greedy:
        return Sampling(0.0)
    return Sampling.sglang(
        info.temperatures.view(-1).float(),
        info.top_ks if info.need_top_k_sampling else 0,
        info.top_ps if info.need_top_p_sampling else 1.0,
        info.min_ps if info.need_min_p_sampling else 0.0,
    )


def key_of(info: Any, requests: int, slices: Slices | None = None) -> dict[str, Any]:
    """Seeds of requests; without them one from the generator, the same on all ranks of `slices`, and nonces."""
    if info.sampling_seed is not None:
        return {"seed": info.sampling_seed.long(), "nonce": 0}
    device = info.temperatures.device
    seed = seed_of(None, device)
    nonce = positions(info.temperatures, requests)
    return {"seed": seed if slices is None else slices.agreed(seed, device), "nonce": nonce}


def noise_of(info: Any, last: torch.Tensor, slices: Slices | None) -> dict[str, Any]:
    """The noise of the tokens after positions `last`."""
    if (marked := getattr(info, "specdec_marked", None)) is None:
        return {**key_of(info, len(last), slices), "position": last + 1}
    marks, slots = marked
    noise = marks.noise(slots.new_empty(len(slots), 0), last + 1, slots, own_seeds(info))
    return noise | {"seed": noise["seed"][:, 0]}


def own_seeds(info: Any) -> torch.Tensor:
    """A seed for each request, int64 [B]; where SGLang has none, a fresh one."""
    if info.sampling_seed is not None:
        return info.sampling_seed.long()
    return torch.randint(2**62, (len(info.temperatures),), dtype=torch.int64, device=info.temperatures.device)


def begin_text(info: Any, cls: type, batch: Any, *rest: Any) -> None:
    """After ``SamplingBatchInfo.from_schedule_batch``, with a watermark: begins the texts of new requests."""
    pool, given = batch.req_to_token_pool, requested_watermark("race")
    if not hasattr(pool, "specdec_marks") and given is not None:
        pool.specdec_marks = Marks(given, torch.zeros_like(pool.req_to_token))  # texts by the pool's slots
    for req in batch.reqs:
        custom = req.sampling_params.custom_params
        pool.specdec_marks.begin(req.kv.req_pool_idx, custom, len(req.origin_input_ids), req.output_ids)


def enter(runner: Any, logits_output: Any, forward: Any) -> None:
    """Before ``ModelRunner.sample``, with a watermark: adds the rows' input tokens to their texts."""
    marks = getattr(runner.req_to_token_pool, "specdec_marks", None)
    if marks is None or forward.sampling_info is None:
        return
    rows = len(logits_output.next_token_logits)  # a captured step may have padding
    slots, tokens = forward.req_pool_indices[:rows], forward.input_ids
    if not forward.forward_mode.is_decode():
        tokens = tokens[forward.extend_seq_lens.cumsum(0) - 1]
    marks.put(slots, forward.seq_lens[:rows] - 1, tokens[:rows])
    forward.sampling_info.specdec_marked = marks, slots


def fast_sample(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]], probs: torch.Tensor, num_samples: int = 1, *,
    sampling_seed: torch.Tensor | None = None, positions: torch.Tensor | None = None, draft_step: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Around ``sglang.srt.speculative.spec_utils.fast_sample``: a draft is drawn by the noise that will verify it.

    EAGLE's worker passes the position before the drafted token's. The multi-layer worker does not, and without seeds
    there is no noise to share: these drafts stay SGLang's. So do drafts that rejection verifies, which needs other
    noise: a hook cannot be removed, so this one may run with any method.
    """
    shares = method_of() == "race" and sampling_seed is not None and num_samples == 1
    if not shares or eagle_utils.get_spec().enable_multi_layer_eagle:
        return original(probs, num_samples, sampling_seed=sampling_seed, positions=positions, draft_step=draft_step)
    tokens = specdec.race_sample(probs, space="probs", seed=sampling_seed.long(), position=positions + 1)[:, None]
    return probs.gather(1, tokens), tokens


def of_rows(x: Any) -> Any:
    """A number of each request, repeated for its rows."""
    return x[:, None] if isinstance(x, torch.Tensor) else x


def pytorch_sampler() -> Sampler:
    """The sampling backend "pytorch": ours where a race needs its noise, decided when the sampler is made."""
    return SpecdecSampler() if method_of() == "race" else Sampler()


def report(result: Any, scheduler: Any) -> None:
    """After ``Scheduler.init_model_worker``: log what the method changes, once for all tensor-parallel ranks."""
    if get_parallel().tp_rank != 0:
        return
    algorithm, method, reached = scheduler.spec_algorithm, method_of(), []
    kinds = "eagle", "standalone", "ngram", "uno", "dspark"
    is_ours = any(getattr(algorithm, f"is_{kind}")() for kind in kinds)
    if algorithm.is_dflash():  # drafts with laws stay SGLang's, except in a race
        is_ours = method == "race" or scheduler.draft_worker.selector is scheduler.draft_worker.lilicorr is None
    if is_ours:
        reached.append(f"drafts of {algorithm.name}")
    if isinstance(scheduler.tp_worker.model_runner.sampler, SpecdecSampler):
        reached.append("steps without drafts")
    if reached:
        said = f", each of {get_parallel().tp_size} ranks keeps its slice of the logits" if _slices else ""
        LOGGER.info("specdec-kernels: method %r, for %s%s", method, " and ".join(reached), said)
        return
    why = "there is no speculative decoding"
    if not algorithm.is_none():
        why = f"{algorithm.name} verifies by functions of its own"
    LOGGER.warning(
        "specdec-kernels: method %r changes nothing: %s, and the sampling backend is not specdec", method, why
    )


class SpecdecSampler(Sampler):
    """The sampling backend "specdec": tokens of `race_sample` on the logits, by the noise of our verification."""

    specdec_samples = True

    def forward(
        self, logits_output: Any, sampling_info: Any, return_logprob: bool, top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]], positions: torch.Tensor, **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        rest = return_logprob, top_logprobs_nums, token_ids_logprobs, positions
        slices = slices_of(logits_output.next_token_logits)
        if sampling_info.is_all_greedy and slices is None:
            return super().forward(logits_output, sampling_info, *rest, **options)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        noise = noise_of(sampling_info, positions, slices)
        law, self._support = sampling_of(sampling_info), None
        if slices is not None:
            return slices.race_sample(logits, sampling=law, **noise)
        self._drawn = specdec.race_sample(logits, sampling=law, **noise)
        masked = sampling_info.sampling_mask_batch_indices is not None
        if masked:
            self._support = set_bits(support_of_filters(logits, self._drawn, law).bits)[:, : logits.shape[1]]
        if return_logprob or masked:
            if options.get("logprob_logits") is not None:
                self._preprocess_logits(options["logprob_logits"], sampling_info)
            processed = copy.copy(sampling_info)
            processed.has_custom_logit_processor = False  # they have run, and must not run twice
            return super().forward(logits_output, processed, *rest, **options)
        self._sync_token_ids_across_tp(self._drawn, sampling_info)
        return self._drawn

    def _sample_from_probs(self, probs: torch.Tensor, sampling_info: Any, *given: Any) -> tuple[torch.Tensor, Any]:
        """The tokens of `forward`, and their supports; SGLang computes log-probabilities afterwards."""
        if self._support is None:
            return self._drawn, None
        rows = sampling_info.sampling_mask_batch_indices
        weights = probs[rows].masked_fill_(~self._support[rows], 0.0)
        return self._drawn, _SamplingMaskCapture(weights, None, None, rows)
