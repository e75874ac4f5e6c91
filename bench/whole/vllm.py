"""Whole vLLM: its sampling and verification against ours, step by step, by its V1 runner.

With ``VLLM_USE_V2_MODEL_RUNNER=1`` by its V2 runner, whose Triton code is interpreted: for its launches, at V = 128.
"""

import ctypes
import gc
import importlib
import os
import tempfile
import time
from pathlib import Path

from bench.whole import cells
from specdec_kernels.engines import vllm as plugin
from tests.engines import vllm_process
from tests.engines.step_parts import KERNELS, Parts

V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
if V2:
    from triton.runtime.interpreter import GridExecutor

    from tests.engines import triton_cpu

    triton_cpu.install()
vllm = importlib.import_module("vllm")  # after its environment is set

SECONDS = 1.0  # of the processor, of all contenders together
STATUS = Path("/proc/self/status")


class Engine:
    """A vLLM in this process whose parts are timed."""

    def __init__(self, folders, drafts, verification, parts):
        target, draft = folders
        speculation = {
            cells.NONE: None,
            cells.MODEL: {"model": draft, "num_speculative_tokens": cells.K, "draft_sample_method": "probabilistic"},
            cells.NGRAMS: {"method": "ngram", "num_speculative_tokens": cells.K, "prompt_lookup_max": 2},
        }
        self.llm = vllm.LLM(
            model=target, speculative_config=speculation[drafts], skip_tokenizer_init=True, max_model_len=512,
            max_num_seqs=max(cells.BATCHES), num_gpu_blocks_override=160, enforce_eager=True, dtype="float32", seed=0,
            distributed_executor_backend="uni", async_scheduling=False,
            additional_config={} if verification == cells.OWN else {"specdec": verification},
        )  # fmt: skip
        self.engine, self.count, self.names = self.llm.llm_engine, 0, []
        runner = vllm_process.runner_of(self.llm)
        if drafts == cells.NGRAMS and not V2:  # a random text repeats nothing: as many drafts as V2 always makes
            runner.drafter.propose = lambda count, sampled, *_, **__: [[*range(1, count + 1)] for _ in sampled]
        vllm_process.wrap_parts(parts, runner, "sampling" if verification == cells.OWN else "adapter")

    def begin(self, requests, kind, vocabulary):
        """Add requests, and step until each of them decodes."""
        self.count += 1
        self.names = [f"{self.count}-{request}" for request in range(requests)]
        for request, name in enumerate(self.names):
            prompt = {"prompt_token_ids": cells.prompt(request, vocabulary)}
            wanted = cells.settings(kind, vocabulary) | {"max_tokens": 400, "ignore_eos": True, "detokenize": False}
            self.engine.add_request(name, prompt, vllm.SamplingParams(**wanted))
        for _ in range(cells.WARM):
            self.engine.step()

    def peak(self, vocabulary):
        """Megabytes that the first steps of a full batch add to the process at most."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what other engines have freed would be used again
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        before = megabytes("VmRSS")
        self.begin(max(cells.BATCHES), cells.PLAIN, vocabulary)
        for _ in range(cells.LEAST):
            self.engine.step()
        self.end()
        return round(megabytes("VmHWM") - before)

    def end(self):
        """Drop the requests."""
        self.engine.abort_request(self.names)
        self.engine.step()


def megabytes(name):
    """A figure of this process's memory."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def timed(engines, parts, kind, requests, vocabulary, counts, stopped):
    """The cells of a batch, by contenders that take turns; ``stopped`` has those that stop, and why."""
    engines = {each: engine for each, engine in engines.items() if kind in cells.SERVED[each]}
    seconds = {each: [] for each in engines}

    def attempt(each, function, *given):
        if each in stopped:
            return None
        try:
            return function(*given)
        except Exception as error:
            stopped[each] = cells.stopped(error)

    for each, engine in engines.items():
        attempt(each, engine.begin, requests, kind, vocabulary)
    begin, steps = time.thread_time(), 0
    while not cells.is_enough(steps, begin, SECONDS):
        for each, engine in engines.items():
            parts.taken()
            attempt(each, engine.engine.step)
            seconds[each].append(parts.taken())
        steps += 1
    for each, engine in engines.items():
        figures = {"stops": stopped[each]} if each in stopped else {"ms": cells.medians(seconds[each])}
        if counts and each not in stopped:
            with parts.counting() as found:
                attempt(each, engine.engine.step)
            figures |= cells.counted(found, 1)
        attempt(each, engine.end)
        yield cells.cell(*each, kind, requests, vocabulary, **figures)


def run():
    """The cells of both vocabularies."""
    plugin.install()
    vllm_process.allow_many()
    for vocabulary in (cells.SMALL,) if V2 else (cells.VOCABULARY, cells.SMALL):
        with tempfile.TemporaryDirectory() as folder, Parts() as parts:
            if V2:
                parts.wrap(GridExecutor, "__call__", KERNELS)
            folders = cells.saved_pair(Path(folder), vocabulary)
            engines = {each: Engine(folders, *each, parts) for each in cells.SERVED}
            if vocabulary == cells.VOCABULARY:
                for each, engine in engines.items():
                    peak = engine.peak(vocabulary)
                    yield cells.cell(*each, cells.PLAIN, max(cells.BATCHES), vocabulary, peak_mb=peak)
            for kind in cells.KINDS:
                stopped = {}
                for requests in (cells.COUNTED,) if V2 else cells.BATCHES:
                    counts = vocabulary == cells.SMALL and requests == cells.COUNTED
                    yield from timed(engines, parts, kind, requests, vocabulary, counts, stopped)
            del engines
