"""OutputFormat, and outputs that engines give: what is written is the verdict, where it is wanted, and nothing else
is."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import OutputFormat, Sampling, verify_linked_tree
from specdec_kernels.backends.reference import noise
from specdec_kernels.calls.values import Noise
from tests.conftest import INTERPRETED
from tests.ops.test_verify_linked_tree import by_tokens, call_of
from tests.support.cases import UNTOUCHED, chain_call, ragged
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import tree_call

B, K, V, N = 6, 3, 33, 7
MIXED = {"temperature": torch.tensor([0.0, 1.0, 0.0, 0.5, 1.0, 0.0])}
RACE = {"method": "race", "draft": None}
FILTERED = RACE | {"temperature": None, "sampling": Sampling(top_k=5)}
CHAINS = {"rejection": {}, "race": RACE, "race, filtered": FILTERED, "block": {"method": "block"}, "some greedy": MIXED}
TREES = {"rejection": {}, "race, filtered": FILTERED, "traversal, some greedy": {"method": "traversal"} | MIXED}
LINKED = {"uniforms": dict, "tokens": by_tokens}
# Of requests, one is idle and one points outside.
INDEX = torch.tensor([3, -1, 0, 99, 5, 1], dtype=torch.int32)


def chain_of(method):
    return chain_call(3, requests=B, slots=K, vocabulary=V) | CHAINS[method]


def tree_of(method):
    return tree_call(3, requests=B, nodes=N, vocabulary=V) | TREES[method]


def linked(method):
    return LINKED[method](call_of(13, requests=B, nodes=N, vocabulary=V))


def indexed(call):
    """Every request uses the state of another, if it uses any. Trees of links have no state."""
    return call if "first_child" in call else call | {"request_index": INDEX}


def told(verdict):
    """bool: the places of a verdict that say something."""
    return torch.arange(verdict.tokens.shape[1]) <= verdict.num_accepted[:, None]


def room(*shape, dtype=torch.int32):
    return torch.full(shape, UNTOUCHED, dtype=dtype)


CALLS = [(verify_chain, chain_of, name) for name in CHAINS] + [(verify_tree, tree_of, name) for name in TREES]
CALLS += [(verify_linked_tree, linked, name) for name in LINKED]
EVERY_CALL = pytest.mark.parametrize(
    "op, made, method", CALLS, ids=[f"{op.__name__}, {method}" for op, _, method in CALLS]
)
# The ways of Triton's kernels to an end: by a race or a draw, after one launch or a walk.
WAYS = [call for call in CALLS if call[2] in ("some greedy", "race, filtered", "block", "traversal, some greedy")]


def in_one_row(op, call, row, places, num=None, **form):
    """A call whose tokens lie in one row, and their places there."""
    if op is verify_chain:
        return op(**call, out=(row, num, None), output_format=OutputFormat(path=places, **form))
    return op(**call, out=(row, places, num, None), output_format=OutputFormat(**form))


def assert_one_row(op, made, method):
    """A place that is not in the row is not written, and the status says so."""
    call = indexed(made(method))
    expected = op(**call)
    path = getattr(expected, "path", torch.arange(expected.tokens.shape[1]).expand_as(expected.tokens))
    nodes = K + 1 if op is verify_chain else N
    index = torch.randperm(B * nodes, generator=torch.Generator().manual_seed(1)).view(B, nodes)
    index[0, 0], index[4, path[4, expected.num_accepted[4]]] = -1, 2 * B * nodes
    whole, places = room(2 * B * nodes + 2), room(B, expected.tokens.shape[1])
    row, num = whole[1:-1:2], torch.arange(B, dtype=torch.int32)
    found = in_one_row(op, call, row, places, num, index=index, count="emitted", add=True)
    there = told(expected)
    place = index.gather(1, path.clamp(min=0).long())
    lost = (place < 0) | (place >= len(row))
    assert torch.equal(places, torch.where(there, place.masked_fill(lost, -1), -1).int())
    tokens = room(len(row))
    tokens[place[there & ~lost]] = expected.tokens[there & ~lost].int()
    assert torch.equal(row, tokens)
    assert (whole[::2] == UNTOUCHED).all()
    assert whole[-1] == UNTOUCHED
    assert torch.equal(found.status, expected.status | 8 * (there & lost).any(1).int())
    assert torch.equal(num, torch.arange(B) + (expected.num_accepted + 1).clamp(min=0))


@pytest.mark.usefixtures("backend")
@EVERY_CALL
class TestForm:
    @pytest.mark.parametrize("some", [dict, indexed], ids=["all", "by index"])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
    def test_tokens_of_any_strides(self, op, made, method, some, dtype):
        call = some(made(method))
        expected = op(**call)
        width = expected.tokens.shape[1]
        for whole, own in (
            (wide := room(B, 2 * width + 3, dtype=dtype), wide[:, 2 : 2 + 2 * width : 2]),
            (turned := room(width + 1, B, dtype=dtype), turned[1:].T),
        ):
            op(**call, out=(own, *[None] * (len(expected) - 1)))
            assert torch.equal(own.long(), expected.tokens)
            own.fill_(UNTOUCHED)
            assert (whole == UNTOUCHED).all()

    @pytest.mark.costly
    @pytest.mark.interpreted
    def test_zeros_in_the_place_of_padding(self, op, made, method):
        """Behind the last token, and of an idle request at its first place, too. A path has -1 all the same."""
        call = indexed(made(method))
        expected = op(**call)
        assert (expected.tokens[1] == -1).any()
        tokens = room(*expected.tokens.shape)
        found = op(**call, out=(tokens, *[None] * (len(expected) - 1)), output_format=OutputFormat(zeros=True))
        assert torch.equal(tokens, expected.tokens.clamp(min=0).int())
        for one, other in zip(found[1:], expected[1:], strict=True):
            assert torch.equal(one, other)

    @pytest.mark.costly
    @pytest.mark.interpreted
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
    def test_zeros_off_the_path(self, op, made, method, dtype):
        """At the places of all nodes but those of the path, those of idle and lost requests, too; nowhere else."""
        call = indexed(made(method))
        expected = op(**call)
        nodes, width = K + 1 if op is verify_chain else N, expected.tokens.shape[1]
        index = torch.randperm(B * nodes, generator=torch.Generator().manual_seed(2)).view(B, nodes).to(dtype)
        index[0, -1], index[5, nodes // 2], index[1, 0] = -1, 2 * B * nodes, -9
        verdicts = []
        for zeros in (False, True):
            whole, places = room(2 * B * nodes + 3), room(B, width)
            row = whole[1:-2:2]
            found = in_one_row(op, call, row, places, index=index, zeros=zeros)
            verdicts.append((whole, row, places, *found[-2:]))
        (_, without, path, *rest), (whole, row, places, *others) = verdicts
        assert torch.equal(path, places)
        assert all(map(torch.equal, rest, others))
        known = index[(index >= 0) & (index < len(row))].long()
        own = torch.zeros(len(row), dtype=torch.bool)
        own[known] = True
        assert torch.equal(row[own], torch.where(without == UNTOUCHED, 0, without)[own])
        assert (row[~own] == UNTOUCHED).all()
        assert (whole[::2] == UNTOUCHED).all()
        assert (row[own] == 0).sum() >= B

    def test_one_row_for_all(self, op, made, method):
        assert_one_row(op, made, method)


@pytest.mark.interpreted
@pytest.mark.parametrize("op, made, method", WAYS, ids=[f"{op.__name__}, {method}" for op, _, method in WAYS])
@pytest.mark.parametrize("backend", INTERPRETED, indirect=True)
@pytest.mark.usefixtures("backend")
def test_triton_writes_one_row(op, made, method):
    assert_one_row(op, made, method)


def passing_drafts(call, counts, accepted):
    """How many drafts pass, uniform by uniform: the accepted ones, and those behind the refused one and before a -1."""
    found = accepted.tolist()
    whose = Noise(call["seed"], call["position"], torch.zeros_like(call["position"]))
    for slot in range(K):
        uniforms = noise.uniforms(noise.at(whose, slice(None), slot), noise.UNIFORM, slot)
        for b in range(B):
            x = call["draft_tokens"][b, slot].item()
            ended = (call["draft_tokens"][b, accepted[b] : slot + 1] == -1).any()
            if accepted[b] < slot < counts[b] and not ended and 0 <= x < call["draft"].shape[-1]:
                p, q = call["target"][b, slot, x].double(), call["draft"][b, slot, x].double()
                found[b] += bool(q > 0 and uniforms[b] * q < p)
    return found


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
def test_drafts_that_pass():
    """Behind the first rejection by their own uniforms; added, of packed chains, and of an idle request."""
    seen = set()
    for seed in range(4):
        call = chain_call(seed, requests=B, slots=K, vocabulary=9, draft_vocabulary=8, space="probs")
        call["temperature"] = None
        passed = room(B)
        found = verify_chain(**call, output_format=OutputFormat(num_passed=passed))
        wanted = passing_drafts(call, [K] * B, found.num_accepted)
        assert passed.tolist() == wanted
        seen |= {(more - own) for more, own in zip(wanted, found.num_accepted.tolist(), strict=True)}
        counts = torch.tensor([2, 0, 1, 3, 3, 1])
        counters = torch.arange(B, dtype=torch.int32), room(B)
        counters[1][:] = 5
        packed = ragged(call, counts) | {"packing.max_drafts": K}
        again = verify_chain(
            **packed, output_format=OutputFormat(num_passed=counters[1], add=True), out=(None, counters[0], None)
        )
        assert torch.equal(again.num_accepted, counters[0])
        own = again.num_accepted - torch.arange(B)
        assert (counters[1] - 5).tolist() == passing_drafts(call, counts, own)
        idle = torch.tensor([0, -1, 2, 3, 4, 5], dtype=torch.int32)
        verify_chain(**call, output_format=OutputFormat(num_passed=passed), request_index=idle)
        assert passed.tolist() == [0 if b == 1 else each for b, each in enumerate(wanted)]
    assert len(seen) > 1
    nobody = ragged(call, torch.zeros(B, dtype=torch.int64)) | {"packing.max_drafts": K}  # no drafts, so no memory
    assert not nobody["draft"].numel()
    verify_chain(**nobody, output_format=OutputFormat(num_passed=passed))
    assert passed.tolist() == [0] * B


@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
@pytest.mark.parametrize("method", ["rejection", "race, filtered"])
def test_no_requests_in_one_row(backend, method):
    if backend == "triton" and not INTERPRETED:
        pytest.skip("on CPU tensors Triton is interpreted")
    row, num = room(5), room(0)
    with specdec_kernels.backend(backend):
        chain = {k: x[:0] if isinstance(x, torch.Tensor) else x for k, x in chain_of(method).items()}
        output_format = OutputFormat(index=room(0, K + 1, dtype=torch.int64), path=room(0, K + 1))
        verify_chain(**chain, out=(row, num, None), output_format=output_format, check=True)
        tree = {k: x[:0] if isinstance(x, torch.Tensor) and k != "parents" else x for k, x in tree_of(method).items()}
        tree["parents"] = tree["parents"][0] if tree["parents"].ndim == 2 else tree["parents"]
        out = (row, room(0, N), num, None)
        verify_tree(**tree, out=out, output_format=OutputFormat(index=room(0, N, dtype=torch.int64)), check=True)
    assert (row == UNTOUCHED).all()


ROW, PLACES, INDICES = room(B * (K + 1)), room(B, K + 1), torch.arange(B * (K + 1)).view(B, K + 1)
FORM = OutputFormat(index=INDICES, path=PLACES)
REFUSED = {
    "one row of chains": (verify_chain, chain_of("rejection") | {"out": (ROW, None, None), "output_format": FORM}, [
        ({"output_format": 3}, TypeError, "output_format: expected an OutputFormat"),
        ({"output_format": FORM._replace(count="all")}, ValueError,
         "output_format.count: expected one of 'accepted', 'emitted'; got 'all'"),
        ({"output_format": FORM._replace(zeros=1)}, TypeError, "output_format.zeros: expected a bool"),
        ({"output_format": FORM._replace(num_passed=room(B))}, ValueError,
         "output_format.num_passed: expected None but with method='rejection' of prob"),
        ({"output_format": FORM._replace(path=None)}, ValueError, "output_format.path: expected int32"),
        ({"output_format": FORM._replace(path=ROW.view(B, K + 1))}, ValueError,
         "output_format.path: expected memory of its own; got some of out.tokens's"),
        ({"out": None}, ValueError, "out.tokens: expected one dimension with output_format.index; got None"),
        ({"out": True}, TypeError, r"out: expected \(tokens, num_accepted, status\); got True"),
        ({"out": (ROW[:1].expand(B, K + 1), None, None), "output_format": OutputFormat()}, ValueError,
         "out.tokens: expected rows that share no memory"),
        ({"out": (None, PLACES.view(-1)[5 : 5 + B], None), "output_format": OutputFormat(path=PLACES)}, ValueError,
         ".*memory of its own"),
    ]),
    "the form of trees": (verify_tree, tree_of("rejection"), [
        ({"output_format": OutputFormat(path=PLACES)}, ValueError, r"output_format\.path: expected None for trees"),
    ]),
}  # fmt: skip
