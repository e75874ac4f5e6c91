"""mlx-lm's loops against ours, text by text. mlx computes in several threads, so seconds are of the process."""

import functools
import importlib
import time
from collections import Counter

import mlx.core as mx
from mlx_lm.models import llama
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from bench.whole import cells
from specdec_kernels import Sampling
from specdec_kernels.engines import mlx_lm
from tests.engines.step_parts import Parts

generation = importlib.import_module("mlx_lm.generate")
NEW, TURNS = 6, 2
SAMPLERS = {
    cells.FILTERS: ({"temp": 1.0, "top_k": 50, "top_p": 0.9}, Sampling(1.0, 50, 0.9, top_p_after=(), ties="all")),
    cells.GREEDY: ({"temp": 0.0}, Sampling(0.0)),
}
PLAIN = {"temp": 1.0}, Sampling()
CONTENDERS = (
    (cells.NONE, cells.OWN), (cells.NONE, "race"), (cells.MODEL, cells.OWN),
    *((cells.MODEL, method) for method in ("rejection", "block", "race")),
)  # fmt: skip


def model(sizes, vocabulary, seed):
    """A Llama of random weights, whose logits are N(0, SPREAD²)."""
    made = llama.Model(
        llama.ModelArgs("llama", **sizes, vocab_size=vocabulary, rms_norm_eps=1e-6, tie_word_embeddings=True)
    )
    mx.random.seed(seed)
    weight = made.model.embed_tokens.weight
    made.model.embed_tokens.weight = cells.SPREAD / sizes["hidden_size"] ** 0.5 * mx.random.normal(weight.shape)
    mx.eval(made.parameters())
    return made


def processors(kind, vocabulary):
    """mlx-lm's, which both loops take."""
    if kind == cells.BIAS:
        return make_logits_processors(logit_bias=cells.bias(vocabulary))
    return make_logits_processors(repetition_penalty=1.2) if kind == cells.PENALTIES else []


def step(pair, parts, calls, contender, kind):
    """Write a text; returns the seconds of a call of the target by part, and the number of calls."""
    (drafts, verification), (target, draft) = contender, pair
    vocabulary = target.args.vocab_size
    theirs, sampling = SAMPLERS.get(kind, PLAIN)
    options = {"max_tokens": NEW, "logits_processors": processors(kind, vocabulary)}
    if verification == cells.OWN:
        options["sampler"] = make_sampler(**theirs)
    else:
        options |= {"sampling": sampling, "seed": 0, "method": verification}
    if drafts == cells.MODEL:
        options |= {"draft_model": draft, "num_draft_tokens": cells.K}
    functions = {cells.NONE: generation.generate_step, cells.MODEL: generation.speculative_generate_step}
    write = functions[drafts] if verification == cells.OWN else mlx_lm.generate_step
    text = mx.array(cells.prompt(0, vocabulary))
    parts.taken()
    calls.clear()
    for _ in write(text, target, **options):
        pass
    count = calls[id(target)]
    return Counter({part: seconds / count for part, seconds in parts.taken().items()}), count


def evaluated(forward, calls):
    """A model's call, counted, whose logits are computed at once, so that no other part has its seconds."""

    @functools.wraps(forward)
    def called(self, *given, **named):
        logits = forward(self, *given, **named)
        mx.eval(logits)
        calls[id(self)] += 1
        return logits

    return called


def run():
    """The cells of both vocabularies."""
    calls = Counter()
    llama.Model.__call__ = evaluated(llama.Model.__call__, calls)
    with Parts(time.process_time) as parts:
        parts.wrap(llama.Model, "__call__", cells.FORWARDS)
        for vocabulary in (cells.VOCABULARY, cells.SMALL):
            pair = [model(sizes, vocabulary, seed) for seed, sizes in enumerate((cells.TARGET, cells.DRAFT))]
            for kind in cells.KINDS:
                turns = [{each: step(pair, parts, calls, each, kind)[0] for each in CONTENDERS} for _ in range(TURNS)]
                for each in CONTENDERS:
                    figures = {"ms": cells.medians([turn[each] for turn in turns])}
                    yield cells.cell(*each, kind, 1, vocabulary, **figures)
