"""Bugs that other engines had, each as a test on every backend.

Those of a law stand with the laws, in test_chain_laws.py: the draft's noise used for the residual, thresholds that do
not fit how drafts were made, a draft law that is not the one sampled from, keys that come back in a later round. Tokens
that a floor under the noise would never draw are in test_race_sample.py, results that depend on neighbours, chunks or
splits in test_batch_invariance.py, padded strides and misaligned rows with each op. Those of filters and penalties are
in test_filters.py, test_cutoff.py and test_edits.py, malformed trees in test_trees.py.
"""

import pytest
import torch
from specdec_kernels._C import maths

from specdec_kernels import race_sample
from tests.support.cases import adversarial_rows, seeds
from tests.support.laws import assert_law, follows_law
from tests.support.ops import verify_chain

pytestmark = pytest.mark.usefixtures("backend")

# Found by search: seeds whose accept uniform (index 0, position 0, nonce 0) is the smallest and the largest there is.
SEED_OF_UNIFORM_0, SEED_OF_LARGEST_UNIFORM = 941592700, 399336823


@pytest.mark.interpreted
def test_the_seeds_of_extreme_uniforms():
    assert maths.uniform(SEED_OF_UNIFORM_0, 0, 0, 0, 4) == 0
    assert maths.uniform(SEED_OF_LARGEST_UNIFORM, 0, 0, 0, 4) == 1 - 2**-24


def strict(uniform, p, q):
    return uniform * q < p


def not_strict(uniform, p, q):
    return uniform * q <= p


def accepts_the_impossible(accept):
    """Whether a uniform of 0 accepts a token of probability 0."""
    return accept(0.0, 0.0, 0.5)


def rejects_the_certain(accept):
    """Whether the largest uniform rejects where p = q."""
    return not all(accept(1 - 2**-24, p, p) for p in (1.0, 0.3, 1e-30))


def by_verify_chain(uniform, p, q):
    """The accept test of the op itself, asked about one uniform."""
    seed = SEED_OF_UNIFORM_0 if uniform == 0 else SEED_OF_LARGEST_UNIFORM
    verdict = verify_chain(
        torch.tensor([[0]]), torch.tensor([[[p, 0.7], [0.5, 0.5]]]), torch.tensor([[[q, 0.7]]]),
        space="probs", seed=seed, position=0,
    )  # fmt: skip
    return bool(verdict.num_accepted[0])


@pytest.mark.interpreted
def test_a_zero_uniform_does_not_accept_probability_zero():
    assert not accepts_the_impossible(by_verify_chain)
    assert not accepts_the_impossible(strict)
    assert accepts_the_impossible(not_strict)


@pytest.mark.interpreted
def test_a_uniform_next_to_one_does_not_reject_equal_laws():
    assert not rejects_the_certain(by_verify_chain)
    assert rejects_the_certain(lambda uniform, p, q: uniform + 2**-24 < p / q)


def test_equal_laws_accept_everything():
    """From logits too, where both laws go through the same rounding; 16-bit values included."""
    logits = 3 * torch.randn(500, 2, 300, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.bfloat16):
        rows = logits.to(dtype)
        x = race_sample(rows[:, 0], seed=seeds(500), position=0)
        verdict = verify_chain(x[:, None], rows, rows[:, :1], seed=seeds(500), position=0)
        assert (verdict.num_accepted == 1).all()
        assert (verdict.status == 0).all()


@pytest.mark.interpreted
def test_padding_reads_nothing_and_blocks_nobody():
    """-1 drafts have no rows to read: here they are NaN, and the token after them is out of range."""
    target = torch.full((3, 4, 50), torch.nan)
    draft = torch.full((3, 3, 50), torch.nan)
    drafts = torch.tensor([[-1, 10**9, 10**9], [7, -1, 10**9], [7, 7, 7]])
    for b, rows in enumerate((1, 2, 4)):
        target[b, :rows], draft[b, : rows - 1] = 0.0, 0.0
    verdict = verify_chain(drafts, target, draft, seed=seeds(3), position=0)
    assert verdict.num_accepted.tolist() == [0, 1, 3]
    assert verdict.status.tolist() == [0, 0, 0]
    assert ((verdict.tokens >= 0).sum(dim=1) == verdict.num_accepted + 1).all()


@pytest.mark.interpreted
def test_ragged_requests_do_not_read_past_their_end():
    """The next request's first draft must not become this one's, nor its row."""
    drafts = torch.tensor([7, 7, 8, 8, 8], dtype=torch.int32)
    cu_drafts = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    target = torch.zeros(8, 20)
    target[2], target[3], target[7] = *(torch.nn.functional.one_hot(torch.tensor([3, 4]), 20) * 100.0 - 50), 0.0
    verdict = verify_chain(
        drafts, target, torch.zeros(5, 20), **{"packing.cu_drafts": cu_drafts}, seed=seeds(3), position=0
    )
    assert verdict.num_accepted.tolist() == [2, 0, 3]
    assert verdict.tokens[0].tolist() == [7, 7, 3, -1]
    assert verdict.tokens[1].tolist() == [4, -1, -1, -1]


@pytest.mark.parametrize("method", ["rejection", "race"])
@pytest.mark.parametrize("size", [1, 63, 2048, 2049, 4100])
def test_no_row_names_a_token_outside_the_vocabulary(method, size):
    """All NaN, no weight at all, ties up to the last token: ids stay in [0, V)."""
    rows = torch.stack([
        *adversarial_rows(size).values(), torch.full((size,), torch.nan), torch.full((size,), -torch.inf),
        torch.full((size,), torch.inf), torch.where(torch.arange(size) < size - 1, -torch.inf, torch.nan),
    ])  # fmt: skip
    count = len(rows)
    for temperature in (1.0, 0.0, 1e-3):
        for drafts in (torch.full((count, 1), -1), torch.full((count, 1), size - 1), torch.full((count, 1), size)):
            verdict = verify_chain(
                drafts, rows[:, None].repeat(1, 2, 1), method=method, temperature=temperature,
                seed=seeds(count), position=0,
            )  # fmt: skip
            emitted = verdict.tokens[verdict.tokens != -1]
            assert ((emitted >= 0) & (emitted < size)).all()
        sampled = race_sample(rows, seed=seeds(count), position=0, temperature=temperature)
        assert ((sampled >= 0) & (sampled < size)).all()


def test_rows_beyond_two_billion_elements(monkeypatch):
    """V = 155,264 and 14,000 rows: a 32-bit offset would point elsewhere. Only the two rows read are ever in memory."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    vocabulary, rows = 155_264, 14_001
    room = torch.empty(rows * vocabulary, dtype=torch.bfloat16)
    wide = room.view(rows, vocabulary)
    wide[0], wide[-1] = 0.0, 0.0
    wide[0, 5], wide[-1, 155_000] = 60.0, 60.0
    ends = wide[:: rows - 1]
    assert ends.stride(0) > 2**31
    assert race_sample(ends, seed=seeds(2), position=0).tolist() == [5, 155_000]
    target = ends[:, None].expand(-1, 2, -1)
    for draft in (None, ends[:, None]):
        verdict = verify_chain(torch.tensor([[5], [155_000]]), target, draft, seed=seeds(2), position=0)
        assert verdict.tokens.tolist() == [[5, 5], [155_000, 155_000]]


def test_an_empty_residual_still_names_a_token():
    """p and q are equal, and x is outside of both: no weight is left, and the op must not invent any."""
    law = torch.full((100, 1, 8), 1 / 7)
    law[..., 3] = 0.0
    verdict = verify_chain(
        torch.full((100, 1), 3), law.expand(-1, 2, -1), law, space="probs", seed=seeds(100), position=0
    )
    assert (verdict.num_accepted == 0).all()
    assert (verdict.status == 2).all()
    assert set(verdict.tokens[:, 0].tolist()) == {0, 1, 2, 4, 5, 6, 7}


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


def test_tokens_of_minus_infinity_are_never_sampled():
    row = torch.full((130,), -torch.inf)
    row[::7] = -100.0
    tokens = race_sample(row.expand(3000, -1), seed=seeds(3000), position=0)
    assert (tokens % 7 == 0).all()
    verdict = verify_chain(
        torch.full((3000, 1), 3), row.expand(3000, 2, -1), torch.zeros(3000, 1, 130), seed=seeds(3000), position=0
    )
    assert (verdict.num_accepted == 0).all()
    assert (verdict.tokens[:, 0] % 7 == 0).all()


def test_seeds_are_the_request_s_own():
    """Each request's seed counts, and nothing else does: not its place in the batch."""
    logits = torch.zeros(64, 1000)
    own = race_sample(logits, seed=seeds(64), position=0)
    assert len(own.unique()) > 50
    assert (
        race_sample(logits, seed=torch.full((64,), 9), position=0) == race_sample(logits[0], seed=9, position=0)
    ).all()
