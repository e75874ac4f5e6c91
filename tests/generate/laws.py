"""What tests of whole generations write on from, their filters and edits, and the exact law of short texts."""

import itertools

import torch

from specdec_kernels import DraftTree, Sampling
from specdec_kernels.generate import ModelDrafter, TextEdits, Watermark, generate
from tests.support.edits import Place

# Forwards of different shapes round differently. In float64 the differences vanish in the float32 logits that the ops
# get, so that equality of whole generations can be asked for.
PROMPTS = ["ROMEO:\nO, ", "First Citizen:\nBefore we proceed any further, hear me", "J", "The the the the the "]
NEW = 16
BATCH = PROMPTS[:3]
LETTERS = [*range(32, 127), 10]
SAMPLINGS = {
    "all filters": Sampling(0.9, top_k=12, top_p=0.9, min_p=0.02),
    "filters of each prompt": Sampling(
        [0.7, 1.0, 1.5], top_k=[0, 5, 40], top_p=[0.8, 1.0, 0.95], min_p=[0.0, 0.1, 0.01]
    ),
    "before the temperature": Sampling.llamacpp(1.7, top_k=20, top_p=0.8, min_p=0.05),
    "top_p of the row": Sampling.flashinfer_joint(1.2, top_k=30, top_p=0.7),
}
EDITS = {
    "penalties": TextEdits(1.3, 0.25, 0.5),
    "penalties of each prompt": TextEdits([1.2, 1.0, 0.9], [0.0, 1.5, 0.3], [0.4, 2.0, -0.2]),
    "bias": TextEdits(bias={101: -float("inf"), 32: 1.5, 257: 3.0}),
    "allowed": TextEdits(allowed=[97, 98, 99, 32, 101, 10]),
    "all edits": TextEdits(1.2, 0.3, 0.4, {116: -2.0, 111: 1.0}, LETTERS),
}
LAWS = (
    {name: dict(sampling=sampling) for name, sampling in SAMPLINGS.items()}
    | {name: dict(edits=edits) for name, edits in EDITS.items()}
    | {"filters and edits": dict(sampling=Sampling(0.9, top_k=8, top_p=0.9), edits=EDITS["all edits"])}
)
SHAPES = {"wide": DraftTree.specinfer((3, 2, 1)), "deep": DraftTree.chain(3)}


def of_prompt(fields, index):
    """The sampling, the edits, or the watermark of one prompt of the batch."""
    if isinstance(fields, Watermark):
        return fields._replace(key=[fields.key[index]])
    each = (value[index] if isinstance(value, list) and len(value) == len(BATCH) else value for value in fields)
    return type(fields)(*each)


def place_of(edits, prompt, output):
    """Where a text of one prompt stands (tests/support/edits.py)."""
    return Place(edits.bias or {}, *edits[:3], prompt=prompt, output=output)


def tokens_of(generations):
    return [generation.tokens for generation in generations]


# A model over 5 tokens writes 3 tokens after PROMPT: 125 texts, whose probabilities are a product of three softmaxes.
VOCAB, LENGTH = 5, 3
PROMPT = [1, 4]
SMALL = TextEdits(1.5, 0.5, 0.25, {3: -float("inf"), 0: 0.5})
FILTERS = Sampling(0.7, top_k=3, min_p=0.3)


def text_law(target, temperature=1.0, change=None):
    """The law of all texts; ``change(row, said)`` is what a row becomes after these tokens, [V]."""
    texts = torch.tensor([PROMPT + list(tail) for tail in itertools.product(range(VOCAB), repeat=LENGTH)])
    with torch.no_grad():
        rows = target.model(input_ids=texts).logits[:, len(PROMPT) - 1 : -1]
    if change is not None:
        rows = torch.stack([
            torch.stack([change(row, text[:i]) for i, row in enumerate(each)])
            for text, each in zip(texts[:, len(PROMPT) :].tolist(), rows, strict=True)
        ])  # fmt: skip
    logs = (rows.double() / temperature).log_softmax(-1)
    return logs.gather(2, texts[:, len(PROMPT) :, None]).sum((1, 2)).exp()


def filtered(row, said):
    """A row under `FILTERS`, by sorting; it is divided by the temperature later."""
    values = row / FILTERS.temperature
    least = torch.maximum(values.sort().values[-FILTERS.top_k], values.amax() + torch.tensor(FILTERS.min_p).log())
    return row.masked_fill(values < least, -torch.inf)


def edited(row, said):
    """A row under `SMALL`, by hand."""
    return place_of(SMALL, PROMPT, said).edited(row)


def drawn(pair, texts=8000, **options):
    """Generations, each as the number of its text."""
    drafter = options.pop("drafter", None) or ModelDrafter(pair[1])
    written = generate([PROMPT] * texts, pair[0], drafter, seed=5, max_new_tokens=LENGTH, **options)
    return (torch.tensor(tokens_of(written)) * torch.tensor([VOCAB**2, VOCAB, 1])).sum(1)
