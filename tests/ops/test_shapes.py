"""Any shape, layout and option: what is emitted keeps its form, is the oracle's, and depends on nothing else."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specdec_kernels
from specdec_kernels import race_sample, race_topk
from tests.support.cases import DTYPES, chain_call, poisoned, ragged, seeds
from tests.support.ops import overlap, residual, verify_chain

# The backend fixture is entered once for all examples of a test: it holds no state that one could leave behind.
examples = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
vocabularies = st.one_of(st.integers(1, 140), st.sampled_from([2047, 2048, 2049]))


@st.composite
def chain_calls(draw):
    """A chain call, padded or ragged, its rows packed or not."""
    vocabulary = draw(vocabularies)
    call = chain_call(
        seed=draw(st.integers(0, 2**31)), requests=draw(st.integers(1, 6)), slots=draw(st.integers(0, 6)),
        vocabulary=vocabulary, draft_vocabulary=draw(st.integers(1, vocabulary)),
        dtype=draw(st.sampled_from(DTYPES)), space=draw(st.sampled_from(["logits", "probs"])),
    )  # fmt: skip
    call |= draw(
        st.sampled_from([{}, {"draft": None}, {"method": "race", "draft": None}, {"draft_prob": 0.5}, {"epsilon": 0.1}])
    )
    if draw(st.booleans()):
        requests, slots = call["draft_tokens"].shape
        counts = draw(st.lists(st.integers(0, slots), min_size=requests, max_size=requests))
        call = ragged(call, torch.tensor(counts)) | {"packing.max_drafts": draw(st.integers(slots, slots + 2))}
    if draw(st.booleans()):
        call["target"] = poisoned(call["target"], pad=draw(st.integers(0, 9)), start=draw(st.integers(0, 9)))
    if draw(st.booleans()) and call["draft"] is not None:
        call["draft"] = poisoned(call["draft"], pad=draw(st.integers(0, 9)), start=draw(st.integers(0, 9)))
    return call


@examples
@given(call=chain_calls())
def test_verify_chain(other_backend, call):
    verdict = verify_chain(**call)
    n = verdict.num_accepted.unsqueeze(1)
    slot = torch.arange(verdict.tokens.shape[1])
    assert ((verdict.tokens >= 0) == (slot <= n)).all()
    assert (verdict.tokens < call["target"].shape[-1]).all()
    with specdec_kernels.backend("reference"):
        expected = verify_chain(**call)
    for got, wanted in zip(verdict, expected, strict=True):
        assert torch.equal(got, wanted)


@st.composite
def row_batches(draw, count=1):
    """Tensors of rows of any leading shape and layout."""
    lead = draw(st.lists(st.integers(0, 3), max_size=3))
    vocabulary = draw(vocabularies)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    # Not so wide that probabilities underflow: at 2^-126 a divergence jumps to infinity, a rounding earlier or later.
    scale = draw(st.sampled_from([0.0, 1.0, 4.0]))
    dtype = draw(st.sampled_from(DTYPES))
    batches = [(scale * torch.randn(*lead, vocabulary, generator=generator)).to(dtype) for _ in range(count)]
    if draw(st.booleans()) and lead:
        batches = [poisoned(rows, pad=draw(st.integers(0, 9))) for rows in batches]
    return batches


@examples
@given(batch=row_batches(), temperature=st.sampled_from([0.0, 0.5, 1.0]))
def test_races(other_backend, batch, temperature):
    (rows,) = batch
    seed = seeds(rows[..., 0].numel()).view(rows.shape[:-1])
    k = min(4, rows.shape[-1])
    token = race_sample(rows, seed=seed, position=3, temperature=temperature)
    tokens = race_topk(rows, k, seed=seed, position=3, temperature=temperature)
    assert token.shape == rows.shape[:-1]
    assert tokens.shape == (*rows.shape[:-1], k)
    assert torch.equal(tokens[..., 0], token)
    assert ((token >= 0) & (token < rows.shape[-1])).all()
    distinct = tokens.sort(dim=-1).values.diff(dim=-1)
    assert (distinct > 0).all()
    with specdec_kernels.backend("reference"):
        assert torch.equal(race_topk(rows, k, seed=seed, position=3, temperature=temperature), tokens)


@examples
@given(batch=row_batches(count=2), draft_prob=st.floats(0, 1, width=32), temperature=st.sampled_from([0.0, 0.7]))
def test_pairs(other_backend, batch, draft_prob, temperature):
    target, draft = batch
    probs, mass = residual(target, draft, draft_prob=draft_prob, temperature=temperature)
    figures = overlap(target, draft, temperature=temperature)
    assert probs.shape == target.shape
    assert all(part.shape == target.shape[:-1] for part in (mass, *figures))
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones_like(mass), rtol=1e-4, atol=1e-4)
    with specdec_kernels.backend("reference"):
        expected_probs, expected_mass = residual(target, draft, draft_prob=draft_prob, temperature=temperature)
        expected = overlap(target, draft, temperature=temperature)
    torch.testing.assert_close(mass, expected_mass, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(
        probs * mass.unsqueeze(-1), expected_probs * expected_mass.unsqueeze(-1), rtol=0, atol=2e-6
    )
    for got, wanted in zip(figures, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-6)
