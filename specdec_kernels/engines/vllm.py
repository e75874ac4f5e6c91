"""vLLM's samplers on our ops, for both of its runners. Seen: vLLM 0.33.0 and 0.32.0.

The functions have the names and signatures of the V2 runner's and run on any device that a backend of ours has; vLLM
need not be there. `register` is the plug-in: with ``SPECDEC_VLLM=rejection``, ``race`` or ``block`` in the environment,
or ``additional_config={"specdec": "race"}``, vLLM verifies by our ops. Without either it changes nothing.

What all of them change:

- **Noise.** Request seeds are vLLM's, positions are its positions + 1: those of the tokens that are decided, not of the
  input tokens. The tokens are others than vLLM draws from the same seeds.
- **Arguments**: logits are float32, bfloat16 or float16 [N, V]; ``expanded_idx_mapping`` int32 or int64 [N], the slot
  of each row; ``pos`` int64 [N], the position of each row's input token; ``temperature`` and ``seed`` float32 and int64
  [slots], and at temperature 0 the argmax decides. **use_fp64** makes no difference.
- **Refused by name** (``NotImplementedError``): FLy, synthetic acceptance rates, vLLM's watermark.
- **Our watermark** (`docs/watermark.md`): ``SPECDEC_WATERMARK=KEY`` or ``KEY,WINDOW`` in the environment, with "race".
  A request's ``SamplingParams(extra_args={"watermark_key": ...})`` is the request's key, 0 for none.
"""

from __future__ import annotations

import contextvars
import importlib
import os
from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines._methods import SHARDED, checked_method, refuse, switched
from specdec_kernels.engines._replace import hide_checkout
from specdec_kernels.engines._vllm_rounds import LOGGER, REPLACEMENTS, TARGET, drawn, verify

__all__ = ["apply_top_k_top_p", "gumbel_sample", "install", "register", "rejection_sample", "uninstall"]

OURS = contextvars.ContextVar("OURS", default=False)  # whether the request being checked is for an engine of ours


def rejection_sample(
    target_logits: torch.Tensor, draft_logits: torch.Tensor | None, draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor, pos: torch.Tensor, idx_mapping: torch.Tensor, expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor, num_speculative_steps: int,
    synthetic_conditional_rates: torch.Tensor | None = None, use_fp64: bool = False,
    use_block_verification: bool = False, contexts: torch.Tensor | None = None,
    watermarking: torch.Tensor | None = None, watermarking_skip_mask: torch.Tensor | None = None,
    watermark_key: int | None = None, fly_window_size: int = 0, fly_entropy_threshold: float = 0.3,
    fly_entropy_top_k: int = 3,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Verify chains: ``vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils.rejection_sample``, by `verify_chain`.

    The law is that of vLLM. A draft of -1 ends the drafts of its request, and the token comes from the target as it is.

    Parameters
    ----------
    target_logits : Tensor
        [num_logits, V], processed: temperature and filters are in. A request has a row for each draft and one more.
    draft_logits : Tensor, optional
        [slots, K, V'], before the temperature. None: drafts count as certain (argmax, n-grams). Tokens of only one
        of the vocabularies have no weight, as in vLLM.
    draft_sampled : Tensor
        int32 or int64 [num_logits]: row start + i + 1 holds the draft that row start + i verifies.
    cu_num_logits, idx_mapping : Tensor
        int32 [B + 1] from 0; int32 or int64 [B]: the slot of each request.
    num_speculative_steps, use_block_verification : optional
        K; ``method="block"`` of `verify_chain`.

    Returns
    -------
    tuple of Tensor
        Tokens int64 [B, K + 1], -1 after the last (vLLM leaves them as they are in memory); how many, int32 [B].

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 9.0], [9.0, 0.0]])  # one request in slot 0, one draft
    >>> rows, slots = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int32)
    >>> drafts, ends, greedy, seed = rows, torch.tensor([0, 2], dtype=torch.int32), torch.zeros(1), torch.tensor([7])
    >>> rejection_sample(logits, None, drafts, ends, rows + 5, slots[:1], slots, rows, greedy, seed, 1)
    (tensor([[1, 0]]), tensor([2], dtype=torch.int32))
    """
    refuse(
        synthetic_conditional_rates=synthetic_conditional_rates is not None,
        watermarking=contexts is not None or watermarking is not None or watermark_key is not None,
        fly_window_size=fly_window_size > 0,
    )
    if draft_logits is not None:
        vocab_size = min(target_logits.shape[-1], draft_logits.shape[-1])
        target_logits, draft_logits = target_logits[:, :vocab_size], draft_logits[..., :vocab_size]
    return verify(
        target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, num_speculative_steps, None,
        seed=seed, sampling=Sampling(temperature, divided=True), drawn_by=Sampling(temperature),
        method="block" if use_block_verification else "rejection",
    )  # fmt: skip


def gumbel_sample(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor,
    pos: torch.Tensor, apply_temperature: bool, is_drafting: bool, logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None, use_fp64: bool = False,
    logits_cache_source: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """A token of each row, int64 [N]: ``vllm.v1.worker.gpu.sample.gumbel.gumbel_sample``, by the race.

    With ``is_drafting`` the noise differs from the target's, and between columns of the cache. So drafts are
    independent of their verification, as `rejection_sample` needs it. A slot of -1 is a padded row: it gives a token in
    range, and is cached nowhere. Without ``apply_temperature`` the rows are divided by it already.

    Parameters
    ----------
    logits_cache, logits_cache_col : Tensor, optional
        [slots, columns, at least V], of the source's type: rows before the temperature, for the verification.
        int64 or int32, [] or [N].
    logits_cache_source : Tensor, optional
        [N, V] to be cached instead of `logits`.

    Examples
    --------
    >>> slot, seed, pos = torch.zeros(1, dtype=torch.int32), torch.tensor([7]), torch.tensor([4])
    >>> gumbel_sample(torch.tensor([[0.0, 50.0]]), slot, torch.ones(1), seed, pos, True, False)
    tensor([1])
    """
    if logits_cache is not None:
        source = logits if logits_cache_source is None else logits_cache_source
        column: Any = logits_cache_col  # the op refuses None
        specdec.store_rows(source, logits_cache, slots=expanded_idx_mapping, column=column)
    elif logits_cache_source is not None:
        raise ValueError("logits_cache_source: expected None without logits_cache")
    nonce: int | torch.Tensor = TARGET
    if is_drafting:
        nonce = 0 if logits_cache_col is None else logits_cache_col
    law = Sampling(temperature, divided=not apply_temperature)
    return drawn(logits, expanded_idx_mapping, law, seed, pos, nonce=nonce)


def apply_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, has_topp_only_rows: bool = True
) -> torch.Tensor:
    """Logits with -inf for dropped tokens, in place: ``vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p``.

    By `cutoff` and `mask_logits`. Of ties the lowest ids stay: exactly k. vLLM's kernel does so, too; its
    fallback in torch keeps all ties. ``k`` is int32 or int64 [N]; 0, negative numbers and V or more keep all. ``p`` is
    float32 [N] in [0, 1], a share of what k keeps. ``has_topp_only_rows`` makes no difference.

    Examples
    --------
    >>> apply_top_k_top_p(torch.tensor([[1.0, 3.0, 3.0, 3.0]]), torch.tensor([2]), None)
    tensor([[-inf, 3., 3., -inf]])
    """
    if k is None and p is None:
        return logits
    cut = specdec.cutoff(logits, sampling=Sampling.vllm(top_k=0 if k is None else k, top_p=1.0 if p is None else p))
    return specdec.mask_logits(logits, cut, out=logits)


def register() -> None:
    """The plug-in ``specdec`` of the group ``vllm.general_plugins``, which vLLM calls in each of its processes.

    With ``SPECDEC_VLLM`` in the environment it is `install`, and a word that is no method is a ValueError. Without,
    ``additional_config`` may still name a method, so the same hook is set; a vLLM without that hook is left unchanged
    then.
    """
    try:
        install()
    except (ImportError, AttributeError, RuntimeError) as error:
        if method_of(None) is not None:
            raise
        LOGGER.info("specdec-kernels: not in this vLLM: %s", error)


def install() -> None:
    """Put our samplers into vLLM's runners: V2's ``ModelState.custom_sampler``, and V1's loaded ones, once.

    Requests may then have ``min_p`` and ``logit_bias`` beside speculation.

    They are used where ``SPECDEC_VLLM`` or the engine's ``additional_config["specdec"]`` names a method. A model whose
    class defines ``custom_sampler`` keeps it. For each engine with a method the logger ``vllm.specdec_kernels`` reports
    what changes. Without vLLM, or with one that has no V2 runner, it raises an ImportError or an AttributeError; with
    one whose samplers have other arguments than those seen, a RuntimeError.
    """
    state_class = importlib.import_module("vllm.v1.worker.gpu.model_states.interface").ModelState
    wrapper_class = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    processor_class = importlib.import_module("vllm.v1.engine.input_processor").InputProcessor
    params_class = importlib.import_module("vllm.sampling_params").SamplingParams
    choose, start = state_class.custom_sampler, wrapper_class.initialize_from_config
    check, check_speculation = processor_class._validate_params, params_class._validate_spec_decode

    def custom_sampler(state: Any, sampler: Any) -> tuple[Any, Any] | None:
        method = method_of(state.vllm_config.additional_config)
        if method is None:
            return choose(state, sampler)
        return importlib.import_module("specdec_kernels.engines._vllm").samplers(state, sampler, method)

    def initialize_from_config(wrapper: Any, *given: Any, **named: Any) -> Any:  # a worker's model is loaded by then
        settle(wrapper.worker)
        return start(wrapper, *given, **named)

    def _validate_params(processor: Any, *given: Any, **named: Any) -> Any:
        before = OURS.set(method_of(processor.vllm_config.additional_config) is not None)
        try:
            return check(processor, *given, **named)
        finally:
            OURS.reset(before)

    def _validate_spec_decode(params: Any, speculative_config: Any) -> None:  # vLLM refuses min_p, logit_bias there
        if not OURS.get():
            check_speculation(params, speculative_config)

    if method_of(None) is not None:  # an unknown version fails here, not with a model in memory
        importlib.import_module("specdec_kernels.engines._vllm").check_version()
    if switched(SHARDED):
        embedding = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")
        pad = importlib.import_module("specdec_kernels.engines._vllm_sharded").padded
        pad_vocab_size = pad(embedding.pad_vocab_size, embedding.get_tensor_model_parallel_world_size)
        REPLACEMENTS.put(embedding, "pad_vocab_size", pad_vocab_size)
    REPLACEMENTS.put(state_class, "custom_sampler", custom_sampler)
    REPLACEMENTS.put(wrapper_class, "initialize_from_config", initialize_from_config)
    REPLACEMENTS.put(processor_class, "_validate_params", _validate_params)
    REPLACEMENTS.put(params_class, "_validate_spec_decode", _validate_spec_decode)
    hide_checkout()


def settle(worker: Any) -> None:
    """Make a V1 runner ours, if its engine names a method, and log the result: once for all of its ranks.

    A V2 runner has our samplers since its models were loaded.
    """
    method = method_of(worker.vllm_config.additional_config)
    sharded = switched(SHARDED) and worker.vllm_config.parallel_config.tensor_parallel_size > 1
    if method is None:
        if sharded:
            raise ValueError(f"{SHARDED}: expected a method beside it, as SPECDEC_VLLM=race; got none")
        return
    runner, why, what = worker.model_runner, None, "V2 model runner"
    state, drafts = getattr(runner, "model_state", None), worker.vllm_config.speculative_config is not None
    if getattr(state, "specdec_method", None) is None:
        if runner.is_pooling_model:
            why = "a pooling model samples nothing"
        elif runner.sampler is None:  # another stage of a pipeline samples
            return
        elif not drafts and method != "race":
            why = "without speculative decoding there is nothing to verify"
        elif state is not None:
            why = f"{type(state).__name__} has other samplers"
        else:
            plugin = importlib.import_module("specdec_kernels.engines._vllm_v1")
            if strangers := plugin.strangers(runner):
                why = f"our ops have no rule for the logits processors {', '.join(strangers)}"
            else:
                what = f"V1 model runner ({why_v1(worker.vllm_config)}), {plugin.take_over(runner, method)}"
    elif sharded:
        raise NotImplementedError(f"{SHARDED}: expected the V1 runner (VLLM_USE_V2_MODEL_RUNNER=0); got V2")
    if worker.is_driver_worker:
        if why is None:
            LOGGER.info("specdec-kernels: method %r, %s", method, what)
        else:
            LOGGER.warning("specdec-kernels: method %r changes nothing: %s", method, why)


def why_v1(config: Any) -> str:
    """The features that this engine needs and the V2 runner lacks."""
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
        return "VLLM_USE_V2_MODEL_RUNNER is set"
    missing = config._get_v2_model_runner_unsupported_features()
    return f"V2 has no {', '.join(missing)}" if missing else "V2 needs a Triton for this device"


def uninstall() -> None:
    """Restore vLLM's names, for engines that are made later."""
    REPLACEMENTS.undo()


def method_of(additional_config: Any) -> str | None:
    """The method of the environment or of vLLM's ``additional_config``; None if neither names one."""
    name, method = "SPECDEC_VLLM", os.environ.get("SPECDEC_VLLM")
    if not method and isinstance(additional_config, dict):
        name, method = "additional_config['specdec']", additional_config.get("specdec")
    return checked_method(method, name)
