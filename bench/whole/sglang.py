"""Whole SGLang on a CPU, a scheduler in a process for each contender: its sampling and verification against ours.

SGLang's own verification is greedy on a CPU, whatever the temperature is: an argmax of each row.
"""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import torch

from bench.whole import cells
from tests.engines import sglang_process
from tests.engines.step_parts import Parts

SECONDS = 0.2  # of the processor, of a cell
CHAINS = {"speculative_num_draft_tokens": cells.K + 1}  # with their roots
SPECULATION = {
    cells.NONE: {},
    cells.MODEL: CHAINS | {
        "speculative_algorithm": "STANDALONE", "speculative_num_steps": cells.K, "speculative_eagle_topk": 1
    },
    cells.NGRAMS: CHAINS | {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 1},
}  # fmt: skip
CONTENDERS = {each: kinds for each, kinds in cells.SERVED.items() if each[1] != "block"}  # for drafts that have laws


class Engine:
    """A scheduler in this process whose parts are timed."""

    def __init__(self, folders, drafts, verification, parts):
        speculation = SPECULATION[drafts]
        if drafts == cells.MODEL:
            speculation = speculation | {"speculative_draft_model_path": folders[1]}
        self.scheduler, self.parts, self.count = sglang_process.scheduler_of(
            model_path=folders[0], context_length=512, max_total_tokens=16384, max_running_requests=max(cells.BATCHES),
            enable_deterministic_inference=verification == "race", **speculation,
        ), parts, 0  # fmt: skip
        sglang_process.wrap_parts(parts, self.scheduler, "sampling" if verification == cells.OWN else "adapter")

    def step(self):
        """A step of all requests."""
        sglang_process.step(self.scheduler)

    def cell(self, kind, requests, vocabulary):
        """The figures of a cell."""
        self.count += 1
        wanted = cells.settings(kind, vocabulary) | {"max_new_tokens": 400, "ignore_eos": True}
        if "logit_bias" in wanted:
            wanted["logit_bias"] = {str(token): value for token, value in wanted["logit_bias"].items()}
        for request in range(requests):
            name, tokens = f"{self.count}-{request}", cells.prompt(request, vocabulary)
            sglang_process.add(self.scheduler, name, tokens, sampling_seed=request, **wanted)
        for _ in range(cells.WARM):
            self.step()
        steps, begin = [], time.thread_time()
        while not cells.is_enough(len(steps), begin, SECONDS):
            self.parts.taken()
            self.step()
            steps.append(self.parts.taken())
        figures = {"ms": cells.medians(steps)}
        if vocabulary == cells.SMALL and requests == cells.COUNTED:
            with self.parts.counting() as counts:
                self.step()
            figures |= cells.counted(counts, 1)
        sglang_process.drop(self.scheduler, f"{self.count}-")
        return figures


def serve(connection, folders, each):
    """A contender's process: cells, as the other end wants them."""
    os.environ["SPECDEC_SGLANG"] = each[1].replace(cells.OWN, "")
    with torch.no_grad(), Parts() as parts:
        engine = Engine(folders, *each, parts)
        connection.send("loaded")
        for wanted in iter(connection.recv, None):
            try:
                connection.send(engine.cell(*wanted))
            except Exception as error:
                connection.send({"stops": cells.stopped(error)})


def started(context, folders, each):
    """The connection to a contender's process, once its models are loaded."""
    here, there = context.Pipe()
    context.Process(target=serve, args=(there, folders, each), daemon=True).start()
    there.close()
    here.recv()
    return here


def run():
    """The cells of both vocabularies."""
    context = multiprocessing.get_context("forkserver")  # which imports SGLang once
    context.set_forkserver_preload(["sglang.srt.managers.scheduler", "sglang.srt.models.registry"])
    for vocabulary in (cells.VOCABULARY, cells.SMALL):
        with tempfile.TemporaryDirectory() as folder:
            folders = cells.saved_pair(Path(folder), vocabulary)
            engines = {each: started(context, folders, each) for each in CONTENDERS}
            for kind in cells.KINDS:
                for requests in cells.BATCHES:
                    for each, engine in engines.items():
                        if kind in CONTENDERS[each]:
                            engine.send((kind, requests, vocabulary))
                            yield cells.cell(*each, kind, requests, vocabulary, **engine.recv())
            for engine in engines.values():
                engine.send(None)
