"""Triton's tree ops against the CPU's, over sizes that its interpreter can take: what random calls lack."""

import importlib

import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl
from specdec_kernels.triton_kernels import _launch, _tree_walk

from specdec_kernels import compact_kv, tree_mask, verify_tree
from tests.ops.test_compact_kv import path_of
from tests.ops.test_verify_tree import DOWNWARDS, OPTIONS, made
from tests.support.cases import UNTOUCHED, beside_threshold, seeds
from tests.support.laws import P, Q
from tests.support.same_bits import assert_as_cpu, on_cpu
from tests.support.triton_device import INTERPRETED
from tests.support.triton_machine import interleaved

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("triton")]
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.mark.costly
@pytest.mark.parametrize("options", [{}, {"method": "traversal"}], ids=["rejection", "traversal"])
def test_second_siblings_at_the_threshold_fall_alike(options):
    """Sums over both rows decide about them: the first, token 1, is always refused."""
    generator = torch.Generator().manual_seed(17)
    target, draft = torch.randn(2, 4, 3, 1100, generator=generator)
    target[..., 1], draft[..., 0] = -60.0, 6.0
    call = {"draft_tokens": torch.tensor([-1, 1, 0]).repeat(4, 1), "target": target, "draft": draft}
    call |= {"parents": torch.tensor([-1, 0, 0]), "seed": seeds(4, 40), "position": 5} | options
    accepted = lambda verdict: verdict.path[:, 1] == 2  # noqa: E731
    for yes, one in enumerate(beside_threshold(verify_tree, call, "target", (slice(None), 0, 0), accepted, 60.0)):
        assert (accepted(verify_tree(**one)) == bool(yes)).all()
        assert_as_cpu(verify_tree, **one)


@pytest.mark.costly
@EACH
def test_more_children_than_are_looked_at_together(options):
    call = made(32, options, requests=2, nodes=50, vocabulary=30, parents=[-1] + 40 * [0] + 9 * [3])
    assert_as_cpu(verify_tree, **call | {"temperature": 1.3})


@pytest.mark.costly
@EACH
def test_repeated_siblings(options):
    """Skipped where siblings are distinct, each of them counted where they are independent."""
    call = {
        "draft_tokens": torch.tensor([-1, 3, 3, 3, 1]).expand(16, -1), "target": P.expand(16, 5, -1),
        "draft": Q.expand(16, 5, -1), "parents": torch.tensor([-1, 0, 0, 0, 0]), "space": "probs",
        "seed": torch.arange(16), "position": 1,
    }  # fmt: skip
    assert_as_cpu(verify_tree, **call | options)


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
    assert_as_cpu(verify_tree, **call)
    assert set(on_cpu(verify_tree, **call).path[:, 1].tolist()) & {3, 4}


@pytest.mark.slow
def test_a_thousand_nodes():
    generator = torch.Generator().manual_seed(34)
    call = {
        "draft_tokens": torch.randint(0, 3, (1, 1024), generator=generator),
        "target": torch.randn(1, 1024, 3, generator=generator), "seed": 1, "position": 0,
        "parents": (torch.arange(1024) - 1).div(3, rounding_mode="floor"),
    }  # fmt: skip
    assert_as_cpu(verify_tree, **call | OPTIONS["race"])


def test_empty_residuals_and_parameters_out_of_range():
    call = made(38, requests=4, nodes=3, parents=[-1, 0, 0], vocabulary=5)
    call["temperature"] = torch.tensor([torch.nan, -1.0, torch.inf, 2.0**-130])
    assert_as_cpu(verify_tree, **call)
    law = torch.tensor([0.5, 0.5, 0.0]).expand(3, 3, -1)
    tokens, parents = torch.tensor([[-1, 2, 2], [-1, 9, 2**40], [-1, 2, 0]]), torch.tensor([-1, 0, 0])
    for draft in (law, torch.zeros_like(law), None):
        options = {"parents": parents, "space": "probs", "seed": torch.arange(3), "position": 0, "replacement": True}
        assert_as_cpu(verify_tree, tokens, law, draft, **options)


@pytest.mark.costly
@EACH
def test_trees_deeper_than_there_is_room_for(options):
    call = made(39, options, requests=4, nodes=4, parents=[-1, 0, 1, 2], vocabulary=7)
    for depth in (0, 1):
        assert_as_cpu(verify_tree, **call, max_depth=depth)


@pytest.mark.parametrize("options", DOWNWARDS.values(), ids=DOWNWARDS)  # traversal reads other rows, too
def test_rows_off_the_path_decide_nothing(options):
    call = made(40, options, requests=4, nodes=7, vocabulary=7)
    clean = on_cpu(verify_tree, **call)
    on_path = torch.zeros(4, 8, dtype=torch.bool).scatter_(1, clean.path.long() % 8, True)[:, :7]
    for name in ("target", "draft"):
        if call[name] is not None:
            call[name] = torch.where(on_path.unsqueeze(-1), call[name], torch.nan)
    assert_as_cpu(verify_tree, **call)


def test_trees_and_outputs_anywhere_in_memory():
    call = made(41, requests=4, nodes=5, vocabulary=70, dtype=torch.bfloat16)
    for name in ("draft_tokens", "parents"):
        call[name] = call[name].int().T.contiguous().T
    out = (
        torch.full((4, 9), UNTOUCHED)[:, 2:7], torch.full((4, 9), UNTOUCHED, dtype=torch.int32)[:, 3:8],
        *torch.full((2, 4), UNTOUCHED, dtype=torch.int32),
    )  # fmt: skip
    assert_as_cpu(verify_tree, **call, out=out)


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
    verdict = verify_tree(tokens, target, parents=parents, method=method, seed=1, position=0)
    assert verdict.path.tolist() == [[0, 1, -1, -1]]
    assert len(read) == 2


@_launch.kernel
def decide_kernel(path, NODES: tl.constexpr):
    """The counters of a request, then records of nodes: each program decides a node of the path."""
    node = tl.program_id(0)
    walk = _tree_walk.Walk(None, NODES, None, None, records=path + 8, request=path, live=True, idle=False)
    _tree_walk.decide(walk, node, tl.where(node < NODES - 1, node + 1, -1))


@pytest.mark.skipif(not INTERPRETED, reason="runs what a program does in Python")
def test_the_front_is_never_left_behind():
    """Wherever the deciders of a path are interrupted, the last of them leaves the front behind the end of the path."""
    for seed in range(100):
        path = torch.zeros(8 + 4 * _tree_walk.ROW.value, dtype=torch.int32)
        with interleaved(seed, clocks=False):
            _launch.launch(decide_kernel, (4,), 1, {"path": path, "NODES": 4})
        assert path[_tree_walk.FRONT.value] == 4, seed


def test_grids_fit_for_any_number_of_heads(monkeypatch):
    """Only the first dimension of a grid goes beyond 65,535."""
    grids = []
    monkeypatch.setattr(_launch, "launch", lambda kernel, grid, *a, **k: grids.append(grid))
    compact_kv([torch.zeros(1, 70_000, 2, 1)], path_of([0, 1]), prefix_len=0)
    assert [most for grid in grids for most in grid] == [70_000]


def test_masks_of_several_programs_a_row():
    for layout, columns in (("bool", 1100), ("bits", 33_000)):
        assert_as_cpu(tree_mask, torch.tensor([-1, 0, 1]), prefix_len=1022, layout=layout, columns=columns)
