"""The V2 side of `engines.vllm.register`: vLLM's samplers with our verification. It imports vLLM."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as theirs
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

import specdec_kernels as specdec
from specdec_kernels import LogitEdits, Sampling
from specdec_kernels.engines._methods import filters_drafts, refuse
from specdec_kernels.engines._support import support_of_filters
from specdec_kernels.engines._vllm_biases import Biases, Entries
from specdec_kernels.engines._vllm_rounds import REPLACEMENTS, TARGET, check_arguments, drawn, verify
from specdec_kernels.engines._vllm_rows import PROCESSED, bits, moved, requests_of, scored
from specdec_kernels.engines._watermark import Marks, requested_watermark
from specdec_kernels.generate.edits import bits as set_bits


def check_version() -> None:
    """Raise RuntimeError if a replaced function has other arguments than in the versions seen."""
    names = "draft_logits draft_sampled pos max_chunk_logits max_num_logprobs verify_draft_sampled"
    check_arguments(theirs.RejectionSampler, "_verify_in_chunks", f"self logits input_batch {names}")
    names = "idx_mapping idx_mapping_np pos input_ids expanded_local_pos seq_lens_upper_bound_np return_logprobs"
    check_arguments(Sampler, "sample", f"self logits expanded_idx_mapping {names}")
    names = "idx_mapping temperature seeds draft_step draft_logits spec_step_idx num_steps"
    check_arguments(DraftModelSpeculator, "sample_draft", f"self hidden_states sample_src_positions {names}")


def samplers(state: Any, sampler: Any, method: str) -> tuple[Any, Any] | None:
    """``ModelState.custom_sampler``: the sampler and our rejection sampler. None: vLLM's remain."""
    check_version()
    config = state.vllm_config
    speculative = config.speculative_config
    refuse(watermark_config=config.watermark_config is not None)
    given = requested_watermark(method)
    if speculative is None and method != "race":
        return None
    rejection = None if speculative is None else RejectionSampler(sampler, speculative, state.device, method)
    state.specdec_method, state.specdec_marks, state.specdec_filters, sampler.specdec_marks = method, None, None, None
    sampler.specdec_edits = Edits(sampler, 1 if speculative is None else 1 + speculative.num_speculative_tokens)
    if speculative is not None and filters_drafts():
        state.specdec_filters = rejection.filters = Filters(sampler.sampling_states)
        follow(sampler, "apply_staged_writes", rejection.filters.copy)
    if given is not None:
        texts = sampler.req_states
        marks = Marks(given, texts.all_token_ids.gpu, texts.prompt_len.gpu)
        state.specdec_marks = sampler.specdec_marks = marks
        follow(sampler, "add_request", lambda slot, params: marks.begin(slot, params.extra_args))
    if method == "race":
        sampler.sample = _sample.__get__(sampler)
    REPLACEMENTS.put(DraftModelSpeculator, "sample_draft", _drawing(DraftModelSpeculator.sample_draft))
    if method == "race" and speculative is not None and speculative.method == "dspark":
        dspark = importlib.import_module("vllm.v1.worker.gpu.spec_decode.dspark.speculator").DSparkSpeculator
        check_arguments(dspark, "_sample_logits", "self logits idx_map sample_pos step")
        REPLACEMENTS.put(dspark, "_sample_logits", _drawing_each(dspark._sample_logits))
    return sampler, rejection


def follow(owner: Any, name: str, function: Callable[..., None]) -> None:
    """Make a method of this object call ``function`` with its arguments, too."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def followed(*arguments: Any) -> Any:
        result = method(*arguments)
        function(*arguments)
        return result

    setattr(owner, name, followed)


class Filters:
    """The filters of requests by slot, for drafts: in tensors at fixed addresses, as a captured graph needs them.

    ``drew`` says that drafts were drawn with them, and not by another function of the speculator.
    """

    def __init__(self, states: Any) -> None:
        self.drew, self.settings = False, (states.top_k, states.top_p, states.min_p)
        self.numbers, self.before = [x.gpu.clone() for x in self.settings], [x.np.copy() for x in self.settings]

    def copy(self) -> None:
        """Copy the requests' current settings."""
        for number, before, x in zip(self.numbers, self.before, self.settings, strict=True):
            if not np.array_equal(before, x.np):
                before[:] = x.np
                number.copy_(x.gpu, non_blocking=True)


class RejectionSampler(theirs.RejectionSampler):
    """vLLM's, with one `verify_chain` on the model's logits instead of processed copies, chunks and four kernels."""

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, method: str) -> None:
        super().__init__(sampler, spec_config, device)
        refuse(
            fly_window_size=getattr(self, "fly_window_size", 0) > 0,  # vLLM 0.33.0 or later
            synthetic_acceptance_rates=self.synthetic_conditional_rates is not None,
        )
        self.method = "block" if method == "rejection" and self.use_block_verification else method
        self.filters: Filters | None = None

    def _verify_in_chunks(
        self, logits: torch.Tensor, input_batch: Any, draft_logits: torch.Tensor | None, draft_sampled: torch.Tensor,
        pos: torch.Tensor, max_chunk_logits: int, max_num_logprobs: int,
        verify_draft_sampled: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:  # fmt: skip
        batch, sampler = input_batch, self.sampler
        per_request = None
        if not self.enable_adaptive_verification:  # with it, the host lacks the number of a request's rows
            counts = np.diff(batch.cu_num_logits_np)
            per_request = int(counts[0]) if (counts == counts[0]).all() else None
        context = LogitsContext(
            expanded_idx_mapping=batch.expanded_idx_mapping, idx_mapping=batch.idx_mapping,
            idx_mapping_np=batch.idx_mapping_np, expanded_local_pos=batch.expanded_local_pos,
            input_ids=draft_sampled, pos=pos, seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
        )  # fmt: skip
        given = given_tokens(sampler, batch)
        silent = max_num_logprobs == NO_LOGPROBS and given is None
        wants_processed = not silent and sampler.logprobs_mode in PROCESSED
        shape = (len(logits),) if per_request is None else (len(batch.idx_mapping), per_request)
        law = shaped(sampler, logits, context, shape, fused=not (wants_processed or sampler.return_sampling_mask))
        filtered = self.filters is not None and self.filters.drew
        tokens, num_sampled = verify(
            law.rows, draft_logits, draft_sampled if verify_draft_sampled is None else verify_draft_sampled,
            batch.cu_num_logits, pos, batch.idx_mapping, self.num_speculative_steps,
            per_request, seed=sampler.sampling_states.seeds.gpu, sampling=law.sampling, edits=law.edits,
            drawn_by=law.sampling if filtered else Sampling(law.sampling.temperature), method=self.method,
            marks=sampler.specdec_marks,
        )  # fmt: skip
        if silent and not sampler.return_sampling_mask:
            return tokens, num_sampled, None, None
        if per_request:
            flat = tokens[:, :per_request].reshape(-1)
        else:  # rows of no request have any token
            requests = requests_of(batch.cu_num_logits[1:].contiguous(), len(logits)).clamp_(max=len(tokens) - 1)
            flat = tokens[requests, batch.expanded_local_pos]
        slots, masks, scores = batch.expanded_idx_mapping, None, None
        if sampler.return_sampling_mask:
            sets = support_of_filters(law.rows, flat, law.sampling, slots)
            masks = masks_of(sets, batch.cu_num_logits, self.num_speculative_steps + 1, logits.shape[1])
        if not silent:
            rows, sampling = (law.rows, law.sampling) if wants_processed else (logits, None)
            begins: tuple[Any, ...] = ()
            if len(logits) != len(tokens):
                adaptive = self.enable_adaptive_verification
                begins = (None, batch.cu_num_logits.clone()) if adaptive else (batch.cu_num_logits_np.tolist(),)
            top = max(max_num_logprobs, 0)
            scores = LogprobsTensors(*scored(rows, flat, top, sampling, slots, sampler.logprobs_mode, given), *begins)
        return tokens, num_sampled, scores, masks


def given_tokens(sampler: Any, batch: Any) -> torch.Tensor | None:
    """The tokens whose log-probabilities a row's request names, int64 [N, G], -1 for none; None without such."""
    state = sampler.logprob_token_ids_state
    most = state.max_num_token_ids(batch.idx_mapping_np)
    if not most:
        return None
    slots = batch.expanded_idx_mapping
    named = state.token_ids.gpu[slots, :most].long()
    columns = torch.arange(most, device=slots.device, dtype=torch.int32)
    return named.masked_fill_(columns >= state.num_token_ids.gpu[slots, None], -1)


def masks_of(sets: Any, starts: torch.Tensor, columns: int, vocabulary: int) -> Any:
    """The supports of rows in vLLM's form, by request and column; vLLM reads those of sampled tokens.

    No ids, so vLLM takes them from the bits.
    """
    each = torch.arange(columns, device=starts.device, dtype=torch.int64)
    rows = (starts[:-1, None] + each).clamp_(max=len(sets.count) - 1).flatten()
    packed = sets.bits[rows].view(torch.uint8)[:, : -(-vocabulary // 8)]
    return SamplingMaskTensors(sets.bits.new_empty(len(rows), 0), packed, sets.count[rows], vocabulary, columns)


class Shaped(NamedTuple):
    """Rows [N, V], and the settings by slot that make them laws."""

    rows: torch.Tensor
    sampling: Sampling
    edits: LogitEdits | None


def shaped(sampler: Any, logits: torch.Tensor, context: Any, shape: tuple[int, ...], fused: bool) -> Shaped:
    """vLLM's ``apply_sampling_params`` as arguments of our ops, for rows of this shape.

    Where a request has allowed tokens, bad words of several tokens, a minimum of tokens beside a grammar, a thinking
    budget or a custom processor, or edits are not to be ``fused``, vLLM's processors run on a float32 copy, as in vLLM.
    """
    slots, states = context.idx_mapping_np, sampler.sampling_states
    sampling = Sampling.vllm(
        states.temperature.gpu,
        states.top_k.gpu if (states.top_k.np[slots] != states.vocab_size).any() else 0,
        states.top_p.gpu if (states.top_p.np[slots] != 1.0).any() else 1.0,
        states.min_p.gpu if (states.min_p.np[slots] != 0.0).any() else 0.0,
    )
    if not sampler.needs_logits_processing[slots].any():
        return Shaped(logits, sampling, None)
    edits, processors = sampler.specdec_edits, sampler.specdec_edits.need_processors(slots, logits.shape[1])
    if not processors and not edits.used(slots):
        return Shaped(logits, sampling, None)
    if not processors and fused:
        return Shaped(logits, sampling, edits.of_step(context, shape))
    rows = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
    for processor in sampler.logits_processors:
        rows = processor.apply(rows, context)
    sampler.thinking_budget_state.apply(rows, context)
    return Shaped(rows, sampling, None)


class Edits:
    """Biases and penalties of requests by slot, as edits of our ops.

    The output's mask of a penalty, which vLLM lacks beside its counts, gets a bit for each new token before a step: the
    step before wrote ``most`` tokens at most.
    """

    def __init__(self, sampler: Any, most: int) -> None:
        self.sampler, self.penalties, slots = sampler, sampler.penalties_state, len(sampler.needs_logits_processing)
        self.entries: list[Entries | None] = [None] * slots
        self.biases: Biases | None = None  # made when requests have changed
        # Requests with entries, and requests whose parameters need a processor of vLLM.
        self.biased, self.unfused = np.zeros(slots, dtype=bool), np.zeros(slots, dtype=bool)
        self.custom = any(
            not isinstance(x, (LogitBiasState, PenaltiesState, BadWordsState)) for x in sampler.logits_processors
        )
        self.output_mask = torch.zeros_like(self.penalties.prompt_bin_mask)
        self.columns = torch.arange(1, most + 1, device=self.output_mask.device, dtype=torch.int64)
        self.uncounted: list[int] = []  # slots of new requests
        follow(sampler, "add_request", self.begin)
        follow(sampler, "apply_staged_writes", self.count_texts)
        follow(self.penalties, "apply", lambda logits, context: self.count_tokens())

    def begin(self, slot: int, params: Any) -> None:
        """List a new request's biases, the stop tokens that its length forbids, and its bad words of one token."""
        one = Entries(params, int(self.sampler.req_states.prompt_len.np[slot]))
        self.unfused[slot] = bool(params.allowed_token_ids or one.words or (one.stops and one.grammar))
        if one.used or self.biased[slot]:
            self.entries[slot], self.biased[slot], self.biases = one if one.used else None, one.used, None
        if self.penalties.use_penalty[slot]:
            self.uncounted.append(slot)

    def count_texts(self) -> None:
        """Set the bits of new requests' outputs, which vLLM has counted."""
        if self.uncounted:
            slots = moved(np.array(self.uncounted), self.output_mask.device)
            self.output_mask[slots] = bits(self.penalties.output_bin_counts[slots] > 0)
            self.uncounted.clear()

    def count_tokens(self) -> None:
        """Set the bits of all texts' last tokens."""
        texts = self.sampler.req_states
        positions = texts.total_len.gpu[:, None] - self.columns
        tokens = texts.all_token_ids.gpu.gather(1, positions.clamp(min=0))
        num_output = texts.total_len.gpu - texts.prompt_len.gpu
        specdec.count_tokens(LogitEdits(output_mask=self.output_mask), tokens, num_output)

    def used(self, slots: np.ndarray) -> bool:
        """Whether these requests have biases or penalties."""
        return bool(self.biased[slots].any() or self.penalties.use_penalty[slots].any())

    def need_processors(self, slots: np.ndarray, vocabulary: int) -> bool:
        """Whether parameters of these requests have no form as edits."""
        thinking, penalties = self.sampler.thinking_budget_state, self.penalties
        if self.custom or self.unfused[slots].any() or (thinking.enabled and thinking.use_thinking_budget[slots].any()):
            return True
        return penalties.output_bin_counts.shape[1] != vocabulary and bool(penalties.use_penalty[slots].any())

    def of_step(self, context: Any, shape: tuple[int, ...]) -> LogitEdits | None:
        """The edits of a step whose rows have this shape."""
        slots, penalties, edits = context.idx_mapping_np, self.penalties, None
        if penalties.use_penalty[slots].any():
            self.count_tokens()
            edits = LogitEdits(
                repetition=penalties.repetition_penalty.gpu, frequency=penalties.frequency_penalty.gpu,
                presence=penalties.presence_penalty.gpu, prompt_mask=penalties.prompt_bin_mask,
                output_mask=self.output_mask, output_counts=penalties.output_bin_counts,
            )  # fmt: skip
        if self.biased[slots].any():
            self.biases = self.biases or Biases(self.entries, self.output_mask.device)
            rows = self.biases.table()[context.expanded_idx_mapping.view(shape)]
            inputs = context.pos.view(shape) if self.biases.bounded else None
            edits = (edits or LogitEdits())._replace(bias=self.biases.of_rows(rows, inputs))
        return edits


def _sample(
    self: Any, logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, idx_mapping: torch.Tensor,
    idx_mapping_np: np.ndarray, pos: torch.Tensor, input_ids: torch.Tensor, expanded_local_pos: torch.Tensor,
    seq_lens_upper_bound_np: np.ndarray, return_logprobs: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``Sampler.sample`` by `race_sample`, with the noise, the filters and the edits of our verification by a race."""
    if len(logits) != len(idx_mapping):
        raise NotImplementedError(f"logits: expected a row for each of {len(idx_mapping)} requests; got {len(logits)}")
    context = LogitsContext(
        expanded_idx_mapping=expanded_idx_mapping, idx_mapping=idx_mapping, idx_mapping_np=idx_mapping_np,
        expanded_local_pos=expanded_local_pos, input_ids=input_ids, pos=pos,
        seq_lens_upper_bound_np=seq_lens_upper_bound_np,
    )  # fmt: skip
    wants_processed = return_logprobs and self.logprobs_mode in PROCESSED
    fused = not (wants_processed or self.return_sampling_mask)
    law, seeds = shaped(self, logits, context, (len(logits), 1), fused=fused), self.sampling_states.seeds.gpu
    sampled = drawn(law.rows, idx_mapping, law.sampling, seeds, pos, edits=law.edits, marks=self.specdec_marks)
    if self.return_sampling_mask:  # vLLM reads finite logits as the support, and there is no temperature 0
        sets = support_of_filters(law.rows, sampled, law.sampling, expanded_idx_mapping)
        scaled = law.rows.float() / self.sampling_states.temperature.gpu[expanded_idx_mapping, None]
        return sampled, scaled.masked_fill_(~set_bits(sets.bits)[:, : logits.shape[1]], -torch.inf)
    if wants_processed:
        logits = self.apply_sampling_params(
            logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
            seq_lens_upper_bound_np,
        )  # fmt: skip
    return sampled, logits


def _drawing(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``sample_draft`` with our draws and the requests' filters, in an engine of ours: a process may have others.

    In a race the noise is that of the same position in our verification. Else, where drafts are drawn at all, each step
    has other noise, and their logits are stored for the verification.
    """

    @functools.wraps(original)  # another engine of this process checks its arguments again
    def sample_draft(
        self: Any, hidden_states: torch.Tensor, sample_src_positions: torch.Tensor, idx_mapping: torch.Tensor,
        temperature: torch.Tensor, seeds: torch.Tensor, draft_step: torch.Tensor, draft_logits: torch.Tensor | None,
        spec_step_idx: int = 0, *more: Any, **named: Any,
    ) -> torch.Tensor:  # fmt: skip
        state = getattr(self, "model_state", None)  # a speculator has it after `set_attn`
        races, filters = getattr(state, "specdec_method", None) == "race", getattr(state, "specdec_filters", None)
        whole = draft_logits is not None or (races and not self.use_local_argmax_reduction)  # rows to draw from
        if not whole or not (races or filters):
            return original(
                self, hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits,
                spec_step_idx, *more, **named,
            )  # fmt: skip
        logits, nonce = self.compute_draft_logits(hidden_states, spec_step_idx), TARGET
        if not races:
            logits, nonce = logits.to(draft_logits.dtype), draft_step
            specdec.store_rows(logits, draft_logits, slots=idx_mapping, column=draft_step)
        sampled = _draft_of(state, logits, idx_mapping, temperature, seeds, sample_src_positions, nonce)
        self._maybe_predict_acceptance(logits, idx_mapping, draft_step)
        return sampled

    return sample_draft


def _drawing_each(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """DSpark's ``_sample_logits``, which draws one column of all blocks, with the noise of a race's verification.

    Rows of a reduced vocabulary are drawn where vLLM scatters them to the target's tokens; else they stay vLLM's.
    """

    @functools.wraps(original)
    def _sample_logits(
        self: Any, logits: torch.Tensor, idx_map: torch.Tensor, sample_pos: torch.Tensor, step: int
    ) -> torch.Tensor:
        state, targets_of_drafts = getattr(self, "model_state", None), self._d2t_scatter_index
        mapped = self.model.draft_id_to_target_id is not None
        if getattr(state, "specdec_method", None) != "race" or (mapped and targets_of_drafts is None):
            return original(self, logits, idx_map, sample_pos, step)
        self._maybe_predict_acceptance(logits, idx_map, self._step_cols[step])
        if mapped:
            rows = self._draft_scatter_buf[: len(logits)]
            logits = rows.index_copy_(1, targets_of_drafts, logits.to(rows.dtype))
        return _draft_of(state, logits, idx_map.contiguous(), self.temperature, self.seeds, sample_pos - 1, TARGET)

    return _sample_logits


def _draft_of(
    state: Any, logits: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor,
    pos: torch.Tensor, nonce: int | torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """A draft of each row, with its request's filters, int64 [N]; it also goes to a watermark's texts."""
    sampling, marks, filters = Sampling(temperature), state.specdec_marks, state.specdec_filters
    if filters is not None:
        sampling, filters.drew = Sampling.vllm(temperature, *filters.numbers), True
    sampled = drawn(logits, slots, sampling, seeds, pos, nonce, marks=marks)
    if marks is not None:
        marks.put(slots, pos + 1, sampled)
    return sampled
