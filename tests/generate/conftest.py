"""What the tests of generation share."""

import pytest

from specdec_kernels.generate import ParallelDrafter, generate, load_model
from tests.generate.laws import NEW, PROMPTS, VOCAB
from tests.generate.small import llama


@pytest.fixture(scope="session")
def pair():
    """The embedded target and draft, in float64: reading a text at once or token by token gives the same logits."""
    return load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")


@pytest.fixture(scope="session")
def small_pair():
    """A target and a draft of a few tokens, so that the law of short texts can be written down."""
    return llama(VOCAB, seed=1, spread=0.25), llama(VOCAB, seed=2, spread=0.25)


@pytest.fixture(scope="module")
def small_parallel():
    """A model that knows the tokens of the small pair, and two look-ahead tokens."""
    return ParallelDrafter(llama(VOCAB + 2, seed=3, spread=0.25, look_ahead_token_ids=[VOCAB, VOCAB + 1]))


@pytest.fixture(scope="session")
def plain(pair):
    """Plain generations of PROMPTS by temperature, each prompt on its own."""
    return {
        temperature: [
            generate([prompt], pair[0], method="plain", temperature=temperature, seed=3 + index, max_new_tokens=NEW)[0]
            for index, prompt in enumerate(PROMPTS)
        ]
        for temperature in (0.0, 1.0)
    }
