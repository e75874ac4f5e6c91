"""By the layouts of engines: drafts and positions in the rows that they enter, nonces of requests, int64 indices."""

import pytest
import torch

from specdec_kernels import OutputFormat, Sampling
from tests.support.cases import UNTOUCHED, assert_same, chain_call, ragged, seeds
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import tree_call

pytestmark = pytest.mark.interpreted

B, K, V = 6, 4, 67
COUNTS = torch.tensor([4, 0, 2, 4, 1, 3])
METHODS = ("rejection", "race", "block")
FAR = 10**9  # a number that nobody may look at
N = 7
FILTERED = {"temperature": None, "sampling": Sampling(0.8, top_k=9)}
TREES = {
    "rejection": {},
    "race": {"method": "race", "draft": None},
    "traversal": {"method": "traversal"},
    "rejection, filtered": FILTERED,
    "race, filtered": {"method": "race", "draft": None} | FILTERED,
    "traversal, filtered": {"method": "traversal"} | FILTERED,
}


def padded(method="rejection", seed=1):
    call = chain_call(seed, requests=B, slots=K, vocabulary=V) | {"method": method}
    return call | {"draft": None} if method == "race" else call


def by_entry(call, index, entries=9):
    """A call whose numbers and draft rows lie by entry."""
    moved = dict(call)
    for name in ("draft", "temperature", "seed", "position"):
        if isinstance(call[name], torch.Tensor):
            moved[name] = torch.zeros(entries, *call[name].shape[1:], dtype=call[name].dtype)
            moved[name][index] = call[name]
    return moved | {"request_index": index}


def in_rows(call, counts, more=3):
    """A packed call with drafts and positions in rows; between and behind them are numbers that nobody may look at."""
    packed = ragged(call | {"draft": None}, counts)
    rows = packed["packing.cu_drafts"] + torch.arange(B + 1, dtype=torch.int32)
    total = int(rows[-1]) + more
    tokens, positions = torch.full((total,), UNTOUCHED), torch.full((total,), 10**12)
    for b, (begin, end) in enumerate(zip(rows.tolist(), rows.tolist()[1:], strict=False)):
        tokens[begin + 1 : end] = call["draft_tokens"][b, : counts[b]]
        positions[begin] = call["position"][b] - 1
    target = torch.cat((packed["target"], torch.full((more, V), torch.nan)))
    made = call | {"draft_tokens": tokens, "target": target, "packing.cu_rows": rows, "packing.max_drafts": K}
    del made["position"]
    return made | {"position.positions": positions}


def tree_of(method):
    return tree_call(1, requests=B, nodes=N, vocabulary=V) | TREES[method]


def without_position(call):
    return {name: value for name, value in call.items() if name != "position"}


@pytest.mark.usefixtures("backend")
class TestRows:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("method", METHODS)
    def test_packed(self, method, dtype):
        """What the same chains give, packed by drafts and by rows; numbers and draft rows by slot."""
        call, index = padded(method), torch.tensor([3, 0, 8, 5, 1, 4])
        expected = verify_chain(**ragged(call, COUNTS), **{"packing.max_drafts": K})
        slots = by_entry(call, index)
        rows = in_rows(slots | {"position": call["position"]}, COUNTS)
        rows["request_index"] = index.to(dtype)
        rows["position.positions"] = rows["position.positions"].to(dtype)
        rows["draft_tokens"] = rows["draft_tokens"].to(dtype)
        assert_same(verify_chain(**rows), expected)

    @pytest.mark.parametrize("method", METHODS)
    def test_positions_of_rows(self, method):
        """Of any strides; an idle request and one that points outside read none."""
        call, index = padded(method), torch.tensor([3, 0, -1, 5, 99, 4])
        slots = by_entry(call, torch.where((index >= 0) & (index < 9), index, torch.arange(B)))
        expected = verify_chain(**slots | {"request_index": index.int()})
        positions = torch.full((K + 1, B), 10**12)
        positions[0] = call["position"] - 1
        del slots["position"]
        assert_same(verify_chain(**slots | {"request_index": index}, **{"position.positions": positions.T}), expected)
        assert expected.num_accepted.tolist()[2] == -1

    def test_bad_bounds(self):
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


@pytest.mark.usefixtures("backend")
class TestTrees:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("method", TREES)
    def test_positions_of_roots(self, method, dtype):
        """Of any strides; those of other nodes, of an idle request and of one that points outside are not read."""
        call, index = tree_of(method), torch.tensor([3, 0, -1, 5, 99, 4])
        there = (index >= 0) & (index < 9)
        slots = by_entry(call, torch.where(there, index, torch.tensor([0, 0, 1, 0, 2, 0]))) | {"request_index": index}
        expected = verify_tree(**slots)
        positions = torch.full((N, B), FAR, dtype=dtype)
        positions[0] = torch.where(there, call["position"] - 1, FAR)
        assert_same(verify_tree(**without_position(slots), **{"position.positions": positions.T}), expected)
        assert expected.num_accepted.tolist()[2] == -1
        assert expected.status[4] == 8

    def test_one_for_all_nodes(self):
        """Lengths of requests, expanded, as an engine has them."""
        call = tree_of("rejection")
        lengths = call["position"] - 1
        found = verify_tree(**without_position(call), **{"position.positions": lengths[:, None].expand(-1, N)})
        assert_same(found, verify_tree(**call))


def nonces(dtype=torch.int64):
    return torch.tensor([5, -1, 0, 2**31 - 1, 7, 7], dtype=dtype)


@pytest.mark.usefixtures("backend")
class TestNonces:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("method", METHODS)
    def test_of_requests(self, method, dtype):
        """Of any stride; entries have none of them."""
        call, index = padded(method), torch.tensor([3, 0, -1, 5, 99, 4])
        own = torch.where((index >= 0) & (index < 9), index, torch.tensor([0, 0, 1, 0, 2, 0]))
        slots = by_entry(call, own) | {"request_index": index}
        by_slot = torch.zeros(9, dtype=torch.int64)
        by_slot[own] = nonces()
        expected = verify_chain(**slots, nonce=by_slot)
        positions = (call["position"] - 1)[:, None].expand(-1, K + 1)
        given = torch.full((B, 2), FAR, dtype=dtype)
        given[:, 1] = nonces(dtype)
        found = verify_chain(
            **without_position(slots), **{"position.positions": positions, "position.nonces": given[:, 1]}
        )
        assert_same(found, expected)
        assert not torch.equal(found.tokens, verify_chain(**slots).tokens)

    def test_of_packed_chains(self):
        call = padded("race")
        rows = in_rows(call, COUNTS)
        expected = verify_chain(**ragged(call, COUNTS), **{"packing.max_drafts": K}, nonce=nonces())
        assert_same(verify_chain(**rows, **{"position.nonces": nonces()}), expected)

    def test_of_filtered_races(self):
        call = padded("race") | FILTERED
        positions = (call["position"] - 1)[:, None].expand(-1, K + 1)
        expected = verify_chain(**call, nonce=nonces())
        given = {"position.positions": positions, "position.nonces": nonces()}
        assert_same(verify_chain(**without_position(call), **given), expected)


CALL = padded()
TREE = tree_of("rejection")
BESIDE = without_position(CALL) | {"position.positions": torch.zeros(B, K + 1).int(), "position.nonces": seeds(B)}
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
    "positions of rows": (verify_chain, CALL, [
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
