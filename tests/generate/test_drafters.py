"""Drafters and plans on their own."""

import pytest
import torch

from specdec_kernels.generate import FixedLength, NgramDrafter, RandomLength
from specdec_kernels.generate.noise import Noise, kept

NOISE = Noise(torch.arange(4), torch.tensor([5, 6, 7, 8]))


@pytest.mark.parametrize(
    "text, count, expected",
    [
        ([1, 2, 3, 1, 2], 4, [3, 1, 2]),
        ([1, 2, 3, 1, 2], 1, [3]),
        ([1, 2, 9, 5, 2, 7, 1, 2], 2, [9, 5]),
        ([5, 1, 5, 2, 5], 1, [2]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([4, 4, 4, 4], 2, [4]),
    ],
    ids=["all that follows", "as many as asked", "longest suffix first", "last occurrence", "none", "one token", "run"],
)
def test_ngram_follows_the_last_occurrence_of_the_longest_suffix(text, count, expected):
    assert NgramDrafter(longest=3).follow(text, count) == expected


def test_ngram_writes_its_drafts_into_the_text():
    text = torch.tensor([[1, 2, 3, 1, 0, 0], [1, 2, 3, 4, 0, 0]])
    drafts, laws = NgramDrafter().propose(text, [4, 4], [2, 2], 2, None, None)
    assert drafts.tolist() == [[2, 3], [-1, -1]]
    assert laws is None
    assert text.tolist() == [[1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 0, 0]]


def test_ngram_sizes():
    with pytest.raises(ValueError, match="shortest: expected 1 <= shortest <= longest; got 3 and 2"):
        NgramDrafter(longest=2, shortest=3)


def test_fixed_length_stops_at_the_limit():
    assert FixedLength(3).plan(NOISE, [0, 2, 3, 9]) == ([0, 2, 3, 3], 1.0)
    with pytest.raises(ValueError, match="k: expected at least 0; got -1"):
        FixedLength(-1)


def test_random_length_is_a_function_of_seed_and_position():
    policy = RandomLength(3, 0.5, "token")
    plan = policy.plan(NOISE, [9] * 4)
    again = policy.plan(kept(NOISE, [2]), [9])
    assert plan.lengths[2:3] == again.lengths
    assert plan.draft_prob.tolist() == [[0.5] * 3] * 4
    assert RandomLength(3, 1.0).plan(NOISE, [9, 9, 2, 0]).lengths == [3, 3, 2, 0]
    assert RandomLength(3, 0.0).plan(NOISE, [9] * 4).lengths == [0] * 4


def test_random_length_arguments():
    with pytest.raises(ValueError, match=r"draft_prob: expected a probability; got 1\.5"):
        RandomLength(3, 1.5)
    with pytest.raises(ValueError, match="scheme: expected one of token, chain, uniform; got 'tree'"):
        RandomLength(3, 0.5, "tree")
