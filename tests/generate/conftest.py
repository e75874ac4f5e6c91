"""What the tests of generation share."""

import pytest

from specdec_kernels.generate import generate, load_model
from tests.generate.small import llama
from tests.generate.test_generate import NEW, PROMPTS, VOCAB


@pytest.fixture(scope="session")
def pair():
    """The embedded target and draft, in float64: reading a text at once or token by token gives the same logits."""
    return load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")


@pytest.fixture(scope="session")
def small_pair():
    """A target and a draft of a few tokens, so that the law of short texts can be written down."""
    return llama(VOCAB, seed=1, spread=0.25), llama(VOCAB, seed=2, spread=0.25)


@pytest.fixture(scope="session")
def plain(pair):
    """Plain generations of PROMPTS by temperature, each prompt on its own."""
    return {
        temperature: [
            generate([prompt], pair[0], method="plain", temperature=temperature, seed=3 + index, max_new_tokens=NEW)[0]
            for index, prompt in enumerate(PROMPTS)
        ]
        for temperature in (0.0, 0.6, 1.0, 1.7)
    }
