"""Sampling filters in every op that reads rows: they act as if the tokens they drop had no weight."""

import math

import pytest
import torch
from torch.utils._pytree import tree_leaves

import specdec_kernels
from specdec_kernels import Sampling, cutoff, race_sample, race_topk
from specdec_kernels.calls.values import Law
from specdec_kernels.ops._laws import target_law
from tests.support import filters
from tests.support.cases import chain_call, seeds
from tests.support.laws import assert_law
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

SAMPLINGS = {
    "top_k": Sampling(0.8, top_k=3),
    "top_p": Sampling(1.2, top_p=0.6),
    "min_p": Sampling(min_p=0.15),
    "ties": Sampling(2.0, top_k=5, top_p=0.9, ties="all"),
    "all": Sampling(0.7, top_k=12, top_p=0.8, min_p=0.02, top_p_after=()),
    "before the temperature": Sampling(3.0, top_p=0.7, at_temperature=False),
}
EACH = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def rows_of(*lead, vocabulary=33, seed=0):
    """Logits on a grid, so that they tie."""
    rows = 2 * torch.randn(*lead, vocabulary, generator=torch.Generator().manual_seed(seed))
    return (4 * rows).round() / 4


def masked(rows, sampling):
    """The rows without the tokens that filters drop; ``sampling`` has plain numbers."""
    flat = rows.reshape(-1, rows.shape[-1])
    return torch.stack([filters.masked(row, filters.kept(row, sampling)) for row in flat]).view(rows.shape)


def without_temperature(call):
    return {name: value for name, value in call.items() if name != "temperature"}


CHAIN = without_temperature(chain_call(1, requests=16, slots=3, vocabulary=33))
TREE = without_temperature(tree_call(1, requests=16, nodes=7, vocabulary=33)) | {"max_depth": 6}
for _call in (CHAIN, TREE):
    _call["target"] = (4 * _call["target"]).round() / 4
NOISE = {"seed": seeds(64), "position": 5}
CALLS = {
    "verify_chain": (verify_chain, CHAIN),
    "verify_chain race": (verify_chain, CHAIN | {"draft": None, "method": "race"}),
    "verify_chain one-hot": (verify_chain, CHAIN | {"draft": None}),
    "verify_chain block": (verify_chain, CHAIN | {"method": "block"}),
    "verify_tree": (verify_tree, TREE),
    "verify_tree traversal": (verify_tree, TREE | {"method": "traversal"}),
    "verify_tree race": (verify_tree, TREE | {"draft": None, "method": "race"}),
    "race_sample": (race_sample, {"target": rows_of(64)} | NOISE),
    "race_topk": (race_topk, {"draft": rows_of(64), "k": 20} | NOISE),
    "residual": (residual, {"target": rows_of(64), "draft": rows_of(64, seed=1)}),
    "overlap": (overlap, {"target": rows_of(64), "draft": rows_of(64, seed=1)}),
}
OF_TARGET = ("race_sample", "race_topk", "verify_chain race", "verify_chain one-hot", "verify_tree race")
WITH_DRAFT = ("verify_chain", "verify_chain block", "verify_tree", "verify_tree traversal", "residual", "overlap")
ROWS = {"race_topk": "draft"}


def assert_same(found, expected):
    """Integers are equal; of figures only the normaliser may differ in its last bits."""
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if one.is_floating_point():
            torch.testing.assert_close(one, other, rtol=4e-6, atol=1e-6)
        else:
            assert torch.equal(one, other)


# The rules of engines, written from their sources in float64, for rows in which no two logits are equal.


def prefix(p, share):
    """The fewest tokens, most likely first, whose sum reaches this share of all."""
    order = p.argsort(descending=True)
    before = p[order].cumsum(0) - p[order]
    keep = torch.zeros(len(p), dtype=torch.bool)
    keep[order] = before < share * p.sum()
    return keep


def top_k_first(x, k, p, mu):
    """transformers, TensorRT-LLM, FlashInfer: each cut on what the one before left, min-p last and of what is left."""
    law = x.softmax(-1)
    law = torch.where(law >= law.sort(descending=True).values[k - 1], law, 0.0)
    law = torch.where(prefix(law, p), law, 0.0)
    return (law > 0) & (law >= mu * law.max())


def min_p_first(x, k, p, mu):
    """vLLM: min-p by logits, then top-k, then top-p of what is left."""
    x = torch.where(x < x.max() + math.log(mu), -torch.inf, x) if mu else x
    x = torch.where(x < x.sort(descending=True).values[k - 1], -torch.inf, x)
    return prefix(x.softmax(-1), p) & (x > -torch.inf)


def joint(x, k, p, mu):
    """FlashInfer's joint order, SGLang's sampler: top-k and top-p on the whole row."""
    law = x.softmax(-1)
    rank = law.argsort(descending=True).argsort()
    return (rank < k) & prefix(law, p) & (law >= mu * law.max())


ENGINES = {
    "vllm": min_p_first,
    "huggingface": top_k_first,
    "sglang": lambda x, k, p, mu: (top_k_first if mu else joint)(x, k, p, mu),
    "sglang_verify": top_k_first,
    "flashinfer": top_k_first,
    "flashinfer_joint": joint,
    "trtllm": top_k_first,
    "llamacpp": top_k_first,
}


class TestPresets:
    @pytest.mark.parametrize("name", ENGINES)
    @pytest.mark.usefixtures("backend")
    def test_keep_what_the_engine_keeps(self, name):
        rows = 2 * torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
        for k, p, mu in [(200, 0.9, 0.0), (20, 0.9, 0.0), (20, 1.0, 0.05), (50, 0.6, 0.02), (9, 0.99, 0.3)]:
            sampling = getattr(Sampling, name)(0.7, top_k=k, top_p=p, min_p=mu)
            found = cutoff(rows, sampling=sampling)
            seen = rows.double() / (1.0 if name == "llamacpp" else 0.7)
            expected = [int(ENGINES[name](x, k, p, mu).sum()) for x in seen]
            assert found.count.tolist() == expected

    @pytest.mark.one_backend
    def test_orders_differ(self):
        """Laws of which the orders keep other numbers of tokens, so that the test above can tell them apart."""
        x = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1]).double().log()
        assert [int(rule(x, 3, 0.7, 0.0).sum()) for rule in (top_k_first, joint)] == [2, 3]
        x = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]).double().log()
        assert [int(rule(x, 5, 0.65, 0.3).sum()) for rule in (top_k_first, min_p_first)] == [2, 1]

    @pytest.mark.one_backend
    def test_fields(self):
        rules = {name: getattr(Sampling, name)(0.5, 7, 0.9)[4:7] for name in ENGINES}
        assert rules == {
            "vllm": (("top_k", "min_p"), "first", True),
            "huggingface": (("top_k",), "all", True),
            "sglang": ((), "all", True),
            "sglang_verify": (("top_k",), "all", True),
            "flashinfer": (("top_k",), "all", True),
            "flashinfer_joint": ((), "all", True),
            "trtllm": (("top_k",), "first", True),
            "llamacpp": (("top_k",), "first", False),
        }
        assert Sampling.sglang(min_p=0.1).top_p_after == ("top_k",)
        assert Sampling.sglang(min_p=torch.zeros(3)).top_p_after == ("top_k",)
        assert all(getattr(Sampling, name)(0.5, 7, 0.9, 0.1)[:4] == (0.5, 7, 0.9, 0.1) for name in ENGINES)


@pytest.mark.usefixtures("backend")
@EACH
class TestAsIfMasked:
    """What filters drop could as well be -inf: the noise is the same, so is every winner."""

    @pytest.mark.parametrize("name", OF_TARGET)
    def test_of_one_law(self, name, sampling):
        op, call = CALLS[name]
        rows = ROWS.get(name, "target")
        expected = op(**call | {rows: masked(call[rows], sampling)}, temperature=sampling.temperature)
        assert_same(op(**call, sampling=sampling), expected)

    @pytest.mark.parametrize("name", WITH_DRAFT)
    def test_pairs(self, name, sampling):
        """Filters on the target, on the draft, on both."""
        op, call = CALLS[name]
        plain = Sampling(sampling.temperature)
        for target, draft in [(sampling, plain), (plain, sampling), (sampling, sampling)]:
            cut = call | {"target": masked(call["target"], target), "draft": masked(call["draft"], draft)}
            found = op(**call, sampling=target, **{"draft.sampling": draft})
            assert_same(found, op(**cut, sampling=plain, **{"draft.sampling": plain}))

    def test_mapped_rows(self, sampling):
        """Of a draft with a vocabulary of its own the filters see its own rows."""
        map_ = torch.arange(33, dtype=torch.int32) * 3 + 1
        op, call = CALLS["race_sample"]
        call = call | {"draft_map": map_}
        expected = op(**call | {"target": masked(call["target"], sampling)}, temperature=sampling.temperature)
        assert_same(op(**call, sampling=sampling), expected)


@pytest.mark.usefixtures("backend")
class TestRows:
    @pytest.mark.costly
    @pytest.mark.interpreted
    @pytest.mark.parametrize("side", [("sampling",), ("draft.sampling",), ("sampling", "draft.sampling")])
    def test_an_argmax_is_one_token_where_ties_stay_together(self, side):
        """At temperature 0 the filters of a request say nothing, on either side."""
        zero = torch.where(torch.arange(6) % 3 == 0, 0.8, 0.0)
        filtered = Sampling(zero, torch.where(zero > 0, 0, 4).int(), ties="all")
        for op, call in (
            (verify_chain, chain_call(4, requests=6, slots=2, vocabulary=70)),
            (verify_tree, tree_call(4, requests=6, nodes=4, vocabulary=70)),
        ):
            call = {name: value for name, value in call.items() if name != "temperature"}
            call |= {name: call[name].round() for name in ("target", "draft")}  # several tokens are the largest
            if op is verify_chain:
                call["draft_tokens"] = call["draft"].argmax(-1)
            plain = {name: Sampling(zero if name in side else 0.8) for name in ("sampling", "draft.sampling")}
            assert_same(op(**call, **plain | dict.fromkeys(side, filtered)), op(**call, **plain))

    def test_entries_are_those_of_a_filter(self):
        """If only a filter has entries, their number counts: there are three, so index 3 points outside."""
        bits = torch.empty(1, dtype=torch.int32)
        for name, numbers in (("top_k", torch.ones(3).int()), ("top_p", torch.ones(3)), ("min_p", torch.ones(3))):
            for entry, status in ((2, 0), (3, 8)):
                index = torch.tensor([entry], dtype=torch.int32)
                options = {"seed": 1, "position": 0, "request_index": index, "status": bits}
                race_sample(rows_of(1), sampling=Sampling(**{name: numbers}), **options)
                assert bits.tolist() == [status]

    def test_a_draft_takes_no_filters_of_the_target(self):
        for name in WITH_DRAFT:
            op, call = CALLS[name]
            sampling = Sampling(0.7, top_k=3, top_p=0.9)
            assert_same(
                op(**call, sampling=sampling), op(**call, sampling=sampling, **{"draft.sampling": Sampling(0.7)})
            )


def test_epsilon_accepts_nothing_outside(backend):
    """epsilon = 1 accepts every draft but those that filters drop."""
    row = rows_of(seed=4)
    sampling = Sampling(top_k=5)
    keep = filters.kept(row, sampling)
    draft_tokens = torch.arange(33)[:, None]
    call = {"target": row.expand(33, 2, 33), "draft": None, "seed": seeds(33), "position": 0, "epsilon": 1.0}
    verdict = verify_chain(draft_tokens, **call, sampling=sampling)
    assert (verdict.num_accepted.bool() == keep).all()
    assert keep[verdict.tokens[:, 0]].all()
    assert verify_chain(draft_tokens, **call).num_accepted.all()


def test_the_tail_of_a_long_row(fast_backend):
    """Tokens that filters leave of 128k are drawn with their probabilities; the most likely ones are one cell."""
    row = 2 * torch.randn(128_256, generator=torch.Generator().manual_seed(8))
    sampling = Sampling(1.3, top_k=1000, top_p=0.97)
    cut, v = cutoff(row, sampling=sampling), torch.from_numpy(filters.scaled(row, 1.3))
    keep = (v > cut.value) | ((v == cut.value) & (torch.arange(len(v)) <= cut.last))
    assert 500 < keep.sum() < 1000
    drawn = race_sample(row.expand(40_000, -1), seed=6, position=torch.arange(40_000), sampling=sampling)
    law = filters.masked(row / 1.3, keep).double().softmax(-1)
    order = row.argsort(descending=True)[: int(keep.sum())]
    rank = torch.full((128_256,), -1).scatter(0, order, torch.arange(len(order)))[drawn]
    assert rank.min() >= 0
    assert_law((rank - 20).clamp(min=0), torch.cat([law[order[:21]].sum()[None], law[order[21:]]]))


BAD = [
    ({"top_k": 1.5}, TypeError, "top_k: expected an int or a tensor of int64 or int32; got 1.5"),
    ({"top_k": True}, TypeError, "top_k: expected an int or a tensor of int64 or int32; got True"),
    ({"top_k": torch.ones(64)}, TypeError, r"top_k: expected int64 or int32; got float32 \[64\]"),
    ({"top_k": torch.ones(65).long()}, ValueError, r"top_k: expected shape \[64\]; got int64 \[65\]"),
    ({"top_p": -0.1}, ValueError, r"top_p: expected a number \[0, 1\]; got -0.1"),
    ({"top_p": 1.1}, ValueError, r"top_p: expected a number \[0, 1\]; got 1.1"),
    ({"top_p": float("nan")}, ValueError, r"top_p: expected a number \[0, 1\]; got nan"),
    ({"top_p": torch.ones(64).double()}, TypeError, "top_p: expected float32; got float64"),
    ({"min_p": -0.1}, ValueError, r"min_p: expected a number \[0, 1\]; got -0.1"),
    ({"min_p": 2}, ValueError, r"min_p: expected a number \[0, 1\]; got 2"),
    ({"min_p": "0.1"}, TypeError, "min_p: expected a float or a float32 tensor; got '0.1'"),
    ({"top_p_after": "top_k"}, TypeError, "top_p_after: expected a tuple of words; got 'top_k'"),
    ({"top_p_after": ("top_p",)}, ValueError, "top_p_after: expected one of 'top_k', 'min_p'; got 'top_p'"),
    ({"top_p_after": (["top_k"],)}, ValueError, "top_p_after: expected one of 'top_k', 'min_p'; got"),
    ({"ties": "last"}, ValueError, "ties: expected one of 'first', 'all'; got 'last'"),
    ({"at_temperature": 1}, TypeError, "at_temperature: expected a bool; got 1"),
    ({"divided": 1}, TypeError, "divided: expected a bool; got 1"),
]


FINAL = [("top_k", 2), ("top_p", 0.5), ("min_p", 0.5), ("top_k", torch.zeros(64).long())]
REFUSED = {
    "filters": (*CALLS["residual"], [
        ({law: Sampling(**fields)}, error, rf"{law}\.{message}")
        for law in ("sampling", "draft.sampling") for fields, error, message in BAD
    ]),
    "filters of probabilities": (*CALLS["residual"], [
        ({"space": "probs", "sampling": Sampling(**{name: x})}, ValueError,
         rf"sampling\.{name}: expected none with space='probs'") for name, x in FINAL
    ] + [
        ({"draft.space": "probs", "draft.sampling": Sampling(**{name: x})}, ValueError,
         rf"draft\.sampling\.{name}: expected none with draft.space='probs'") for name, x in FINAL
    ]),
}  # fmt: skip


@pytest.mark.one_backend
def test_filters_that_are_off_make_a_call_as_before():
    off = Sampling(0.5, top_k=-3, top_p=1.0, min_p=0.0, ties="all", at_temperature=False)
    assert target_law("logits", None, off, (3,), torch.device("cpu")) == Law("logits", 0.5)
    assert target_law("probs", None, off._replace(temperature=1.0), (3,), torch.device("cpu")) == Law("probs", 1.0)


@pytest.mark.one_backend
class TestBoundsOfTheMass:
    """A winner is asked whether it is kept, mostly by bounds on the row's mass. At their edge they must not tell."""

    def test_a_tile_loses_what_is_far_below_its_peak(self):
        """Four peaks of equal weight: the third begins where p = 0.5 ends. Beside its peak a tile's tail has no mass;
        a bound that counts the tail's would keep the third.
        """
        peaks = torch.tensor([5, 1030, 2060, 3090])
        row = torch.full((4096,), -21.0)
        row[peaks] = torch.tensor([0.0, 0.0, 0.0, -1e-30])
        sampling = Sampling(top_p=0.5, top_p_after=())
        assert cutoff(row, sampling=sampling).last == 1030
        rows, call = row.expand(256, -1), {"seed": 7, "position": torch.arange(256)}
        assert set(race_sample(rows, **call).tolist()) == set(peaks.tolist())
        assert set(race_sample(rows, **call, sampling=sampling).tolist()) == {5, 1030}

    @pytest.mark.parametrize("ties", ["first", "all"])
    def test_many_rows_race_as_if_masked(self, ties):
        """Rows with equal values at the cut, values across many cells, and laws from flat to peaked."""
        generator = torch.Generator().manual_seed(3)
        for spread in (0.05, 1.0, 6.0):
            rows = (torch.randn(16, 5000, generator=generator) * spread).bfloat16()
            for share in (0.1, 0.5, 0.9, 1 - 2.0**-24):
                sampling = Sampling(top_p=share, top_p_after=(), ties=ties)
                with specdec_kernels.backend("reference"):
                    cut = cutoff(rows, sampling=sampling)
                v, value = rows.float(), cut.value.unsqueeze(-1)
                keep = (v > value) | (v == value) & (torch.arange(5000) <= cut.last.unsqueeze(-1))
                call = {"seed": 9, "position": torch.arange(16)}
                found = race_sample(rows, **call, sampling=sampling)
                assert found.equal(race_sample(filters.masked(rows, keep), **call))


@pytest.mark.usefixtures("backend")
class TestPeersBugs:
    def test_equal_rows_never_emit_what_is_dropped(self):
        """p = q to rounding, cut alike: what is rejected, if anything, is drawn from p."""
        row = rows_of(seed=4)
        sampling = Sampling(top_k=4)
        keep = filters.kept(row, sampling)
        target = row.expand(500, 2, 33)
        drafts = race_sample(row.expand(500, 33), seed=seeds(500), position=7, sampling=sampling)
        verdict = verify_chain(
            drafts[:, None], target, target[:, :1], seed=seeds(500), position=0, sampling=sampling,
            **{"draft.sampling": sampling},
        )  # fmt: skip
        assert verdict.num_accepted.all()
        assert keep[verdict.tokens].all()
