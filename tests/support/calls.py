"""Calls of every op, for tests that concern all ops, and their arguments.

``tests/ops/test_<op>.py`` has ``CALLS``: names of calls to (public function, arguments). The first call of an op has
tensors wherever it may have them. ``REFUSED`` there are wrong calls.
"""

import functools
import importlib
import importlib.util
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import specdec_kernels.sharded  # noqa: F401  its ops are among OPS
from specdec_kernels.calls.kinds import WRITTEN_TENSORS
from specdec_kernels.calls.op import OPS
from tests.support.cases import chain_call

PARENTS = torch.tensor([-1, 0, 0, 1])


def backends_call(op, **fields):
    """A call in the backends' form. Arguments that are not named are None."""
    return OPS[op].Call(**dict.fromkeys(OPS[op].Call._fields) | fields)


def rows(vocabulary=33, count=3, dtype=torch.float32):
    target, draft = torch.randn(2, count, vocabulary, generator=torch.Generator().manual_seed(count)).to(dtype)
    return {"target": target, "draft": draft}


def noise(count=3):
    return {"seed": torch.arange(count), "position": torch.full((count,), 5)}


def chain(**options):
    return chain_call(1, requests=3, slots=2, vocabulary=33) | options


def tree(requests=3, parents=PARENTS, vocabulary=33, **options):
    """A verify_tree call with one shape for all requests: its nodes replace a chain's K + 1 rows."""
    call = chain_call(1, requests=requests, slots=len(parents) - 1, vocabulary=vocabulary)
    tokens = torch.nn.functional.pad(call.pop("draft_tokens"), (1, 0), value=-1)
    draft = torch.nn.functional.pad(call["draft"], (0, 0, 0, 1))
    return call | {"draft_tokens": tokens, "draft": draft, "parents": parents, "max_depth": 2} | options


def cache(nodes=4, requests=3):
    """Keys and values of two layers, and the paths to keep."""
    layers = [torch.randn(requests, 2, 5 + nodes, 8) for _ in range(4)]
    path = torch.tensor([[0, 2, -1]], dtype=torch.int32).repeat(requests, 1)
    return {"cache": layers, "path": path, "prefix_len": torch.arange(requests)}


def gathered(table, names):
    """The tables of this name in ``tests/ops/test_<name>.py``, as one; a missing page or table counts as empty."""
    modules = [f"tests.ops.test_{name}" for name in names]
    pages = [importlib.import_module(module) for module in modules if importlib.util.find_spec(module)]
    return {name: entry for page in pages for name, entry in getattr(page, table, {}).items()}


@functools.cache
def every_call():
    """name -> (function, arguments), of every op."""
    return gathered("CALLS", OPS)


def outcome(function, arguments):
    """What a call returns and what it leaves in its arguments, which are copies, as a flat list of tensors."""
    arguments = tree_map_only(torch.Tensor, torch.clone, arguments)
    return [leaf for leaf in tree_leaves((function(**arguments), arguments)) if isinstance(leaf, torch.Tensor)]


def public_calls():
    """The calls that a user can make. Parts of sharded ops get the results of others."""
    return {
        name: call
        for name, call in every_call().items()
        if not call[0].__module__.startswith("specdec_kernels.sharded")
    }


@functools.cache
def every_refusal():
    """name -> (function, arguments of a good call, [(changes that make it wrong, error, the error's beginning)])."""
    pages = (Path(__file__).parents[1] / "ops").glob("test_*.py")
    return gathered("REFUSED", [page.stem.removeprefix("test_") for page in sorted(pages)])


def unsupported(backend, function):
    """The reason why a backend lacks the op of a function, or None."""
    of_shards = function.__module__.startswith("specdec_kernels.sharded")
    return "the oracle has whole ops alone" if backend == "reference" and of_shards else None


def reads_rows(op):
    """Whether an op reads rows of the vocabulary, as ops with a law do."""
    return any(kind.role == "law" for kind in OPS[op].arguments.values())


def streams(op):
    """Whether memory is most of an op's work: rows, or caches."""
    return reads_rows(op) or WRITTEN_TENSORS in OPS[op].arguments.values()
