"""Cuts in Triton against the CPU backend's, in all figures."""

import pytest
import torch
from torch.utils._pytree import tree_map_only

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _filters, _launch

import specdec_kernels
from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from tests.backends.test_triton_ops import assert_near, assert_same, untouched
from tests.support.cases import DTYPES, chain_call, ragged, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call
from tests.support.triton_device import DEVICE
from tests.support.triton_machine import planted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LISTED = _filters.LISTED.value


def assert_same_cut(rows, sampling):
    assert_same(cutoff, rows, sampling=sampling, status=untouched(*rows.shape[:-1]))


def rows_of(count, vocabulary, seed=0):
    return 2 * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed))


def numbers(*each):
    """A Sampling of tensors, a row for each (top_k, top_p, min_p)."""
    top_k, top_p, min_p = zip(*each, strict=True)
    return Sampling(0.8, torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


SOME = numbers((0, 1.0, 0.0), (4, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (9, 0.7, 0.0), (9, 0.85, 0.03))
AFTER = [(), ("top_k",), ("min_p",), ("top_k", "min_p")]


@pytest.mark.parametrize("ties", ["first", "all"])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_every_order_and_tie(after, ties):
    rows = (rows_of(6, 70).round() / 4).to(DTYPES[len(after)])
    assert_same_cut(rows, SOME._replace(top_p_after=after, ties=ties))


def test_filters_before_the_temperature():
    rows = rows_of(3, 70)
    assert_same_cut(rows, numbers((4, 0.9, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1))._replace(at_temperature=False))


@pytest.mark.parametrize("size", [1, 63, 128, 129, 1025, 4097])
def test_sizes(size):
    assert_same_cut(rows_of(6, size, seed=size), SOME)


@pytest.mark.parametrize("open_tokens", [LISTED, LISTED + 1])
def test_lists_that_are_full_and_one_over(open_tokens):
    rows = torch.full((3, 2500), -3.0)
    rows[:, torch.randperm(2500, generator=torch.Generator().manual_seed(1))[:open_tokens]] = 1.0
    assert_same_cut(rows, numbers((0, 1.0, 0.05), (1500, 0.5, 0.5), (0, 0.4, 0.0)))


def test_rows_that_no_list_holds():
    rows = torch.stack([rows_of(1, 2600)[0].round(), torch.zeros(2600)])
    assert_same_cut(rows, numbers((2400, 0.97, 0.0), (2500, 1.0, 0.9)))


@pytest.mark.usefixtures("programs")
def test_cuts_do_not_depend_on_the_number_of_programs():
    assert_same_cut(rows_of(2, 8200), numbers((50, 0.9, 0.0), (0, 0.3, 0.0))._replace(top_p_after=()))


FAULTS = {
    "a bracket one key too high": ("find_cut", "first, end, most, limit)", "first, end, most, limit) + 1"),
    "as much mass as is asked for": ("mass_limit", "low).to(tl.int64), 1)", "low).to(tl.int64), 1) + 1"),
    "no tie too few": ("count_ties", "ties = tl.minimum(most, equal)", "ties = equal"),
}


@pytest.mark.skipif(DEVICE != "cpu", reason="planted in the interpreter")
@pytest.mark.parametrize("name, text, other", FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_caught(name, text, other):
    row = torch.tensor([[-torch.inf, 0.0, 0.0, -1.0]])

    def check():
        assert_same_cut(row, Sampling(top_p=0.4223))
        assert_same_cut(row, Sampling(top_k=1))
        assert_same_cut(row[:, :3], Sampling(top_p=0.5))

    check()
    with planted("_filters", name, text, other), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    "kind, launches",
    [
        ("race_sample", 1), ("race_topk", 1), ("race", 1), ("one-hot", 2), ("both", 2), ("cutoff", 1),
        ("tree, race", 1), ("tree, rejection", 2), ("tree, traversal", 3),
    ],
)  # fmt: skip
def test_launches_and_memory_of_large_batches(kind, launches, monkeypatch):
    """As filters.md has it: below 2 MiB for 256 requests of a chain of four drafts, on 132 multiprocessors."""
    requests, drafts, vocabulary = 256, 4, 128_256
    row = torch.empty(1, 1, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    target, draft = row.expand(requests, drafts + 1, -1), row.expand(requests, drafts, -1)
    tokens = torch.zeros(requests, drafts, dtype=torch.int64, device=DEVICE)
    options = {"sampling": Sampling(top_k=50, top_p=0.9), "seed": torch.arange(requests, device=DEVICE), "position": 0}
    launched = []
    monkeypatch.setattr(_launch, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(_launch, "launch", lambda *arguments: launched.append(arguments))
    _launch._workspaces.__dict__.clear()
    with specdec_kernels.backend("triton"):
        if kind == "cutoff":
            cutoff(target[:, 0], sampling=options["sampling"])
        elif kind == "race_sample":
            race_sample(target[:, 0], **options)
        elif kind == "race_topk":
            race_topk(target[:, 0], 4, **options)
        elif kind.startswith("tree"):
            nodes, parents = tokens[:, :1].expand(-1, drafts + 1), torch.arange(-1, drafts, device=DEVICE)
            method = kind.removeprefix("tree, ")
            if method != "race":
                options |= {"draft": target, "draft.sampling": options["sampling"]}
            verify_tree(nodes, target, parents=parents, method=method, **options)
        elif kind == "both":
            verify_chain(tokens, target, draft, **{"draft.sampling": options["sampling"]}, **options)
        else:
            verify_chain(tokens, target, method="race" if kind == "race" else "rejection", **options)
    assert len(launched) == launches
    (found,) = _launch._workspaces.__dict__.values()
    assert sum(part.numel() * part.element_size() for part in found) < 2**21
    _launch._workspaces.__dict__.clear()


def test_a_launch_more_where_tickets_order_no_stores(monkeypatch):
    """As on AMD GPUs."""
    monkeypatch.setattr(_launch, "TICKETS_ORDER_STORES", False)
    rows = rows_of(6, 1100)
    assert_same_cut(rows, SOME)
    options = {"seed": seeds(6), "position": 3, "sampling": SOME}
    assert_same(race_sample, rows, **options)
    assert_same(verify_chain, rows.argmax(-1)[:, None], rows[:, None].expand(-1, 2, -1), method="race", **options)


RULES = [
    {"top_p_after": after, "ties": ties, "at_temperature": at_temperature}
    for after, ties, at_temperature in (
        ((), "first", False),
        (("top_k", "min_p"), "all", True),
        (("top_k",), "all", False),
    )
]


def mixed(requests, shift=0, **rules):
    """A Sampling of tensors: all kinds of filters, none, temperature 0, numbers out of range."""
    of = torch.arange(requests) + shift
    return Sampling(
        torch.tensor([0.8, 1.3, 0.0, 1.0, 2.5])[of % 5],
        torch.tensor([0, 4, 0, 0, 9, 1, 12])[of % 7],
        torch.tensor([1.0, 1.0, 0.8, 0.9, torch.nan, 0.4])[of % 6],
        torch.tensor([0.0, 0.02, 0.0, 0.1])[of % 4],
        **rules,
    )


def on_grid(call):
    """The call with logits that tie, a NaN, and a row of a target without weight."""
    call = {name: value for name, value in call.items() if name != "temperature"}
    for name in ("target", "draft"):
        if call[name] is not None:
            call[name] = (4 * call[name]).round() / 4
            call[name][3, 1, 7] = torch.nan
    call["target"][5, 0] = -torch.inf
    return call


@pytest.mark.costly
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_races(rules):
    rows = on_grid({"target": rows_of(20, 70).view(10, 2, 70), "draft": None})["target"].view(20, 70)
    options = {"seed": seeds(20), "position": 3, "sampling": mixed(20, **rules)}
    map_ = torch.arange(70, dtype=torch.int32) * 3 + 1
    for op, arguments in ((race_sample, ()), (race_topk, (14,))):
        for draft_map in (None, map_):
            assert_same(op, rows, *arguments, **options, draft_map=draft_map, status=untouched(20))


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_races_over_more_tokens_than_a_list_holds(temperature):
    rows = (rows_of(3, 700) / 20).repeat_interleave(5, 0)
    sampling = Sampling(temperature, top_k=torch.tensor([LISTED + 1, 600, 0] * 5), top_p=0.99, top_p_after=())
    for draft_map in (None, torch.arange(700, dtype=torch.int32) * 2 + 1):
        assert_same(race_sample, rows, sampling=sampling, draft_map=draft_map, seed=seeds(15), position=3)


@pytest.mark.parametrize(
    "kind, rules",
    zip(("race", "rejection", "one-hot", "ragged", "mapped", "block"), RULES + RULES, strict=True),
)
def test_chains(kind, rules):
    call = on_grid(
        chain_call(3, requests=12, slots=2, vocabulary=70, draft_vocabulary=50 if kind == "mapped" else None)
    )
    options = {"sampling": mixed(12, **rules), "epsilon": 0.2 * (torch.arange(12) % 3 == 0)}
    if kind == "race":
        call, options = call | {"draft": None, "method": "race"}, {"sampling": options["sampling"]}
    elif kind == "one-hot":
        call["draft"] = None
    else:
        options["draft.sampling"] = mixed(12, 1, **rules)
    if kind == "block":
        call["method"] = kind
        del options["epsilon"]
    if kind == "mapped":
        options["draft.map"] = torch.arange(50, dtype=torch.int32) + 5
    if kind == "ragged":
        call = ragged(call, torch.arange(12) % 3)
    assert_same(verify_chain, **call, **options)


TREES = ("race", "rejection", "replacement", "one-hot", "traversal", "mapped", "of the target", "of the draft", "probs")


@pytest.mark.costly
@pytest.mark.parametrize("kind, rules", zip(TREES, 3 * RULES, strict=True))
@pytest.mark.parametrize("tickets", [True, False], ids=["", "tickets order no stores"])
def test_trees(kind, rules, tickets, monkeypatch):
    monkeypatch.setattr(_launch, "TICKETS_ORDER_STORES", tickets)
    call = on_grid(tree_call(3, requests=10, nodes=5, vocabulary=70, replacement=kind == "replacement"))
    options = {"sampling": mixed(10, **rules), "draft.sampling": mixed(10, 1, **rules), "max_depth": 3}
    if kind in ("race", "one-hot", "of the target"):
        del options["draft.sampling"]
    if kind in ("race", "one-hot"):
        call["draft"] = None
    if kind in ("race", "traversal"):
        call["method"] = kind
    if kind == "of the draft":
        options["sampling"] = Sampling(options["sampling"].temperature)
    if kind == "mapped":
        call["draft"], options["draft.map"] = call["draft"][..., :50], torch.arange(50, dtype=torch.int32) + 5
    if kind == "probs":
        call["draft"] = call["draft"].softmax(-1)
        options["draft.space"] = "probs"
        del options["draft.sampling"]
    assert_same(verify_tree, **call, **options)


def test_pairs():
    rules = RULES[0]
    call = on_grid({"target": rows_of(20, 70).view(10, 2, 70), "draft": rows_of(20, 70, 1).view(10, 2, 70)})
    options = {"sampling": mixed(10, **rules), "draft.sampling": mixed(10, 1, **rules)}
    options = tree_map_only(torch.Tensor, lambda x: x[:, None], options)
    for op in (overlap, residual):
        assert_near(op, call["target"], call["draft"], **options, status=untouched(10, 2))


def test_requests_by_index():
    index = torch.tensor([1, 0, 2, -1, 7], dtype=torch.int32)
    options = {"seed": seeds(3), "position": 0, "sampling": mixed(3, 1)}
    assert_same(race_sample, rows_of(5, 70), **options, request_index=index, status=untouched(5))


@pytest.mark.costly
@pytest.mark.parametrize("top", [0, 5])
def test_logprobs(top):
    rows = on_grid({"target": rows_of(20, 70).view(10, 2, 70), "draft": None})["target"].view(20, 70)
    rows[6, 3:] = -torch.inf
    tokens = rows.nan_to_num(-9.0).argsort(-1, descending=True)[torch.arange(20), torch.arange(20) % 4]
    tokens[[1, 4, 9]] = torch.tensor([-1, 70, -2])
    for sampling in (Sampling(), *(mixed(20, **rules) for rules in RULES)):
        assert_same(logprobs, rows, tokens, sampling=sampling, top=top, status=untouched(20))


def test_logprobs_over_several_tiles():
    rows = rows_of(2, 8300)
    for sampling in (None, Sampling(top_k=50, top_p=0.9)):
        assert_same(logprobs, rows, rows.argsort(-1)[:, -7], sampling=sampling, top=9)
