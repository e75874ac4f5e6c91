"""A whole SGLang's scheduler on a CPU in this process, stepped from outside: to be imported before SGLang.

PYTHONPATH names the folder `sglang_cpu`, which has what SGLang lacks there, such as attention.
"""

import os
from array import array

os.environ.update(HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1", TORCHDYNAMO_DISABLE="1")


def scheduler_of(**options):
    """A scheduler whose outputs go nowhere; a process has one."""
    from sglang.srt import runtime_context
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs

    arguments = ServerArgs(
        skip_tokenizer_init=True, device="cpu", dtype="float32", mem_fraction_static=0.3, disable_cuda_graph=True,
        disable_overlap_schedule=True, disable_radix_cache=True, log_level="error", attention_backend="triton",
        prefill_attention_backend="intel_amx", decode_attention_backend="intel_amx",
        speculative_draft_attention_backend="intel_amx", **options,
    )  # fmt: skip
    arguments.resolve_once()
    load_plugins()
    arguments.check_server_args()
    ranks = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    scheduler = Scheduler(arguments, PortArgs.init_new(arguments))
    scheduler.output_streamer.send_to_detokenizer.send_output = lambda *_: None
    return scheduler


def add(scheduler, name, tokens, **sampling):
    """Add a request."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(**sampling)
    params.normalize(None)
    request = TokenizedGenerateReqInput(
        rid=name, input_text="", input_ids=array("q", tokens), input_embeds=None, mm_inputs=None,
        token_type_ids=None, sampling_params=params, return_logprob=False, logprob_start_len=-1, top_logprobs_num=0,
        token_ids_logprob=None, stream=False,
    )  # fmt: skip
    scheduler.process_input_requests([request])


def drop(scheduler, names):
    """Drop the requests whose names begin so."""
    from sglang.srt.managers.io_struct import AbortReq

    scheduler.process_input_requests([AbortReq(rid=names)])
    for _ in range(2):
        step(scheduler)


def step(scheduler):
    """A step of ``Scheduler.event_loop_normal``."""
    plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
    scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
    if batch:
        scheduler.process_batch_result(batch, scheduler.run_batch(batch))
    scheduler.last_batch = batch


def wrap_parts(parts, scheduler, sampling):
    """Time and count a step: forwards, sampling and verification (``sampling``), the drafts' worker around these."""
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative import eagle_worker_common, ngram_worker

    runner = scheduler.tp_worker.model_runner
    parts.wrap(runner, "sample", sampling)
    parts.wrap(SamplingBatchInfo, "copy_for_forward", sampling)
    parts.wrap(runner.model, "forward", "forwards")
    for module in (eagle_worker_common, ngram_worker):
        parts.wrap(module, "eagle_sample", sampling)
    worker = getattr(scheduler.draft_worker, "draft_worker", None)
    if worker is not None:
        parts.wrap(worker.draft_runner.model, "forward", "forwards")
        for name in ("draft", "_draft_extend_for_decode"):
            parts.wrap(worker, name, "drafting")


def counted(method, kinds, **options):
    """Launches, copies and waits of a step's sampling and verification, for each kind of request; for a new process."""
    import torch

    from tests.engines.step_parts import OPS, Parts

    os.environ["SPECDEC_SGLANG"] = method
    found = {}
    with torch.no_grad(), Parts() as parts:
        scheduler = scheduler_of(**options)
        wrap_parts(parts, scheduler, "adapter")
        for kind, sampling in kinds.items():
            for i in range(4):
                add(
                    scheduler,
                    f"{kind}-{i}",
                    [70, 71 + i],
                    max_new_tokens=99,
                    ignore_eos=True,
                    sampling_seed=i,
                    **sampling,
                )
            for _ in range(3):
                step(scheduler)
            with parts.counting() as counts:
                step(scheduler)
            drop(scheduler, kind)
            found[kind] = tuple(count["adapter"] + count[OPS] for count in counts)
    return found
