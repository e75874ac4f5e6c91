"""Bugs that other engines had, each as a test on every backend.

Others stand with what they are about. Laws, in test_chain_laws.py: the draft's noise used for the residual, thresholds
that do not fit how drafts were made, a draft law that is not the one sampled from, keys that come back in a later
round. test_race_sample.py: tokens that a floor under the noise would never draw. test_batch_invariance.py: results that
depend on neighbours, chunks or splits. test_verify.py: padding and other rows that are read and decide nothing, empty
residuals without a token. test_verify_chain.py: packed requests that read past their end. test_empty_rows.py: tokens
out of range. test_offsets.py: offsets of 32 bits. test_rows.py: padded strides and misaligned rows. test_filters.py,
test_cutoff.py and test_edits.py: filters and penalties. test_trees.py: malformed trees.
"""

import pytest
import torch
from specdec_kernels._C import maths

from specdec_kernels import race_sample
from tests.support.cases import seeds
from tests.support.laws import assert_law, follows_law
from tests.support.ops import verify_chain

pytestmark = pytest.mark.usefixtures("backend")

# Found by search: seeds whose accept uniform (index 0, position 0, nonce 0) is the smallest and the largest there is.
SEED_OF_UNIFORM_0, SEED_OF_LARGEST_UNIFORM = 941592700, 399336823


@pytest.mark.interpreted
def test_the_seeds_of_extreme_uniforms():
    assert maths.uniform(SEED_OF_UNIFORM_0, 0, 0, 0, 4) == 0
    assert maths.uniform(SEED_OF_LARGEST_UNIFORM, 0, 0, 0, 4) == 1 - 2**-24


def accepted(seed, p, q):
    """Whether a draft of these probabilities is accepted."""
    target, draft = torch.tensor([[[p, 0.7], [0.5, 0.5]]]), torch.tensor([[[q, 0.7]]])
    return bool(verify_chain(torch.tensor([[0]]), target, draft, space="probs", seed=seed, position=0).num_accepted)


@pytest.mark.interpreted
def test_a_zero_uniform_does_not_accept_probability_zero():
    assert not accepted(SEED_OF_UNIFORM_0, 0.0, 0.5)
    assert accepted(SEED_OF_UNIFORM_0, 1e-30, 0.5)


@pytest.mark.interpreted
def test_a_uniform_next_to_one_does_not_reject_equal_laws():
    assert all(accepted(SEED_OF_LARGEST_UNIFORM, p, p) for p in (1.0, 0.3, 1e-30))
    assert not accepted(SEED_OF_LARGEST_UNIFORM, 0.5 - 2**-24, 0.5)


def test_equal_laws_accept_everything():
    """From logits too, where both laws go through the same rounding; 16-bit values included."""
    logits = 3 * torch.randn(500, 2, 300, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.bfloat16):
        rows = logits.to(dtype)
        x = race_sample(rows[:, 0], seed=seeds(500), position=0)
        verdict = verify_chain(x[:, None], rows, rows[:, :1], seed=seeds(500), position=0)
        assert (verdict.num_accepted == 1).all()
        assert (verdict.status == 0).all()


def test_an_argmax_draft_is_a_certain_one():
    """With the law that its rows show, as if it had been sampled, the output would have another law."""
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.5, 0.2, 0.2, 0.1])
    target, draft, argmax = p.expand(2000, 2, -1), q.expand(2000, 1, -1), torch.zeros(2000, 1).long()
    certain, as_sampled = (
        verify_chain(argmax, target, rows, space="probs", seed=seeds(2000), position=0).tokens[:, 0]
        for rows in (None, draft)
    )
    assert_law(certain, p)
    # Accepted with 0.8, else replaced by the one token of the residual.
    assert_law(as_sampled, torch.tensor([0.8, 0.2, 0.0, 0.0]))
    assert not follows_law(as_sampled, p)


@pytest.mark.interpreted
def test_a_draft_law_may_round_to_more_than_one():
    """A float32 softmax of a row with one token gives 1 + 6e-6 in some engines: still a probability."""
    row = torch.tensor([1 + 6e-6, 0.0, 0.0])
    verdict = verify_chain(
        torch.zeros(50, 1).long(), row.expand(50, 2, -1), row.expand(50, 1, -1), space="probs", seed=seeds(50),
        position=0,
    )  # fmt: skip
    assert (verdict.num_accepted == 1).all()
    assert not verdict.status.any()
