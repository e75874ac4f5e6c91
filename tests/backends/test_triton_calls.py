"""Calls of the Triton backend with optional arguments: a law for each side, requests by index, mapped drafts."""

import pytest
import torch

pytest.importorskip("triton")

import specdec_kernels
from specdec_kernels import Sampling, race_sample, race_topk
from tests.backends.test_triton_ops import on_device, results, untouched
from tests.support.cases import chain_call, seeds
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import tree_call

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
INDEX = torch.tensor([3, -1, 0, 7, 3, -2], dtype=torch.int32)  # of five entries
LIVE = [0, 2, 4]
OUTSIDE, IDLE = [3, 5], 1


def with_status(op, call):
    rows = call.get("target", call.get("draft"))
    return call if op in (verify_chain, verify_tree) else call | {"status": untouched(*rows.shape[:-1])}


def triton(op, **call):
    """The parts of a result, on the CPU; an optional status among them."""
    with specdec_kernels.backend("triton"):
        return results(op, (), on_device(with_status(op, call)))


def oracle(op, **call):
    with specdec_kernels.backend("reference"):
        return results(op, (), with_status(op, call))


def rows_of(*shape, seed=0):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def temperatures(*values):
    return torch.tensor(values)


CHAIN = chain_call(3, requests=5, slots=3, vocabulary=70) | {
    "temperature": temperatures(1.0, 0.5, 0.8, 0.0, 1.2), "position": torch.arange(5) + 2**31, "nonce": torch.arange(5),
}  # fmt: skip
TREE = tree_call(4, requests=5, nodes=6, vocabulary=70) | {"temperature": temperatures(0.7, 1.0, 0.0, 1.1, 0.6)}
ROWS = {"seed": seeds(5, 9), "position": torch.arange(5), "temperature": temperatures(1.0, 0.5, 0.8, 0.0, 1.2)}
PAIR = {"draft": rows_of(5, 66, seed=8), "draft_prob": torch.linspace(0.2, 1.0, 5)}
# op -> (what there is an entry of, what there is of each batch row)
CALLS = {
    "chain": (verify_chain, CHAIN, ("draft_tokens", "target")),
    "race of a chain": (verify_chain, CHAIN | {"draft": None, "method": "race"}, ("draft_tokens", "target")),
    "block": (verify_chain, CHAIN | {"method": "block"}, ("draft_tokens", "target")),
    "tree": (verify_tree, TREE, ("draft_tokens", "target")),
    "traversal": (verify_tree, TREE | {"method": "traversal"}, ("draft_tokens", "target")),
    "race of a tree": (verify_tree, TREE | {"draft": None, "method": "race"}, ("draft_tokens", "target")),
    "race_sample": (race_sample, {"target": rows_of(5, 70)} | ROWS, ("target",)),
    "race_topk": (race_topk, {"draft": rows_of(5, 70), "k": 3} | ROWS, ("draft",)),
    "residual": (residual, {"target": rows_of(5, 70), "temperature": ROWS["temperature"]} | PAIR, ("target",)),
    "overlap": (
        overlap,
        {"target": rows_of(5, 70), "temperature": ROWS["temperature"], "draft": PAIR["draft"]},
        ("target",),
    ),
}
EACH = pytest.mark.parametrize("op, call, by_row", CALLS.values(), ids=CALLS)


@EACH
def test_entries_are_used_as_if_they_were_gathered(op, call, by_row):
    at = INDEX.clamp(0, 4).long()
    batch = {name: call[name][at] for name in by_row}
    shared = {name: value for name, value in call.items() if not isinstance(value, torch.Tensor) or value.ndim == 0}
    per_entry = {name: value for name, value in call.items() if name not in batch and name not in shared}
    if "parents" in per_entry:  # by batch row where it is not one tree for all
        batch["parents"] = per_entry.pop("parents")
        if batch["parents"].ndim == 2:
            batch["parents"] = batch["parents"][at]
    gathered = {name: value[at] for name, value in per_entry.items()}
    expected = triton(op, **batch, **shared, **gathered)
    found = triton(op, **batch, **shared, **per_entry, request_index=INDEX)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[LIVE], other[LIVE])
    assert found[-1][IDLE].tolist() == 0
    assert found[-1][OUTSIDE].tolist() == [8, 8]
    if op in (residual, overlap):
        assert all((part[[IDLE, *OUTSIDE]] == 0).all() for part in found[:-1])
        return
    *outputs, _ = found
    for part in outputs:
        assert (part[IDLE] == -1).all()
        for b in OUTSIDE:
            assert part[b].flatten().tolist() == [0, *[-1] * (part[b].numel() - 1)]


@pytest.mark.parametrize("name", ["chain", "race of a chain"])
def test_ragged_numbers_by_index(name):
    op, call, _ = CALLS[name]
    tokens = call["draft_tokens"].clamp(0, 69).flatten()
    call = {
        **call, "draft_tokens": tokens[:7], "target": call["target"].flatten(0, 1)[:12], "draft": None,
        "packing.cu_drafts": torch.tensor([0, 3, 3, 4, 6, 7], dtype=torch.int32),
    }  # fmt: skip
    index = torch.tensor([4, -1, 2, 0, 9], dtype=torch.int32)
    for one, other in zip(
        triton(op, **call, request_index=index), oracle(op, **call, request_index=index), strict=True
    ):
        assert torch.equal(one, other)


MAP = torch.tensor([0, 1, 5, 6, 7, 40, 63, 64, 65, 66, 69], dtype=torch.int32)
WIDE_MAP = (torch.arange(4000) * 2 + torch.arange(4000) // 1300 + 1).int()  # up to 8,002


def mapped(map_, vocabulary, space, requests=4, slots=3, seed=5):
    """(a chain whose draft has a vocabulary of its own, the same with draft rows over the target's)."""
    call = chain_call(seed, requests=requests, slots=slots, vocabulary=vocabulary, draft_vocabulary=len(map_))
    call["temperature"] = 0.8
    at = torch.randint(0, len(map_), call["draft_tokens"].shape, generator=torch.Generator().manual_seed(seed))
    call["draft_tokens"] = map_[at].long()
    wide = torch.full((*call["draft"].shape[:-1], vocabulary), -torch.inf)
    wide[..., map_.long()] = call["draft"]
    if space == "probs":
        call |= {"target": (call["target"] / 0.8).softmax(-1), "temperature": 1.0, "space": "probs"}
        call["draft"], wide = (call["draft"] / 0.8).softmax(-1), (wide / 0.8).softmax(-1)
        wide[..., map_.long()] = call["draft"]
    return call | {"draft.map": map_}, call | {"draft": wide}


@pytest.mark.costly
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("map_, vocabulary", [(MAP, 70), (WIDE_MAP, 8200)])
def test_chains_of_mapped_drafts(map_, vocabulary, space):
    call, wide = mapped(map_, vocabulary, space, requests=8 if vocabulary == 70 else 2)
    for options in ({}, {"draft_prob": 0.7}, {"draft.sampling": Sampling(0.0)}, {"method": "block"}):
        if vocabulary > 70 and options:
            continue
        for one, other in zip(
            triton(verify_chain, **call, **options), triton(verify_chain, **wide, **options), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.costly
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("replacement", [False, True])
def test_trees_of_mapped_drafts(replacement, space):
    chain, wide = mapped(MAP, 70, space, requests=6, slots=4)
    tokens = torch.nn.functional.pad(chain["draft_tokens"], (1, 0), value=-1)
    pad = [torch.nn.functional.pad(call["draft"], (0, 0, 0, 1)) for call in (chain, wide)]
    tree = {"draft_tokens": tokens, "parents": torch.tensor([-1, 0, 0, 0, 1]), "replacement": replacement}
    found = triton(verify_tree, **chain | tree | {"draft": pad[0]})
    expected = triton(verify_tree, **wide | tree | {"draft": pad[1]})
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("map_, vocabulary", [(MAP, 70), (WIDE_MAP, 8200)])
def test_pairs_of_mapped_drafts(map_, vocabulary):
    call, _ = mapped(map_, vocabulary, "logits", requests=1, slots=1)
    pair = {"target": call["target"][:, 0], "draft": call["draft"][:, 0], "draft.map": map_}
    for op, options in ((residual, {"draft_prob": 0.6}), (overlap, {}), (overlap, {"draft.sampling": Sampling(0.0)})):
        for one, other in zip(triton(op, **pair, **options), oracle(op, **pair, **options), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-7)


@pytest.mark.costly
@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("map_", [MAP, WIDE_MAP], ids=["narrow", "wide"])
def test_races_over_mapped_rows(map_, space):
    """The race over the target's tokens, of which the others have no weight."""
    vocabulary = int(map_[-1]) + 1
    rows = rows_of(2, len(map_), seed=3)
    wide = torch.full((2, vocabulary), -torch.inf)
    if space == "probs":
        rows, wide = rows.softmax(-1), torch.zeros(2, vocabulary)
    wide[:, map_.long()] = rows
    options = {"seed": seeds(2, 7), "position": 9, "space": space}
    for temperature in (1.0, 0.0):
        both = options | {"temperature": temperature}
        assert torch.equal(
            triton(race_sample, target=rows, draft_map=map_, **both)[0], triton(race_sample, target=wide, **both)[0]
        )
        assert torch.equal(
            triton(race_topk, draft=rows, k=3, draft_map=map_, **both)[0], triton(race_topk, draft=wide, k=3, **both)[0]
        )


@pytest.mark.parametrize("space", ["logits", "probs"])
@pytest.mark.parametrize("name", ["race_sample", "race_topk", "residual", "overlap"])
def test_status_of_rows_that_are_no_laws(name, space):
    op, call, _ = CALLS[name]
    for rows in ("target", "draft"):
        if rows in call:
            some = call[rows][:, :66].repeat(2, 1)
            some = some.softmax(-1) if space == "probs" else some
            start = 0 if rows == "target" or "target" not in call else 5
            for b, bad in enumerate((torch.nan, torch.inf, -1.0)):
                some[start + b, 65] = bad
            some[start + 3] = -torch.inf if space == "logits" else 0.0
            call = call | {rows: some}
    call = {
        key: value.repeat(2) if isinstance(value, torch.Tensor) and value.ndim == 1 else value
        for key, value in call.items()
    } | {"space": space, "temperature": temperatures(1, 1, 1, 1, 1, 1, 1, 1, -1, torch.nan).float()}  # fmt: skip
    found, expected = triton(op, **call)[-1], oracle(op, **call)[-1]
    assert found.tolist() == expected.tolist()
    assert set(found.tolist()) >= {0, 1, 8}


@pytest.mark.costly
@pytest.mark.parametrize("name", ["chain", "race of a tree", "race_sample"])
def test_counters_may_be_int32(name):
    op, call, _ = CALLS[name]
    counters = {"position": torch.tensor([0, 5, -1, -(2**31), 2**31 - 1]), "nonce": torch.tensor([0, -7, 3, 1, 2])}
    narrow = {name: value.int() for name, value in counters.items()}
    for one, other in zip(triton(op, **call | narrow), triton(op, **call | counters), strict=True):
        assert torch.equal(one, other)
