"""The Triton backend against the CPU's, over sizes that its interpreter can take: what random calls lack."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _filters, _launch

from specdec_kernels import (
    Sampling,
    compact_kv,
    cutoff,
    logprobs,
    race_sample,
    race_topk,
    tree_mask,
    tree_parents,
    tree_positions,
)
from tests.ops.test_compact_kv import path_of
from tests.ops.test_verify_tree import OPTIONS, made
from tests.support.cases import (
    adversarial_rows,
    beside_threshold,
    chain_as_tree,
    chain_call,
    seeds,
)
from tests.support.large_batches import edited, filtered, large_batches
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.same_bits import assert_as_by_baseline, assert_as_cpu, random_calls
from tests.support.triton_device import INTERPRETED

# Infinities meet in bounds, on purpose: no arithmetic with NaN ever passes one.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("triton")]
ROOT = str(Path(__file__).parents[2])
SIZES = (1, 2, 7, 63, 64, 65, 128, 129, 4095, 4096, 4097)
WIDE = 128_256
LISTED = _filters.LISTED.value
RACE = {"method": "race", "draft": None}


def normal(*shape, seed=0):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("size, space", [*((size, "logits") for size in SIZES), (65, "probs"), (4097, "probs")])
def test_race_of_rows_made_to_fail(size, space):
    rows = torch.stack(list(adversarial_rows(size).values())[:: 2 if size == 4095 else 1])
    if space == "probs":
        rows = torch.where(rows.isnan(), rows, rows.exp())
    options = {"position": 2**31 - 1, "nonce": 7, "space": space}
    assert_as_cpu(race_sample, rows, temperature=1.0, seed=seeds(len(rows), 5), **options)
    few, temperature = rows[::4], torch.tensor([1.0, 0.3, 0.0] * 3)[: len(rows[::4])]
    assert_as_cpu(race_topk, few, min(3, size), temperature=temperature, seed=seeds(len(few)), **options)


def test_race_of_a_whole_vocabulary():
    row = normal(1, WIDE, seed=2).bfloat16()
    for temperature in (1.0, 0.0):
        assert_as_cpu(race_sample, row, seed=11, position=2**40, temperature=temperature)


def test_chains_over_a_whole_vocabulary():
    call = chain_call(21, requests=1, slots=1, vocabulary=WIDE, dtype=torch.bfloat16)
    for options in ({}, RACE):
        assert_as_cpu(verify_chain, **call | options)


WIDE_MAP = (torch.arange(4000) * 2 + torch.arange(4000) // 1300 + 1).int()  # up to 8,002


def several_tiles():
    """name -> (op, arguments) of rows that are several tiles wide, also those of their draft."""
    sizes = {"requests": 4, "vocabulary": 8200, "draft_vocabulary": 5000, "dtype": torch.bfloat16}
    for method in ("rejection", "block"):
        yield f"chain, {method}", verify_chain, chain_call(9, slots=2, **sizes) | {"method": method}
    for name, options in OPTIONS.items():
        yield f"tree, {name}", verify_tree, made(31, options, nodes=5, **sizes)
    mapped = chain_call(5, requests=2, slots=3, vocabulary=8200, draft_vocabulary=4000) | {"draft.map": WIDE_MAP}
    mapped["draft_tokens"] = WIDE_MAP[torch.randint(0, 4000, (2, 3), generator=torch.Generator().manual_seed(5))].long()
    yield "chain, mapped", verify_chain, mapped
    rows = normal(2, 8300)
    for name, sampling in (("plain", None), ("filtered", Sampling(top_k=50, top_p=0.9))):
        tokens = rows.argsort(-1)[:, -7]
        yield f"logprobs, {name}", logprobs, {"rows": rows, "tokens": tokens, "sampling": sampling, "top": 9}
        yield f"cutoff, {name}", cutoff, {"rows": rows[:, :4097], "sampling": sampling}
        for op in (residual, overlap):
            pair = {"target": rows[:, :4097], "draft": rows[:, 4097:8097], "sampling": sampling}
            yield f"{op.__name__}, {name}", op, pair
    noise = {"draft_map": WIDE_MAP, "seed": seeds(2, 7), "position": 9}
    for space, own in (("logits", rows[:, :4000]), ("probs", rows[:, :4000].softmax(-1))):
        yield f"race_sample, mapped {space}", race_sample, {"target": own, "space": space} | noise
        yield f"race_topk, mapped {space}", race_topk, {"draft": own, "space": space, "k": 3} | noise


SEVERAL_TILES = {name: call for name, *call in several_tiles()}


@pytest.mark.costly
@pytest.mark.parametrize("name", SEVERAL_TILES)
def test_rows_of_several_tiles(name):
    op, call = SEVERAL_TILES[name]
    assert_as_cpu(op, **call)


# ---- chains ---------------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("vocabulary, drafted", [(1100, True), (2100, False)])
def test_uniforms_at_the_threshold_fall_alike(vocabulary, drafted):
    """The logit of token 0 is where the CPU backend begins to accept, or one unit in the last place below."""
    generator = torch.Generator().manual_seed(16)
    target, draft = (torch.randn(4, 1, vocabulary, generator=generator) for _ in range(2))
    draft[..., 0] = 7.0
    call = {"draft_tokens": torch.zeros(4, 1, dtype=torch.int64), "target": target.repeat(1, 2, 1)}
    call |= {"draft": draft if drafted else None, "seed": seeds(4, 40), "position": 5}
    accepted = lambda verdict: verdict.num_accepted == 1  # noqa: E731
    for yes, one in enumerate(beside_threshold(verify_chain, call, "target", (slice(None), 0, 0), accepted, 60.0)):
        assert (accepted(verify_chain(**one)) == bool(yes)).all()
        assert_as_cpu(verify_chain, **one)


def test_many_slots_are_walked_in_chunks():
    call = chain_call(3, requests=1, slots=40, vocabulary=7)
    call["draft_tokens"], call["temperature"] = call["draft_tokens"].clamp(0, 6), 1.0
    assert_as_cpu(verify_chain, **call, epsilon=1.0)
    greedy = {"draft": None, "draft_tokens": call["target"][:, :-1].argmax(-1), "temperature": 0.0}
    assert_as_cpu(verify_chain, **call | greedy)


def test_parameters_out_of_range_are_reported():
    call = chain_call(6, requests=5, slots=2, vocabulary=20)
    call["temperature"] = torch.tensor([1.0, torch.nan, -1.0, torch.inf, 2.0**-130])
    share = torch.tensor([[-1.0, 0.5], [0.5, 2.0], [-1.0, 0.5], [torch.nan, 1.0], [1.0, 1.0]])
    call["draft_tokens"][0, 0] = (call["draft"] - call["target"][:, :-1])[0, 0].argmax()  # refused if -1 counts as 1
    epsilon = torch.tensor([0.0, -1.0, torch.nan, 5.0, 0.0])
    assert_as_cpu(verify_chain, **call, draft_prob=share, epsilon=epsilon)
    assert_as_cpu(verify_chain, **call, method="block")


# ---- filters and edits ----------------------------------------------------------------------------------------------


def of_each(*numbers):
    """A Sampling of tensors, a row for each (top_k, top_p, min_p)."""
    top_k, top_p, min_p = zip(*numbers, strict=True)
    return Sampling(0.8, torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


@pytest.mark.parametrize("open_tokens", [LISTED, LISTED + 1])
def test_lists_that_are_full_and_one_over(open_tokens):
    rows = torch.full((3, 2500), -3.0)
    rows[:, torch.randperm(2500, generator=torch.Generator().manual_seed(1))[:open_tokens]] = 1.0
    assert_as_cpu(cutoff, rows, sampling=of_each((0, 1.0, 0.05), (1500, 0.5, 0.5), (0, 0.4, 0.0)))


def test_rows_that_no_list_holds():
    rows = torch.stack([normal(2600).round(), torch.zeros(2600)])
    assert_as_cpu(cutoff, rows, sampling=of_each((2400, 0.97, 0.0), (2500, 1.0, 0.9)))


def test_cuts_among_equal_tokens():
    row = torch.tensor([[-torch.inf, 0.0, 0.0, -1.0]])
    for rows, sampling in ((row, Sampling(top_p=0.4223)), (row, Sampling(top_k=1)), (row[:, :3], Sampling(top_p=0.5))):
        assert_as_cpu(cutoff, rows, sampling=sampling)


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_races_over_more_tokens_than_a_list_holds(temperature):
    rows = (normal(3, 700) / 20).repeat_interleave(5, 0)
    sampling = Sampling(temperature, top_k=torch.tensor([LISTED + 1, 600, 0] * 5), top_p=0.99, top_p_after=())
    for draft_map in (None, torch.arange(700, dtype=torch.int32) * 2 + 1):
        assert_as_cpu(race_sample, rows, sampling=sampling, draft_map=draft_map, seed=seeds(15), position=3)


def test_a_launch_more_where_tickets_order_no_stores(monkeypatch):
    """As on AMD GPUs."""
    monkeypatch.setattr(_launch, "TICKETS_ORDER_STORES", False)
    assert_as_by_baseline([call for call in random_calls(range(20), 70) if "sampling" in call[2]])


# ---- programs and launches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [verify_chain, verify_tree])
def test_a_call_that_breaks_off_leaves_no_counters_behind(op, monkeypatch):
    call = chain_call(14, requests=3, slots=2, vocabulary=65)
    call = chain_as_tree(call) if op is verify_tree else call
    launch = _launch.launch

    def only_the_first(kernel, grid, num_warps, arguments):
        if kernel.__name__.startswith("sample"):
            raise KeyboardInterrupt
        launch(kernel, grid, num_warps, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_launch, "launch", only_the_first)
        with pytest.raises(KeyboardInterrupt):
            op(**call)
    assert_as_cpu(op, **call)


# How many a call takes, and one on probabilities.
LAUNCHES = {
    "chain": (2, 1), "chain, one-hot": (2, 1), "chain, race": (1, 1), "chain, block": (3, 2), "tree": (2, 2),
    "tree, one-hot": (2, 2), "tree, race": (1, 1), "tree, traversal": (3, 2), "race_sample": (1, 1),
    "race_topk": (1, 1), "cutoff": (1, None), "logprobs": (2, None), "residual": (3, 2), "overlap": (2, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_and_memory_of_large_batches(name, monkeypatch):
    """As filters.md has it: below 2 MiB for filters on 132 multiprocessors. Edits take no more of either."""
    launched = []
    monkeypatch.setattr(_launch, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(_launch, "launch", lambda *arguments: launched.append(arguments))

    def taken(call):
        launched.clear()
        _launch._workspaces.__dict__.clear()
        op(**call)
        parts = [part for parts in _launch._workspaces.__dict__.values() for part in parts]
        _launch._workspaces.__dict__.clear()
        return len(launched), sum(part.numel() * part.element_size() for part in parts)

    (op, call), (launches, of_probs) = large_batches(256, WIDE)[name], LAUNCHES[name]
    for one in (call, filtered(op, call)):
        count, memory = taken(one)
        assert count == launches
        assert name in ("race_topk", "logprobs") or taken(edited(op, one)) == (count, memory)
    assert memory < 2**21 or name in ("logprobs", "residual", "overlap")
    if of_probs:
        assert taken(call | {"space": "probs"})[0] == of_probs
    if name.startswith(("chain", "tree")):
        assert taken(call | {"temperature": 0.0})[0] == 1


def test_launches_of_small_ops(launched):
    parents = torch.tensor([-1, 0, 1])
    layers = [(torch.zeros(2, 2, 8, 4), torch.zeros(2, 2, 8, 4)) for _ in range(5)]
    tree_mask(parents, prefix_len=3)
    tree_positions(parents, prefix_len=3)
    tree_parents(*torch.tensor([[[1, 2, -1]], [[-1, -1, -1]]]))
    compact_kv(layers, path_of([0, 2], [0, 1]), prefix_len=1)
    assert len(launched) == 4


# ---- the package ----------------------------------------------------------------------------------------------------


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
