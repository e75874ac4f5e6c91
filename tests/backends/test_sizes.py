"""Just past what the code counts by: 32 places of a warp, 64 and 128 nodes, 128 tiles of a warp, lists of 4,096, the
classes of a bar. What C++ finds is what the oracle does."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import (
    Sampling,
    compact_kv,
    cutoff,
    logprobs,
    race_sample,
    race_topk,
    tree_mask,
    tree_positions,
)
from tests.conftest import ORACLE
from tests.support.cases import chain_call, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import leaves_of, tree_call

pytestmark = pytest.mark.usefixtures("kernels")
NOISE = {"seed": seeds(1), "position": 3}


def assert_as_by_oracle(op, near=False, **call):
    found = op(**call)
    with specdec_kernels.backend(ORACLE):
        expected = op(**call)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        off = {"rtol": 2e-5, "atol": 2e-6} if one.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(one, other, **off, equal_nan=True)


def some(*values, slow=()):
    """Parameters of which make test-all alone runs some."""
    return [*values, *(pytest.param(value, marks=pytest.mark.slow) for value in slow)]


@pytest.mark.parametrize("vocabulary", some(151_936, slow=(131_073, 262_144)))
def test_long_rows(vocabulary):
    """The last tile has the largest tokens, which are half of the mass."""
    generator = torch.Generator().manual_seed(vocabulary)
    target, draft = torch.randn(2, 1, 2, vocabulary, generator=generator).bfloat16()
    target[..., -100:] += 8.0
    draft[..., -200:-50] += 8.0
    last = vocabulary - 1
    assert_as_by_oracle(race_sample, target=target[0], seed=seeds(2), position=1)
    assert_as_by_oracle(cutoff, rows=target[0])
    assert_as_by_oracle(cutoff, rows=target[0], sampling=Sampling(0.9, 5000, 0.9))
    assert_as_by_oracle(logprobs, rows=target[0], tokens=torch.tensor([last, 7]), top=3)
    call = {"draft_tokens": torch.tensor([[last - 60]]), "target": target, "draft": draft[:, :1]} | NOISE
    for options in ({}, {"method": "block"}, {"sampling": Sampling(top_p=0.95)}, {"method": "race", "draft": None}):
        assert_as_by_oracle(verify_chain, **call | options)
    assert_as_by_oracle(residual, target=target[0], draft=draft[0])
    assert_as_by_oracle(overlap, target=target[0], draft=draft[0])


@pytest.mark.parametrize("k", some(32, 33, 65, 600, slow=(31, 64, 97, 511, 513, 1100)))
def test_as_many_arrivals(k):
    rows = torch.randn(1, 3000, generator=torch.Generator().manual_seed(k))
    assert_as_by_oracle(race_topk, draft=rows, k=k, seed=5, position=3)


@pytest.mark.parametrize("top", some(33, 65, slow=(64, 100)))
def test_as_many_of_the_most_probable(top):
    rows = torch.randn(2, 3000, generator=torch.Generator().manual_seed(top))
    assert_as_by_oracle(logprobs, rows=rows, tokens=torch.tensor([5, -1]), top=top)


@pytest.mark.parametrize("ties", ["first", "all"])
@pytest.mark.parametrize("k", some(4096, 4097, slow=(4095, 4400)))
def test_as_many_tokens_are_kept(k, ties):
    """Of different tokens, of two values, of one value; and as many as top_p keeps of them."""
    normal = torch.randn(9000, generator=torch.Generator().manual_seed(k))
    rows = torch.stack([normal, normal.sign(), torch.zeros(9000), torch.where(normal > 0.1, 1.0, normal)])
    for sampling in (
        Sampling(top_k=k),
        Sampling(top_k=k, top_p=0.98),
        Sampling(top_p=k / 9000),
        Sampling(0.7, k, 0.9, 1e-3),
    ):
        assert_as_by_oracle(cutoff, rows=rows, sampling=sampling._replace(ties=ties))


def far_tree(nodes):
    """The children of a node lie far apart: one right behind it, one in the middle of the tree, some at its end."""
    half = nodes // 2
    return torch.tensor([-1, 0, *(max(0, i - half) if i % 3 else i - 1 for i in range(2, nodes))])


@pytest.mark.parametrize("nodes", some(65, 129, 256, slow=(33, 200)))
@pytest.mark.parametrize("method", ["race", "rejection", "with replacement", "one-hot", "traversal", "paths"])
def test_trees_of_as_many_nodes(nodes, method):
    parents = far_tree(nodes)
    call = tree_call(
        nodes, requests=2, nodes=nodes, vocabulary=12, parents=parents, replacement=method == "with replacement"
    )
    call["draft_tokens"] = torch.randint(0, 12, call["draft_tokens"].shape, generator=torch.Generator().manual_seed(1))
    call |= {"max_depth": 40, "method": method if method in ("race", "traversal", "paths") else "rejection"}
    if method in ("race", "one-hot"):
        call["draft"] = None
    if method == "paths":
        call["leaves"] = leaves_of(parents[None]).expand(2, -1)
    assert_as_by_oracle(verify_tree, **call)


@pytest.mark.parametrize("nodes", [33, 65, 129, 256])
def test_shapes_of_as_many_nodes(nodes):
    parents, prefix = far_tree(nodes)[None], torch.tensor([70])
    for layout in ("bool", "bits"):
        assert_as_by_oracle(tree_mask, parents=parents, prefix_len=prefix, layout=layout)
    assert_as_by_oracle(tree_positions, parents=parents, prefix_len=prefix)


@pytest.mark.parametrize("slots", some(33, 65, slow=(31, 32, 63, 129)))
def test_chains_of_as_many_drafts(slots):
    """Drafts that are as the target has them, but for the last ones: chains that end anywhere."""
    call = chain_call(slots, requests=3, slots=slots, vocabulary=12)
    call["draft"] = call["target"][:, :-1] + 0.05 * call["draft"]
    for options in ({}, {"method": "block"}, {"draft": None}, {"method": "race", "draft": None}):
        assert_as_by_oracle(verify_chain, **call | options)


@pytest.mark.parametrize("slots", [33, 65])
def test_the_last_of_as_many_drafts_is_refused(slots):
    """All before it are accepted: their laws are the target's."""
    generator = torch.Generator().manual_seed(slots)
    target = torch.rand(2, slots + 1, 12, generator=generator) + 0.1
    target /= target.sum(-1, keepdim=True)
    tokens, draft = torch.randint(0, 12, (2, slots), generator=generator), target[:, :-1].clone()
    target[:, slots - 1].scatter_(-1, tokens[:, -1:], 0.0)
    call = {"draft_tokens": tokens, "target": target, "draft": draft, "space": "probs", "seed": seeds(2), "position": 1}
    verdict = verify_chain(**call)
    assert (verdict.num_accepted == slots - 1).all()
    assert_as_by_oracle(verify_chain, **call)


@pytest.mark.parametrize("nodes", [33, 65, 257])
def test_caches_of_as_many_nodes(nodes):
    """Every second node stays: each is moved, over others that are moved later."""
    path = torch.arange(0, nodes, 2, dtype=torch.int32)[None]
    cache = torch.arange(nodes + 5.0).view(1, 1, -1, 1).clone()
    expected = cache.clone()
    expected[:, :, 5 : 5 + path.shape[1]] = cache[:, :, 5 + path[0]]
    compact_kv([cache], path, prefix_len=torch.tensor([5]))
    assert torch.equal(cache, expected)
