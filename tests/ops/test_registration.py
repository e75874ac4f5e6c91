"""Every op as torch sees it: schema, fake tensors, torch.compile without a graph break and without recompiling."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from specdec_kernels import (
    compact_kv,
    overlap,
    race_sample,
    race_topk,
    residual,
    tree_mask,
    tree_positions,
    verify_chain,
    verify_tree,
)
from tests.support.cases import DTYPES, chain_call, ragged, untouched_verdict


def rows(vocabulary=33, count=3, dtype=torch.float32):
    target, draft = torch.randn(2, count, vocabulary, generator=torch.Generator().manual_seed(count)).to(dtype)
    return {"target": target, "draft": draft}


def noise(count=3):
    return {"seed": torch.arange(count), "position": torch.full((count,), 5)}


def chain(**options):
    return chain_call(1, requests=3, slots=2, vocabulary=33) | options


PARENTS = torch.tensor([-1, 0, 0, 1])


def tree(requests=3, parents=PARENTS, vocabulary=33, **options):
    """A verify_tree call on one shape for all requests: its nodes stand in the place of a chain's K + 1 rows."""
    call = chain_call(1, requests=requests, slots=len(parents) - 1, vocabulary=vocabulary)
    tokens = torch.nn.functional.pad(call.pop("draft_tokens"), (1, 0), value=-1)
    draft = torch.nn.functional.pad(call["draft"], (0, 0, 0, 1))
    return call | {"draft_tokens": tokens, "draft": draft, "parents": parents, "max_depth": 2} | options


def cache(nodes=4, requests=3):
    """Keys and values of two layers, and the paths that stay."""
    layers = [torch.randn(requests, 2, 5 + nodes, 8) for _ in range(4)]
    path = torch.tensor([[0, 2, -1]], dtype=torch.int32).repeat(requests, 1)
    return {"cache": layers, "path": path, "prefix_len": torch.arange(requests)}


# name -> (public function, arguments)
CALLS = {
    "verify_chain rejection": (verify_chain, chain()),
    "verify_chain race": (verify_chain, chain(method="race", draft=None)),
    "verify_chain one-hot": (verify_chain, chain(draft=None, temperature=0.5, position=3, nonce=1)),
    "verify_chain randomised": (verify_chain, chain(draft_prob=torch.rand(3, 2), epsilon=torch.rand(3))),
    "verify_chain ragged": (verify_chain, ragged(chain(), torch.tensor([2, 0, 1])) | {"max_drafts": 2}),
    "verify_chain bfloat16": (verify_chain, chain_call(1, requests=3, slots=2, dtype=torch.bfloat16)),
    "verify_chain out": (verify_chain, chain(out=untouched_verdict(3, 3))),
    "race_sample": (race_sample, {"target": rows()["target"], **noise()}),
    "race_sample one row": (race_sample, {"target": rows()["target"][0], "seed": 1, "position": 2}),
    "race_sample out": (race_sample, {"target": rows()["target"], **noise(), "out": torch.full((3,), -77)}),
    "race_topk": (race_topk, {"draft": rows()["draft"], "k": 4, **noise()}),
    "residual": (residual, rows()),
    "residual options": (
        residual,
        rows() | {"draft_prob": torch.rand(3), "epsilon": 0.1, "temperature": torch.rand(3)},
    ),
    "overlap": (overlap, rows()),
    "verify_tree rejection": (verify_tree, tree()),
    "verify_tree replacement": (verify_tree, tree(replacement=True) | {"parents": PARENTS.repeat(3, 1)}),
    "verify_tree race": (verify_tree, tree(method="race", draft=None)),
    "tree_mask": (tree_mask, {"parents": PARENTS.repeat(3, 1), "prefix_len": torch.arange(3), "columns": 6}),
    "tree_mask additive": (tree_mask, {"parents": PARENTS, "layout": "additive", "dtype": torch.bfloat16}),
    "tree_mask bits": (tree_mask, {"parents": PARENTS, "layout": "bits"}),
    "tree_positions": (tree_positions, {"parents": PARENTS, "prefix_len": torch.arange(3)}),
    "compact_kv": (compact_kv, cache()),
}


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


def outcome(function, arguments):
    """What a call returns and what it leaves in its arguments, as a flat list of tensors."""
    arguments = tree_map_only(torch.Tensor, torch.clone, arguments)
    result = function(**arguments)
    return [leaf for leaf in tree_leaves((result, arguments)) if isinstance(leaf, torch.Tensor)]


def assert_same(results, expected):
    for got, wanted in zip(results, expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("function, arguments", CALLS.values(), ids=CALLS)
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


def test_inductor():
    """The whole compiler, around the op and through its outputs."""
    torch.compiler.reset()

    @torch.compile(fullgraph=True)
    def sampled(logits, seed):
        return race_sample(2 * logits, seed=seed, position=5) + 1

    logits, seed = rows()["target"], torch.arange(3)
    assert torch.equal(sampled(logits, seed), race_sample(2 * logits, seed=seed, position=5) + 1)


class TestDynamicShapes:
    """Compiled once; other numbers of requests, drafts and tokens find the same code.

    All sizes of the first call differ: torch takes equal ones for the same symbol, and would rightly compile again.
    """

    def count_graphs(self, function, calls):
        torch.compiler.reset()
        graphs = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=graphs)
        for arguments in calls:
            assert_same(outcome(compiled, arguments), outcome(function, arguments))
        return graphs.frame_count

    @pytest.mark.parametrize("options", [{}, {"method": "race", "draft": None}, {"draft_prob": 0.5}])
    def test_verify_chain(self, options):
        shapes = [(6, 2, 33), (7, 2, 33), (8, 3, 33), (12, 9, 65)]
        calls = [chain_call(1, requests=b, slots=k, vocabulary=v) | options for b, k, v in shapes]
        assert self.count_graphs(verify_chain, calls) == 1

    def test_verify_chain_ragged(self):
        calls = [
            ragged(chain_call(1, requests=b, slots=4, vocabulary=33), torch.arange(b) % 5) | {"max_drafts": 4}
            for b in (6, 7, 9)
        ]
        assert self.count_graphs(verify_chain, calls) == 1

    def test_race_sample(self):
        calls = [{"target": rows(v, b)["target"], **noise(b)} for b, v in ((3, 33), (4, 33), (7, 65))]
        assert self.count_graphs(race_sample, calls) == 1

    def test_race_topk(self):
        calls = [{"draft": rows(v, b)["draft"], "k": 4, **noise(b)} for b, v in ((3, 33), (4, 33), (7, 65))]
        assert self.count_graphs(race_topk, calls) == 1

    @pytest.mark.parametrize("function", [residual, overlap])
    def test_pairs(self, function):
        assert self.count_graphs(function, [rows(v, b) for b, v in ((3, 33), (4, 33), (7, 65))]) == 1

    @pytest.mark.parametrize("options", [{}, {"method": "race", "draft": None}])
    def test_verify_tree(self, options):
        shapes = [(6, [-1, 0, 0, 1]), (7, [-1, 0, 0, 1]), (9, [-1, 0, 1, 1, 0])]
        calls = [tree(requests, torch.tensor(parents), **options) for requests, parents in shapes]
        assert self.count_graphs(verify_tree, calls) == 1

    def test_tree_layouts(self):
        shapes = [(6, [-1, 0, 0, 1]), (7, [-1, 0, 0, 1]), (9, [-1, 0, 1, 1, 0])]
        calls = [{"parents": torch.tensor(parents), "prefix_len": torch.arange(b)} for b, parents in shapes]
        assert self.count_graphs(tree_positions, calls) == 1
        assert self.count_graphs(tree_mask, [call | {"columns": 20} for call in calls]) == 1

    def test_compact_kv(self):
        assert self.count_graphs(compact_kv, [cache(n, b) for n, b in ((4, 6), (4, 7), (5, 10))]) == 1

    def test_positions_that_move_on(self):
        """A decoding loop passes another plain position every round."""
        calls = [{"target": rows()["target"][0], "seed": 7, "position": position} for position in range(3, 9)]
        assert self.count_graphs(race_sample, calls) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_need_no_gradient(dtype):
    arguments = rows(dtype=dtype)
    arguments["target"].requires_grad_()
    assert not any(figure.requires_grad for figure in overlap(**arguments))
    assert not race_sample(arguments["target"], **noise()).requires_grad
