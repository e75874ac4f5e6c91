"""Trees over slices of rows: on every rank the verdict of the whole rows."""

import functools

import pytest
import torch

from specdec_kernels import Sampling, Status, sharded
from specdec_kernels.sharded._laws import Side, laws_of, left_in_slices
from tests.sharded import test_races
from tests.sharded.test_races import BEGINS, VOCABULARY, assert_all_equal
from tests.support.ops import residual
from tests.support.random_calls import random_slices
from tests.support.ranks import PlayedShard, Stage, chain_call_with_hits, on_ranks, tree_call_with_hits

SIBLINGS = torch.tensor([-1, 0, 0, 0, 0, 0, 0, 0])
METHODS = pytest.mark.parametrize("method", ["rejection", "traversal"])
EVERY_METHOD = pytest.mark.parametrize("method", ["rejection", "traversal", "race"])


check = functools.partial(test_races.check, "verify_tree")


def trees(method, requests=24, nodes=9, vocabulary=VOCABULARY, **how):
    """Drafts that are accepted now and then, under laws that are near each other."""
    call = {**tree_call_with_hits(vocabulary, requests=requests, nodes=nodes, **how), "method": method}
    call["draft"][::2] = call["target"][::2] + 0.3 * call["draft"][::2]
    return call | {"draft": None} if method == "race" else call


def test_random_calls(fast_backend):
    seen = set()
    for number in range(60):
        verdict = check(*random_slices(number, "verify_tree"))
        seen |= set(verdict.num_accepted.tolist())
    assert seen >= {-1, 0, 1, 2, 3}


@METHODS
@pytest.mark.parametrize("replacement", [False, True])
def test_siblings(fast_backend, method, replacement):
    """Seven children of one node, some with one token; then chains of them."""
    call = trees(method, nodes=8, requests=16, replacement=replacement, parents=SIBLINGS.expand(16, 8))
    verdict = check(call)
    assert Status.TOKEN_RANGE in set(verdict.status.tolist())
    check({**call, "temperature": 0.25})  # so that siblings take much of q
    call["draft_tokens"][:, 2] = call["draft_tokens"][:, 1]
    check(call)
    check({**call, "draft": None})
    below_0 = {"temperature": None, "sampling": Sampling(0.0, top_p=torch.linspace(-0.1, 1.0, len(call["target"])))}
    assert check(call | below_0).status[0] & Status.PARAMETER
    check({**call, "parents": torch.tensor([-1, 0, 0, 1, 2, 2, 3, 5]), "max_depth": 2})


@EVERY_METHOD
def test_every_backend(parts_backend, method):
    check(trees(method, requests=3, nodes=5, vocabulary=1024 + 9), [0, 1024])


@METHODS
def test_equal_laws_leave_no_residual(fast_backend, method):
    """A draft outside of the vocabulary is refused, and p - q is nothing. So the token is from p."""
    target = torch.randn(2, 2, 2048, generator=torch.Generator().manual_seed(1))
    call = {
        "draft_tokens": torch.tensor([[-1, 5000], [-1, 7]]), "target": target, "draft": target.clone(),
        "method": method, "parents": torch.tensor([-1, 0]), "seed": torch.tensor([3, 4]), "position": 1,
    }  # fmt: skip
    assert check(call, [0, 1024]).status.tolist() == [Status.TOKEN_RANGE | Status.EMPTY_RESIDUAL, 0]


@METHODS
def test_certain_drafts_are_not_drawn_again(fast_backend, method):
    """Children on both sides of a boundary have nearly all of p; refused, they have none."""
    target = torch.zeros(8, 3, 2048)
    target[:, :, [1023, 1024]] = 5.0
    call = {
        "draft_tokens": torch.tensor([[-1, 1023, 1024]]).repeat(8, 1), "target": target, "method": method,
        "parents": torch.tensor([-1, 0, 0]), "seed": torch.arange(8), "position": 1,
    }  # fmt: skip
    assert 0 in check(call, [0, 1024]).num_accepted


def test_batches_of_none(fast_backend):
    for method in ("rejection", "traversal"):
        call = trees(method, requests=2)
        for name in ("draft_tokens", "target", "draft", "parents", "temperature", "seed", "position"):
            call[name] = call[name][:0]
        check(call)
        check({**call, "draft": None})
    for method in ("rejection", "block"):
        call = {**chain_call_with_hits(VOCABULARY, requests=2), "method": method}
        none = {name: x[:0] for name, x in call.items() if isinstance(x, torch.Tensor)}
        short = {name: call[name][:, :0] for name in ("draft_tokens", "draft")} | {"target": call["target"][:, :1]}
        for own in (call | none, call | none | {"draft": None}, call | short, call | short | {"draft": None}):
            test_races.check("verify_chain", own)


@pytest.mark.parametrize("subtracted", [0.25, 1.0])
def test_sums_are_those_of_whole_rows(fast_backend, subtracted):
    """As whole numbers: the mass of ``residual`` is the same sum, rounded once."""
    target, draft = 2 * torch.randn(2, 5, VOCABULARY, generator=torch.Generator().manual_seed(3))
    some = torch.tensor([0, 4, 2])

    def sums(target, draft, shard):
        shard.check("sums", target)
        sides = [Side(rows, Sampling(0.8), None, some[:0], some[:0]) for rows in (target, draft)]
        laws, _ = laws_of(shard, sides)
        left, _ = left_in_slices(shard, *laws, some, some, torch.full((3,), subtracted)).unbind(-1)
        return left.float() * 2.0**-42

    call = {"target": target, "draft": draft}
    expected = residual(**call, temperature=0.8, draft_prob=subtracted).mass[some]
    assert_all_equal(on_ranks(sums, BEGINS[2], call), expected)


def test_rounds(fast_backend):
    """One for the laws, one for each child after a node's first, one for the last token; nothing for certain drafts."""
    call = trees("rejection", requests=4, nodes=5, parents=torch.tensor([-1, 0, 0, 0, 1]).expand(4, 5))
    call["draft_tokens"] = torch.randint(0, VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(1))
    call["target"][:, 0].scatter_(1, call["draft_tokens"][:, 1:4], -torch.inf)  # so the root's children are refused
    counted = []

    class Counted(PlayedShard):
        def gather(self, mine):
            counted.append(mine.numel() * mine.element_size())
            return super().gather(mine)

    for draft, rounds in ((call["draft"], 4), (None, 2)):
        counted.clear()
        stage = Stage(1)
        own = {**call, "draft": draft, "temperature": 1.0, "shard": Counted(VOCABULARY, 0, stage, 0)}
        stage.run(lambda _, own=own: sharded.verify_tree(**own))
        assert len(counted) == 1 + rounds  # and one in which slices are compared, the first time
