"""llama-cpp-python's loop against ours, text by text; ours with batches, too. Seconds are of the process: one thread.

llama-cpp-python has no draft models: its own loop with drafts takes them from our `LlamaDraft`.
"""

import functools
import tempfile
import time
from collections import Counter
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import Llama, LogitsProcessorList

from bench.whole import cells
from specdec_kernels import Sampling
from specdec_kernels.engines.llamacpp import LlamaDraft, LlamaModel, generate
from specdec_kernels.generate import TextEdits
from tests.engines.random_gguf import write_llama
from tests.engines.step_parts import Parts

NEW, TURNS = 6, 2
PENALTY = 1.2
SAMPLING = {cells.FILTERS: Sampling.llamacpp(1.0, 50, 0.9), cells.GREEDY: Sampling(0.0)}
CONTENDERS = (
    (cells.NONE, cells.OWN), (cells.NONE, "plain"), (cells.MODEL, cells.OWN),
    *((cells.MODEL, method) for method in ("rejection", "block", "race")),
)  # fmt: skip


def biased(bias, tokens, scores):
    """The scores with biases, as ``Llama.create_completion`` adds them."""
    new_scores = np.copy(scores)
    for token, value in bias.items():
        new_scores[token] = value + scores[token]
    return new_scores


def write_theirs(llama, kind, vocabulary):
    """Write a text by ``Llama.generate``."""
    sampling = SAMPLING.get(kind, Sampling())
    options = {"temp": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": 0.0}
    if kind == cells.PENALTIES:
        options["repeat_penalty"] = PENALTY
    if kind == cells.BIAS:
        processor = functools.partial(biased, cells.bias(vocabulary))
        options["logits_processor"] = LogitsProcessorList([processor])
    llama.reset()
    rounds = llama.generate(cells.prompt(0, vocabulary), **options)
    for _ in range(NEW):
        next(rounds)


def write_ours(pair, method, kind, requests, vocabulary):
    """Texts by our loop."""
    edits = {cells.PENALTIES: TextEdits(repetition=PENALTY), cells.BIAS: TextEdits(bias=cells.bias(vocabulary))}
    prompts = [cells.prompt(request, vocabulary) for request in range(requests)]
    length = {} if method == "plain" else {"k": cells.K}
    return generate(
        prompts, *pair, method=method, sampling=SAMPLING.get(kind, Sampling()), edits=edits.get(kind), seed=0,
        max_new_tokens=NEW, eos_token_ids=[], **length,
    )  # fmt: skip


class Bench:
    """Llamas of a vocabulary, whose parts are timed."""

    def __init__(self, folder, vocabulary, parts):
        paths = [
            write_llama(folder / f"{seed}-{vocabulary}.gguf", vocabulary, seed, cells.SPREAD, **sizes)
            for seed, sizes in enumerate((cells.TARGET, cells.DRAFT))
        ]
        load = functools.partial(Llama, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, seed=0)
        self.pair = [LlamaModel(load(path), n_ctx=64) for path in paths]
        drafter = LlamaDraft(LlamaModel(load(paths[1]), n_ctx=64), cells.K, seed=0)
        self.theirs = {cells.NONE: load(paths[0]), cells.MODEL: load(paths[0], n_ctx=64, draft_model=drafter)}
        for llama in self.theirs.values():
            llama.eval = functools.partial(self.counted, llama.eval)
        self.vocabulary, self.parts, self.calls = vocabulary, parts, 0
        for module in (llama_cpp, llama_cpp.llama_cpp):
            parts.wrap(module, "llama_decode", cells.FORWARDS)
        parts.wrap(Llama, "sample", "sampling")

    def counted(self, evaluate, tokens):
        """A call of the target by llama-cpp-python."""
        self.calls += 1
        return evaluate(tokens)

    def step(self, contender, kind, requests):
        """Write texts; returns the seconds of a call of the target by part."""
        drafts, verification = contender
        self.parts.taken()
        self.calls = 0
        if verification == cells.OWN:
            write_theirs(self.theirs[drafts], kind, self.vocabulary)
        else:
            pair = self.pair if drafts == cells.MODEL else self.pair[:1]
            texts = write_ours(pair, verification, kind, requests, self.vocabulary)
            self.calls = max(text.target_calls for text in texts)
        return Counter({part: seconds / self.calls for part, seconds in self.parts.taken().items()})


def run():
    """The cells of both vocabularies."""
    for vocabulary in (cells.VOCABULARY, cells.SMALL):
        with tempfile.TemporaryDirectory() as folder, Parts(time.process_time) as parts:
            bench = Bench(Path(folder), vocabulary, parts)
            for kind in cells.KINDS:
                for requests in cells.BATCHES:
                    some = [each for each in CONTENDERS if requests == 1 or each[1] != cells.OWN]
                    turns = [{each: bench.step(each, kind, requests) for each in some} for _ in range(TURNS)]
                    for each in some:
                        figures = {"ms": cells.medians([turn[each] for turn in turns])}
                        yield cells.cell(*each, kind, requests, vocabulary, **figures)
