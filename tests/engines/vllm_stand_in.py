"""The classes of vLLM's V2 runner that our plug-in hooks into, no more of them than it uses, in plain torch.

What they do is what vLLM's documentation and code say they do; what they hold has vLLM's types, which `engine_vllm.py`
compares. ``modules()`` are to stand in ``sys.modules``.
"""

import types
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

NO_LOGPROBS = -1


class LogprobsTensors(NamedTuple):
    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor
    cu_num_generated_tokens: list | None = None
    cu_num_generated_tokens_tensor: torch.Tensor | None = None


class SamplingMaskTensors(NamedTuple):
    token_ids: torch.Tensor
    packed_mask: torch.Tensor
    counts: torch.Tensor
    vocab_size: int
    rows_per_request: int = 1


@dataclass(frozen=True)
class LogitsContext:
    expanded_idx_mapping: torch.Tensor
    idx_mapping: torch.Tensor
    idx_mapping_np: np.ndarray
    expanded_local_pos: torch.Tensor
    input_ids: torch.Tensor
    pos: torch.Tensor
    seq_lens_upper_bound_np: np.ndarray


class Backed:
    """A number for each slot, on the host and on the device."""

    def __init__(self, values, dtype):
        self.gpu = torch.tensor(values, dtype=dtype)
        self.np = self.gpu.numpy()


class SamplingStates:
    def __init__(self, slots, vocab_size, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
        self.vocab_size = vocab_size
        self.temperature = Backed([temperature] * slots, torch.float32)
        self.top_k = Backed([top_k or vocab_size] * slots, torch.int32)
        self.top_p = Backed([top_p] * slots, torch.float32)
        self.min_p = Backed([min_p] * slots, torch.float32)
        self.seeds = Backed([1000 + slot for slot in range(slots)], torch.int64)


class PenaltiesState:
    def __init__(self, slots, vocab_size, repetition=1.0, frequency=0.0, presence=0.0):
        self.repetition_penalty = Backed([repetition] * slots, torch.float32)
        self.frequency_penalty = Backed([frequency] * slots, torch.float32)
        self.presence_penalty = Backed([presence] * slots, torch.float32)
        self.use_penalty = np.full(slots, (repetition, frequency, presence) != (1.0, 0.0, 0.0))
        self.prompt_bin_mask = torch.zeros(slots, -(-vocab_size // 32), dtype=torch.int32)
        self.output_bin_counts = torch.zeros(slots, vocab_size, dtype=torch.int32)

    def add_request(self, slot, params):
        return bool(self.use_penalty[slot])

    def apply(self, logits, ctx):
        """Row by row, with the drafts before it."""
        for row, (slot, place) in enumerate(
            zip(ctx.expanded_idx_mapping.tolist(), ctx.expanded_local_pos.tolist(), strict=True)
        ):
            if not self.use_penalty[slot]:
                continue
            counts = self.output_bin_counts[slot].clone()
            for token in ctx.input_ids[row - place + 1 : row + 1].tolist():
                counts[token] += 1
            in_prompt = self.prompt_bin_mask[slot].repeat_interleave(32) >> torch.arange(32).repeat(
                self.prompt_bin_mask.shape[1]
            )
            seen = (counts > 0) | (in_prompt[: len(counts)] & 1).bool()
            r = self.repetition_penalty.gpu[slot]
            z = logits[row]
            z = torch.where(seen, torch.where(z > 0, z * (1 / r), z * r), z)
            z = z - self.frequency_penalty.gpu[slot] * counts
            logits[row] = z - self.presence_penalty.gpu[slot] * (counts > 0)
        return logits


class LogitBiasState:
    """Allowed tokens, biases, and a minimum of tokens. `whole_vllm.py` sees what it does to rows."""

    def add_request(self, slot, params):
        return bool(params.logit_bias or params.allowed_token_ids or (params.min_tokens and params.all_stop_token_ids))

    def apply(self, logits, ctx):
        return logits


class BadWordsState(LogitBiasState):
    """Words that no text has."""

    def add_request(self, slot, params):
        return bool(params.bad_words_token_ids)


class Forbidding:
    """A processor of the user's."""

    def __init__(self, token):
        self.token = token

    def add_request(self, slot, params):
        return True

    def apply(self, logits, ctx):
        logits[:, self.token] = -torch.inf
        return logits


class RequestState:
    """Texts of slots, on the device."""

    def __init__(self, slots, longest=128):
        self.all_token_ids = types.SimpleNamespace(gpu=torch.zeros(slots, longest, dtype=torch.int32))
        self.prompt_len = Backed([0] * slots, torch.int32)
        self.total_len = types.SimpleNamespace(gpu=torch.zeros(slots, dtype=torch.int32))

    def begin(self, slot, prompt, output=()):
        self.prompt_len.np[slot], self.total_len.gpu[slot] = len(prompt), 0
        self.write(slot, [*prompt, *output])

    def write(self, slot, tokens):
        end = int(self.total_len.gpu[slot])
        self.all_token_ids.gpu[slot, end : end + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.total_len.gpu[slot] += len(tokens)


class LogprobTokenIdsState:
    """Of each slot the tokens whose log-probabilities are wanted; memory behind the last is anything."""

    def __init__(self, slots):
        self.num_token_ids = Backed([0] * slots, torch.int32)
        self.token_ids = types.SimpleNamespace(gpu=torch.full((slots, 128), 7, dtype=torch.int32))

    def put(self, slot, tokens):
        self.num_token_ids.np[slot] = len(tokens)
        self.token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def max_num_token_ids(self, idx_mapping_np):
        return int(self.num_token_ids.np[idx_mapping_np].max(initial=0))


class Sampler:
    def __init__(self, slots, vocab_size, penalties=None, forbidden=None, logprobs_mode="raw_logprobs", **sampling):
        self.sampling_states = SamplingStates(slots, vocab_size, **sampling)
        self.req_states = RequestState(slots)
        self.penalties_state = PenaltiesState(slots, vocab_size, **(penalties or {}))
        self.logprob_token_ids_state = LogprobTokenIdsState(slots)
        self.logits_processors = [LogitBiasState(), self.penalties_state, BadWordsState()]
        if forbidden is not None:
            self.logits_processors.append(Forbidding(forbidden))
        self.thinking_budget_state = types.SimpleNamespace(enabled=False, apply=lambda logits, ctx: None)
        self.needs_logits_processing = np.full(slots, bool(penalties or sampling or forbidden is not None))
        self.logprobs_mode, self.return_sampling_mask = logprobs_mode, False

    def add_request(self, req_idx, sampling_params):
        """Penalties and filters are in the states already: tests write them there."""
        added = [each.add_request(req_idx, sampling_params) for each in self.logits_processors]
        self.needs_logits_processing[req_idx] |= any(added)

    def apply_staged_writes(self):
        """What requests asked for reaches the device; here it is there already."""

    def sample(
        self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
        seq_lens_upper_bound_np, return_logprobs=False,
    ):  # fmt: skip
        raise AssertionError("vLLM's own sampler was asked")

    def apply_sampling_params(self, logits, *given):
        return logits + 100


class RejectionSampler:
    def __init__(self, sampler, spec_config, device, *, watermark_key=None):
        self.sampler = sampler
        self.num_speculative_steps = spec_config.num_speculative_tokens
        self.enable_adaptive_verification = spec_config.enable_adaptive_verification
        method = spec_config.rejection_sample_method
        self.use_block_verification = method == "block"
        self.fly_window_size = 3 if method == "fly" else 0
        self.synthetic_conditional_rates = torch.ones(1) if method == "synthetic" else None

    def _verify_in_chunks(
        self, logits, input_batch, draft_logits, draft_sampled, pos, max_chunk_logits, max_num_logprobs,
        verify_draft_sampled=None,
    ):  # fmt: skip
        raise AssertionError("vLLM's own verification was asked")


class DraftModelSpeculator:
    """Its model's "hidden states" are logits already."""

    use_local_argmax_reduction = False

    def set_attn(self, model_state):
        self.model_state = model_state

    def compute_draft_logits(self, hidden_states, spec_step_idx):
        return hidden_states

    def _maybe_predict_acceptance(self, logits, idx_mapping, draft_step):
        self.predicted = logits

    def sample_draft(
        self, hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits,
        spec_step_idx=0, num_steps=1,
    ):  # fmt: skip
        if draft_logits is None:
            return hidden_states.argmax(-1)
        draft_logits[idx_mapping, draft_step] = hidden_states
        law = (hidden_states / temperature[idx_mapping, None]).softmax(-1)
        return torch.multinomial(law, 1, generator=torch.Generator().manual_seed(int(draft_step)))[:, 0]


class DSparkSpeculator(DraftModelSpeculator):
    """It draws place by place; ``known`` are the target's tokens that its rows have, where they have not all."""

    def __init__(self, steps, slots, vocab_size, known=None, probabilistic=False):
        self._step_cols = torch.arange(steps, dtype=torch.int32)
        self.temperature, self.seeds = torch.ones(slots), torch.arange(slots)
        self._d2t_scatter_index = self._draft_scatter_buf = None
        self.model = types.SimpleNamespace(draft_id_to_target_id=None)
        if known is not None:
            self.model.draft_id_to_target_id = known - torch.arange(len(known))
            if probabilistic:
                self._d2t_scatter_index = known
                self._draft_scatter_buf = torch.full((slots, vocab_size), -torch.inf)

    def _sample_logits(self, logits, idx_map, sample_pos, step):
        tokens = logits.argmax(-1)
        return tokens if self.model.draft_id_to_target_id is None else self.model.draft_id_to_target_id[tokens] + tokens


class ModelState:
    def __init__(self, speculative=None, additional_config=None, watermark=None):
        self.device = torch.device("cpu")
        self.vllm_config = types.SimpleNamespace(
            speculative_config=speculative, watermark_config=watermark, additional_config=additional_config or {}
        )

    def custom_sampler(self, sampler):
        return None


class WorkerWrapperBase:
    """With a worker whose model is loaded. A runner of V1 knows no `ModelState`."""

    def __init__(self, state=None, sampler=None, is_pooling_model=False, is_driver_worker=True, additional_config=None):
        runner = types.SimpleNamespace(sampler=sampler, is_pooling_model=is_pooling_model)
        config = types.SimpleNamespace(speculative_config=None, additional_config=additional_config or {})
        if state is not None:
            runner.model_state, config = state, state.vllm_config
        config.parallel_config = types.SimpleNamespace(tensor_parallel_size=2)
        self.worker = types.SimpleNamespace(
            vllm_config=config, is_driver_worker=is_driver_worker, model_runner=runner, caches=None
        )

    def initialize_from_config(self, kv_cache_configs):
        self.worker.caches = kv_cache_configs


class SamplingParams:
    """Of a request, as its user gave them."""

    def __init__(
        self, min_p=0.0, logit_bias=None, min_tokens=0, all_stop_token_ids=(), bad_words_token_ids=None,
        allowed_token_ids=None, structured_outputs=None,
    ):  # fmt: skip
        self.min_p, self.logit_bias = min_p, logit_bias
        self.min_tokens, self.all_stop_token_ids = min_tokens, set(all_stop_token_ids)
        self.bad_words_token_ids, self.allowed_token_ids = bad_words_token_ids, allowed_token_ids
        self.structured_outputs = structured_outputs

    def _validate_spec_decode(self, speculative_config):
        if speculative_config is not None and (self.min_p or self.logit_bias):
            raise ValueError("not yet supported with speculative decoding")


class InputProcessor:
    """What looks at requests as they come, in the server's process."""

    def __init__(self, speculative, additional_config):
        self.vllm_config = types.SimpleNamespace(additional_config=additional_config)
        self.speculative_config = speculative

    def _validate_params(self, params, supported_tasks):
        params._validate_spec_decode(self.speculative_config)
        return "generate" in supported_tasks


def speculative(steps, method="standard", adaptive=False, drafter="draft_model"):
    """A SpeculativeConfig."""
    return types.SimpleNamespace(
        num_speculative_tokens=steps, enable_adaptive_verification=adaptive, rejection_sample_method=method,
        method=drafter,
    )  # fmt: skip


def batch_of(counts, slots, places):
    """An InputBatch of requests with these numbers of rows, whose first input tokens stand at `places`."""
    counts, slots = torch.tensor(counts), torch.tensor(slots)
    request = torch.repeat_interleave(torch.arange(len(counts)), counts)
    local = torch.cat([torch.arange(count, dtype=torch.int32) for count in counts.tolist()])
    cu = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).int()
    return types.SimpleNamespace(
        cu_num_logits=cu, cu_num_logits_np=cu.numpy(), idx_mapping=slots, idx_mapping_np=slots.numpy(),
        expanded_idx_mapping=slots[request], expanded_local_pos=local, positions=torch.tensor(places)[request] + local,
        seq_lens_cpu_upper_bound=(torch.tensor(places) + counts).int(), num_reqs=len(counts),
    )  # fmt: skip


def modules():
    """What to put into ``sys.modules``."""
    names = {
        "vllm.sampling_params": [SamplingParams],
        "vllm.v1.engine.input_processor": [InputProcessor],
        "vllm.v1.outputs": [LogprobsTensors],
        "vllm.v1.worker.gpu.sample.bad_words": [BadWordsState],
        "vllm.v1.worker.gpu.sample.logit_bias": [LogitBiasState],
        "vllm.v1.worker.gpu.sample.logits_processor.interface": [LogitsContext],
        "vllm.v1.worker.gpu.sample.output": [SamplingMaskTensors],
        "vllm.v1.worker.gpu.sample.penalties": [PenaltiesState],
        "vllm.v1.worker.gpu.sample.sampler": [Sampler],
        "vllm.v1.worker.gpu.sample.states": [],
        "vllm.v1.worker.gpu.spec_decode.dspark.speculator": [DSparkSpeculator],
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler": [RejectionSampler],
        "vllm.v1.worker.gpu.spec_decode.speculator": [DraftModelSpeculator],
        "vllm.v1.worker.gpu.model_states.interface": [ModelState],
        "vllm.v1.worker.worker_base": [WorkerWrapperBase],
    }
    made = {}
    for name, classes in names.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            made.setdefault(path, types.ModuleType(path))
            if depth > 1:
                setattr(made[".".join(parts[: depth - 1])], parts[depth - 1], made[path])
        for each in classes:
            setattr(made[name], each.__name__, each)
    made["vllm.v1.worker.gpu.sample.states"].NO_LOGPROBS = NO_LOGPROBS
    return made
