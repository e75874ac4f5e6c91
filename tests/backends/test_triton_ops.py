"""The Triton backend against the CPU's, over sizes that its interpreter can take."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

from tests.support.triton_device import DEVICE, INTERPRETED

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _launch

import specdec_kernels
from specdec_kernels import compact_kv, race_sample, race_topk, tree_mask, tree_parents, tree_positions
from tests.ops.test_compact_kv import path_of
from tests.support.cases import (
    DTYPES,
    UNTOUCHED,
    adversarial_rows,
    chain_as_tree,
    chain_call,
    poisoned,
    ragged,
    seeds,
)
from tests.support.ops import overlap, residual, verify_chain, verify_tree

# Infinities meet in bounds, on purpose: no arithmetic with NaN ever passes one.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROOT = str(Path(__file__).parents[2])
SIZES = (1, 2, 7, 63, 64, 65, 128, 129, 4095, 4096, 4097)
WIDE = 128_256


def on_device(value):
    """A tensor, or what holds tensors."""
    return tree_map_only(torch.Tensor, lambda x: x.to(DEVICE), value)


def results(op, arguments, options):
    """What a call gives, and the status that it writes, as CPU tensors."""
    if "status" in options:
        options = options | {"status": options["status"].clone()}
    found = op(*arguments, **options)
    found = [found] if isinstance(found, torch.Tensor) else [x for x in found if x is not None]
    return [x.cpu() for x in (*found, *([options["status"]] if "status" in options else []))]


def both(op, *arguments, **options):
    """The results of the CPU backend and of Triton, whose counters must end at zero."""
    with specdec_kernels.backend("cpu"):
        expected = results(op, arguments, options)
    with specdec_kernels.backend("triton"):
        found = results(op, on_device(arguments), on_device(options))
    for counters, _ in _launch._workspaces.__dict__.values():
        assert not counters.any()
    return expected, found


def assert_same(op, *arguments, **options):
    for expected, found in zip(*both(op, *arguments, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_near(op, *arguments, **options):
    """Figures that are sums of floats, each backend's in an order of its own."""
    for expected, found in zip(*both(op, *arguments, **options), strict=True):
        near = {"rtol": 4e-6, "atol": 1e-6} if found.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found, expected, **near)


def untouched(*shape):
    """A status that a call must write."""
    return torch.full(shape, UNTOUCHED, dtype=torch.int32)


@pytest.mark.costly
@pytest.mark.parametrize("size, space", [*((size, "logits") for size in SIZES), (65, "probs"), (4097, "probs")])
def test_race_of_rows_made_to_fail(size, space):
    rows = torch.stack(list(adversarial_rows(size).values())[:: 2 if size == 4095 else 1])
    if space == "probs":
        rows = torch.where(rows.isnan(), rows, rows.exp())
    temperature = torch.tensor([1.0, 0.3, 0.0])[torch.arange(len(rows)) % 3]
    options = {"seed": seeds(len(rows), 5), "position": 2**31 - 1, "nonce": 7, "space": space}
    assert_same(race_sample, rows, temperature=1.0, **options)
    assert_same(
        race_topk, rows[::4], min(3, size), temperature=temperature[::4], **{**options, "seed": seeds(len(rows[::4]))}
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_race_of_padded_and_misaligned_rows(dtype):
    rows = poisoned((3 * torch.randn(2, 3, 700, generator=torch.Generator().manual_seed(1))).to(dtype))
    noise = {"seed": seeds(6).view(2, 3), "position": 3}
    for op, k in ((race_sample, ()), (race_topk, (4,))):
        assert_same(op, rows, *k, **noise, status=untouched(2, 3))  # what lies behind a row is NaN


def test_race_of_a_whole_vocabulary():
    row = 3 * torch.randn(1, WIDE, generator=torch.Generator().manual_seed(2))
    for temperature in (1.0, 0.0):
        assert_same(race_sample, row.bfloat16(), seed=11, position=2**40, temperature=temperature)


@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 4097])
def test_chains_by_race(vocabulary, space):
    requests = 6 if vocabulary < 4097 else 3
    call = chain_call(vocabulary, requests=requests, slots=2, vocabulary=vocabulary, space=space)
    call.pop("draft")
    assert_same(verify_chain, **call, method="race")
    if vocabulary < 4097:
        counts = torch.tensor([2, 0, 1, 2, 1, 0])
        assert_same(verify_chain, **ragged({**call, "draft": None}, counts), method="race")


DRAWN = pytest.mark.parametrize("method", ["rejection", "block"])


@DRAWN
@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 300])
def test_chains_that_draw(vocabulary, space, drafted, method):
    call = chain_call(vocabulary, requests=12, slots=3, vocabulary=vocabulary, space=space)
    if not drafted:
        call["draft"] = None
    extra = {"draft_prob": 0.7, "epsilon": 0.02} if vocabulary == 7 and drafted and method == "rejection" else {}
    assert_same(verify_chain, **call, method=method, **extra)


@pytest.mark.costly
@DRAWN
def test_chains_that_draw_over_several_tiles(method):
    call = chain_call(9, requests=4, slots=2, vocabulary=8200, draft_vocabulary=5000, dtype=torch.bfloat16)
    assert_same(verify_chain, **call, method=method)


def test_chains_over_a_whole_vocabulary():
    call = chain_call(21, requests=1, slots=1, vocabulary=WIDE, dtype=torch.bfloat16)
    assert_same(verify_chain, **call, method="rejection")
    assert_same(verify_chain, **{**call, "draft": None}, method="race")


def at_the_threshold(op, call, accepted):
    """The call with requests whose uniform is as close to its threshold as float32 allows, five for each of the call.

    The logit of token 0 in row 0 is where the CPU backend begins to accept, and up to two ulps beside it.
    """
    count = len(call["target"])
    low, high = (torch.full((count,), x).view(torch.int32).clone() for x in (1e-3, 60.0))  # ordered as the floats are

    def with_logits(bits):
        target = call["target"].clone()
        target[:, 0, 0] = bits.view(torch.float32)
        return call | {"target": target}

    def accepts(bits):
        with specdec_kernels.backend("cpu"):
            return accepted(op(**with_logits(bits)))

    assert accepts(high).all()
    assert not accepts(low).any()
    while (high - low > 1).any():
        middle = low + (high - low) // 2
        yes = accepts(middle)
        high, low = torch.where(yes, middle, high), torch.where(yes, low, middle)
    calls = [with_logits(high + ulps) for ulps in range(-2, 3)]
    batched = ("draft_tokens", "target", "draft", "seed")
    return call | {
        name: None if call[name] is None else torch.cat([each[name] for each in calls]) for name in batched
    }  # fmt: skip


def assert_thresholds_are_the_same(op, call, accepted):
    expected, found = both(op, **at_the_threshold(op, call, accepted))
    yes = accepted(expected).view(5, -1)
    assert yes[2].all()
    assert not yes[1].any()
    assert all(torch.equal(e, f) for e, f in zip(expected, found, strict=True))


@pytest.mark.costly
@pytest.mark.parametrize("vocabulary, drafted", [(1100, True), (2100, False)])
def test_uniforms_at_the_threshold_fall_alike(vocabulary, drafted):
    generator = torch.Generator().manual_seed(16)
    target = torch.randn(4, 1, vocabulary, generator=generator).expand(-1, 2, -1)
    draft = torch.randn(4, 1, vocabulary, generator=generator) if drafted else None
    if drafted:
        draft[..., 0] = 7.0
    call = {"draft_tokens": torch.zeros(4, 1, dtype=torch.int64), "target": target, "draft": draft}
    call |= {"seed": seeds(4, 40), "position": 5}
    assert_thresholds_are_the_same(verify_chain, call, lambda verdict: verdict[1] == 1)


def test_many_slots_are_walked_in_chunks():
    call = chain_call(3, requests=1, slots=40, vocabulary=7)
    call["draft_tokens"], call["temperature"] = call["draft_tokens"].clamp(0, 6), 1.0
    assert_same(verify_chain, **call, method="rejection", epsilon=1.0)
    call["draft"] = None
    greedy = {**call, "draft_tokens": call["target"][:, :-1].argmax(-1), "temperature": 0.0}
    assert_same(verify_chain, **greedy, method="rejection")


def test_ragged_chains_and_their_bad_bounds():
    call = chain_call(5, requests=6, slots=4, vocabulary=40)
    packed = ragged(call, torch.tensor([4, 0, 1, 3, 0, 2]))
    for method in ("rejection", "block"):
        assert_same(verify_chain, **packed, method=method)
    slot_share = torch.linspace(0.2, 1.0, len(packed["draft_tokens"]))
    assert_same(verify_chain, **packed, method="rejection", draft_prob=slot_share)
    packed["packing.cu_drafts"][-1] = 99
    for method, draft in (("rejection", packed["draft"]), ("block", packed["draft"]), ("race", None)):
        assert_same(verify_chain, **{**packed, "draft": draft}, method=method)


def test_more_drafts_than_there_is_room_for():
    call = chain_call(5, requests=4, slots=3, vocabulary=8) | {"draft": None}
    packed = ragged(call, torch.tensor([3, 1, 0, 2]))
    assert_same(verify_chain, **packed, method="race", **{"packing.max_drafts": 1})


def test_parameters_out_of_range_are_reported():
    call = chain_call(6, requests=5, slots=2, vocabulary=20)
    call["temperature"] = torch.tensor([1.0, torch.nan, -1.0, torch.inf, 2.0**-130])
    share = torch.tensor([[-1.0, 0.5], [0.5, 2.0], [-1.0, 0.5], [torch.nan, 1.0], [1.0, 1.0]])
    call["draft_tokens"][0, 0] = (call["draft"] - call["target"][:, :-1])[0, 0].argmax()  # refused if -1 counts as 1
    epsilon = torch.tensor([0.0, -1.0, torch.nan, 5.0, 0.0])
    assert_same(verify_chain, **call, method="rejection", draft_prob=share, epsilon=epsilon)
    assert_same(verify_chain, **call, method="block")


@pytest.mark.costly
@pytest.mark.parametrize("space", ["logits", "probs"])
def test_bad_rows_count_only_where_they_decide(space):
    call = chain_call(8, requests=12, slots=3, vocabulary=70, space=space)
    call["temperature"] = 1.0
    for b, bad in enumerate((torch.nan, torch.inf, -torch.inf, -1.0)):
        call["target"][b, :, 5] = bad
        call["draft"][b + 4, :, 6] = bad
        call["target"][b + 8, 1] = bad
    call["draft"][3] = -torch.inf if space == "logits" else 0.0
    for method in ("rejection", "block"):
        assert_same(verify_chain, **call, method=method)
        assert_same(verify_chain, **{**call, "draft": None}, method=method)
    assert_same(verify_chain, **{**call, "draft": None}, method="race")


def test_requests_without_drafts_and_calls_without_requests():
    target = torch.randn(3, 1, 30, generator=torch.Generator().manual_seed(4))
    none = torch.zeros(3, 0, dtype=torch.int64)
    for draft in (None, target[:, :0]):
        assert_same(verify_chain, none, target, draft, seed=seeds(3), position=1)
    assert_same(verify_chain, none[:0], target[:0], None, seed=seeds(0), position=1)
    assert_same(race_sample, target[:0], seed=seeds(0)[:, None], position=1)


@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("sizes", [(1, 1), (70, 65), (4097, 4000)])
def test_residual_and_overlap(sizes, space):
    generator = torch.Generator().manual_seed(sizes[0])
    target, draft = (3 * torch.randn(2, 2, size, generator=generator) for size in sizes)
    if space == "probs":
        target, draft = target.softmax(-1), draft.softmax(-1)
    temperature = torch.tensor([[1.0, 0.0], [0.6, 2.0]])
    options = {"space": space, "temperature": temperature}
    for extra in ({}, {"draft_prob": 0.5}):
        assert_same(residual, target, draft, **options, **extra)
    for expected, found in zip(*both(overlap, target, draft, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
def test_results_do_not_depend_on_the_number_of_programs():
    call = chain_call(12, requests=2, slots=1, vocabulary=8200)
    assert_same(verify_chain, **call, method="rejection")
    assert_same(verify_chain, **call, method="block")
    assert_same(verify_chain, **{**call, "draft": None}, method="race")
    assert_same(race_sample, call["target"][:, 0], seed=call["seed"], position=0)


@pytest.mark.slow
def test_figures_do_not_depend_on_the_number_of_programs(monkeypatch):
    target, draft = on_device(torch.randn(2, 2, 8200, generator=torch.Generator().manual_seed(12)))
    with specdec_kernels.backend("triton"):
        expected = overlap(target, draft)
        for machine in (0, 10_000):
            monkeypatch.setattr(_launch, "multiprocessors", lambda device, machine=machine: machine)
            assert all(map(torch.equal, overlap(target, draft), expected))


def test_a_request_does_not_depend_on_its_neighbours():
    call = on_device(chain_call(13, requests=5, slots=3, vocabulary=300))
    with specdec_kernels.backend("triton"):
        together = verify_chain(**call, method="rejection")
        for b in range(5):
            alone = {k: v[b : b + 1] if isinstance(v, torch.Tensor) else v for k, v in call.items()}
            for one, all_ in zip(verify_chain(**alone, method="rejection"), together, strict=True):
                assert torch.equal(one[0], all_[b])


@pytest.mark.parametrize("op", [verify_chain, verify_tree])
def test_a_call_that_breaks_off_leaves_no_counters_behind(op, monkeypatch):
    call = chain_call(14, requests=3, slots=2, vocabulary=65)
    call = on_device(chain_as_tree(call) if op is verify_tree else call)
    launch = _launch.launch

    def only_the_first(kernel, grid, num_warps, arguments):
        if kernel.__name__.startswith("sample"):
            raise KeyboardInterrupt
        launch(kernel, grid, num_warps, arguments)

    with specdec_kernels.backend("triton"):
        expected = op(**call)
        with monkeypatch.context() as patch:
            patch.setattr(_launch, "launch", only_the_first)
            with pytest.raises(KeyboardInterrupt):
                op(**call)
        for one, other in zip(op(**call), expected, strict=True):
            assert torch.equal(one, other)


def test_launches(launched):
    """One for the race, for masks, positions and a cache of any number of layers; two for rejection, three at most."""
    call = on_device(chain_call(15, requests=2, slots=2, vocabulary=65))
    probs = {**call, "target": call["target"].softmax(-1), "draft": call["draft"].softmax(-1), "space": "probs"}
    row, other = call["target"][:, 0], call["draft"][:, 0]
    tree = chain_as_tree(call)
    layers = on_device([(torch.zeros(2, 2, 8, 4), torch.zeros(2, 2, 8, 4)) for _ in range(5)])
    path = on_device(path_of([0, 2], [0, 1]))

    def launches(op, *arguments, **options):
        launched.clear()
        op(*arguments, **options)
        return len(launched)

    with specdec_kernels.backend("triton"):
        assert launches(verify_chain, **{**call, "draft": None}, method="race") == 1
        assert launches(verify_chain, **call, method="rejection") == 2
        assert launches(verify_chain, **{**call, "temperature": 0.0}, method="rejection") == 1
        assert launches(verify_chain, **{**probs, "temperature": 1.0}, method="rejection") == 1
        assert launches(verify_chain, **call, method="block") == 3
        assert launches(verify_chain, **{**call, "temperature": 0.0}, method="block") == 1
        assert launches(verify_chain, **{**probs, "temperature": 1.0}, method="block") == 2
        assert launches(race_sample, row, seed=call["seed"], position=0) == 1
        assert launches(race_topk, row, 2, seed=call["seed"], position=0) == 1
        assert launches(residual, row, other) == 3
        assert launches(overlap, row, other) == 2
        assert launches(verify_tree, **tree) == 2
        assert launches(verify_tree, **tree | {"draft": None}) == 2
        assert launches(verify_tree, **tree | {"draft": None, "method": "race"}) == 1
        assert launches(verify_tree, **tree | {"temperature": 0.0}) == 1
        assert launches(verify_tree, **tree | {"method": "traversal"}) == 3
        assert launches(verify_tree, **tree | {"method": "traversal", "temperature": 0.0}) == 1
        assert launches(tree_mask, tree["parents"], prefix_len=3) == 1
        assert launches(tree_positions, tree["parents"], prefix_len=3) == 1
        assert launches(tree_parents, *on_device(torch.tensor([[[1, 2, -1]], [[-1, -1, -1]]]))) == 1
        assert launches(compact_kv, layers, path, prefix_len=1) == 1


def test_an_older_triton_is_refused_by_name(monkeypatch):
    from specdec_kernels.triton_kernels import _versions

    monkeypatch.setattr(_versions.triton, "__version__", "3.5.1")
    with pytest.raises(ImportError, match=r"expected 3\.6 or newer, got 3\.5\.1"):
        importlib.reload(_versions)


def in_a_fresh_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )  # fmt: skip


@pytest.mark.skipif(not INTERPRETED, reason="a GPU is here")
def test_without_gpu_and_interpreter_the_reason_is_given():
    code = "import specdec_kernels\nwith specdec_kernels.backend('triton'): pass"
    found = in_a_fresh_process(code, TRITON_INTERPRET="0")
    assert "TRITON_INTERPRET=1 before" in found.stderr


def test_the_bare_name_is_left_to_its_owner():
    found = in_a_fresh_process("import triton_kernels", PYTHONPATH=ROOT)
    assert "import specdec_kernels.triton_kernels, not triton_kernels" in found.stderr


@pytest.mark.parametrize("vocabulary, expected", [(1, (128, 1, 1)), (4096, (4096, 1, 4)), (WIDE, (4096, 32, 4))])
def test_tiles_depend_on_the_vocabulary_alone(vocabulary, expected):
    assert _launch.tile_of(vocabulary) == expected
