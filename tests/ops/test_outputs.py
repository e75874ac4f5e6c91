"""out=, status= and check= of every op; outputs have memory of their own; counters of 32 bits."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map_only

import specdec_kernels
from specdec_kernels import compact_kv, race_sample, race_topk, tree_mask, tree_positions
from specdec_kernels.calls.memory import check_apart
from specdec_kernels.calls.op import OPS
from specdec_kernels.ops import Overlap, Verdict
from tests.support.calls import public_calls
from tests.support.cases import UNTOUCHED, chain_call, ragged, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

PARENTS = torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, 2], [-1, 0, -1, -1]])
LENS = torch.tensor([3, 0, 5])


def rows(*lead, seed=0, vocabulary=33):
    return 2 * torch.randn(*lead, vocabulary, generator=torch.Generator().manual_seed(seed))


PAIR = {"target": rows(3, 2), "draft": rows(3, 2, seed=1)}
RACE = {"seed": seeds(6).view(3, 2), "position": 5}
CALLS = {
    "verify_chain": (verify_chain, chain_call(1, requests=3, slots=2, vocabulary=33)),
    "verify_tree": (verify_tree, tree_call(1, requests=3, nodes=4, vocabulary=33)),
    "race_sample": (race_sample, {"target": rows(3, 2)} | RACE),
    "race_topk": (race_topk, {"draft": rows(3, 2), "k": 3} | RACE),
    "residual": (residual, PAIR),
    "overlap": (overlap, PAIR),
    "tree_mask": (tree_mask, {"parents": PARENTS, "prefix_len": LENS}),
    "tree_mask bits": (tree_mask, {"parents": PARENTS, "prefix_len": LENS, "layout": "bits"}),
    "tree_mask additive": (
        tree_mask,
        {"parents": PARENTS, "prefix_len": LENS, "layout": "additive", "dtype": torch.bfloat16},
    ),
    "tree_positions": (tree_positions, {"parents": PARENTS, "prefix_len": LENS}),
}
ON_ROWS = ("race_sample", "race_topk", "residual", "overlap")


def poison(tensor):
    return torch.full_like(tensor, True if tensor.dtype == torch.bool else UNTOUCHED if tensor.dtype.is_signed else 77)


@pytest.mark.one_backend
def test_every_op_takes_outputs_and_a_status():
    in_place = ("compact_kv", "count_tokens", "store_rows")
    # Nothing can be wrong with the numbers of these.
    without_status = ("uniform", "context_seeds", "mask_logits", "merge_chains", "store_rows")
    for name in {op.__name__ for op, _ in public_calls().values()}:
        options = inspect.signature(getattr(specdec_kernels, name)).parameters
        assert "out" in options or name in in_place
        assert "status" in options or name.startswith("verify") or name in without_status


WITH_OUT = {
    name: (op, {key: value for key, value in call.items() if key not in ("out", "status")})
    for name, (op, call) in public_calls().items()
    if "out" in inspect.signature(op).parameters and not {"output_format", "support"} & call.keys()
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_filled_and_returned(name):
    """In the form of the result, and in a list; what the op reads stays as it is."""
    op, call = WITH_OUT[name]
    before, expected = tree_map_only(torch.Tensor, torch.clone, call), op(**call)
    outs = [tree_map_only(torch.Tensor, poison, expected) for _ in range(2)]
    for out in (outs[0], list(outs[1])) if isinstance(expected, tuple) else outs[:1]:
        found = op(**call, out=out)
        assert type(found) is type(expected)
        for mine, theirs, right in zip(tree_leaves(found), tree_leaves(out), tree_leaves(expected), strict=True):
            assert mine is theirs
            assert torch.equal(mine, right)
    for value, was in zip(tree_leaves(call), tree_leaves(before), strict=True):
        assert not isinstance(was, torch.Tensor) or torch.equal(value, was)


@pytest.mark.usefixtures("backend")
class TestStatus:
    """Of the ops on rows; the verifying ones have theirs among the outputs."""

    def status(self, name, **changes):
        op, call = CALLS[name]
        call = {key: value for key, value in call.items() if key != "seed" or "seed" not in changes} | changes
        bits = torch.full((3, 2), UNTOUCHED, dtype=torch.int32)
        found = op(**call, status=bits)
        for one, other in zip(tree_leaves(found), tree_leaves(op(**call)), strict=True):
            assert torch.equal(one, other)  # asking for it changes nothing
        if bits.any():
            with pytest.raises(RuntimeError, match=f"{name}: row {int(bits.flatten().nonzero()[0])}: "):
                op(**call, check=True)
        else:
            op(**call, check=True)
        return bits.tolist()

    @pytest.mark.parametrize("name", ON_ROWS)
    def test_probabilities_and_numbers(self, name):
        law = torch.full((3, 2, 33), 1 / 33)
        bad = law.clone()
        bad[0, 1, 4], bad[1, 0, 4], bad[1, 1], bad[2, 0, 4] = -0.1, torch.inf, 0.0, torch.nan
        both = {"draft": law.roll(1, 0).index_fill(2, torch.tensor(5), 0.0)} if name in ("residual", "overlap") else {}
        rows = {"draft" if name == "race_topk" else "target": bad}
        equal = 2 if name == "residual" else 0  # as at an infinite temperature
        assert self.status(name, space="probs", **both | rows) == [[0, 1], [1, 1 | equal], [1, 0]]
        temperature = torch.tensor([[1.0, -1.0], [torch.nan, 0.0], [1e-40, torch.inf]])
        assert self.status(name, temperature=temperature) == [[0, 8], [8, 0], [0, equal]]
        if name == "residual":
            shares = torch.tensor([[0.5, -0.1], [1.1, torch.nan], [0, 1]])
            assert self.status(name, draft_prob=shares) == [[0, 8], [8, 8], [0, 0]]

    def test_one_row(self):
        bits = torch.tensor(UNTOUCHED, dtype=torch.int32)
        race_sample(torch.tensor([0.0, torch.nan]), seed=1, position=0, status=bits)
        assert bits.item() == 1


@pytest.mark.usefixtures("backend")
class TestShortCounters:
    """int32 in the place of int64; noise has its own in test_input_rows.py."""

    def test_prefixes(self):
        path = torch.tensor([[0, 2, -1], [0, 1, 3], [0, -1, -1]], dtype=torch.int32)
        caches = torch.randn(1, 3, 2, 12, 4).repeat(2, 1, 1, 1, 1)
        for cache, lens in zip(caches, (LENS, LENS.int()), strict=True):
            compact_kv(cache, path, prefix_len=lens)
        assert torch.equal(*caches)
        for op, call in (CALLS["tree_mask"], CALLS["tree_positions"]):
            assert torch.equal(op(**call | {"prefix_len": LENS.int()}), op(**call))

    def test_shared_by_the_rows(self):
        """Numbers of one dimension less, or of size 1, are those of all."""
        op, call = CALLS["race_sample"]
        position = torch.tensor([4, 9], dtype=torch.int32)
        assert torch.equal(op(**call | {"position": position}), op(**call | {"position": position.long().expand(3, 2)}))


# Wrong outputs -------------------------------------------------------------------------------------------------------


def verdict(**changes):
    parts = {
        "tokens": torch.zeros(3, 3).long(),
        "num_accepted": torch.zeros(3).int(),
        "status": torch.zeros(3).int(),
    }
    return Verdict(**parts | changes)


def bits(*shape):
    return torch.zeros(shape).int()


WRONG = [
    # the call, what is given, the error and what it says
    ("race_topk", {"out": torch.zeros(3, 3, 2).long().mT}, ValueError, "out: expected contiguous; got strides"),
    ("tree_mask bits", {"out": torch.zeros(3, 4, 9).bool()}, TypeError, "out: expected a tensor of int32; got bool"),
    ("tree_mask additive", {"out": torch.zeros(3, 4, 9)}, TypeError, "out: expected a tensor of bfloat16; got float32"),
    ("residual", {"out": torch.zeros(3, 2)}, TypeError, r"out: expected \(probs, mass\); got float32 \[3, 2\]"),
    ("residual", {"out": (1, 2, 3)}, TypeError, r"out: expected \(probs, mass\); got tuple"),
    ("overlap", {"out": Overlap(*torch.zeros(3, 2, 4).unbind(-1))}, ValueError,
     r"out.accept: expected contiguous; got strides \(8, 4\)"),
    *(
        (name, {"status": given}, error, message)
        for name in ON_ROWS
        for given, error, message in (
            (torch.zeros(3, 2), TypeError, "status: expected a tensor of int32; got float32"),
            (bits(6), ValueError, r"status: expected shape \[3, 2\]; got int32 \[6\]"),
            (bits(3, 1).expand(3, 2), ValueError, r"status: expected contiguous; got strides \(1, 0\)"),
        )
    ),
    ("verify_chain", {"out": verdict(num_accepted=bits(1).expand(3))}, ValueError, "out.num_accepted: expected contig"),
    *(
        ("verify_chain", {"out": verdict(tokens=torch.zeros(9).long().as_strided((3, 3), strides))}, ValueError,
         f"out.tokens: expected rows that share no memory; got strides .{strides[0]}, {strides[1]}.")
        for strides in ((0, 1), (2, 1), (1, 0))
    ),
]  # fmt: skip


REFUSED = {
    f"outputs of {name}": (*CALLS[name], [tuple(case) for other, *case in WRONG if other == name])
    for name in dict.fromkeys(case[0] for case in WRONG)
}


@pytest.mark.one_backend
class TestMemory:
    """Outputs that share memory with each other or an input are refused; those that lie between them are not."""

    def of_chain(self, **changes):
        return verify_chain(**chain_call(1, requests=3, slots=2, vocabulary=33) | changes)

    def assert_shared(self, one, other, call):
        said = ": expected memory of its own; got some of "
        with pytest.raises(ValueError, match=f"^({one}{said}{other}'s|{other}{said}{one}'s)$"):
            call()

    def test_with_each_other(self):
        same = bits(4)
        out = verdict(num_accepted=same[:3], status=same[1:])
        self.assert_shared("out.num_accepted", "out.status", lambda: self.of_chain(out=out))
        self.of_chain(out=verdict(num_accepted=bits(6)[:3], status=bits(6)[3:]))

    @pytest.mark.parametrize(
        "name, view",
        [
            ("draft_tokens", lambda own: own.view(-1)[:6].view(3, 2)),
            ("seed", lambda own: own[:, 0]),
            ("position", lambda own: own[:, 2]),
            ("nonce", lambda own: own[2]),
            ("temperature", lambda own: own.view(torch.float32)[:, 1]),
        ],
    )
    def test_with_an_input(self, name, view):
        own = torch.zeros(3, 3).long()
        self.assert_shared("out.tokens", name, lambda: self.of_chain(**{name: view(own)}, out=verdict(tokens=own)))

    @pytest.mark.parametrize("gap, fits", [(3, True), (2, False)])
    def test_columns_of_one_buffer(self, gap, fits):
        """Verdicts and drafts side by side in one tensor, which an engine may keep: apart, or a column too close."""
        expected = self.of_chain()
        buffer = torch.full((3, 3 + 2), UNTOUCHED)
        tokens, drafts = buffer[:, :3], buffer[:, gap : gap + 2]
        drafts.copy_(chain_call(1, requests=3, slots=2, vocabulary=33)["draft_tokens"])
        call = lambda: self.of_chain(draft_tokens=drafts, out=verdict(tokens=tokens))  # noqa: E731
        if fits:
            assert torch.equal(call().tokens, expected.tokens)
        else:
            self.assert_shared("out.tokens", "draft_tokens", call)

    def test_views_of_other_origin(self):
        """NumPy's arrays come as storages of their own."""
        array = np.zeros(9, dtype=np.int32)
        out = verdict(num_accepted=torch.from_numpy(array[:3]), status=torch.from_numpy(array[2:5]))
        self.assert_shared("out.num_accepted", "out.status", lambda: self.of_chain(out=out))
        apart = verdict(num_accepted=torch.from_numpy(array[:3]), status=torch.from_numpy(array[3:6]))
        self.of_chain(out=apart)

    def test_of_every_op(self):
        """Whatever is given as out= or status= is looked at."""
        own, figure, lens, absent = torch.zeros(3, 2).long(), torch.zeros(3, 2), LENS.clone(), torch.full((3, 2), -1)
        words = own.view(-1)[:3].view(torch.int32).view(3, 2)
        for name, options, one, other in (
            ("race_sample", {"out": own, "seed": own}, "out", "seed"),
            ("race_sample", {"out": own, "status": words}, "out", "status"),
            ("race_topk", {"seed": own, "status": words}, "status", "seed"),
            ("overlap", {"out": [figure, figure, *torch.zeros(2, 3, 2)]}, "out.accept", "out.tv"),
            ("residual", {"out": [PAIR["target"], figure]}, "out.probs", "target"),
            ("residual", {"temperature": figure, "status": figure.view(torch.int32)}, "status", "temperature"),
            ("tree_positions", {"parents": absent, "prefix_len": 0, "out": absent}, "out", "parents"),
            ("tree_mask", {"prefix_len": lens, "status": lens.view(torch.int32)[:3]}, "status", "prefix_len"),
        ):
            op, call = CALLS[name]
            self.assert_shared(one, other, lambda op=op, call=call | options: op(**call))

    def test_caches(self):
        path = torch.tensor([[0, 2, -1]] * 3, dtype=torch.int32)
        cache = torch.randn(3, 2, 8, 4)
        with pytest.raises(ValueError, match="cache: expected memory of its own; got some of cache's"):
            compact_kv([cache, cache], path, prefix_len=1)
        with pytest.raises(ValueError, match="cache: expected memory of its own; got some of cache's"):
            compact_kv([cache[:, :, :5], cache[:, :, 4:]], path, prefix_len=1)
        with pytest.raises(ValueError, match=r"cache: expected entries with memory of their own; got strides \(.*0"):
            compact_kv(cache[:, :1].expand(3, 2, 8, 4), path, prefix_len=1)
        words = cache.view(torch.int32)
        self.assert_shared("cache", "status", lambda: compact_kv(cache, path, prefix_len=1, status=words[0, 0, 0, :3]))
        self.assert_shared("cache", "path", lambda: compact_kv(cache, words[:, 0, 0, :3], prefix_len=1))

    def test_caches_of_one_buffer(self):
        """All layers' keys and values between each other, requests first."""
        path = torch.tensor([[0, 2, -1]] * 3, dtype=torch.int32)
        whole = torch.randn(3, 5, 2, 2, 8, 4)
        parts = [whole[:, layer, i] for layer in range(5) for i in range(2)]
        apart = [part.clone() for part in parts]
        compact_kv(parts, path, prefix_len=1)
        compact_kv(apart, path, prefix_len=1)
        assert all(map(torch.equal, parts, apart))


def views(size=24):
    """A one- or two-dimensional view of a buffer, as (shape, strides, offset)."""

    @st.composite
    def drawn(draw):
        ndim = draw(st.integers(1, 2))
        shape = tuple(draw(st.integers(0, 4)) for _ in range(ndim))
        strides = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        return shape, strides, draw(st.integers(0, max(0, size - 1 - last)))

    return drawn()


def touched(shape, strides, offset):
    """The elements of a view, each as often as the view holds it."""
    at = [offset + sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    return at


@pytest.mark.one_backend
@settings(max_examples=600, deadline=None, derandomize=True)
@given(views(), views(), views(), views())
def test_sharing_is_found_exactly(parents, prefix_len, positions, status):
    """Against every element of every view, whatever the strides."""
    buffer = torch.zeros(64)
    call = [buffer.as_strided(*view) for view in (parents, prefix_len, positions, status)]
    one, other, *written = (touched(*view) for view in (parents, prefix_len, positions, status))
    if any(len(set(own)) < len(own) for own in written):
        return  # refused before, by its strides
    wrong = set(written[0]) & set(written[1]) or (set(one) | set(other)) & (set(written[0]) | set(written[1]))
    if wrong:
        with pytest.raises(ValueError, match="expected memory of its own"):
            check_apart(OPS["tree_positions"].arguments, call)
    else:
        check_apart(OPS["tree_positions"].arguments, call)


FEWER = ragged(chain_call(1, requests=3, slots=4, vocabulary=33), torch.tensor([4, 0, 2]))
REFUSED = {
    "a draft_prob of ragged chains": (verify_chain, FEWER, [
        ({"draft_prob": torch.ones(3)}, ValueError,
         r"draft_prob: expected shape \[6\] \(one a slot\) or \[3, 1\] \(one a request\); got float32 \[3\]"),
        ({"draft_prob": torch.ones(3, 2)}, ValueError, r"draft_prob: expected shape \[3, 6\]; got float32 \[3, 2\]"),
    ]),
}  # fmt: skip
