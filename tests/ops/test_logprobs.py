"""logprobs: log-probabilities and ranks of emitted tokens, raw or of the law they were drawn from."""

import decimal
import runpy
from decimal import Decimal
from pathlib import Path

import pytest
import torch

from specdec_kernels import LogitEdits, Sampling, cutoff, logprobs
from specdec_kernels.ops import Support
from tests.support import filters
from tests.support.cases import DTYPES, UNTOUCHED, chain_call
from tests.support.ops import verify_chain


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """log p of a token, how many tokens have at least its logit, itself counted, and the likeliest tokens beside it.

    Weights 2, 8, 4, 2 of 16 are the probabilities 1/8, 1/2, 1/4, 1/8. top_k=2 keeps 8 and 4 of 12: 2/3 and 1/3.
    """
    rows = torch.tensor([2.0, 8.0, 4.0, 2.0]).log().repeat(4, 1)
    raw = logprobs(rows, torch.tensor([1, 2, 3, 0]), top=2)
    torch.testing.assert_close(raw.logprob.exp(), torch.tensor([0.5, 0.25, 0.125, 0.125]))
    assert raw.rank.tolist() == [1, 2, 4, 4]
    assert raw.top_tokens.tolist() == [[1, 2]] * 4
    torch.testing.assert_close(raw.top_logprobs.exp(), torch.tensor([[0.5, 0.25]] * 4))
    kept = logprobs(rows, torch.tensor([1, 2, 3, 0]), sampling=Sampling(top_k=2))
    torch.testing.assert_close(kept.logprob.exp(), torch.tensor([2 / 3, 1 / 3, 0.0, 0.0]))


def rows_of(*lead, vocabulary=33, seed=0):
    return 2 * torch.randn(*lead, vocabulary, generator=torch.Generator().manual_seed(seed))


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOKENS = torch.tensor([4, 0, 32])
MIXED = Sampling(
    temperature=torch.tensor([1.0, 0.7, 0.0]),
    top_k=torch.tensor([5, 0, 2]),
    top_p=torch.tensor([1.0, 0.9, 0.5]),
    min_p=torch.tensor([0.0, 0.05, 0.0]),
)


def support_of(rows):
    """Room for the sets that are kept, with something in it already."""
    lead, words = rows.shape[:-1], -(-rows.shape[-1] // 32)
    return Support(*(torch.full(shape, UNTOUCHED, dtype=torch.int32) for shape in ((*lead, words), lead)))


CALLS = {
    "logprobs": (logprobs, {"rows": rows_of(3), "tokens": TOKENS, "sampling": MIXED, "top": 3}),
    "logprobs kept": (
        logprobs,
        {"rows": rows_of(3), "tokens": TOKENS, "sampling": MIXED, "support": support_of(rows_of(3))},
    ),
    "logprobs raw": (logprobs, {"rows": rows_of(3), "tokens": TOKENS}),
}
SAMPLINGS = {
    "raw": Sampling(),
    "temperature": Sampling(0.6),
    "top_k": Sampling(1.3, top_k=4),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(0.8, min_p=0.1, at_temperature=False),
}


def by_definition(row, sampling):
    """(log-probabilities; float32 logits over the temperature) of one row, -inf where a token is not kept."""
    x = torch.from_numpy(filters.scaled(row, sampling.temperature))
    x = filters.masked(x, filters.kept(row, sampling))
    return x.double().log_softmax(-1), x


def assert_close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


LARGEST = torch.finfo(torch.float32).max
HARD = {
    "ties of large logits": [1e20, 1e20],
    "and others": [1e20, -1e20, 1e20, 1e20, 0.0],
    "the largest": [LARGEST] * 3,
    "as far apart as can be": [LARGEST, -LARGEST, 0.0],
    "negative ones": [-1e30, -1e30, -3e38],
    "one token": [-7.5],
    "one with weight": [-torch.inf, 3.0, -torch.inf],
    "denormal ones": [1e-45, 2.0**-130, -1e-40, 0.0],
    "a flat row": [0.1] * 600,
    "far apart": [0.0, -88.0, -104.0, -200.0, -1e4],
    "200 nats, and no weight": [1e4, 1e4 - 200.0, -torch.inf],
    "close": [1.0, 1.0 + 2.0**-23, 1.0 - 2.0**-24],
    "an even step": [-0.25 * i for i in range(500)],
    "a peak": [30.0] + [0.0] * 400,
}


def exactly(row, temperature):
    """log softmax of float32 numbers in 60 digits, as floats; -inf where there is no weight."""
    inverse = torch.tensor(1.0) / torch.tensor(temperature)
    x = [float(value) for value in (torch.tensor(row) * inverse).clamp(max=LARGEST)]
    with decimal.localcontext(prec=60):
        top = max(Decimal(value) for value in x if value > -torch.inf)
        below = [None if value == -torch.inf else Decimal(value) - top for value in x]
        whole = sum(value.exp() for value in below if value is not None and value > -10_000).ln()
        return [-torch.inf if value is None else float(value - whole) for value in below]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", HARD)
def test_hard_rows_in_exact_arithmetic(name, temperature):
    row, expected = torch.tensor(HARD[name]), torch.tensor(exactly(HARD[name], temperature), dtype=torch.float64)
    tokens = torch.arange(0, len(row), max(len(row) // 5, 1))
    found = logprobs(row.expand(len(tokens), -1), tokens, sampling=Sampling(temperature), top=1).logprob
    # What a float32 holds: a difference may lie outside of it.
    expected = expected.float().double()
    assert_close(found, expected[tokens])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
class TestByDefinition:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_token_of_a_row(self, sampling, dtype):
        row = (rows_of()[:33] * 4).round().div(4).to(dtype)
        found = logprobs(row.expand(33, -1), torch.arange(33), sampling=sampling, top=33)
        logs, x = by_definition(row, sampling)
        assert_close(found.logprob, logs)
        ranks = [int((x >= own).sum()) if own > -torch.inf else 0 for own in x]
        assert found.rank.tolist() == ranks

        order = sorted((i for i in range(33) if x[i] > -torch.inf), key=lambda i: (-x[i], i))
        padding = 33 - len(order)
        assert (found.top_tokens == torch.tensor(order + [-1] * padding)).all()
        best = torch.cat([logs[order], torch.full((padding,), -torch.inf).double()])
        assert_close(found.top_logprobs, best.expand(33, -1))

    def test_fewer_of_the_top_are_its_first(self, sampling):
        rows = rows_of(3)
        whole = logprobs(rows, TOKENS, sampling=sampling, top=33)
        for top in (0, 1, 5):
            found = logprobs(rows, TOKENS.int(), sampling=sampling, top=top)
            assert torch.equal(found.logprob, whole.logprob)
            assert torch.equal(found.top_tokens, whole.top_tokens[:, :top])
            assert torch.equal(found.top_logprobs, whole.top_logprobs[:, :top])


@pytest.mark.usefixtures("backend")
class TestTokens:
    def test_temperature_zero(self):
        row = torch.tensor([1.0, 3.5, 3.5, -torch.inf, 5.0 - 3])
        for sampling in (Sampling(0.0), Sampling(0.0, top_k=2)):
            found = logprobs(row.expand(5, -1), torch.arange(5), sampling=sampling, top=2)
            assert found.logprob.tolist() == [-torch.inf, 0.0, *[-torch.inf] * 3]
            assert found.rank.tolist() == [4, 1, 2, 0, 3]
            assert found.top_tokens.tolist() == [[1, -1]] * 5
            assert found.top_logprobs.tolist() == [[0.0, -torch.inf]] * 5

    def test_no_token_and_none_that_is(self):
        """-1 is a verdict's padding, and its row is not looked at; others outside of the vocabulary are an error."""
        rows = rows_of(4)
        rows[0] = torch.nan
        bits = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        found = logprobs(rows, torch.tensor([-1, 33, -2, 5]), status=bits)
        assert bits.tolist() == [0, 4, 4, 0]
        assert found.logprob[:3].tolist() == [-torch.inf] * 3
        assert found.rank[:3].tolist() == [0] * 3
        assert found.rank[3] > 0
        found = logprobs(rows, torch.tensor([-1, -1, -1, 5]), status=bits, top=1)
        assert bits.tolist() == [1, 0, 0, 0]
        assert found.top_tokens.flatten().tolist() == [-1, *rows[1:].argmax(-1).tolist()]

    def test_of_a_verdict(self):
        """The emitted tokens of a whole batch at once; what was drawn with filters is kept by them."""
        call = chain_call(3, requests=8, slots=3, vocabulary=33) | {"temperature": None}
        sampling = Sampling(torch.linspace(0.5, 1.5, 8), top_k=6)
        verdict = verify_chain(**call, sampling=sampling, **{"draft.sampling": Sampling()})
        slots = Sampling(sampling.temperature[:, None].expand(8, 4), top_k=6)
        bits = torch.full((8, 4), UNTOUCHED, dtype=torch.int32)
        found = logprobs(call["target"], verdict.tokens, sampling=slots, status=bits)
        emitted = verdict.tokens != -1
        assert not bits.any()
        assert (found.logprob.isfinite() == emitted).all()
        assert ((found.rank > 0) == emitted).all()
        assert found.rank.max() <= 6


KEPT = support_of(rows_of(3))
REFUSED = {
    "logprobs": (logprobs, {"rows": rows_of(3), "tokens": TOKENS}, [
        ({"tokens": TOKENS[:2]}, ValueError, r"tokens: expected shape \[3\]; got int64 \[2\]"),
        ({"top": 34}, ValueError, "top: expected an int from 0 to the vocabulary's 33; got 34"),
        ({"top": -1}, ValueError, "top: expected an int from 0 to the vocabulary's 33; got -1"),
        ({"top": True}, ValueError, "top: expected an int from 0 to the vocabulary's 33; got True"),
        ({"out": (torch.zeros(3),) * 2}, TypeError, r"out: expected \(logprob, rank, top_tokens, top_log"),
        ({"temperature": 0.5, "sampling": Sampling()}, ValueError, "temperature: expected None beside sampling="),
    ]),
    "the set that is kept": (logprobs, {"rows": rows_of(3), "tokens": TOKENS, "support": KEPT}, [
        ({"support": KEPT.bits}, TypeError, "support: expected a Support; got int32"),
        ({"support": KEPT._replace(count=KEPT.bits[:, 0])}, ValueError, "support.count: expected contiguous"),
        ({"support": KEPT._replace(count=KEPT.bits.view(-1)[:3])}, ValueError,
         ".*memory of its own; got some of support"),
    ]),
}  # fmt: skip


def set_of(bits, vocabulary):
    """bool [..., V] of words of bits; those behind the vocabulary must be clear."""
    every = (bits.long().unsqueeze(-1) >> torch.arange(32)).flatten(-2) & 1
    assert not every[..., vocabulary:].any()
    return every[..., :vocabulary].bool()


@pytest.mark.usefixtures("backend")
class TestKept:
    """The set that filters keep, in the format of LogitEdits.allowed."""

    @pytest.mark.parametrize("vocabulary", [1, 31, 33, 2049])
    def test_is_that_of_top_and_of_cutoff(self, vocabulary):
        rows = rows_of(4, vocabulary=vocabulary).mul(2).round().div(2)  # with ties
        rows[0, vocabulary // 2 :] = -torch.inf
        rows[0, 0] = 1.0
        sampling = Sampling(
            torch.tensor([1.0, 0.7, 0.0, 1.3]), torch.tensor([0, 5, 2, 0]), torch.tensor([1.0, 0.9, 0.5, 0.7]),
            torch.tensor([0.0, 0.05, 0.0, 0.0]),
        )  # fmt: skip
        for ties in ("first", "all"):
            rule = sampling._replace(ties=ties)
            support = support_of(rows)
            top = min(vocabulary, 64)
            found = logprobs(rows, torch.zeros(4, dtype=torch.int64), sampling=rule, top=top, support=support)
            sets = set_of(support.bits, vocabulary)
            assert torch.equal(support.count.long(), sets.sum(-1))
            for b, members in enumerate(sets):
                listed = found.top_tokens[b][found.top_tokens[b] >= 0]
                assert members[listed].all()
                assert len(listed) == min(top, int(support.count[b]))
            counted = cutoff(rows, sampling=rule).count
            assert torch.equal(support.count[[1, 3]], counted[[1, 3]])
            assert support.count[2] == 1
            assert torch.equal(sets[0], rows[0] > -torch.inf)

    def test_after_edits(self):
        rows = rows_of(3)
        allowed = torch.tensor([[0x0F0F0F0F, 1], [-1, 1], [0, 0]], dtype=torch.int32)
        support = support_of(rows)
        logprobs(rows, TOKENS, edits=LogitEdits(allowed=allowed), sampling=Sampling(top_k=12), support=support)
        sets, may = set_of(support.bits, 33), set_of(allowed, 33)
        assert support.count.tolist() == [12, 12, 0]
        assert not (sets & ~may).any()
        again = support_of(rows)  # the set as a mask keeps what it kept
        part = Support(again.bits[:2], again.count[:2])
        logprobs(rows[:2], TOKENS[:2], edits=LogitEdits(allowed=support.bits[:2]), support=part)
        assert torch.equal(again.bits[:2], support.bits[:2])

    def test_what_is_not_read_keeps_nothing(self):
        rows = rows_of(4)
        rows[0] = -torch.inf
        support = support_of(rows)
        index = torch.tensor([0, -1, 0, 7], dtype=torch.int32)
        tokens = torch.tensor([1, 1, -1, 1])
        logprobs(rows, tokens, sampling=Sampling(torch.ones(1)), request_index=index, support=support)
        assert not support.bits.any()
        assert not support.count.any()

    @pytest.mark.slow
    def test_a_trainer_with_the_same_set_agrees_with_the_sampler(self):
        same_set, whole = runpy.run_path(str(EXAMPLES / "kept_sets.py"))["main"]()
        assert (same_set - 1).abs().max() < 1e-6
        assert (whole - 1).abs().min() > 1e-2
