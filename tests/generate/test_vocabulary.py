"""A draft that writes some tokens alone: its head has no other rows, and texts have the target's law all the same."""

import pytest
import torch

from specdec_kernels import DraftTree, Sampling
from specdec_kernels.generate import Controller, ModelDrafter, generate
from tests.generate.laws import BATCH, EDITS, NEW
from tests.generate.small import raced
from tests.generate.test_generate import drawn, law_at, tokens_of  # noqa: F401  a fixture
from tests.support.laws import assert_law

LETTERS = [*range(97, 123), 32, 44, 10]


@pytest.mark.parametrize("how", [{"k": 3}, {"tree": DraftTree.specinfer((3, 2))}], ids=["chain", "tree"])
@pytest.mark.parametrize("law", [{}, {"edits": EDITS["all edits"]}], ids=["plain", "edits"])
def test_race_equals_plain(pair, how, law):
    race = raced(BATCH, pair[0], ModelDrafter(pair[1], LETTERS), how, seed=3, max_new_tokens=NEW, **law)
    assert sum(round_.accepted for text in race for round_ in text.rounds) > NEW
    assert ModelDrafter(pair[1], LETTERS).language_model.model.lm_head.weight.shape[0] == len(LETTERS)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "rejection", "k": 2},
        pytest.param({"method": "rejection", "policy": Controller(3, randomised=True)}, marks=pytest.mark.slow),
        {"method": "block", "policy": Controller(3, block=True)},
        pytest.param({"method": "rejection", "tree": DraftTree.specinfer((2, 1))}, marks=pytest.mark.slow),
        {"method": "rejection", "tree": DraftTree.specinfer((2, 1)), "replacement": True},
    ],
    ids=["rejection", "learnt", "block", "tree", "independent siblings"],
)
def test_the_law_of_texts(small_pair, law_at, options):  # noqa: F811
    assert_law(drawn(small_pair, drafter=ModelDrafter(small_pair[1], [4, 1, 2]), **options), law_at(1.0))


def test_a_draft_equal_to_the_target_on_its_tokens(small_pair):
    """At temperature 0 it is accepted for as long as the target writes these."""
    sampling = Sampling(0.0)
    (plain,) = generate([[1]], small_pair[0], method="plain", sampling=sampling, max_new_tokens=12)
    drafter = ModelDrafter(small_pair[0], set(plain.tokens))
    (text,) = generate([[1]], small_pair[0], drafter, method="rejection", k=3, sampling=sampling, max_new_tokens=12)
    assert (text.tokens, text.acceptance) == (plain.tokens, 1)


@pytest.mark.parametrize("vocabulary, message", [
    ([], r"vocabulary: expected token ids from 0 to 4; got \[\]"),
    ([3, 5], r"vocabulary: expected token ids from 0 to 4; got \[3, 5\]"),
    ([-1], r"vocabulary: expected token ids from 0 to 4; got \[-1"),
])  # fmt: skip
def test_refused(small_pair, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        ModelDrafter(small_pair[1], vocabulary)


def test_tokens_that_the_target_does_not_have(small_pair):
    drafter = ModelDrafter(small_pair[1], torch.tensor([1, 4]).tolist())
    with pytest.raises(ValueError, match="vocabulary: expected tokens below the target's 4; got 4"):
        drafter.start(1, 8, vocabulary=4)
