"""transformers' assisted generation and plain sampling against our verification in it, and our loop."""

import functools
from collections import Counter

import torch

from bench.whole import cells
from specdec_kernels.engines import transformers
from tests.engines.step_parts import Parts

NEW, TURNS = 6, 3
OPTIONS = {
    cells.PLAIN: {}, cells.FILTERS: {"top_k": 50, "top_p": 0.9}, cells.GREEDY: {"do_sample": False},
    cells.PENALTIES: {"repetition_penalty": 1.2},
}  # fmt: skip
LOOP = {"custom_generate": transformers.generate, "seed": 0}  # ours
CONTENDERS = {  # drafts, verification -> options of `generate`
    (cells.NONE, cells.OWN): {},
    (cells.NONE, "ours"): LOOP | {"method": "plain"},
    (cells.MODEL, cells.OWN): {},
    (cells.MODEL, "install()"): {},
    (cells.MODEL, "rejection"): LOOP | {"method": "rejection", "k": cells.K},
    (cells.MODEL, "race"): LOOP | {"method": "race", "k": cells.K},
    (cells.NGRAMS, cells.OWN): {"prompt_lookup_num_tokens": cells.K},
    (cells.NGRAMS, "rejection"): LOOP | {"method": "rejection", "prompt_lookup_num_tokens": cells.K},
}
ONE_TEXT = {(drafts, each) for drafts in (cells.MODEL, cells.NGRAMS) for each in (cells.OWN, "install()")}


def models(vocabulary):
    """Target and draft, whose assistant drafts K tokens a round."""
    target, draft = (
        cells.random_llama(sizes, vocabulary, seed) for seed, sizes in enumerate((cells.TARGET, cells.DRAFT))
    )
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = cells.K, "constant"
    config.assistant_confidence_threshold = 0.0
    return target, draft


def step(pair, parts, contender, kind, requests):
    """Write texts; returns the seconds of a call of the target by part."""
    target, draft = pair
    vocabulary = target.config.vocab_size
    options = {"do_sample": True, "top_k": 0} | CONTENDERS[contender] | OPTIONS.get(kind, {})
    if kind == cells.BIAS:
        options["sequence_bias"] = {(token,): value for token, value in cells.bias(vocabulary).items()}
    if contender[0] == cells.MODEL:
        options["assistant_model"] = draft
    texts = torch.tensor([cells.prompt(request, vocabulary) for request in range(requests)])
    if contender[1] == "install()":
        transformers.install()
    torch.manual_seed(0)
    calls = []
    hook = target.register_forward_pre_hook(lambda *_: calls.append(1))
    parts.taken()
    try:
        target.generate(texts, attention_mask=torch.ones_like(texts), max_new_tokens=NEW, pad_token_id=0, **options)
    finally:
        hook.remove()
        transformers.uninstall()
    return Counter({part: seconds / len(calls) for part, seconds in parts.taken().items()}), len(calls)


def run():
    """The cells of both vocabularies."""
    for vocabulary in (cells.VOCABULARY, cells.SMALL):
        pair = models(vocabulary)
        with Parts() as parts:
            for model in pair:
                parts.wrap(model, "forward", cells.FORWARDS)
            for kind in cells.KINDS:
                for requests in cells.BATCHES:
                    some = [each for each in CONTENDERS if requests == 1 or each not in ONE_TEXT]
                    play = functools.partial(step, pair, parts, kind=kind, requests=requests)
                    turns = [{each: play(each)[0] for each in some} for _ in range(TURNS)]
                    for each in some:
                        figures = {"ms": cells.medians([turn[each] for turn in turns])}
                        if vocabulary == cells.SMALL:
                            with parts.counting() as counts:
                                _, calls = play(each)
                            figures |= cells.counted(counts, calls)
                        yield cells.cell(*each, kind, requests, vocabulary, **figures)
