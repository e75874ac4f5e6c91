"""A whole vLLM on a CPU in this process: to be imported before vLLM."""

import functools
import os
import sys
import types

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR",
)  # fmt: skip


def allow_many():
    """Let a process make several engines once n-grams were looked up.

    vLLM asks what all modules hold for its ``__dict__``, and what numba's library holds has a strange one.
    """
    from llvmlite.binding import ffi

    sys.modules[ffi.__name__] = types.ModuleType(ffi.__name__)
    sys.modules[ffi.__name__].__getattr__ = functools.partial(getattr, ffi)


def runner_of(llm):
    """The model runner of a vLLM whose engine is in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def wrap_parts(parts, runner, sampling):
    """Time and count a runner's step: forwards, sampling and draws (``sampling``), and the proposer around these."""
    if hasattr(runner, "speculator"):  # V2
        drafter, sample, draws = runner.speculator, "sample", ("sample_draft",)
    else:
        drafter, sample, draws = getattr(runner, "drafter", None), "_sample", ("_sample_draft_tokens", "_greedy_sample")
    models = [runner.model]
    parts.wrap(runner, sample, sampling)
    if drafter is not None:
        ours = getattr(drafter.propose, "__self__", drafter)
        if ours is not drafter:  # around vLLM's
            parts.wrap(drafter, "propose", sampling)
        parts.wrap(ours, "propose" if ours is drafter else "_propose", "drafting")
    if hasattr(drafter, draws[0]):
        models.append(drafter.model)
        for name in draws:
            parts.wrap(drafter, name, sampling)
    for model in models:
        for name in ("forward", "compute_logits"):
            parts.wrap(model, name, "forwards")
