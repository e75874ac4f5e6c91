"""Triton's tree ops against the CPU's, over sizes that its interpreter can take."""

import importlib
import random

import pytest
import torch

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _launch

import specdec_kernels
from specdec_kernels import compact_kv, tree_mask, tree_positions, verify_chain, verify_tree
from tests.backends.test_triton_ops import assert_same, assert_thresholds_are_the_same, on_device
from tests.ops.test_compact_kv import path_of
from tests.ops.test_verify_tree import DOWNWARDS, OPTIONS, made
from tests.support.cases import UNTOUCHED, chain_call, poisoned, seeds
from tests.support.laws import P, Q
from tests.support.triton_device import DEVICE, INTERPRETED

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TRAVERSAL = {"method": "traversal"}
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
SPACES = pytest.mark.parametrize("space", ["logits", "probs"])
BAD = torch.tensor([[-1, 1, 0], [-1, 0, 7], [-1, 0, -2], [0, 0, 0], [-1, -5, 2**31 - 1], [-1, 0, 1]])


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"draft": None}], ids=["drawn", "again", "certain"])
@pytest.mark.parametrize("vocabulary, space", [(1, "logits"), (20, "logits"), (20, "probs")])
def test_traversal(vocabulary, space, options):
    """Small vocabularies and deep trees: leaves are refused again and again."""
    call = made(vocabulary, options, requests=6, nodes=14, vocabulary=vocabulary, space=space)
    assert_same(verify_tree, **call | TRAVERSAL)


@pytest.mark.costly
@pytest.mark.parametrize("options", [{}, TRAVERSAL], ids=["rejection", "traversal"])
def test_second_siblings_at_the_threshold_fall_alike(options):
    """Sums over both rows decide about them: the first, token 1, is always refused."""
    generator = torch.Generator().manual_seed(17)
    target, draft = torch.randn(2, 4, 3, 1100, generator=generator)
    target[..., 1], draft[..., 0] = -60.0, 6.0
    call = {"draft_tokens": torch.tensor([-1, 1, 0]).expand(4, -1), "target": target, "draft": draft}
    call |= {"parents": torch.tensor([-1, 0, 0]), "seed": seeds(4, 40), "position": 5} | options
    assert_thresholds_are_the_same(verify_tree, call, lambda verdict: verdict[1][:, 1] == 2)


@SPACES
@EACH
@pytest.mark.parametrize("vocabulary", [1, 65])
def test_verdicts(vocabulary, options, space):
    assert_same(verify_tree, **made(vocabulary, options, requests=4, nodes=7, vocabulary=vocabulary, space=space))


@pytest.mark.costly
@EACH
def test_rows_of_several_tiles(options):
    call = made(31, options, requests=4, nodes=5, vocabulary=8200, draft_vocabulary=5000, dtype=torch.bfloat16)
    assert_same(verify_tree, **call)


@pytest.mark.costly
@EACH
def test_more_children_than_are_looked_at_together(options):
    call = made(32, options, requests=2, nodes=50, vocabulary=30, parents=[-1] + 40 * [0] + 9 * [3])
    assert_same(verify_tree, **call | {"temperature": 1.3})


@pytest.mark.costly
@EACH
def test_repeated_siblings(options):
    """Skipped where siblings are distinct, each of them counted where they are independent."""
    call = {
        "draft_tokens": torch.tensor([-1, 3, 3, 3, 1]).expand(16, -1), "target": P.expand(16, 5, -1),
        "draft": Q.expand(16, 5, -1), "parents": torch.tensor([-1, 0, 0, 0, 0]), "space": "probs",
        "seed": torch.arange(16), "position": 1,
    }  # fmt: skip
    assert_same(verify_tree, **call | options)


@pytest.mark.costly
@pytest.mark.parametrize("space", ["logits", "probs"])
def test_siblings_of_several_tiles_have_their_mass_taken_away(space):
    """A draft in which the first siblings hold nearly all of q: what is left of it decides the next ones."""
    generator = torch.Generator().manual_seed(33)
    draft = torch.randn(8, 1, 4200, generator=generator).expand(-1, 5, -1).clone()
    tokens = torch.tensor([-1, 7, 4150, 80, 9]).expand(8, -1)
    draft[..., tokens[0, 1:]] += torch.tensor([16.0, 13.0, 11.0, 9.0])
    target = torch.randn(8, 5, 4200, generator=generator)
    target[..., tokens[0, 3:]] += 12.0
    if space == "probs":
        target, draft = target.softmax(-1), draft.softmax(-1)
    call = {
        "draft_tokens": tokens, "target": target, "draft": draft, "parents": torch.tensor([-1, 0, 0, 0, 0]),
        "seed": torch.arange(8), "position": 5, "space": space,
    }  # fmt: skip
    assert_same(verify_tree, **call)
    assert set(verify_tree(**call).path[:, 1].tolist()) & {3, 4}


@pytest.mark.slow
def test_a_thousand_nodes():
    generator = torch.Generator().manual_seed(34)
    call = {
        "draft_tokens": torch.randint(0, 3, (1, 1024), generator=generator),
        "target": torch.randn(1, 1024, 3, generator=generator), "seed": 1, "position": 0,
        "parents": (torch.arange(1024) - 1).div(3, rounding_mode="floor"),
    }  # fmt: skip
    assert_same(verify_tree, **call | OPTIONS["race"])


@pytest.mark.costly
@SPACES
@EACH
def test_a_chain_is_a_tree(options, space):
    chain = chain_call(35, requests=6, slots=3, vocabulary=65, space=space)
    method = {k: v for k, v in options.items() if k != "replacement"}
    if options.get("method") == "traversal":
        method["method"] = "block"
    tree = chain | {
        "draft_tokens": torch.nn.functional.pad(chain["draft_tokens"], (1, 0), value=-77),
        "draft": torch.nn.functional.pad(chain["draft"], (0, 0, 0, 1), value=torch.nan),
        "parents": torch.arange(-1, 3),
    }  # fmt: skip
    with specdec_kernels.backend("triton"):
        expected = verify_chain(**on_device(chain | method))
        verdict = verify_tree(**on_device(tree | options))
    for got, wanted in zip((verdict.tokens, verdict.num_accepted, verdict.status), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@EACH
def test_bad_parents_are_absent_where_the_host_does_not_look(options, monkeypatch):
    call = made(36, options, requests=len(BAD), nodes=3, parents=[-1, 0, 1], vocabulary=7)
    monkeypatch.setattr("specdec_kernels.ops._trees.host_sees", lambda tensor: False)
    assert_same(verify_tree, **call | {"parents": BAD}, max_depth=2)


@pytest.mark.slow
@SPACES
def test_rows_that_are_no_laws(space):
    generator = torch.Generator().manual_seed(37)
    call = made(37, requests=8, nodes=5, space=space)
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, 0.0])
    for name in ("target", "draft"):
        where = torch.rand(call[name].shape, generator=generator) < 0.02
        call[name] = torch.where(where, strange[torch.randint(0, 5, where.shape, generator=generator)], call[name])
        nothing = -torch.inf if space == "logits" else 0.0
        call[name][torch.rand(call[name].shape[:2], generator=generator) < 0.15] = nothing
    for name, options in OPTIONS.items():
        if space == "logits" or name != "certain":  # a row of infinite mass has no share not yet tried
            assert_same(verify_tree, **call | options)


def test_empty_residuals_and_parameters_out_of_range():
    call = made(38, requests=4, nodes=3, parents=[-1, 0, 0], vocabulary=5)
    call["temperature"] = torch.tensor([torch.nan, -1.0, torch.inf, 2.0**-130])
    assert_same(verify_tree, **call)
    law = torch.tensor([0.5, 0.5, 0.0]).expand(3, 3, -1)
    tokens, parents = torch.tensor([[-1, 2, 2], [-1, 9, 2**40], [-1, 2, 0]]), torch.tensor([-1, 0, 0])
    for draft in (law, torch.zeros_like(law), None):
        options = {"parents": parents, "space": "probs", "seed": torch.arange(3), "position": 0, "replacement": True}
        assert_same(verify_tree, tokens, law, draft, **options)


@pytest.mark.costly
@EACH
def test_trees_deeper_than_there_is_room_for(options):
    call = made(39, options, requests=4, nodes=4, parents=[-1, 0, 1, 2], vocabulary=7)
    for depth in (0, 1):
        assert_same(verify_tree, **call, max_depth=depth)


@pytest.mark.parametrize("options", DOWNWARDS.values(), ids=DOWNWARDS)  # traversal reads other rows, too
def test_rows_off_the_path_decide_nothing(options):
    call = made(40, options, requests=4, nodes=7, vocabulary=7)
    clean = verify_tree(**call)
    on_path = torch.zeros(4, 8, dtype=torch.bool).scatter_(1, clean.path.long() % 8, True)[:, :7]
    call["target"] = torch.where(on_path.unsqueeze(-1), call["target"], torch.nan)
    if call["draft"] is not None:
        call["draft"] = torch.where(on_path.unsqueeze(-1), call["draft"], torch.nan)
    assert_same(verify_tree, **call)


def test_rows_anywhere_in_memory():
    call = made(41, requests=4, nodes=5, vocabulary=70, dtype=torch.bfloat16)
    call["target"], call["draft"] = poisoned(call["target"]), poisoned(call["draft"], pad=1, start=1)
    for name in ("draft_tokens", "parents"):
        call[name] = call[name].int().T.contiguous().T
    out = (
        torch.full((4, 9), UNTOUCHED)[:, 2:7], torch.full((4, 9), UNTOUCHED, dtype=torch.int32)[:, 3:8],
        *torch.full((2, 4), UNTOUCHED, dtype=torch.int32),
    )  # fmt: skip
    with specdec_kernels.backend("cpu"):
        expected = verify_tree(**call, max_depth=4)
    with specdec_kernels.backend("triton"):
        found = verify_tree(**on_device(call), out=on_device(out))
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got.cpu(), wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
@EACH
def test_results_do_not_depend_on_the_number_of_programs(options):
    assert_same(verify_tree, **made(42, options, requests=2, nodes=3, vocabulary=4200))


@pytest.mark.skipif(not INTERPRETED, reason="counts what the interpreter calls")
@pytest.mark.parametrize("method", ["race", "rejection"])
def test_what_a_parent_turned_down_is_not_read(method, monkeypatch):
    """Two branches of three nodes below the root: the nodes of the one not taken are not read, nor is the third."""
    home, name = ("_scan_tree", "race_node") if method == "race" else ("_rows", "scan_pair")
    module, read = importlib.import_module(f"specdec_kernels.triton_kernels.{home}"), []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: (read.append(1), function(*arguments))[1])
    monkeypatch.setattr(_launch, "multiprocessors", lambda device: 0)  # all rows of a request by one program
    target = torch.zeros(1, 7, 5)
    target[..., 2] = 50.0
    tokens, parents = torch.tensor([[-1, 2, 1, 1, 0, 0, 4]]), torch.tensor([-1, 0, 0, 1, 2, 2, 4])
    with specdec_kernels.backend("triton"):
        verdict = verify_tree(tokens, target, parents=parents, method=method, seed=1, position=0)
    assert verdict.path.tolist() == [[0, 1, -1, -1]]
    assert len(read) == 2


class Paused(BaseException):
    """The turn of a program is over."""


class Interleaved:
    """``decide`` of several nodes as programs that take turns at their atomics, in place of ``tl`` in its module.

    A program is run anew at each of its turns: atomics of earlier turns give what they gave, one more is done.
    """

    def __init__(self, programs):
        self.memory, self.results, self.waiting = {}, [[] for _ in programs], dict(enumerate(programs))

    def atomic_max(self, pointer, value, sem):
        assert sem == "relaxed"
        if self.given:
            return self.given.pop(0)
        if self.done:
            raise Paused
        self.done, at = True, int(getattr(pointer, "value", pointer))
        before = self.memory.get(at, 0)
        self.memory[at] = max(before, int(getattr(value, "value", value)))
        self.results[self.turn].append(before)
        return before

    def run(self, order):
        while self.waiting:
            self.turn = order.choice(list(self.waiting))
            self.given, self.done = list(self.results[self.turn]), False
            try:
                self.waiting[self.turn]()
            except Paused:
                continue
            del self.waiting[self.turn]


@pytest.mark.skipif(not INTERPRETED, reason="runs what a program does in Python")
def test_the_front_is_never_left_behind(monkeypatch):
    """Wherever the deciders of a path are interrupted, the last of them leaves the front behind the end of the path."""
    module = importlib.import_module("specdec_kernels.triton_kernels._tree_walk")
    decide, nodes, request = module.decide.fn, 4, 1000
    walk = module.Walk(None, nodes, None, None, records=0, request=request, live=True, idle=False)
    for seed in range(500):
        programs = [lambda node=node: decide(walk, node, node + 1 if node < nodes - 1 else -1) for node in range(nodes)]
        machine = Interleaved(programs)
        with monkeypatch.context() as patch:
            patch.setattr(module, "tl", machine)
            machine.run(random.Random(seed))
        assert machine.memory[request + module.FRONT.value] == nodes, seed


def test_grids_fit_for_any_number_of_heads(monkeypatch):
    """Only the first dimension of a grid goes beyond 65,535."""
    grids = []
    monkeypatch.setattr(_launch, "launch", lambda kernel, grid, *a, **k: grids.append(grid))
    with specdec_kernels.backend("triton"):
        compact_kv([torch.zeros(1, 70_000, 2, 1, device=DEVICE)], on_device(path_of([0, 1])), prefix_len=0)
    assert [most for grid in grids for most in grid] == [70_000]


def test_no_requests():
    for options in OPTIONS.values():
        call = made(45, options, requests=4, nodes=3)
        assert_same(verify_tree, **{k: v[:0] if isinstance(v, torch.Tensor) else v for k, v in call.items()})
    assert_same(tree_mask, torch.empty(0, 3, dtype=torch.int64))
    assert_same(tree_positions, torch.empty(0, 3, dtype=torch.int64), prefix_len=0)


def test_masks_of_several_programs_a_row():
    for layout in ("bool", "bits"):
        columns = 1100 if layout == "bool" else 33_000
        assert_same(tree_mask, torch.tensor([-1, 0, 1]), prefix_len=1022, layout=layout, columns=columns)
