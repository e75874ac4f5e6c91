"""Numbers of NumPy, and of anything with ``__index__``, in the place of Python's: in every argument of every op."""

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from specdec_kernels import DraftTree, LogitEdits, OutputFormat, Sampling, logprobs, race_sample, race_topk
from specdec_kernels.calls.op import OPS
from specdec_kernels.generate import NgramDrafter
from specdec_kernels.sharded import VocabShard
from specdec_kernels.sharded import verify_chain as verify_parts
from tests.ops.test_registration import FIRST, assert_same
from tests.support.calls import chain, outcome, tree
from tests.support.cases import ragged
from tests.support.ops import residual, verify_chain, verify_tree
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.one_backend

ROW = torch.randn(33, generator=torch.Generator().manual_seed(0))
LAW = Sampling(0.5, 20, 0.75, 0.0625, at_temperature=False, divided=True)
EDITS = LogitEdits(
    repetition=1.5, frequency=0.5, presence=0.25, output_mask=torch.full((1, 2), 5, dtype=torch.int32),
    output_counts=torch.full((1, 33), 3, dtype=torch.int32),
)  # fmt: skip
NOISE = {"seed": 7, "position": 3, "nonce": 2}
ADDED = torch.zeros(3, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)


def first(name, **changes):
    function, call = FIRST[name]
    return function, call | changes


CALLS = [
    (race_sample, {"target": ROW, **NOISE, "sampling": LAW}),
    (race_sample, {"target": ROW, **NOISE, "temperature": 1, "edits": EDITS._replace(
        output_mask=EDITS.output_mask[0], output_counts=EDITS.output_counts[0])}),
    (race_topk, {"draft": ROW, "k": 3, **NOISE}),
    (residual, {"target": ROW, "draft": -ROW, "draft_prob": 0.5}),
    (logprobs, {"rows": ROW, "tokens": torch.tensor(3), "top": 2, "temperature": 0.5}),
    (verify_chain,
     chain(draft_prob=0.5, epsilon=0.25, temperature=1, nonce=3, out=ADDED, output_format=OutputFormat(add=True))),
    (verify_chain, ragged(chain(), torch.tensor([2, 0, 1])) | {"packing.max_drafts": 2, "draft.sampling": LAW}),
    (verify_tree, tree(replacement=True, max_depth=2, output_format=OutputFormat(zeros=True))),
    first("uniform", **NOISE, stream=5, index=4),
    first("tree_mask", prefix_len=2, columns=8),
    first("tree_mask", prefix_len=2, columns=None),
    first("tree_positions", prefix_len=2),
    first("compact_kv", prefix_len=1),
    first("build_tree", topk=2, prefix_len=3),
    first("count_tokens", num=1, prompt=False),
    first("store_rows", column=1),
    first("mask_logits", temperature=0.5),
    first("verify_linked_tree", threshold_single=0.25, threshold_total=0.5, nonce=1),
]  # fmt: skip


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def as_numpy(x):
    kinds = {int: np.int64, float: np.float32, bool: np.bool_}
    return kinds[type(x)](x) if type(x) in kinds else x


def as_index(x):
    return Index(x) if type(x) is int else x


@pytest.mark.parametrize("other", [as_numpy, as_index])
@pytest.mark.parametrize("function, arguments", CALLS, ids=lambda x: getattr(x, "__name__", ""))
def test_every_number(function, arguments, other):
    assert_same(outcome(function, tree_map(other, arguments)), outcome(function, arguments))


def test_kinds_of_numbers():
    wanted = race_sample(ROW, seed=2**63 + 1, position=3, temperature=0.5)
    for seed in (np.uint64(2**63 + 1), np.array(2**63 + 1, dtype=np.uint64), Index(2**63 + 1)):
        for temperature in (np.float16(0.5), np.float64(0.5), torch.tensor(0.5)):
            assert race_sample(ROW, seed=seed, position=np.int32(3), temperature=temperature) == wanted


@pytest.mark.parametrize("wrong", [True, np.True_, np.float32(1.0), np.array([1]), "1", 1.0])
def test_what_is_no_whole_number(wrong):
    for name in ("seed", "position", "nonce"):
        with pytest.raises(TypeError, match=rf"^{name}: expected an int or a tensor of int64 or int32; got "):
            race_sample(ROW, **NOISE | {name: wrong})
    with pytest.raises(ValueError, match=r"^k: expected an int from 1 to "):
        race_topk(ROW, wrong, **NOISE)


@pytest.mark.parametrize("wrong", [True, np.True_, np.array([1.0]), "1", 1j])
def test_what_is_no_number(wrong):
    with pytest.raises(TypeError, match=r"^temperature: expected a float or a float32 tensor; got "):
        race_sample(ROW, **NOISE, temperature=wrong)


def test_shards():
    shard = VocabShard(np.int64(4096), Index(2048))
    assert (shard.vocab, shard.vocab_start) == (4096, 2048)
    call = chain(draft=None, draft_prob=1, epsilon=0, method="block", position=3)
    found = [on_ranks(verify_parts, [0], tree_map(other, call))[0] for other in (as_numpy, as_index)]
    for verdict in found:
        assert_same(verdict, on_ranks(verify_parts, [0], call)[0])


def test_trees_and_sizes_of_drafters():
    tree = DraftTree.chain(Index(3))
    assert tree.first(Index(2)) == DraftTree.chain(2)
    assert tree.to_sglang(Index(2)).retrive_index.shape == (2, 4)
    assert DraftTree.from_flashinfer(tree.to_flashinfer(Index(2)), Index(4), Index(2)) == tree
    assert NgramDrafter(Index(3), Index(2)).follow([1, 2, 3, 1, 2], 1) == [3]


def test_the_ops_with_numbers_are_here():
    named = {function.__name__ for function, _ in CALLS}
    # Or with those of a Sampling or a LogitEdits alone.
    without = {"context_seeds", "cutoff", "first_arrivals", "merge_chains", "tree_parents"}
    parts = "count_at_least mass_tiles overlap residual_race residual_sums tile_laws token_logits walk_tables"
    assert named | without | set(parts.split()) == set(OPS)
