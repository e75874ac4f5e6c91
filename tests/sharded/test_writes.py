"""What an op over slices writes, nothing of a slice's size, and how many tensor operations it takes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdec_kernels import Sampling, sharded
from tests.support.cases import ragged, seeds
from tests.support.ops import grouped
from tests.support.parts import edits_of
from tests.support.ranks import chain_call_with_hits, tree_call_with_hits

VOCABULARY = 16384
FILTERS = {"temperature": None, "sampling": Sampling(0.9, top_k=9), "draft.sampling": Sampling(1.1, top_k=12)}


class Written(TorchDispatchMode):
    """Notes the largest tensor that an operation made and that is not memory of the call's arguments."""

    def __init__(self, arguments):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)}
        self.largest, self.ops = 0, []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        found = function(*arguments, **keywords or {})
        self.ops.append(str(function))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return found


def written(op, call):
    shard = sharded.VocabShard(VOCABULARY, 0)
    shard.ranks = 1
    call = grouped(call)
    op(**call, shard=shard)  # looks at the slices, once
    with Written(call) as mode:
        op(**call, shard=shard)
    return mode


def chain(**how):
    return {**chain_call_with_hits(VOCABULARY, requests=2, slots=2), **how}


def by_index(slots, **how):
    """Two requests with the edits of two of three slots; chains may be packed."""
    own = edits_of(3, vocabulary=VOCABULARY, seed=3)._replace(allowed=torch.full((3, VOCABULARY // 32), -1).int())
    call = {**chain_call_with_hits(VOCABULARY, requests=3, slots=slots), **how}
    call["request_index"] = torch.tensor([2, 0], dtype=torch.int32)
    return call | {name: call[name][:2] for name in ("draft_tokens", "target")} | {"edits": own}


def packed(**how):
    call = ragged({**chain(**how), "edits": None}, torch.tensor([2, 1]))
    return call | {"edits": edits_of(2, vocabulary=VOCABULARY, seed=3)._replace(allowed=None)}


def tree(**how):
    call = {**tree_call_with_hits(VOCABULARY, requests=2, nodes=6), "method": "rejection", **how}
    return {**call, "edits": edits(6)} if how.get("edits") else call


def edits(slots):
    """As a request has them: views are enough for its rows."""
    return edits_of(2, vocabulary=VOCABULARY, seed=3)._replace(
        allowed=torch.full((2, slots, VOCABULARY // 32), -1, dtype=torch.int32)
    )


ROWS = {"rows": torch.randn(2, VOCABULARY), "tokens": torch.tensor([5, 1024])}
BY_INDEX = edits_of(3, vocabulary=VOCABULARY, seed=3)._replace(allowed=None)
RACE = {"target": ROWS["rows"], "seed": seeds(2), "position": 1}
CALLS = {
    "rejection": (sharded.verify_chain, chain(edits=edits(3))),
    "rejection, filtered": (sharded.verify_chain, chain(edits=edits(3), **FILTERS)),
    "one-hot rejection": (sharded.verify_chain, chain(draft=None, edits=edits(3), temperature=0.8)),
    "block": (sharded.verify_chain, chain(method="block", edits=edits(3), **FILTERS)),
    "race": (
        sharded.verify_chain,
        chain(method="race", draft=None, edits=edits(3), **FILTERS | {"draft.sampling": None}),
    ),
    "rejection, by an index": (sharded.verify_chain, by_index(2)),
    "race, by an index": (sharded.verify_chain, by_index(2, method="race", draft=None)),
    "rejection, packed": (sharded.verify_chain, packed()),
    "race, packed": (sharded.verify_chain, packed(method="race", draft=None)),
    "tree": (sharded.verify_tree, tree(edits=True, **FILTERS)),
    "one-hot tree": (sharded.verify_tree, tree(edits=True, draft=None)),
    "traversal": (sharded.verify_tree, tree(edits=True, method="traversal", **FILTERS)),
    "logprobs": (sharded.logprobs, ROWS | {"top": 3, "edits": edits_of(2, vocabulary=VOCABULARY, seed=3)}),
    "race_sample": (sharded.race_sample, RACE | {"edits": edits_of(2, vocabulary=VOCABULARY, seed=3)}),
    "race_sample, by an index": (
        sharded.race_sample,
        RACE | {"edits": BY_INDEX, "seed": seeds(3), "request_index": torch.tensor([2, 0], dtype=torch.int32)},
    ),
}


@pytest.mark.parametrize("op, call", CALLS.values(), ids=CALLS)
def test_nothing_of_a_slices_size_is_written(fast_backend, op, call):
    mode = written(op, call)
    assert any(name.startswith("specdec.") for name in mode.ops)
    assert 0 < mode.largest < VOCABULARY // 2


def test_a_copy_is_seen(fast_backend):
    def op(rows, shard):
        return rows.clone()

    assert written(op, {"rows": ROWS["rows"]}).largest == 2 * VOCABULARY


OPERATIONS = {
    "race": (chain(method="race", draft=None, temperature=0.8), 43),
    "rejection": (chain(temperature=0.8), 102),
    "one-hot rejection": (chain(draft=None, temperature=0.8), 97),
}


@pytest.mark.parametrize("call, most", OPERATIONS.values(), ids=OPERATIONS)
def test_tensor_operations_are_few(fast_backend, call, most):
    """At B = 1 they take most of the time. Those that make an op's outputs are not counted."""
    mode = written(sharded.verify_chain, call)
    around = sum(name.startswith(("aten.empty", "aten.view.default")) for name in mode.ops)
    assert len(mode.ops) - around <= most
