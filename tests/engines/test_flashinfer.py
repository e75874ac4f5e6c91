"""FlashInfer's contract, as its documentation has it, kept by our functions. FlashInfer need not be there."""

import functools
import sys
import types

import pytest
import torch
from torch._subclasses import FakeTensorMode

from specdec_kernels import Sampling
from specdec_kernels.engines import _noise, flashinfer
from tests.engines.launches import launches
from tests.support.filters import kept
from tests.support.laws import P, Q, assert_law, assert_rate

TARGET = torch.stack([P, P.flip(0), P, torch.tensor([0.7, 0.1, 0.1, 0.1])])
DRAFT = torch.stack([Q, P, Q])


def drafted(batch, seed=1):
    """Drafts [B, n] drawn from DRAFT, and the rows of both models."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.multinomial(DRAFT, batch, replacement=True, generator=generator).T
    return DRAFT.expand(batch, -1, -1), ids, TARGET.expand(batch, -1, -1)


class TestChain:
    def test_shapes_types_and_padding(self):
        draft, ids, target = drafted(500)
        tokens, accepted, emitted = flashinfer.chain_speculative_sampling(draft, ids, target, seed=3, offset=0)
        assert tokens.dtype == accepted.dtype == emitted.dtype == torch.int32
        assert tokens.shape == (500, 4)
        assert tokens.is_contiguous()
        assert accepted.shape == emitted.shape == (500,)
        slots = torch.arange(4)
        last = emitted[:, None]
        assert torch.equal(tokens < 0, slots > last)
        assert (tokens[tokens < 0] == -1).all()
        kept_drafts = slots[:3] < last
        assert torch.equal(tokens[:, :3][kept_drafts], ids[kept_drafts].int())
        assert (accepted >= emitted).all()
        assert (accepted > emitted).any()
        assert (accepted <= 3).all()

    def test_accepted_counts_drafts_that_pass_their_own_test(self):
        """Each by a uniform of its own: sum min(p, q) of them, wherever the first rejection was."""
        draft, ids, target = drafted(20_000, seed=2)
        draft, target = Q.expand_as(draft), P.expand_as(target)
        ids = torch.multinomial(Q, ids.numel(), replacement=True).view(ids.shape)
        _, accepted, emitted = flashinfer.chain_speculative_sampling(draft, ids, target, seed=6, offset=0)
        rate = torch.minimum(P, Q).sum().item()
        passed = torch.arange(ids.numel()) < accepted.sum()
        assert_rate(passed.numpy(), rate)
        assert_rate((emitted == 3).numpy(), rate**3)

    def test_counters_are_added_to_in_place(self):
        draft, ids, target = drafted(50)
        fresh = flashinfer.chain_speculative_sampling(draft, ids, target, seed=3, offset=0)
        accepted, emitted = torch.full((50,), 100, dtype=torch.int32), torch.full((50,), 200, dtype=torch.int32)
        given = flashinfer.chain_speculative_sampling(draft, ids, target, accepted, emitted, seed=3, offset=0)
        assert given[1] is accepted
        assert given[2] is emitted
        assert torch.equal(accepted, fresh[1] + 100)
        assert torch.equal(emitted, fresh[2] + 200)
        again = flashinfer.chain_speculative_sampling(draft, ids, target, accepted, None, seed=3, offset=0)
        assert torch.equal(again[1], 2 * fresh[1] + 100)
        assert torch.equal(again[2], fresh[2])

    @pytest.mark.parametrize("place", [0, 1])
    def test_counters_of_another_type_are_refused(self, place):
        """FlashInfer adds to a copy of them: the caller's never move."""
        draft, ids, target = drafted(2)
        counters = [None, None]
        counters[place] = torch.zeros(2, dtype=torch.int64)
        with pytest.raises(TypeError, match=r"maybe_output_\w+: expected int32 \[2\], .*; got torch.int64"):
            flashinfer.chain_speculative_sampling(draft, ids, target, *counters)
        counters[place] = torch.zeros(3, dtype=torch.int32)
        with pytest.raises(ValueError, match=r"expected int32 \[2\], .*; got torch.int32 \[3\]"):
            flashinfer.chain_speculative_sampling(draft, ids, target, *counters)

    def test_drafts_outside_of_the_vocabulary(self):
        """-1 ends the drafts, V and more are rejected; FlashInfer reads out of bounds."""
        draft, target = P.expand(3, 3, 4), P.expand(3, 4, 4)
        ids = torch.tensor([[0, -1, -1], [4, 0, 9], [0, 10**6, -7]])
        tokens, accepted, emitted = flashinfer.chain_speculative_sampling(draft, ids, target, seed=0, offset=0)
        assert emitted.tolist() == [1, 0, 1]
        assert accepted.tolist() == [1, 1, 1]
        assert ((tokens >= -1) & (tokens < 4)).all()
        assert (tokens >= 0).sum(1).tolist() == [2, 1, 2]

    def test_no_drafts_sample(self):
        rows = P.expand(300, 1, -1)
        none = flashinfer.chain_speculative_sampling(rows[:, :0], torch.zeros(300, 0).long(), rows, seed=0, offset=0)
        assert none[0].shape == (300, 1)
        assert_law(none[0], P)
        assert not none[1].any()
        assert not none[2].any()

    def test_double_precision_is_converted(self):
        draft, ids, target = drafted(20)
        single = flashinfer.chain_speculative_sampling(draft, ids, target, seed=3, offset=0)
        double = flashinfer.chain_speculative_sampling(draft.double(), ids, target.double(), seed=3, offset=0)
        assert all(map(torch.equal, single, double))


# Every function that draws, of rows of probabilities or logits.
DRAWS = {
    "chain": lambda **noise: flashinfer.chain_speculative_sampling(
        Q.expand(64, 3, 4), torch.arange(192).view(64, 3) % 4, P.expand(64, 4, 4), **noise
    )[0],
    "logits": lambda **noise: flashinfer.sampling_from_logits(P.log().expand(64, 4), **noise),
    "probs": lambda **noise: flashinfer.sampling_from_probs(P.expand(64, 4), **noise),
    "min_p": lambda **noise: flashinfer.min_p_sampling_from_probs(P.expand(64, 4), 0.3, **noise),
    "top": lambda **noise: flashinfer.top_k_top_p_sampling_from_logits(P.log().expand(64, 4), 3, 0.95, **noise),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
class TestSeeds:
    def test_one_pair_gives_the_same_and_another_offset_other_tokens(self, draw):
        first = draw(seed=7, offset=0)
        assert torch.equal(first, draw(seed=7, offset=0))
        others = [
            draw(seed=7, offset=4),
            draw(seed=8, offset=0),
            draw(seed=7, offset=2**32),
            draw(seed=7, offset=2**40),
        ]
        assert not any(torch.equal(first, other) for other in others)

    def test_rows_have_noise_of_their_own(self, draw):
        """The laws of all rows are the same here, the drafts of a chain those of row b mod 4."""
        tokens = draw(seed=7, offset=0).view(16, 4, -1)
        assert not (tokens == tokens[:1]).all()

    def test_seeds_in_tensors(self, draw):
        one = [torch.tensor([number]) for number in (7, 5)]
        first = draw(seed=7, offset=5)
        assert torch.equal(first, draw(seed=one[0], offset=one[1]))
        each = [number.repeat(64) for number in one]
        assert torch.equal(first, draw(seed=each[0], offset=each[1].view(torch.uint64)))
        each[0][3] = 1000
        changed = draw(seed=each[0], offset=each[1]) != first
        assert not changed[:3].any()
        assert not changed[4:].any()

    def test_seeds_that_do_not_fit(self, draw):
        with pytest.raises(ValueError, match="expected two tensors or two ints"):
            draw(seed=7, offset=torch.tensor([0]))
        for wrong in (torch.tensor([7], dtype=torch.int32), torch.tensor([7, 8]), torch.tensor(7)):
            with pytest.raises(ValueError, match=r"seed: expected int64 or uint64 \[1\] or \[64\] on cpu"):
                draw(seed=wrong, offset=torch.tensor([0]))

    def test_generators(self, draw):
        """Without a seed the generator gives one, and moves on; the global one if there is none."""
        generator = torch.Generator().manual_seed(1)
        first, second = draw(generator=generator), draw(generator=generator)
        assert not torch.equal(first, second)
        assert torch.equal(first, draw(generator=generator.manual_seed(1)))
        torch.manual_seed(1)
        assert torch.equal(first, draw())
        assert torch.equal(second, draw(seed=3))  # half a pair is none


@pytest.mark.parametrize("name", ["chain", "top"])
def test_compiles_to_one_graph(name):
    """With seeds, too, which FlashInfer's op cannot."""
    torch.compiler.reset()
    draw, seeds = DRAWS[name], dict(seed=torch.tensor([7]), offset=torch.tensor([5]))
    assert torch.equal(torch.compile(draw, fullgraph=True, backend="eager")(**seeds), draw(**seeds))


@pytest.mark.parametrize("real", [False, True])
def test_nothing_is_kept_of_a_fake_call(real):
    _noise.made.cache_clear()
    rows = torch.randn(7, 9)
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = flashinfer.sampling_from_logits(rows if real else torch.randn(7, 9), seed=1, offset=0)
    assert found.shape == (7,)
    assert _noise.made.cache_info().currsize == 0


ROWS = torch.tensor([
    [0.30, 0.05, 0.25, 0.20, 0.15, 0.05], [0.2, 0.2, 0.2, 0.2, 0.1, 0.1], [0.9, 0.02, 0.02, 0.02, 0.02, 0.02],
])  # fmt: skip


def renormed(rows, **filters):
    """By the definition of the filters, token by token."""
    keep = torch.stack([kept(row.log(), Sampling.flashinfer(**filters)) for row in rows])
    rows = rows.masked_fill(~keep, 0)
    return rows / rows.sum(-1, keepdim=True)


class TestRows:
    @pytest.mark.parametrize("top_p", [0.0, 0.3, 0.75, 1.0])
    def test_top_p_renorm(self, top_p):
        found = flashinfer.top_p_renorm_probs(ROWS, top_p)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, renormed(ROWS, top_p=top_p), rtol=2e-6, atol=0)

    @pytest.mark.parametrize("top_k", [1, 2, 3, 6, 100])
    def test_top_k_renorm(self, top_k):
        torch.testing.assert_close(
            flashinfer.top_k_renorm_probs(ROWS, top_k), renormed(ROWS, top_k=top_k), rtol=2e-6, atol=0
        )

    def test_numbers_of_each_row(self):
        counts, shares = torch.tensor([1, 5, 2], dtype=torch.int16), torch.tensor([0.4, 0.5, 0.99], dtype=torch.float64)
        for row in range(3):
            k = flashinfer.top_k_renorm_probs(ROWS, counts)[row]
            assert torch.equal(k, flashinfer.top_k_renorm_probs(ROWS[row : row + 1], int(counts[row]))[0])
            p = flashinfer.top_p_renorm_probs(ROWS, shares)[row]
            assert torch.equal(p, flashinfer.top_p_renorm_probs(ROWS[row : row + 1], float(shares[row]))[0])

    @pytest.mark.parametrize("off", [0, -1, 6, 7])
    def test_what_switches_top_k_off(self, off):
        """0 masks a whole row in FlashInfer."""
        for top_k in (off, torch.full((3,), off)):
            torch.testing.assert_close(flashinfer.top_k_renorm_probs(ROWS, top_k), ROWS, rtol=2e-6, atol=0)
            assert torch.equal(flashinfer.top_k_mask_logits(ROWS.log(), top_k), ROWS.log())

    def test_rows_without_a_sum_of_one(self):
        torch.testing.assert_close(
            flashinfer.top_p_renorm_probs(5 * ROWS, 0.6), renormed(ROWS, top_p=0.6), rtol=2e-6, atol=0
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_top_k_mask_logits(self, dtype):
        logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
        found = flashinfer.top_k_mask_logits(logits, 17)
        least = logits.topk(17).values[:, -1:]
        assert found.dtype == dtype
        assert torch.equal(found, torch.where(logits >= least, logits, -torch.inf))

    def test_16_bits_stay_16_bits(self):
        found = flashinfer.top_k_renorm_probs(ROWS.bfloat16(), 2)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, renormed(ROWS.bfloat16().float(), top_k=2).bfloat16())


def many(function, row, *arguments, count=20_000, **options):
    """Tokens of as many rows of one law."""
    return function(row.expand(count, -1), *arguments, seed=11, offset=0, **options)


class TestSampling:
    def test_laws(self):
        assert_law(many(flashinfer.sampling_from_logits, P.log()), P)
        assert_law(many(flashinfer.sampling_from_probs, P), P)
        assert_law(many(flashinfer.sampling_from_probs, 3 * P), P)

    def test_min_p(self):
        assert_law(many(flashinfer.min_p_sampling_from_probs, P, 0.6), torch.tensor([4.0, 3.0, 0.0, 0.0]))
        assert_law(many(flashinfer.min_p_sampling_from_probs, 3 * P, 0.4), torch.tensor([4.0, 3.0, 2.0, 0.0]))

    def test_orders_have_laws_of_their_own(self):
        """top_k 2 keeps 0.7 of the row: 0.5 of that is less than the first token's 0.4, 0.5 of the row is more."""
        draw = flashinfer.top_k_top_p_sampling_from_logits
        assert_law(many(draw, P.log(), 2, 0.5), torch.tensor([1.0, 0.0, 0.0, 0.0]))
        joint = many(draw, P.log(), 2, 0.5, filter_apply_order="joint")
        assert_law(joint, torch.tensor([4.0, 3.0, 0.0, 0.0]))
        with pytest.raises(ValueError, match="filter_apply_order: expected 'top_k_first' or 'joint'; got 'both'"):
            draw(P.log()[None], 2, 0.5, filter_apply_order="both")

    def test_a_bound_on_top_k(self):
        """It counts where FlashInfer takes its fast path: 65,536 tokens and more, a tensor of k, top-k first."""
        logits = torch.full((5, 65_536), -30.0)
        logits[:, :8] = torch.arange(8, 0, -1) * 0.01  # of a row's first eight tokens as many stay as its k says
        counts = torch.tensor([0, 1, 3, 8, -1])

        def largest(rows, k, **options):
            draws = torch.arange(5).repeat(60)
            rows, k = rows[draws], k if isinstance(k, int) else k[draws]
            found = flashinfer.top_k_top_p_sampling_from_logits(rows, k, 1.0, seed=1, offset=0, **options)
            return [int(found[draws == row].max()) for row in range(5)]

        assert largest(logits, counts, top_k_max=4) == [0, 0, 2, 3, 3]
        free = [7, 0, 2, 7, 7]
        for options in ({}, {"top_k_max": 257}, {"top_k_max": 0}, {"top_k_max": 4, "filter_apply_order": "joint"}):
            assert largest(logits, counts, **options) == free
        assert largest(logits[:, :-1], counts, top_k_max=4) == free
        assert largest(logits, 3, top_k_max=2) == [2] * 5
        for wrong in (4.0, True, "4"):
            with pytest.raises(TypeError, match="top_k_max: expected an int or None; got"):
                flashinfer.top_k_top_p_sampling_from_logits(logits, counts, 1.0, top_k_max=wrong)

    def test_temperature_is_not_applied_twice(self):
        logits = 2 * torch.randn(50, generator=torch.Generator().manual_seed(2))
        assert_law(many(flashinfer.top_k_top_p_sampling_from_logits, logits, 0, 1.0), logits.double().softmax(-1))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_indices(self, dtype):
        """Rows, and numbers with them, are those that an output points to; its noise is its own."""
        rows = torch.eye(3).clamp_min(1e-30).log()
        indices = torch.tensor([2, 0, 0, 1, 2], dtype=dtype)
        found = flashinfer.sampling_from_logits(rows, indices, seed=1, offset=0)
        assert found.dtype == dtype
        assert found.tolist() == indices.tolist()
        flat, counts = torch.zeros(3, 8), torch.tensor([1, 2, 8])
        flat[:, :2] = torch.tensor([0.2, 0.1])
        indices = torch.arange(600).to(dtype) % 3
        found = flashinfer.top_k_top_p_sampling_from_logits(flat, counts, 1.0, indices, seed=1, offset=0)
        assert [found[indices == row].max().item() for row in range(3)] == [0, 1, 7]
        for bad in ([-1], [0, 3], [2**31 - 1]):
            with pytest.raises(ValueError, match=r"indices: expected rows from 0 to 2; got \["):
                flashinfer.sampling_from_logits(rows, torch.tensor(bad, dtype=dtype), seed=1, offset=0)
        assert flashinfer.sampling_from_logits(rows, indices[:0], seed=1, offset=0).shape == (0,)
        for one in (torch.tensor(1), torch.tensor([1])):  # for all rows
            found = flashinfer.top_k_top_p_sampling_from_logits(rows, one, 1.0, indices[:3], seed=1, offset=0)
            assert torch.equal(found, rows.argmax(-1)[indices[:3]].to(dtype))
            assert torch.equal(
                flashinfer.top_k_top_p_sampling_from_logits(rows, one, 1.0, seed=1, offset=0), rows.argmax(-1).int()
            )
        for where in (None, indices[:3]):
            with pytest.raises(
                ValueError, match=r"top_k: expected a number, or a tensor \[1\] or \[3\]; got torch.int64 \[2\]"
            ):
                flashinfer.top_k_top_p_sampling_from_logits(rows, torch.tensor([1, 2]), 1.0, where, seed=1, offset=0)
            with pytest.raises(ValueError, match=r"top_p: expected a number, or a tensor \[1\] or \[3\]"):
                flashinfer.top_k_top_p_sampling_from_logits(rows, 2, torch.rand(3, 1), where, seed=1, offset=0)
        for wrong in (
            torch.tensor([0.0]),
            torch.tensor([True]),
            torch.tensor(0),
            torch.zeros(1, 1, dtype=dtype),
            [0, 1],
        ):
            with pytest.raises(TypeError, match=r"indices: expected int32 or int64 \[B\]; got"):
                flashinfer.sampling_from_logits(rows, wrong, seed=1, offset=0)

    def test_valid_rows(self):
        rows = torch.stack([P, torch.zeros(4), torch.full((4,), torch.nan)])
        for found in (
            flashinfer.sampling_from_probs(rows, seed=1, offset=0, return_valid=True),
            flashinfer.min_p_sampling_from_probs(rows, 0.1, seed=1, offset=0, return_valid=True),
        ):
            tokens, valid = found
            assert tokens.dtype == torch.int32
            assert valid.tolist() == [True, False, False]
            assert ((tokens >= 0) & (tokens < 4)).all()

    def test_check_nan(self):
        rows = torch.stack([P, torch.full((4,), torch.nan)])
        for draw in (
            flashinfer.sampling_from_logits, flashinfer.sampling_from_probs,
            lambda rows, **options: flashinfer.min_p_sampling_from_probs(rows, 0.1, **options),
            lambda rows, **options: flashinfer.top_k_top_p_sampling_from_logits(rows, 1, 0.5, **options),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="check_nan=True; got NaN"):
                draw(rows, check_nan=True)
            assert draw(P[None], check_nan=True).shape == (1,)


OURS_AND_ONE_MORE = {
    "sampling_from_logits": lambda: flashinfer.sampling_from_logits(ROWS, seed=1, offset=0),
    "sampling_from_probs": lambda: flashinfer.sampling_from_probs(ROWS, seed=1, offset=0),
    "top_k_top_p": lambda: flashinfer.top_k_top_p_sampling_from_logits(ROWS, 3, 0.9, seed=1, offset=0),
    "min_p": lambda: flashinfer.min_p_sampling_from_probs(ROWS, 0.1, seed=1, offset=0),
    "joint": lambda: flashinfer.top_k_top_p_sampling_from_logits(ROWS, 3, 0.9, None, "joint", seed=1, offset=0),
    "rows by index": lambda: flashinfer.sampling_from_logits(ROWS, torch.tensor([1, 0, 1]), seed=1, offset=0),
    "top_k_renorm": lambda: flashinfer.top_k_renorm_probs(ROWS, 3),
    "top_p_renorm": lambda: flashinfer.top_p_renorm_probs(ROWS, 0.9),
}


@pytest.mark.parametrize("call", OURS_AND_ONE_MORE.values(), ids=OURS_AND_ONE_MORE)
def test_one_launch_of_ours_and_one_more(call):
    names = launches(call)
    assert len(names) == 2, names
    assert sum(name.startswith("specdec::") for name in names) == 1


def test_launches_of_what_needs_more():
    """A comparison and a choice for the mask."""
    assert len(launches(lambda: flashinfer.top_k_mask_logits(ROWS, 3))) == 2


def test_launches_of_a_chain():
    """Ours; where one of the counters is given, the other is cleared first, for both are added to."""
    draft, ids, target = drafted(4)
    call = functools.partial(flashinfer.chain_speculative_sampling, draft, ids, target, seed=1, offset=0)
    assert launches(call) == ["specdec::verify_chain"]
    one, other = torch.zeros(2, 4, dtype=torch.int32)
    assert launches(lambda: call(one, other)) == ["specdec::verify_chain"]
    for counters in ((one, None), (None, other)):
        assert launches(lambda counters=counters: call(*counters)) == ["aten::zeros", "specdec::verify_chain"]


def test_install(monkeypatch):
    """Into a package of the same names; it can be taken out, and put in twice."""
    names = [name for name in flashinfer.__all__ if name not in ("install", "uninstall")]
    sampling, package = types.ModuleType("flashinfer.sampling"), types.ModuleType("flashinfer")
    own = {name: object() for name in [*names, "top_p_renorm_prob", "top_k_renorm_prob"]}
    vars(sampling).update(own)
    vars(package).update({name: own[name] for name in names})
    package.sampling = sampling
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", sampling)
    flashinfer.install()
    flashinfer.install()
    assert all(getattr(place, name) is getattr(flashinfer, name) for place in (sampling, package) for name in names)
    assert sampling.top_p_renorm_prob is flashinfer.top_p_renorm_probs
    flashinfer.uninstall()
    assert all(getattr(sampling, name) is value for name, value in own.items())
    assert all(getattr(package, name) is own[name] for name in names)
    flashinfer.uninstall()


def test_what_a_capture_makes_is_not_kept(monkeypatch):
    """It gets its values when the graph is replayed, and a call outside of it would read what is there before."""
    made = _noise.made
    made.cache_clear()
    capturing = types.SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(_noise, "type", lambda x: torch.Tensor, raising=False)
    assert _noise.positions(capturing, 3, 2).tolist() == [0, 2, 4]
    assert made.cache_info().currsize == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    _noise.positions(capturing, 3, 2)
    assert made.cache_info().currsize == 1
