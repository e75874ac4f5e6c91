"""What the benches of all engines share: models, settings of requests, and the cells of the table."""

import os
import statistics
import time

import torch

TARGET = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "num_attention_heads": 4}
DRAFT = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128, "num_attention_heads": 2}
VOCABULARY, SMALL = 151_936, 128
BATCHES = (1, 8, 32)
K = 4
SPREAD = 3.0  # standard deviation of the logits
OWN, NONE, MODEL, NGRAMS = "its own", "no drafts", "draft model", "n-grams"
PLAIN, FILTERS, GREEDY, BIAS, PENALTIES = "temperature 1", "top-k 50, top-p 0.9", "greedy", "bias of 300", "penalties"
KINDS = (PLAIN, GREEDY, BIAS, PENALTIES, FILTERS)
FORWARDS = "forwards"  # a part of a step
WARM, LEAST, MOST = 2, 3, 15  # steps before those that are timed, and of those at least and at most
COUNTED = 8  # requests of the steps whose launches are counted
SERVED = {  # drafts, verification -> kinds of request, in engines that serve batches
    (NONE, OWN): KINDS, (NONE, "race"): KINDS, (MODEL, OWN): KINDS, (MODEL, "rejection"): KINDS,
    (MODEL, "block"): KINDS[:1], (MODEL, "race"): KINDS, (NGRAMS, OWN): KINDS[:1], (NGRAMS, "rejection"): KINDS[:1],
}  # fmt: skip
ENTRIES = 300  # the most of OpenAI's API


def random_llama(sizes, vocabulary, seed):
    """A Llama of random weights, float32, whose logits are N(0, SPREAD²)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, num_key_value_heads=sizes["num_attention_heads"], dtype="float32",
        **sizes,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=SPREAD / sizes["hidden_size"] ** 0.5)
    return model


def saved_pair(folder, vocabulary):
    """Folders of a target and a draft as engines load them."""
    folders = [str(folder / f"{name}-{vocabulary}") for name in ("target", "draft")]
    for seed, (path, sizes) in enumerate(zip(folders, (TARGET, DRAFT), strict=True)):
        random_llama(sizes, vocabulary, seed).save_pretrained(path)
    return folders


def prompt(request, vocabulary):
    """Tokens of a request's prompt."""
    return [(7 * request + 3 * i) % (vocabulary - 2) + 1 for i in range(16)]


def bias(vocabulary):
    """Biases of so many tokens as OpenAI's API takes."""
    return {token: 1.0 - 2.0 * (token % 2) for token in range(1, min(ENTRIES, vocabulary - 1) + 1)}


def settings(kind, vocabulary):
    """What a request of this kind wants, by OpenAI's names."""
    options = {
        FILTERS: {"top_k": 50, "top_p": 0.9}, GREEDY: {"temperature": 0.0}, BIAS: {"logit_bias": bias(vocabulary)},
        PENALTIES: {"repetition_penalty": 1.2, "frequency_penalty": 0.2, "presence_penalty": 0.2},
    }  # fmt: skip
    return {"temperature": 1.0} | options.get(kind, {})


def stopped(error):
    """What a cell says where an engine raises an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


def is_enough(steps, begin, seconds):
    """Whether there are so many steps, or LEAST and so many seconds of the processor since `begin`."""
    return steps >= MOST or (steps >= LEAST and time.thread_time() - begin >= seconds)


def medians(steps):
    """The medians of each part's milliseconds, to four digits."""
    parts = sorted({part for step in steps for part in step})
    return {part: float(f"{1e3 * statistics.median(step[part] for step in steps):.4g}") for part in parts}


def counted(counts, steps):
    """Launches, copies and waits a step, by part."""
    names = ("launches", "copies", "waits")
    return {
        name: {part: round(times / steps, 2) for part, times in sorted(count.items()) if part != FORWARDS}
        for name, count in zip(names, counts, strict=True)
    }


def cell(drafts, verification, kind, requests, vocabulary, **figures):
    """One cell of the table."""
    named = {"drafts": drafts, "verification": verification, "kind": kind, "requests": requests}
    return named | {"vocabulary": vocabulary, "load": round(os.getloadavg()[0], 1)} | figures


def say(row):
    """Print a cell in a line."""
    parts = row.get("ms", {})
    text = f"{sum(parts.values()):.2f} ms: " + ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items())
    if not parts:
        text = row.get("stops") or f"{row['peak_mb']} MB"
    what = ", ".join(str(row[name]) for name in ("drafts", "verification", "kind", "requests", "vocabulary"))
    print(f"{what}: {text}", flush=True)
