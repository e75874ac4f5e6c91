"""draft_map: a draft with a vocabulary of its own, as one over the target's with nothing elsewhere.

As an argument and ``Draft.map``; and the function of that name, by tensors as checkpoints hold them. Those that
speculators itself writes are in tests/engines/whole_speculators.py.
"""

import pytest
import torch

from specdec_kernels import Draft, race_sample, race_topk
from specdec_kernels import draft_map as map_of
from specdec_kernels import verify_chain as public_verify_chain
from tests.support.cases import DTYPES, adversarial_rows, assert_same, chain_call, poisoned, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

V = 70
MAPS = {
    "some": torch.tensor([0, 2, 3, 11, 40, 63, 64, 69], dtype=torch.int32),
    "first": torch.arange(9, dtype=torch.int32),
    "one": torch.tensor([68], dtype=torch.int32),
    "all": torch.arange(V, dtype=torch.int32),
}
EVERY_MAP = pytest.mark.parametrize("draft_map", MAPS.values(), ids=MAPS)
SPACES = pytest.mark.parametrize("space", ["logits", "probs"])


def scattered(rows, draft_map, space, vocabulary=V):
    """Draft rows over the target's vocabulary."""
    full = rows.new_full((*rows.shape[:-1], vocabulary), 0.0 if space == "probs" else -torch.inf)
    full[..., draft_map.long()] = rows
    return full


def draft_rows(draft_map, *shape, space="logits", seed=3):
    rows = 2 * torch.randn(*shape, len(draft_map), generator=torch.Generator().manual_seed(seed))
    return rows.softmax(-1) if space == "probs" else rows


def some_of_them_known(tokens, draft_map, vocabulary=V):
    """Most draft tokens are of the draft's own vocabulary, as if it had drawn them."""
    mapped = draft_map.long()[tokens.clamp(min=0) % len(draft_map)]
    most = torch.arange(tokens.numel()).view_as(tokens) % 5 > 0
    return torch.where((tokens >= 0) & (tokens < vocabulary) & most, mapped, tokens)


def assert_near(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("backend")
@SPACES
@EVERY_MAP
class TestEqualsAFullRow:
    @pytest.mark.parametrize("op, options", [
        *((verify_chain, options) for options in ({}, {"draft_prob": 0.7, "epsilon": 0.05}, {"method": "block"})),
        *((verify_tree, options) for options in ({}, {"replacement": True}, {"method": "traversal"})),
    ], ids=lambda x: getattr(x, "__name__", str(x)))  # fmt: skip
    def test_verdicts(self, draft_map, space, op, options):
        made, slots = (chain_call, 3) if op is verify_chain else (tree_call, 7)
        call = made(5, 64, slots, V, space=space) | options
        call["draft_tokens"] = some_of_them_known(call["draft_tokens"], draft_map)
        rows = draft_rows(draft_map, 64, slots, space=space)
        assert_same(
            op(**call | {"draft": rows, "draft.map": draft_map}),
            op(**call | {"draft": scattered(rows, draft_map, space)}),
        )

    @pytest.mark.parametrize("temperature", [1.0, 0.0])
    def test_races(self, draft_map, space, temperature):
        """The tokens drawn, and their noise, are the target's."""
        rows = draft_rows(draft_map, 64, space=space)
        full = scattered(rows, draft_map, space)
        call = {"seed": seeds(64), "position": 5, "space": space, "temperature": temperature}
        assert torch.equal(race_sample(rows, **call, draft_map=draft_map), race_sample(full, **call))
        k = len(draft_map)
        assert torch.equal(race_topk(rows, k, **call, draft_map=draft_map), race_topk(full, k, **call))

    @pytest.mark.parametrize("op", [residual, overlap])
    def test_figures(self, draft_map, space, op):
        target = draft_rows(MAPS["all"], 8, 3, space=space, seed=8)
        rows = draft_rows(draft_map, 8, 3, space=space)
        assert_near(
            op(target, rows, space=space, **{"draft.map": draft_map}),
            op(target, scattered(rows, draft_map, space), space=space),
        )


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestTogether:
    """Together with the other arguments about a draft."""

    draft_map = MAPS["some"]

    def test_status(self):
        """NaN at a token that was asked for, which is refused; rows without weight, which give token 0."""
        target = torch.tensor([[[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]])
        draft_map = torch.tensor([1, 3], dtype=torch.int32)
        for nan_at, status in ((0, 1), (1, 0)):  # in the draft's own numbers: tokens 1 and 3
            draft = torch.tensor([[[0.25, 0.25]]])
            draft[..., nan_at] = torch.nan
            verdict = verify_chain(
                torch.tensor([[1]]), target, draft, space="probs", **{"draft.map": draft_map}, seed=1, position=0
            )
            assert (verdict.num_accepted.tolist(), verdict.status.tolist()) == ([1 - status], [status])
        bits = torch.full((2,), -77, dtype=torch.int32)
        rows = torch.tensor([[torch.nan, 1.0], [-torch.inf, -torch.inf]])
        tokens = race_sample(rows, seed=seeds(2), position=0, draft_map=draft_map, status=bits)
        assert (tokens.tolist(), bits.tolist()) == ([3, 0], [1, 1])
        tokens = race_topk(rows, 2, seed=seeds(2), position=0, draft_map=draft_map)
        assert tokens.tolist() == [[3, -1], [-1, -1]]


@pytest.mark.costly
@pytest.mark.usefixtures("backend")
@SPACES
class TestWideRows:
    """Maps of many tiles, dense here and sparse there, of rows that are hard for a race."""

    wide = 9000
    draft_map = torch.cat([torch.arange(0, 2500), torch.arange(2601, 9000, 3), torch.tensor([8999])]).int()

    def rows(self, space):
        rows = torch.stack(list(adversarial_rows(len(self.draft_map)).values()))
        return rows if space == "logits" else rows.nan_to_num(0, 0, 0).clamp(-50, 50).softmax(-1)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_races(self, space, dtype):
        rows = poisoned(self.rows(space).to(dtype))
        full = scattered(rows, self.draft_map, space, self.wide)
        call = {"seed": seeds(len(rows)), "position": 5, "space": space, "temperature": seeds(len(rows)) % 3 * 0.5}
        mine, theirs = torch.full((2, len(rows)), -77, dtype=torch.int32)
        found = race_sample(rows, **call, draft_map=self.draft_map, status=mine)
        assert torch.equal(found, race_sample(full, **call, status=theirs))
        for k in (5, 40):
            found = race_topk(rows, k, **call, draft_map=self.draft_map)
            assert torch.equal(found, race_topk(full, k, **call))
        well = (rows == rows).all(-1)  # a full row of probabilities holds no -inf
        assert torch.equal(mine[well], theirs[well])


@pytest.fixture
def unseen(monkeypatch):
    """As on a device: the host does not look into a tensor."""
    monkeypatch.setattr("specdec_kernels.calls.inputs.host_sees", lambda tensor: False)


@pytest.mark.usefixtures("kernels", "unseen")
class TestMapsThatAreNone:
    """Nothing outside is read or drawn. The oracle indexes by the map, so it cannot be asked."""

    outside = torch.tensor([-(2**31), -5, -1, 4, 9, 40, 69, 70, 71, 2**31 - 1], dtype=torch.int32)
    inside = (outside >= 0) & (outside < V)
    falling = torch.tensor([69, 3, 3, 50, 0, -7, 200, 12, 5, 1], dtype=torch.int32)

    def test_columns_outside_have_no_weight(self):
        call = chain_call(5, requests=64, slots=3, vocabulary=V, space="probs")
        call["draft_tokens"] = some_of_them_known(call["draft_tokens"], self.outside[self.inside])
        rows = draft_rows(self.outside, 64, 3, space="probs")
        part = {"draft": rows[..., self.inside].contiguous(), "draft.map": self.outside[self.inside]}
        whole = {"draft": rows, "draft.map": self.outside}
        assert_same(verify_chain(**call | whole), verify_chain(**call | part))
        for op in (residual, overlap):
            assert_near(
                op(call["target"][:, :3], **whole, space="probs"), op(call["target"][:, :3], **part, space="probs")
            )
        tree = tree_call(5, requests=64, nodes=7, vocabulary=V, space="probs")
        tree["draft_tokens"] = some_of_them_known(tree["draft_tokens"], self.outside[self.inside])
        rows = draft_rows(self.outside, 64, 7, space="probs")
        whole["draft"], part["draft"] = rows, rows[..., self.inside].contiguous()
        assert_same(verify_tree(**tree | whole), verify_tree(**tree | part))

    @pytest.mark.parametrize("temperature", [1.0, 0.0])
    def test_races_draw_no_such_token(self, temperature):
        for draft_map in (self.outside, self.falling):
            rows = draft_rows(draft_map, 64)
            call = {"seed": seeds(64), "position": 5, "temperature": temperature, "draft_map": draft_map}
            given = {0, *draft_map[draft_map >= 0].tolist()}
            assert set(race_sample(rows, **call).tolist()) <= given
            assert set(race_topk(rows, 4, **call).flatten().tolist()) <= given | {-1}

    @SPACES
    def test_a_map_that_falls(self, space):
        call = chain_call(5, requests=64, slots=3, vocabulary=V, space=space)
        rows = draft_rows(self.falling, 64, 3, space=space)
        verdict = verify_chain(**call | {"draft": rows, "draft.map": self.falling})
        assert ((verdict.tokens >= -1) & (verdict.tokens < V)).all()
        for op in (residual, overlap):
            for figure in op(call["target"][:, :3], rows, space=space, **{"draft.map": self.falling}):
                assert not figure.isnan().any()


def offsets(tokens):
    """As a checkpoint holds them: int64 [V']."""
    tokens = torch.as_tensor(tokens)
    return tokens.long() - torch.arange(len(tokens))


def flags(tokens, vocabulary=V):
    """As a checkpoint holds them: bool [V]."""
    return torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, torch.as_tensor(tokens).long(), True)


@pytest.mark.one_backend
class TestOfCheckpoints:
    """By hand: d2t holds how far the target's token lies behind the draft's, t2d the tokens that the draft knows."""

    @EVERY_MAP
    def test_both_tensors_say_the_same(self, draft_map):
        d2t, t2d = offsets(draft_map), flags(draft_map)
        for made in (map_of(d2t=d2t), map_of(t2d=t2d), map_of(d2t=d2t.int()), map_of(d2t=d2t, t2d=t2d, vocab_size=V)):
            assert made.dtype == torch.int32
            assert made.is_contiguous()
            assert torch.equal(made, draft_map)

    def test_four_tokens(self):
        assert map_of(d2t=torch.tensor([0, 2, 2, 5])).tolist() == [0, 3, 4, 8]
        assert map_of(d2t=torch.tensor([0, 0, 0])).tolist() == [0, 1, 2]

    def test_tokens_in_another_order(self):
        """What the error says is the map, and the rows, of the same law."""
        shuffled = torch.tensor([40, 0, 69, 3])
        d2t, rows = offsets(shuffled), draft_rows(shuffled, 5, 2)
        with pytest.raises(ValueError, match=r"^d2t: expected rising tokens .*; got 0 after 40 \(with") as said:
            map_of(d2t=d2t)
        assert "order = tokens.argsort() the map is tokens[order].int()" in str(said.value)
        assert "rows[..., order]" in str(said.value)
        tokens = d2t + torch.arange(len(d2t))
        order = tokens.argsort()
        call = chain_call(5, requests=5, slots=2, vocabulary=V)
        drawn = {"draft": rows[..., order].contiguous(), "draft.map": tokens[order].int()}
        full = scattered(rows, shuffled, "logits")
        assert_same(verify_chain(**call | drawn), verify_chain(**call | {"draft": full}))

    @pytest.mark.parametrize(
        ("given", "error", "said"),
        [
            ({}, ValueError, "d2t, t2d: expected one of them, or both; got neither"),
            ({"d2t": [0, 1]}, TypeError, "d2t: expected a tensor of int32 or int64; got list"),
            ({"d2t": torch.zeros(2)}, TypeError, "d2t: expected a tensor of int32 or int64; got float32"),
            ({"d2t": torch.zeros(1, 2, dtype=torch.int64)}, ValueError, "d2t: expected 1 dimensions"),
            ({"t2d": torch.zeros(2, dtype=torch.int64)}, TypeError, "t2d: expected a tensor of bool; got int64"),
            ({"t2d": torch.zeros(9, dtype=torch.bool)}, ValueError, "t2d: expected a token at least; got none"),
            ({"d2t": torch.zeros(0, dtype=torch.int64)}, ValueError, "d2t: expected a token at least; got none"),
            ({"d2t": offsets([-1, 4])}, ValueError, r"d2t: expected tokens inside \[0, 2147483648\); got -1 to 4"),
            ({"d2t": offsets([2, 2**31])}, ValueError, r"d2t: expected tokens inside \[0, 2147483648\); got 2 to"),
            ({"d2t": offsets([2, 70]), "vocab_size": 70}, ValueError, r"d2t: expected tokens inside \[0, 70\); got 2"),
            ({"t2d": flags([2, 69]), "vocab_size": 69}, ValueError, r"t2d: expected tokens inside \[0, 69\); got 2"),
            ({"t2d": flags([2]), "vocab_size": 0}, ValueError, "vocab_size: expected a positive int; got 0"),
            ({"d2t": offsets([5, 3, 5])}, ValueError, "d2t: expected each token once; got 5 in columns 0 and 2"),
            ({"d2t": offsets([5, 7]), "t2d": flags([5, 8, 9])}, ValueError,
             "d2t: expected offsets of the tokens of t2d, 3 tokens from 5 to 9; got 2 tokens from 5 to 7"),
        ],
    )  # fmt: skip
    def test_what_is_no_map(self, given, error, said):
        with pytest.raises(error, match=f"^{said}"):
            map_of(**given)

    def test_the_ops_name_it(self):
        """Offsets in the place of a map: of their own type, and as int32, where one stands twice."""
        d2t, rows = offsets([0, 2, 3, 11]), draft_rows(range(4), 3, 2)
        for given, error in ((d2t, TypeError), (d2t.int(), ValueError), (flags(range(4), 4), TypeError)):
            with pytest.raises(error, match=r"draft.map: .* \(draft_map\(\) makes a map of a checkpoint's d2t"):
                verify_chain(**CHAIN | {"draft": rows, "draft.map": given})

    def test_values_are_checked_where_the_host_does_not_see_them(self, unseen):
        """As on a device: an op looks into no map there, and one that is made was looked into."""
        with pytest.raises(ValueError, match="d2t: expected each token once"):
            map_of(d2t=offsets([5, 5]))
        verdict = public_verify_chain(
            CHAIN["draft_tokens"], CHAIN["target"], Draft(draft_rows([5, 5], 3, 2), map=torch.tensor([5, 5]).int()),
            seed=seeds(3), position=0,
        )  # fmt: skip
        assert ((verdict.tokens >= -1) & (verdict.tokens < V)).all()


MAP = MAPS["some"]
CHAIN = chain_call(5, requests=3, slots=2, vocabulary=V) | {"draft": draft_rows(MAP, 3, 2), "draft.map": MAP}
TREE = tree_call(5, requests=3, nodes=4, vocabulary=V) | {"draft": draft_rows(MAP, 3, 4), "draft.map": MAP}
RACE = {"seed": seeds(3), "position": 0, "draft_map": MAP}
CALLS = {
    "verify_chain": (verify_chain, CHAIN),
    "verify_tree": (verify_tree, TREE),
    "race_sample": (race_sample, {"target": draft_rows(MAP, 3)} | RACE),
    "race_topk": (race_topk, {"draft": draft_rows(MAP, 3), "k": 2} | RACE),
    "residual": (residual, {"target": draft_rows(MAPS["all"], 3), "draft": draft_rows(MAP, 3), "draft.map": MAP}),
    "overlap": (overlap, {"target": draft_rows(MAPS["all"], 3), "draft": draft_rows(MAP, 3), "draft.map": MAP}),
}


def changed(at, token):
    draft_map = MAP.clone()
    draft_map[at] = token
    return draft_map


BAD_MAPS = [
    (MAP.long(), TypeError, "draft[._]map: expected a tensor of int32; got int64"),
    ([1, 2], TypeError, "draft[._]map: expected a tensor of int32; got list"),
    (MAP[None], ValueError, "draft[._]map: expected 1 dimensions"),
    (MAP[1:], ValueError, r"draft[._]map: expected contiguous int32 \[8\], a token of the target.*; got int32 \[7\]"),
    (MAP.repeat_interleave(2)[::2], ValueError, r"draft[._]map: expected contiguous int32 \[8\]"),
    (MAP.to("meta"), ValueError, "draft[._]map: expected a tensor on cpu; got"),
    (changed(0, -1), ValueError, r"draft[._]map: expected tokens (inside \[0, 70\)|of 0 or more); got -1 to 69"),
    (changed(3, 3), ValueError, "draft[._]map: expected rising tokens; got 3 after 3"),
    (changed(3, 1), ValueError, "draft[._]map: expected rising tokens; got 1 after 3"),
]
BESIDE_A_TARGET = [
    ({"draft.map": changed(-1, 70)}, ValueError, r"draft.map: expected tokens inside \[0, 70\); got 0 to 70"),
]
OF_NO_DRAFT = [
    ({"draft": None}, TypeError, r"draft\.rows: expected a tensor of float32 or bfloat16 or float16; got None"),
]
REFUSED = {
    f"map of {name}": (
        op, call, [({"draft_map" if "draft_map" in call else "draft.map": x}, *said) for x, *said in BAD_MAPS]
        + BESIDE_A_TARGET * (name in ("verify_chain", "verify_tree", "residual", "overlap"))
        + OF_NO_DRAFT * (name in ("verify_chain", "verify_tree")),
    )
    for name, (op, call) in CALLS.items()
}  # fmt: skip
