"""The law of whole texts that an engine writes with the embedded target: the first tokens after a prompt.

Few tokens are possible at each place, so that each sequence of them is a cell of the test.
"""

import functools

import numpy as np
import torch

from specdec_kernels.conformance import chi_squared
from specdec_kernels.generate import load_model

LENGTH, MANY = 4, 600  # tokens of a text; texts: a wrong law fails with 400
TEMPERATURE = 0.8
OPEN = "the man that the man thought, and the man "  # may go on in many ways, also for n-grams
LAWS = {
    "three tokens allowed": {"allowed_token_ids": [32, 97, 101]},
    "top-k 3": {"top_k": 3},
    "top-p 0.6": {"top_p": 0.6},
    "min-p 0.3, a bias": {"min_p": 0.3, "logit_bias": {101: 1.5, 32: -1.0}},
}
PARTS = ("first token", "second and third", "all four")


@functools.cache
def target():
    return load_model("embedded:target")


def laws_after(texts, shape):
    """Of each text, all as long, the tokens that filters keep after it, with their probabilities, in float64."""
    prompt = target().encode(OPEN)
    with torch.no_grad():
        rows = target().model(torch.tensor([[*prompt, *text] for text in texts])).logits[:, -1].double().numpy()
    for logits in rows:
        for token, bias in shape.get("logit_bias", {}).items():
            logits[token] += bias
        if "allowed_token_ids" in shape:
            logits[~np.isin(np.arange(len(logits)), shape["allowed_token_ids"])] = -np.inf
        weights = np.exp((logits - logits.max()) / TEMPERATURE)
        keep = np.argsort(-weights)[: shape.get("top_k")]
        keep = keep[weights[keep] >= shape.get("min_p", 0.0)]
        before = np.cumsum(weights[keep]) - weights[keep]
        keep = keep[(before < shape.get("top_p", 1.0) * weights[keep].sum()) & (weights[keep] > 0)]
        yield dict(zip(keep.tolist(), weights[keep] / weights[keep].sum(), strict=True))


@functools.cache
def law_of(name):
    """Every text of `LENGTH` tokens and its probability."""
    texts = {(): 1.0}
    for _ in range(LENGTH):
        after = zip(texts.items(), laws_after(texts, LAWS[name]), strict=True)
        texts = {(*text, token): before * share for (text, before), law in after for token, share in law.items()}
    return texts


def p_values(texts, name):
    """Of the first token, of the second and third, and of all: chi-squared. 0 where a text is impossible."""
    found = []
    for begin, end in ((0, 1), (1, 3), (0, LENGTH)):
        cells = {}
        for text, probability in law_of(name).items():
            cells[text[begin:end]] = cells.get(text[begin:end], 0.0) + probability
        places = {text: i for i, text in enumerate(cells)}
        counts = np.bincount([places.get(text[begin:end], len(cells)) for text in texts])
        found.append(chi_squared(counts, np.array(list(cells.values())))[2])
    return found
