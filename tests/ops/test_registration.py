"""Every op as torch sees it: schema, fake tensors, torch.compile without a graph break and without recompiling."""

import contextlib
import io
import re

import pytest
import torch
import torch._dynamo.testing
from torch import func
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import specdec_kernels
from specdec_kernels import (
    Draft,
    InputPositions,
    LogitEdits,
    OutputFormat,
    Packing,
    Sampling,
    compact_kv,
    cutoff,
    logprobs,
    race_sample,
    race_topk,
    tree_mask,
    tree_parents,
    tree_positions,
    uniform,
)
from specdec_kernels.calls.op import OPS
from tests.support.calls import cache, every_call, noise, outcome, rows, tree, unsupported
from tests.support.cases import DTYPES, chain_call, ragged
from tests.support.ops import overlap, residual, verify_chain, verify_tree

pytestmark = pytest.mark.one_backend

CALLS = every_call()
FIRST = {call[0].__name__: call for call in reversed(CALLS.values())}


def test_every_op_is_called_here():
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("specdec::")}
    assert registered == {f"specdec::{function.__name__}" for function, _ in CALLS.values()}


class Recorded(TorchDispatchMode):
    """Keeps the calls of our ops as they reach torch."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "specdec":
            self.calls.append((op, args, kwargs or {}))
        return op(*args, **(kwargs or {}))


def recorded(function, arguments):
    with Recorded() as record:
        function(**arguments)
    assert len(record.calls) == 1
    return record.calls[0]


def assert_same(results, expected):
    for got, wanted in zip(results, expected, strict=True):
        assert torch.equal(got, wanted)


def apart(x, step=1):
    """Zeros like x, with other memory between the rows and, with a step, between the items of a row."""
    return x.new_zeros(len(x), 2 * step * x.shape[1])[:, : step * x.shape[1] : step]


EACH = [
    pytest.param(*call, id=name, marks=() if any(call is first for first in FIRST.values()) else pytest.mark.slow)
    for name, call in CALLS.items()
]


@pytest.mark.parametrize("function, arguments", EACH)
class TestEveryCall:
    def test_opcheck(self, function, arguments):
        op, args, kwargs = recorded(function, arguments)
        assert set(torch.library.opcheck(op, args, kwargs).values()) == {"SUCCESS"}

    def test_compiles_to_one_graph(self, function, arguments):
        torch.compiler.reset()
        compiled = torch.compile(lambda **kwargs: function(**kwargs), fullgraph=True, backend="eager")
        assert_same(outcome(compiled, arguments), outcome(function, arguments))

    def test_meta_tensors(self, function, arguments):
        """Shapes and dtypes without data."""
        there = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)
        for got, expected in zip(outcome(function, there), outcome(function, arguments), strict=True):
            assert got.is_meta
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


def sparse(x):
    return x.to_sparse()


def without_memory(x):
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def negative(x):
    """A tensor's values as the imaginary part of a conjugate."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag if x.dtype == torch.float32 else x


def imaginary(x):
    return torch.complex(torch.zeros_like(x), x).imag if x.dtype == torch.float32 else x


def negated(x):
    """A tensor's values, with the negative bit; strides as they were."""
    return x if x.dtype == torch.bool else torch._neg_view(-x)


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.interpreted
def test_the_negative_bit_of_each_tensor(backend, name):
    """Of any dtype and strides, alone among those of its argument: refused, but where the op does not read it."""
    function, arguments = FIRST[name]
    if reason := unsupported(backend, function):
        pytest.skip(reason)
    leaves, structure = tree_flatten(arguments)
    refused = 0
    for place, x in enumerate(leaves):
        if not isinstance(x, torch.Tensor) or x.dtype == torch.bool:
            continue
        own = [y.clone() if isinstance(y, torch.Tensor) else y for y in leaves]
        own[place] = negated(x)
        found, error = found_or_refused(function, tree_unflatten(own, structure))
        if error:
            assert re.search(f": expected a tensor whose values {name} finds .* with the negative bit", error)
            refused += 1
        else:
            found = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
            assert_same(found, outcome(function, arguments)[: len(found)])
    assert refused


def found_or_refused(function, arguments):
    """What a call returns, or the text of its refusal."""
    try:
        return function(**arguments), None
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize("function, arguments", FIRST.values(), ids=FIRST)
class TestWhatIsNotPlain:
    """Argument by argument: derivatives that an op does not have, tensors whose memory does not hold their values."""

    @pytest.mark.parametrize("spoilt", [sparse, without_memory, negative])
    def test_memory(self, function, arguments, spoilt):
        for name, given in arguments.items():
            wrong = tree_map_only(torch.Tensor, spoilt, given)
            if all(one is other for one, other in zip(tree_leaves(wrong), tree_leaves(given), strict=True)):
                continue
            with contextlib.suppress(ValueError, TypeError):  # a call with these strides is read directly
                function(**arguments | {name: tree_map_only(torch.Tensor, imaginary, given)})
            with pytest.raises(
                ValueError, match=rf"^{name}.*: expected a tensor whose values {function.__name__} finds"
            ):
                function(**arguments | {name: wrong})

    def test_vmap(self, function, arguments):
        for name, given in arguments.items():
            if isinstance(given, torch.Tensor):
                mapped = func.vmap(lambda x, name=name: function(**arguments | {name: x}))
                with pytest.raises(
                    ValueError, match=rf"^{name}: expected a tensor .* \(the op takes batches: .* of vmap"
                ):
                    mapped(given[None])

    def test_forward_mode(self, function, arguments):
        for name, given in arguments.items():
            if not isinstance(given, torch.Tensor) or not given.is_floating_point():
                continue
            with forward_ad.dual_level():
                call = arguments | {name: forward_ad.make_dual(given, torch.ones_like(given))}
                if OPS[function.__name__].figures:
                    with pytest.raises(ValueError, match=rf"^{name}: .* forward mode .* since {function.__name__} has"):
                        function(**call)
                else:
                    assert_same(outcome(function, call), outcome(function, arguments))


def test_ops_in_transforms_of_torch():
    """Tokens have no derivative there, and figures are constants unless a derivative is asked of them."""
    target, draft = rows().values()
    weight, tokens = torch.ones(33), race_sample(target, **noise())

    def loss(weight):
        drawn = race_sample(target * weight, **noise())
        return weight[drawn].sum() + residual(target, draft).mass.sum()

    gradient, (value, tangent) = func.grad(loss)(weight), func.jvp(loss, (weight,), (weight,))
    wanted = tokens.bincount(minlength=33).float()
    torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(value, loss(weight))
    torch.testing.assert_close(tangent, wanted.sum())

    def of_rows(x):
        return overlap(x, draft).accept.sum()

    each = func.vmap(func.grad(lambda row: of_rows(row.expand(3, 33))))
    for transformed in (func.grad(of_rows), lambda x: func.jvp(of_rows, (x,), (x,)), each):
        with pytest.raises(ValueError, match=r"^target: expected .*(since overlap has|got one of vmap)"):
            transformed(target)


def test_inductor():
    """The whole compiler, around the op and through its outputs."""
    torch.compiler.reset()

    @torch.compile(fullgraph=True)
    def sampled(logits, seed):
        return race_sample(2 * logits, seed=seed, position=5) + 1

    logits, seed = rows()["target"], torch.arange(3)
    assert torch.equal(sampled(logits, seed), race_sample(2 * logits, seed=seed, position=5) + 1)


class Program(torch.nn.Module):
    """A function of a dict of tensors, and of values that make arguments of them."""

    def __init__(self, function, fixed):
        super().__init__()
        self.function, self.fixed = function, fixed

    def forward(self, tensors):
        return self.function(**tensors, **self.fixed)


def after_export(function, tensors, fixed):
    """What a program returns once it was saved and loaded."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(Program(function, fixed), (tensors,)), file)
    file.seek(0)
    return torch.export.load(file).module()(tensors)


@pytest.mark.parametrize(
    "function, arguments",
    [pytest.param(*FIRST[name], id=name) for name, op in OPS.items() if hasattr(op.result, "_fields")],
)
def test_exported_programs_are_saved_with_their_results(function, arguments):
    fixed = {name: value for name, value in arguments.items() if not isinstance(value, torch.Tensor)}
    tensors = {name: value for name, value in arguments.items() if name not in fixed}
    expected, result = function(**arguments), after_export(function, tensors, fixed)
    assert type(result) is type(expected)
    assert_same(result, expected)


def test_exported_programs_are_saved_with_their_arguments():
    """Values of ours that a program takes."""
    target, draft = rows(count=3)["target"], rows(count=2)["draft"]
    given = {
        "draft_tokens": torch.tensor([4, 7]), "target": target, "draft": Draft(draft),
        "packing": Packing(torch.tensor([0, 2], dtype=torch.int32), max_drafts=2),
        "output_format": OutputFormat(zeros=True),
        "seed": torch.tensor([3]), "position": InputPositions(torch.arange(3)),
        "edits": LogitEdits(allowed=torch.full((1, 2), -1, dtype=torch.int32)),
    }  # fmt: skip
    result = after_export(specdec_kernels.verify_chain, given, {})
    assert_same(result, specdec_kernels.verify_chain(**given))


RAGGED = CALLS["verify_chain ragged"][1]
RAGGED = RAGGED | {"draft_prob": torch.linspace(0.1, 0.9, len(RAGGED["draft_tokens"]))}
FIXED = [
    pytest.param((*call, argument), id=f"{name} {argument}", marks=() if argument == "parents" else pytest.mark.slow)
    for name, call in {**FIRST, "verify_chain, ragged": (verify_chain, RAGGED)}.items()
    for argument, value in call[1].items()
    if isinstance(value, torch.Tensor)
]


CHAIN_SIZES, ROW_SIZES = ((6, 2, 33), (7, 2, 33), (8, 3, 33), (12, 9, 65)), ((3, 33), (4, 33), (7, 65))
TREE_SIZES = [(6, [-1, 0, 0, 1]), (7, [-1, 0, 0, 1]), (9, [-1, 0, 1, 1, 0])]
MASKED = [{"parents": torch.tensor(parents), "prefix_len": torch.arange(b)} for b, parents in TREE_SIZES]
LINKS = [torch.full((b, len(parents)), -1) for b, parents in TREE_SIZES]
RACED = {"method": "race", "draft": None}
# Calls of a function with other numbers of requests, drafts and tokens. All sizes of the first call differ: torch takes
# equal ones for the same symbol, and would rightly compile again.
DYNAMIC = {
    **{
        f"verify_chain {options}": (
            verify_chain, [chain_call(1, requests=b, slots=k, vocabulary=v) | options for b, k, v in CHAIN_SIZES],
        )
        for options in ({}, RACED, {"draft_prob": 0.5})
    },
    "verify_chain ragged": (verify_chain, [
        ragged(chain_call(1, requests=b, slots=4, vocabulary=33), torch.arange(b) % 5) | {"packing.max_drafts": 4}
        for b in (6, 7, 9)
    ]),
    **{
        f"verify_tree {options}": (verify_tree, [tree(b, torch.tensor(x), **options) for b, x in TREE_SIZES])
        for options in ({}, RACED)
    },
    "race_sample": (race_sample, [{"target": rows(v, b)["target"], **noise(b)} for b, v in ROW_SIZES]),
    "race_topk": (race_topk, [{"draft": rows(v, b)["draft"], "k": 4, **noise(b)} for b, v in ROW_SIZES]),
    "residual": (residual, [rows(v, b) for b, v in ROW_SIZES]),
    "overlap": (overlap, [rows(v, b) for b, v in ROW_SIZES]),
    "tree_positions": (tree_positions, MASKED),
    "tree_mask": (tree_mask, [call | {"columns": 20} for call in MASKED]),
    "tree_parents": (tree_parents, [{"first_child": x, "next_sibling": x.clone()} for x in LINKS]),
    "compact_kv": (compact_kv, [cache(n, b) for n, b in ((4, 6), (4, 7), (5, 10))]),
    # A decoding loop passes another plain position every round.
    "positions that move on": (
        race_sample, [{"target": rows()["target"][0], "seed": 7, "position": x} for x in range(3, 9)],
    ),
}  # fmt: skip


class TestDynamicShapes:
    @pytest.mark.parametrize("function, calls", DYNAMIC.values(), ids=DYNAMIC)
    def test_one_graph_for_all_sizes(self, function, calls):
        torch.compiler.reset()
        graphs = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=graphs)
        for arguments in calls:
            assert_same(outcome(compiled, arguments), outcome(function, arguments))
        assert graphs.frame_count == 1

    @pytest.mark.parametrize(
        "name", ["verify_chain rejection", "verify_tree rejection", "verify_linked_tree by uniforms"]
    )
    def test_outputs_that_lie_apart(self, name):
        function, call = CALLS[name]
        expected = function(**call)
        out = expected._replace(tokens=apart(expected.tokens, 2))
        if hasattr(out, "path"):
            out = out._replace(path=apart(out.path))
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
        assert_same(compiled(**call, out=out), expected)

    @pytest.mark.parametrize("which", FIXED)
    def test_a_tensor_of_fixed_sizes_beside_others(self, which):
        """As one that is made inside the function: its sizes are constants, those of the others are symbols."""
        function, call, argument = which
        given = (call := dict(call)).pop(argument)
        names = {"torch": torch, "nan": float("nan"), "inf": float("inf")}
        made = eval(f"lambda: torch.tensor({given.tolist()}, dtype={given.dtype})", names)

        def inside(**call):
            return function(**call, **{argument: made()})

        torch.compiler.reset()
        compiled = torch.compile(inside, fullgraph=True, dynamic=True, backend="eager")
        assert_same(outcome(compiled, call), outcome(inside, call))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_need_no_gradient(dtype):
    target = rows(dtype=dtype)["target"].requires_grad_()
    assert not race_sample(target, **noise()).requires_grad


def test_without_gradients_none_is_wanted_in_forward_mode_either():
    plain = rows()
    target, draft = plain["target"].requires_grad_(), plain["draft"].requires_grad_()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert not residual(target, draft)[0].requires_grad


def test_gradients_that_would_be_lost_are_refused():
    """Where a figure could have a gradient, and autograd would silently get none."""
    plain, number = rows(), torch.tensor([0.5, 0.6, 0.7])
    wanted = {name: value.clone().requires_grad_() for name, value in plain.items()}
    calls = [(residual, {name: value}) for name, value in wanted.items()]
    for op in (residual, overlap):
        calls += [(op, {"temperature": number}), (op, {"sampling": Sampling(number)})]
        calls += [(op, {"draft.sampling": Sampling(number)})]
    calls += [(residual, {"draft_prob": number})]
    for op, changes in calls:
        op(**plain | changes) if op is overlap else None
        number.requires_grad_()
        message = f"^{next(iter(changes))}: expected no gradient to be wanted, since {op.__name__} has none"
        with pytest.raises(ValueError, match=message):
            op(**plain | changes)
        with torch.no_grad():
            op(**plain | changes)
        number.requires_grad_(False)
    calls = [
        (residual, (plain["target"], plain["draft"])), (overlap, (plain["target"], plain["draft"])),
        (cutoff, (plain["target"],)), (logprobs, (plain["target"], torch.zeros(3).long())), (uniform, (7, 1)),
    ]  # fmt: skip
    for op, arguments in calls:
        out = op(*arguments)
        op(*arguments, out=out)
        next(x for x in (out if isinstance(out, tuple) else (out,)) if x.is_floating_point()).requires_grad_()
        with pytest.raises(ValueError, match=rf"^out: expected no gradient to be wanted, since {op.__name__} has none"):
            op(*arguments, out=out)
    with pytest.raises(ValueError, match=r"^cache: expected no gradient to be wanted, since compact_kv has none"):
        compact_kv(torch.zeros(1, 1, 4, 2, requires_grad=True), torch.zeros(1, 1, dtype=torch.int32), prefix_len=0)
