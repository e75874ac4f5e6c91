"""By the layouts of engines: packed by drafts and by rows, by entries, positions and nonces in rows, int32 numbers.

Each layout of a random call gives what the plain call gives.
"""

import random

import pytest
import torch

from specdec_kernels import OutputFormat, Sampling
from tests.support.cases import UNTOUCHED, assert_same, chain_call, ragged, seeds
from tests.support.ops import verify_chain, verify_tree
from tests.support.random_calls import random_chain, random_rows, random_tree
from tests.support.same_bits import result
from tests.support.trees import tree_call

pytestmark = pytest.mark.interpreted

B, K, V, N = 6, 4, 67, 7
COUNTS = torch.tensor([4, 0, 2, 4, 1, 3])
FAR = 10**9  # a number that no layout may read
FILTERED = {"temperature": None, "sampling": Sampling(0.8, top_k=9)}
RACE = {"method": "race", "draft": None}
TREES = {"rejection": {}, "race": RACE, "race, filtered": RACE | FILTERED}
NUMBERS = ("temperature", "seed", "position", "nonce", "draft_prob", "epsilon", "sampling", "draft.sampling")
OTHERWISE = {"packing.cu_drafts", "request_index", "output_format", "edits"}  # calls with these are passed over


def padded(method="rejection", seed=1):
    call = chain_call(seed, requests=B, slots=K, vocabulary=V) | {"method": method}
    return call | {"draft": None} if method == "race" else call


def tree_of(method):
    return tree_call(1, requests=B, nodes=N, vocabulary=V) | TREES[method]


def by_entry(call, index, entries=9):
    """A call whose numbers and draft rows lie by entry."""

    def moved(x):
        if isinstance(x, Sampling):
            return Sampling(*map(moved, x))
        if not isinstance(x, torch.Tensor) or not x.ndim:
            return x
        lists = x.new_zeros(entries, *x.shape[1:])
        lists[index] = x
        return lists

    names = NUMBERS if "k" in call else (*NUMBERS, "draft")  # a request's rows of race_topk are its own
    return call | {name: moved(call[name]) for name in names if name in call} | {"request_index": index}


def in_rows(call, counts, more=3):
    """A packed call with drafts and positions in rows; what is between and behind them is not read."""
    packed = ragged(call | {"draft": None}, counts)
    rows = packed["packing.cu_drafts"] + torch.arange(len(counts) + 1, dtype=torch.int32)
    total = int(rows[-1]) + more
    tokens, positions = torch.full((total,), UNTOUCHED), torch.full((total,), 10**12)
    for b, (begin, end) in enumerate(zip(rows.tolist(), rows.tolist()[1:], strict=False)):
        tokens[begin + 1 : end] = call["draft_tokens"][b, : counts[b]]
        positions[begin] = call["position"][b] - 1
    target = torch.cat((packed["target"], packed["target"].new_full((more, call["target"].shape[-1]), torch.nan)))
    drafts = call["draft_tokens"].shape[1]
    made = call | {"draft_tokens": tokens, "target": target, "packing.cu_rows": rows, "packing.max_drafts": drafts}
    return made | {"position": None, "position.positions": positions}


def plain_calls(numbers, most):
    """(op, call): random calls, each request of which has numbers of 32 bits."""
    for number in numbers:
        r = random.Random(number)
        op, call = r.choice((random_chain, random_chain, random_tree, random_rows))(r, r.randint(1, most))
        if OTHERWISE & call.keys() or op == "overlap":  # the sums of overlap are of floats
            continue
        if "seed" in call:
            count = len(call["seed"])
            call["seed"] = call["seed"] % 2**31
            call["position"] = torch.as_tensor(call["position"]).expand(count) // 2 + 1
            call["nonce"] = torch.tensor([r.choice((-1, 0, 7, 2**31 - 1)) for _ in range(count)])
        if "draft_prob" in call:
            call["draft_prob"] = torch.tensor([r.random() for _ in range(count)])
        yield op, call


def short(x):
    if isinstance(x, Sampling):
        return Sampling(*map(short, x))
    return x.int() if isinstance(x, torch.Tensor) and x.dtype == torch.int64 else x


def apart(x):
    """Numbers and tokens that lie apart."""
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or not x.ndim:
        return x
    return x.repeat_interleave(2)[::2] if x.ndim == 1 else x.T.contiguous().T


def positions_in_rows(call):
    """Positions and nonces of any strides, of which those of the first row or the root are read."""
    tree = "parents" in call
    positions = torch.full((call["target"].shape[1], len(call["target"])), FAR)
    positions[0] = call["position"] - 1
    nonces = torch.stack((torch.full_like(call["nonce"], FAR), call["nonce"]), -1)[:, 1]
    made = call | {"position": None, "position.positions": positions.T}
    return made if tree else made | {"nonce": 0, "position.nonces": nonces}


def layouts(op, call):
    """(layout, the plain call, the call in that layout)."""
    count = len(next(call[name] for name in ("draft_tokens", "target", "draft", "rows") if name in call))
    index = torch.arange(count, 0, -1)
    entries = by_entry(call, index, count + 2)
    yield "entries", call, entries
    yield "numbers", call, {name: short(x) for name, x in call.items()}
    if not op.startswith("verify"):
        return
    yield "strides", call, {name: x if name == "draft.map" else apart(x) for name, x in call.items()}
    inside = positions_in_rows(call)
    yield "positions", call, inside
    names = ("position.positions", "position.nonces")
    beside = {name: short(inside[name]) for name in names if name in inside}
    yield (
        "entries and positions",
        call,
        entries
        | {"position": None, "nonce": 0}
        | beside
        | ({"nonce": entries["nonce"]} if op == "verify_tree" else {}),
    )
    if op == "verify_tree" or call["target"].shape[1] != call["draft_tokens"].shape[1] + 1:
        return
    slots = call["draft_tokens"].shape[1]
    if "draft_prob" in call:  # packed drafts have one each, or a request's lie in a column
        each = call["draft_prob"].repeat_interleave(slots)
        yield "a number of each draft", call, ragged(call | {"draft_prob": each}, torch.full((count,), slots))
        call, entries = (x | {"draft_prob": x["draft_prob"].unsqueeze(-1)} for x in (call, entries))
    yield "packed", call, ragged(call, torch.full((count,), slots))
    counts = torch.arange(count) % (slots + 1)
    packed = ragged(call, counts) | {"packing.max_drafts": slots}
    if "draft_prob" not in call:  # where drafting is not certain, a -1 is a draft that was not made
        fewer = call["draft_tokens"].masked_fill(torch.arange(slots) >= counts[:, None], -1)
        yield "fewer drafts", call | {"draft_tokens": fewer}, packed
    if call["draft"] is not None:  # entries may have more draft rows than their request has drafts
        entries["draft"] = torch.nn.functional.pad(entries["draft"], (0, 0, 0, 2), value=torch.nan)
    yield "rows", packed, in_rows(call, counts, more=0) | {"draft": packed["draft"]}
    by_rows = in_rows(call, counts)
    yield (
        "rows and entries",
        packed,
        entries
        | {
            name: short(by_rows[name])
            for name in by_rows
            if name.startswith(("pos", "pac", "draft_t")) or name == "target"
        },
    )


def assert_alike(numbers, most):
    seen = set()
    for op, call in plain_calls(numbers, most):
        for layout, plain, other in layouts(op, call):
            assert_same(result(op, other), result(op, plain))
            seen.add((op, layout))
    assert len(seen) > 7


def test_layouts(backend):
    assert_alike((0, 3, 7), 9) if backend == "triton" else assert_alike(range(60), 140)


@pytest.mark.slow
@pytest.mark.interpreted(False)
def test_many_layouts(backend):
    assert_alike(range(1000, 1400), 2100)


def test_nonces_are_read(backend):
    call = padded("race")
    found = verify_chain(**positions_in_rows(call | {"nonce": torch.arange(B)}))
    assert not torch.equal(found.tokens, verify_chain(**call).tokens)


def test_bad_bounds(backend):
    """They give token 0 and status 8, as those of drafts do, and nothing outside is read."""
    call = in_rows(padded(), COUNTS, more=0)
    call["draft"] = None
    good = verify_chain(**call)
    for at, value in ((0, -1), (0, 1), (1, 99), (3, 0), (2, int(call["packing.cu_rows"][1])), (B, 10**6)):
        bounds = call["packing.cu_rows"].clone()
        bounds[at] = value
        found = verify_chain(**call | {"packing.cu_rows": bounds})
        ends, drafts = bounds.tolist(), int(COUNTS.sum())
        bad = [
            b for b in (at - 1, at)
            if 0 <= b < B and not (0 <= ends[b] < ends[b + 1] <= drafts + b + 1 and (b > 0 or ends[b] == 0))
        ]  # fmt: skip
        assert bad
        for b in range(B):
            if b in bad:
                assert (found.tokens[b, 0], found.num_accepted[b]) == (0, 0)
                assert found.status[b] & 8
            elif b not in (at - 1, at):
                assert torch.equal(found.tokens[b], good.tokens[b])


CALL = padded()
TREE = tree_of("rejection")
BESIDE = CALL | {"position": None, "position.positions": torch.zeros(B, K + 1).int(), "position.nonces": seeds(B)}
ROWS = in_rows(CALL | {"draft": None}, COUNTS)


REFUSED = {
    "rows by cu_rows": (verify_chain, ROWS, [
        ({"packing.cu_drafts": ROWS["packing.cu_rows"]}, ValueError,
         r"packing.cu_drafts: expected None beside cu_rows; got int32 \[7\]"),
        ({"packing": ROWS["packing.cu_rows"], "packing.cu_rows": None, "packing.max_drafts": None}, TypeError,
         r"packing: expected a Packing; got int32 \[7\]"),
        ({"target": ROWS["target"][1:]}, ValueError, r"target: expected 23 rows \(D \+ B\); got"),
        ({"draft_tokens": ROWS["draft_tokens"][:3], "target": ROWS["target"][:3], "position.positions": seeds(3)},
         ValueError, "target: expected a row of each of 6 requests at least; got"),
        ({"output_format": OutputFormat(bonus=seeds(B))}, ValueError,
        "packing.cu_rows: expected None with output_format.bonus; got a tensor"),
        ({"position.positions": None, "position": None}, TypeError,
         "position: expected an int or a tensor of int64 or int32; got None"),
    ]),
    "nonces of rows": (verify_chain, BESIDE, [
        ({"nonce": 3}, ValueError, "nonce: expected 0 beside position.nonces; got 3"),
        ({"nonce": seeds(B)}, ValueError, r"nonce: expected 0 beside position.nonces; got int64 \[6\]"),
    ]),
    "positions of nodes": (verify_tree, TREE, [
        ({"position": None}, TypeError, "position: expected an int or a tensor of int64 or int32; got None"),
        ({"position.positions": torch.zeros(B, N).int(), "position.nonces": torch.zeros(B, N).int(), "draft": None,
          "method": "race"}, ValueError, "position.nonces: expected None for trees; got int32"),
        ({"position.positions": torch.zeros(B, N).int(), "position.nonces": seeds(B)}, ValueError,
         r"position.nonces: expected None for trees; got int64 \[6\]"),
    ]),
}  # fmt: skip
