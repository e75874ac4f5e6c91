"""Triton's kernels with programs that take turns at their atomics, over weak memory; and faults that must be seen."""

import os

import pytest
import torch

pytest.importorskip("triton")
from tests.support.triton_device import INTERPRETED

if not INTERPRETED:
    pytest.skip("runs what the interpreter runs", allow_module_level=True)

from specdec_kernels.triton_kernels import _launch

import specdec_kernels
from specdec_kernels import OutputFormat, Sampling, compact_kv, cutoff, logprobs, race_sample, race_topk
from specdec_kernels.calls.op import OPS
from specdec_kernels.sharded._parts import count_at_least, mass_tiles, residual_race, residual_sums
from tests.support.calls import every_call, reads_rows
from tests.support.cases import chain_call, seeds
from tests.support.edits import random_edits
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.parts import edits_of
from tests.support.trees import tree_call
from tests.support.triton_machine import Race, interleaved, planted, small_tiles, sources

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# Each fault below shows in the first order. In the odd ones few programs take rows in turn, in the even ones many do.
SEEDS = [
    0,
    *(
        pytest.param(seed, marks=pytest.mark.slow)
        for seed in range(1, int(os.environ.get("SPECDEC_TRITON_SEEDS", "3")))
    ),
]
VOCABULARY = 300  # three tiles


def rows(seed, space="logits"):
    found = 2 * torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    return found if space == "logits" else found.softmax(-1)


CHAIN = chain_call(3, requests=2, slots=2, vocabulary=VOCABULARY) | {"temperature": torch.tensor([0.8, 0.0])}
TREE = tree_call(4, requests=2, nodes=5, vocabulary=VOCABULARY) | {"temperature": torch.tensor([0.7, 0.0])}
NOISE = {"seed": seeds(2, 9), "position": torch.arange(2), "temperature": torch.tensor([1.0, 0.0])}
RACE = {"draft": None, "method": "race"}
MOVED = {"cache": [torch.arange(3 * 64.0 * 40).reshape(1, 3, 64, 40)], "path": torch.tensor([[0, *range(2, 60)]]).int()}
SUMS = {
    "target": rows(0), "draft": rows(1), "row": torch.tensor([1, 0]).int(), "draft_row": torch.tensor([1, 1]).int(),
    "row_stats": torch.full((2, 4), 4.0), "subtracted": 0.9,
}  # fmt: skip
RESIDUAL = SUMS | {
    "row": torch.tensor([0, 1]).int(), "draft_row": torch.tensor([1, -1]).int(), "vocab_start": 0,
    "excluded": torch.tensor([-1, 3]).int(), "seed": seeds(2, 9), "position": 1,
}  # fmt: skip
CUT = {"cuts": torch.tensor([[0.2, 0.0, 0.9], [-0.1, 0.0, 1.0]]).view(torch.int32).repeat(2, 1, 1).view(2, 6)}
OF_ROWS = {"edits": edits_of(2, vocabulary=VOCABULARY, seed=4)}
FILTERS = Sampling(0.9, top_k=40, top_p=0.8, at_temperature=False)
FILTERED = {"temperature": None, "sampling": FILTERS}
SOME_COLD = FILTERED | {"sampling": FILTERS._replace(temperature=torch.tensor([0.9, 0.0]))}
PROBS = {"target": rows(0, "probs"), "draft": rows(1, "probs"), "space": "probs", "temperature": 1.0}
IN_ONE_ROW = {
    "output_format": OutputFormat(index=torch.arange(10).view(2, 5), zeros=True),
    "out": (torch.full((10,), -77), torch.full((2, 5), -77, dtype=torch.int32), None, None),
}  # fmt: skip


def edits(*slots, **options):
    return {"edits": random_edits(2, *slots, vocabulary=VOCABULARY, seed=1, **options)}


PLAIN = {
    "chain": (verify_chain, CHAIN),
    "tree": (verify_tree, TREE),
    "race_sample": (race_sample, {"target": rows(2)} | NOISE),
    "race_topk": (race_topk, {"draft": rows(2), "k": 3} | NOISE),
    "residual": (residual, {"target": rows(0), "draft": rows(1), "temperature": torch.tensor([0.7, 0.0])}),
    "overlap": (overlap, {"target": rows(0), "draft": rows(1), "temperature": torch.tensor([0.7, 0.0])}),
    "cutoff": (cutoff, {"rows": rows(3), "sampling": FILTERS}),
    "logprobs": (logprobs, {"rows": rows(3), "tokens": torch.tensor([7, 280]), "sampling": FILTERS, "top": 2}),
    "mass_tiles": (mass_tiles, {"rows": torch.cat([rows(2)] * 4, dim=-1)}),
    "residual_race": (residual_race, RESIDUAL),
    "residual_sums": (residual_sums, SUMS),
    "count_at_least": (count_at_least, {"rows": rows(0), "least": torch.tensor([0.5, -1.0])} | OF_ROWS),
    "compact_kv, a path over itself": (compact_kv, MOVED | {"prefix_len": 3}),
}
CHANGES = {  # of the call whose name comes first
    "chain, drafts at temperature 0": {"draft.sampling": Sampling(0.0)},
    **{f"{name}, race": RACE for name in ("chain", "tree")},
    **{f"{name}, one-hot": {"draft": None} for name in ("chain", "tree")},
    "chain, block": {"method": "block"},
    "tree, traversal": {"method": "traversal"},
    "tree, into one row of zeros": IN_ONE_ROW,
    **{f"{name} of probabilities": PROBS for name in ("residual", "overlap")},
    "cutoff, more than are listed": {"sampling": Sampling(top_k=280, top_p=0.9999, top_p_after=())},
    "mass_tiles, edited": {"rows": rows(2)} | OF_ROWS,
    "residual_race, cut": CUT,
    **{f"{name}, edited": CUT | OF_ROWS for name in ("residual_race", "residual_sums")},
    **{f"{name}, filtered": FILTERED for name in ("race_sample", "race_topk", "tree")},
    "race_sample, more than are listed": FILTERED | {"sampling": Sampling(top_k=280)},
    "race_topk, filtered, whose keys reach the list": FILTERED | {"k": 150, "sampling": Sampling(top_k=2)},
    "chain, filtered": FILTERED | {"draft.sampling": FILTERS},
    "chain, filtered, one request at temperature 0": SOME_COLD,
    "tree, filtered, one request at temperature 0": SOME_COLD | {"draft.sampling": FILTERS},
    "tree, traversal, filtered": SOME_COLD | {"method": "traversal"},
    **{f"{name}, race, filtered": RACE | FILTERED for name in ("chain", "tree")},
    "race_sample, edited": edits(),
    "chain, edited": edits(3),
    "chain, race, edited": RACE | edits(3),
    "tree, edited": edits(5),
    "tree, race, edited": RACE | edits(5, bias_by_row=True),
}
CALLS = dict(PLAIN)
for name, options in CHANGES.items():
    op, call = PLAIN[name.replace(",", "").split()[0]]
    CALLS[name] = op, call | options
# What reads no rows, as the ops' own tests call it.
CALLS = {name: call for name, call in every_call().items() if not reads_rows(call[0].__name__)} | CALLS
WITH_STATUS = (race_sample, race_topk, residual, overlap, cutoff, logprobs)


def results(name):
    """All that a call of the Triton backend writes; its counters must end at zero."""
    op, call = CALLS[name]
    if op in WITH_STATUS:
        call = call | {"status": torch.full((2,), -77, dtype=torch.int32)}
    if "output_format" in call:
        call = call | {"out": tuple(x if x is None else x.clone() for x in call["out"])}
    if op is compact_kv:
        call = call | {"cache": [layer.clone() for layer in call["cache"]]}
    with specdec_kernels.backend("triton"):
        found = op(**call)
    for counters, _ in _launch._workspaces.__dict__.values():
        assert not counters.any()
    found = (found,) if isinstance(found, torch.Tensor) else tuple(x for x in found or () if x is not None)
    return [*found, *call.get("cache", ()), *([call["status"]] if "status" in call else [])]


def test_every_op_is_called():
    assert {op.__name__ for op, _ in CALLS.values()} == set(OPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_the_order_of_programs(name, seed, monkeypatch):
    with small_tiles():
        expected = results(name)
        monkeypatch.setattr(_launch, "multiprocessors", lambda device: (100, 1)[seed % 2])
        with interleaved(seed):
            for one, other in zip(results(name), expected, strict=True):
                assert torch.equal(one, other)


TICKET = 'tl.atomic_add(ticket, done, sem="acq_rel")'
FRONT = 'tl.atomic_max(walk.request + FRONT, 0, sem="relaxed")'
WITHOUT_BARRIER = [  # (module, function, call)
    ("_rows", "is_last", "overlap"),
    ("_rows", "finish_row", "chain, drafts at temperature 0"),
    ("_pairs", "status_of_pair", "overlap"),
    ("_filters", "list_tokens", "cutoff"),
    ("_filters", "open_cells", "cutoff"),
    ("_filters", "measure", "cutoff, more than are listed"),
    ("_cuts", "cut_row", "cutoff, more than are listed"),
    ("_cuts", "scan_row", "chain, filtered"),
    ("_cuts", "cut_one", "logprobs"),
    ("compact_kv", "compact_kv_kernel", "compact_kv, a path over itself"),
    ("tree_parents", "settle", "tree_parents"),
    ("_filtered_races", "search_row", "race_sample, more than are listed"),
    ("verify_linked_tree", "verify_linked_tree_kernel", "verify_linked_tree by uniforms"),
    ("race_topk", "store_list", "race_topk, filtered, whose keys reach the list"),
    ("race_topk", "filtered_topk_kernel", "race_topk, filtered"),
    ("_rows", "clear", "chain, race"),
    ("_rows", "clear_record", "cutoff"),
    ("_rows", "clear_record", "residual_race"),
    ("_sample_tree", "sample_tree_kernel", "tree"),
    ("_verdict", "clear_off_path", "tree, into one row of zeros"),
]
# Between plain stores and atomics of one warp. The machine takes the threads of a warp for one.
UNSEEN = [("count_tokens", "count_tokens_kernel")] * 2 + [("tree_parents", "tree_parents_kernel")] * 6
UNSEEN += [("build_tree", "build_tree_kernel")] * 2
FAULTS = [
    (module, name, *((" barrier()", " pass") if module == "_rows" else ("_rows.barrier()", "pass")), call)
    for module, name, call in WITHOUT_BARRIER
] + [
    ("_rows", "is_last", TICKET, 'tl.atomic_add(ticket, done, sem="relaxed")', "race_sample"),
    ("_rows", "is_last", TICKET, 'tl.atomic_add(ticket, done, sem="acq_rel", scope="cta")', "race_sample"),
    ("_rows", "is_last", TICKET, 'tl.atomic_add(ticket, done, sem="release")', "overlap"),
    ("_rows", "is_last", TICKET, 'tl.atomic_add(ticket, done, sem="acquire")', "overlap"),
    ("_races", "exchange_best", 'tl.atomic_max(key, best, sem="relaxed")', "tl.load(key)", "chain, race"),
    ("_tree_walk", "front_of", FRONT, "tl.load(walk.request + FRONT)", "tree, race"),
    ("_tree_walk", "front_of", FRONT, "tl.load(walk.request + FRONT)", "tree, filtered"),
    (
        "_filtered_trees",
        "cut_tree_kernel",
        "_rows.is_last(record + _tree_walk.PAIR, sides, done)",
        "done > 0",
        "tree, filtered, one request at temperature 0",
    ),
]


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("module, name, text, other, call", FAULTS)
def test_faults_are_seen(module, name, text, other, call, seed):
    """Whatever the order of programs: clocks see what might have happened."""
    with small_tiles(), planted(module, name, text, other), interleaved(seed), pytest.raises(Race):
        results(call)
    _launch._workspaces.__dict__.clear()


def test_every_barrier_is_needed():
    found = [where for where in sources("barrier()") if where != ("_rows", "barrier")]
    assert sorted(found) == sorted([*{(module, name) for module, name, _ in WITHOUT_BARRIER}, *UNSEEN])


@pytest.mark.parametrize("text, other", [(" barrier()", " pass"), ('sem="acq_rel"', 'sem="relaxed"')])
def test_memory_is_weak(text, other):
    """Without the clocks, too, such faults show: what other programs stored is not there yet."""
    with small_tiles():
        expected = results("overlap")
        with planted("_rows", "is_last", text, other):
            wrong = 0
            for seed in range(3):
                with interleaved(seed, clocks=False):
                    wrong += not all(map(torch.equal, results("overlap"), expected))
    assert wrong
