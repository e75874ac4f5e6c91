"""Filters and edits for whole generations: the batch they are for, and what each of its prompts gets."""

from specdec_kernels import DraftTree, Sampling
from specdec_kernels.generate import TextEdits
from tests.generate.test_generate import PROMPTS
from tests.support.edits import Place

BATCH, NEW = PROMPTS[:3], 16
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
SMALL = TextEdits(1.5, 0.5, 0.25, {3: -float("inf"), 0: 0.5})  # for a vocabulary of five
SHAPES = {"wide": DraftTree.specinfer((3, 2, 1)), "deep": DraftTree.chain(3)}


def of_prompt(fields, index):
    """The sampling, or the edits, of one prompt of the batch."""
    each = (value[index] if isinstance(value, list) and len(value) == len(BATCH) else value for value in fields)
    return type(fields)(*each)


def place_of(edits, prompt, output):
    """Where a text of one prompt stands (tests/support/edits.py)."""
    return Place(edits.bias or {}, *edits[:3], prompt=prompt, output=output)
