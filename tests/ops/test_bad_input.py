"""Wrong calls fail on the host, by an error that names the argument, what was expected and what came."""

import inspect
import re
from itertools import product

import pytest
import torch
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

import specdec_kernels
from specdec_kernels import Draft, InputPositions, OutputFormat, Sampling, cutoff, logprobs, race_sample, race_topk
from specdec_kernels.calls.op import OPS
from specdec_kernels.status import raise_for_status
from tests.ops.test_draft_map import CALLS as MAPPED
from tests.support.calls import every_refusal, public_calls
from tests.support.cases import chain_call, ragged, seeds, untouched_verdict
from tests.support.ops import overlap, residual, verify_chain

ROWS = torch.zeros(3, 10)


def chain(**changes):
    return verify_chain(**chain_call(1, requests=3, slots=2, vocabulary=10) | changes)


def ragged_chain(**changes):
    call = chain_call(1, requests=3, slots=2, vocabulary=10) | {"temperature": 1.0}
    return verify_chain(**ragged(call, torch.tensor([2, 0, 1])) | changes)


def sample(**changes):
    return race_sample(**{"target": ROWS, "seed": seeds(3), "position": 0} | changes)


def topk(**changes):
    return race_topk(**{"draft": ROWS, "k": 2, "seed": seeds(3), "position": 0} | changes)


def chain_of_none(**changes):
    """Of no request: what C looks at of each is not looked at."""
    return verify_chain(**chain_call(1, requests=0, slots=2, vocabulary=10) | changes)


def rejection_of_probs(**changes):
    target, draft = torch.full((3, 3, 10), 0.1), torch.full((3, 2, 10), 0.1)
    return chain(**{"target": target, "draft": draft, "space": "probs", "temperature": None} | changes)


def pair(op):
    return lambda **changes: op(**{"target": ROWS, "draft": ROWS} | changes)


REFUSED = {
    "chain": (chain, {}, [
        ({"draft_tokens": torch.zeros(3, dtype=torch.int64)}, ValueError, r"draft_tokens: expected 2 dim.*\[3\]"),
        ({"draft_tokens": torch.zeros(3, 3, dtype=torch.int64)}, ValueError, r"target: expected shape \[3, 4, V\]"),
        ({"target": torch.zeros(3, 10, 3).transpose(1, 2)}, ValueError, "target: expected unit stride"),
        ({"target": torch.zeros(3, 3, 0)}, ValueError, "target: expected rows of at least one token"),
        ({"target": torch.zeros(4, 3, 10)}, ValueError, r"target: expected shape \[3, 3, V\]; got .*\[4, 3, 10\]"),
        ({"target": torch.zeros(3, 3, 10, device="meta")}, ValueError, "draft_tokens: expected a tensor on meta"),
        ({"draft": torch.zeros(3, 3, 10)}, ValueError, r"draft: expected shape \[3, 2, 'V'\]; got .*\[3, 3, 10\]"),
        ({"draft": torch.zeros(3, 2, 11)}, ValueError, "draft: expected a vocabulary no larger .* 10; got 11"),
        ({"draft": torch.zeros(3, 2, 1), "draft.map": torch.full((1,), 10).int()}, ValueError, "draft.map: expected"),
        ({"method": "race"}, ValueError, "draft: expected None with method='race'"),
        ({"method": "gumbel"}, ValueError, "method: expected one of 'rejection', 'race', 'block'; got 'gumbel'"),
        ({"space": "log"}, ValueError, "space: expected one of 'logits', 'probs'; got 'log'"),
        ({"draft": Draft(None)}, TypeError, "draft.rows: expected a tensor of .*; got None"),
        ({"output_format": OutputFormat(add=True)}, ValueError,
        "out.num_accepted: expected a counter with output_format.add=True; got None"),
        ({"output_format": OutputFormat(add=True), "out": (torch.zeros(3, 3).long(), None, seeds(3).int())}, ValueError,
         "out.num_accepted: expected a counter with output_format.add=True; got None"),
        ({"temperature": -1.0}, ValueError, r"temperature: expected a number at least 0 and finite; got -1.0"),
        ({"temperature": float("nan")}, ValueError, "temperature: expected .*; got nan"),
        ({"temperature": float("inf")}, ValueError, "temperature: expected .*; got inf"),
        ({"temperature": 0.7, "space": "probs"}, ValueError, "temperature: expected 0 or 1 with space='probs'"),
        ({"temperature": "1"}, TypeError, "temperature: expected a float or a float32 tensor; got '1'"),
        ({"temperature": torch.ones(4)}, ValueError, r"temperature: expected shape \[3\]; got float32 \[4\]"),
        ({"draft_prob": 1.5}, ValueError, r"draft_prob: expected a number \[0, 1\]; got 1.5"),
        ({"draft_prob": 0.5, "draft": None}, ValueError, "draft_prob: expected 1 without draft laws"),
        ({"draft_prob": 0.5, "draft": None, "method": "race"}, ValueError, "draft_prob, epsilon: expected 1 and 0"),
        ({"draft_prob": 0.5, "method": "block"}, ValueError, "draft_prob, epsilon: .* 1 and 0 with method='block'"),
        ({"epsilon": 0.1, "method": "block"}, ValueError, "draft_prob, epsilon: .* 1 and 0 with method='block'"),
        ({"epsilon": -0.1}, ValueError, "epsilon: expected .*; got -0.1"),
        ({"epsilon": 0.1, "draft": None, "method": "race"}, ValueError, "draft_prob, epsilon: expected 1 and 0"),
        ({"seed": 1, "position": 2}, ValueError, r"seed: expected one seed per request \(int64 \[3\]\)"),
        ({"seed": 1.0}, TypeError, "seed: expected an int or a tensor of int64 or int32; got 1.0"),
        ({"seed": True}, TypeError, "seed: expected an int"),
        ({"seed": 2**64}, ValueError, "seed: expected 64 bits"),
        ({"nonce": None}, TypeError, "nonce: expected an int"),
        ({"packing.max_drafts": 2}, ValueError, "packing.max_drafts: expected None without cu_drafts; got 2"),
        ({"out": torch.zeros(3)}, TypeError, "out: expected"),
        ({"out": untouched_verdict(3, 4)}, ValueError, r"out.tokens: expected shape \[3, 3\]; got int64 \[3, 4\]"),
    ]),
    "chain of none": (chain_of_none, {}, [
        ({"target": torch.zeros(0, 3, 0), "draft": None}, ValueError, "target: expected rows of at least one token"),
        ({"draft": torch.zeros(0, 2, 11)}, ValueError, "draft: .* target's 10; got 11 .cut the draft's logits"),
        ({"draft": torch.zeros(0, 2, 5), "draft.map": torch.arange(4).int()}, ValueError, "draft.map: expected contig"),
        ({"draft": None, "seed": torch.zeros(0, 3).long(), "position": 0}, ValueError, "seed: expected"),
        ({"draft": None, "draft_tokens": seeds(0), "target": ROWS[:0], "packing.cu_rows": torch.zeros(1).int(),
          "output_format": OutputFormat(bonus=seeds(0))}, ValueError,
          "packing.cu_rows: expected None with output_format.bonus; got a tensor"),
        ({"output_format": OutputFormat(index=torch.zeros(0, 3).long()),
        "out": (seeds(9), *seeds(0).int().expand(2, 0))}, ValueError,
         "output_format.path: expected"),
        ({"draft": None, "space": "probs", "temperature": None,
        "output_format": OutputFormat(num_passed=seeds(0).int())}, ValueError,
         "output_format.num_passed: expected None but"),
    ]),
    "rejection of probabilities": (rejection_of_probs, {"output_format": OutputFormat(num_passed=torch.zeros(3).int())},
    [
        (changes, ValueError, "output_format.num_passed: expected None but with method='rejection' of probabilities")
        for changes in (
            {"draft": None}, {"epsilon": 0.5}, {"draft_prob": 0.5}, {"temperature": 0.0},
            {"temperature": torch.ones(3), "draft.sampling": Sampling(1.0)},
            {"draft.sampling": Sampling(torch.ones(3))},
        )
    ]),
    "ragged_chain": (ragged_chain, {}, [
        ({"packing.cu_drafts": torch.tensor([0, 3], dtype=torch.int32)}, ValueError, r"target: expected 4 rows"),
        ({"packing.cu_drafts": torch.tensor([], dtype=torch.int32)}, ValueError, "packing.cu_drafts: expected cont"),
        ({"draft_tokens": torch.zeros(3, 1, dtype=torch.int64)}, ValueError, "draft_tokens: expected 1 dim"),
        ({"draft": torch.zeros(4, 10)}, ValueError, r"draft: expected shape \[3, 'V'\]; got float32 \[4, 10\]"),
        ({"packing.max_drafts": -1}, ValueError, "packing.max_drafts: expected an int of 0 or more; got -1"),
    ]),
    "sample": (sample, {}, [
        ({"target": torch.zeros(())}, ValueError, "target: expected rows"),
        ({"target": ROWS.T}, ValueError, "target: expected unit stride"),
        ({"seed": 1}, ValueError, "seed: expected one seed per request"),
        ({"seed": seeds(4)}, ValueError, r"seed: expected shape \[3\]; got int64 \[4\]"),
        ({"temperature": torch.ones(2)}, ValueError, "temperature: expected shape"),
        ({"space": "weights"}, ValueError, "space: expected one of"),
        # In memory these begin with the letters of "probs".
        ({"space": "\u7270\u626f\u0173\u4e00\u4e00"}, ValueError, "space: expected one of"),
        ({"target": ROWS[:0, :0], "seed": seeds(0)}, ValueError, "target: expected rows of at least one token"),
        ({"target": ROWS[0], "seed": 1, "request_index": seeds(1).int()}, ValueError, "request_index: expected"),
        ({"target": ROWS[:, None, None], "request_index": seeds(3).int()}, ValueError, "request_index: expected None"),
        ({"position": InputPositions(seeds(3))}, TypeError, "position: expected an int or a tensor of int64 or int32"),
    ]),
    "topk": (topk, {}, [
        ({"k": 0}, ValueError, "k: expected an int from 1 to the vocabulary's 10; got 0"),
        ({"k": 11}, ValueError, "k: expected an int from 1 to the vocabulary's 10; got 11"),
        ({"k": 2.0}, ValueError, "k: expected an int"),
        ({"k": 0, "draft": ROWS[:0], "seed": seeds(0)}, ValueError, "k: expected an int from 1 to"),
        ({"k": 1, "out": seeds(3)}, ValueError, r"out: expected shape \[3, 1\]; got int64 \[3\]"),
    ]),
    **{op.__name__: (pair(op), {}, [
        ({"draft": torch.zeros(2, 10)}, ValueError, r"draft: expected shape \[3, 'V'\]; got float32 \[2, 10\]"),
        ({"draft": torch.zeros(3, 11)}, ValueError, "draft: expected a vocabulary no larger"),
        ({"temperature": -1.0}, ValueError, "temperature: expected"),
        ({"space": None}, ValueError, "space: expected one of"),
    ]) for op in (residual, overlap)},
    "residual, one-hot": (pair(residual), {}, [
        ({"draft_prob": 2.0}, ValueError, r"draft_prob: expected a number \[0, 1\]; got 2.0"),
    ]),
}  # fmt: skip


@pytest.mark.one_backend
@pytest.mark.parametrize("name", every_refusal())
def test_refused(name):
    """A call is good; each change to it is refused by an error that begins with what is wrong."""
    function, arguments, cases = every_refusal()[name]
    function(**arguments)
    for changes, error, message in cases:
        with pytest.raises(error, match=f"^({message})"):
            function(**arguments | changes)


WRONG = {
    "another type": lambda x: x.to(torch.complex64),
    "no tensor": lambda x: "a word",
    "another device": lambda x: x.to("meta"),
    "a dimension before": lambda x: x[None],
    "a dimension behind": lambda x: x[..., None],
    "one more": lambda x: torch.cat([x, x[:1]]) if x.ndim else x[None],
}
# Arguments by which others are measured: these are the wrong ones then. And those that a call does not read, or
# that may have other sizes.
MEASURES = """draft draft_tokens edits.bias[0] first_child packing.cu_drafts packing.cu_rows parents path paths rows
    seed selected target temperature text tokens""".split()
FREE = """build_tree.out.mask count_tokens.edits.output_counts count_tokens.edits.output_mask mask_logits.cut.count
    count_tokens.edits.prompt_mask mask_logits.cut.mass mask_logits.cut.max store_rows.cache tree_positions.prefix_len
    uniform.index uniform.nonce uniform.out uniform.position verify_chain.out.tokens verify_tree.out.tokens""".split()


def with_outputs():
    """The calls of the tables that have none given, with all that the op returns."""
    for name, (function, call) in public_calls().items():
        if "out" in inspect.signature(function).parameters and not {"out", "output_format", "support"} & call.keys():
            with specdec_kernels.backend("reference"):
                yield f"{name}, out", (function, call | {"out": function(**call)})


CALLS = public_calls() | MAPPED | dict(with_outputs())


def name_of(path, op):
    """The name of a part of a call, as errors have it."""
    name = path[0].key
    for key in path[1:]:
        if name == "out":
            name += f".{getattr(key, 'name', None) or OPS[op].result._fields[key.idx]}"
        elif name != "cache":
            name += f".{key.name}" if hasattr(key, "name") else f"[{key.idx}]"
    return name


def text_of_refusal(function, call):
    """The error's text; "" without one."""
    with specdec_kernels.backend("reference"):
        try:
            function(**call)
        except (TypeError, ValueError) as error:
            return str(error)
    return ""


@pytest.mark.one_backend
@pytest.mark.parametrize("name", CALLS)
def test_each_wrong_tensor_is_refused_by_its_name(name):
    """Whatever holds it: a tuple, a list, a value such as a Sampling."""
    function, arguments = CALLS[name]
    leaves, structure = tree_flatten_with_path(arguments)
    tensors = [index for index, (_, x) in enumerate(leaves) if isinstance(x, torch.Tensor)]
    for index, (kind, change) in product(tensors, WRONG.items()):
        own = name_of(leaves[index][0], function.__name__)
        wrong = [change(x) if i == index else x for i, (_, x) in enumerate(leaves)]
        said = text_of_refusal(function, tree_unflatten(wrong, structure))
        free = f"{function.__name__}.{own}" in FREE or (own, kind) == ("cache", "another type")
        if free or (own in MEASURES and kind not in ("another type", "no tensor")):
            own = said.partition(":")[0]
        assert not own or re.match(rf"{re.escape(own)}(\.rows)?: expected .*; got ", said), (own, kind, said)


@pytest.mark.one_backend
def test_backends_are_named():
    with (
        pytest.raises(ValueError, match=r"backend: expected one of .*cpu.*; got 'cpuu'"),
        specdec_kernels.backend("cpuu"),
    ):
        pass


def test_seeds_may_be_unsigned(backend):
    assert race_sample(ROWS[0], seed=2**64 - 1, position=0) == race_sample(ROWS[0], seed=-1, position=0)


@pytest.mark.one_backend
def test_two_requests_share_no_noise():
    with pytest.raises(ValueError, match=r"seed: expected one seed per request \(int64 \[2\]\)"):
        race_sample(ROWS[:2], seed=1, position=2)


def spoilt(name):
    """A call whose target is NaN."""
    op, call = public_calls()[name]
    return op, call | {"target": torch.full_like(call["target"], torch.nan)}


LAW, OUTSIDE = torch.tensor([0.5, 0.5, 0.0]).expand(3, 3, 3), torch.tensor([[1, 1], [10, 1], [1, 1]])
OF_NO_WEIGHT = {"draft_tokens": torch.full((3, 2), 2), "target": LAW, "draft": LAW[:, :2]}
CHECKED = {
    "chains": (*spoilt("verify_chain rejection"), "verify_chain: request 0: .*NaN"),
    "trees": (*spoilt("verify_tree rejection"), "verify_tree: request 0: a NaN"),
    "trees by links": (*spoilt("verify_linked_tree by noise"), "verify_linked_tree: request 0: a NaN, "),
    "one row": (*spoilt("race_sample one row"), "race_sample: row 0: a NaN"),
    "cutoff": (cutoff, {"rows": ROWS * torch.nan}, "cutoff: request 0: a NaN"),
    "logprobs": (logprobs, {"rows": ROWS, "tokens": seeds(3) + 10}, "logprobs: request 0: a token out of range"),
    "a token": (chain, {"draft_tokens": OUTSIDE}, "verify_chain: request 1: a token out of range"),
    "a number": (chain, {"temperature": torch.tensor([1.0, 1.0, -1.0])}, "verify_chain: request 2: .*temperature"),
    "a residual": (rejection_of_probs, OF_NO_WEIGHT, "verify_chain: request 0: the residual was empty"),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("op, call, said", CHECKED.values(), ids=CHECKED)
def test_check_says_where_and_what(backend, op, call, said):
    with pytest.raises(RuntimeError, match=f"^{said}"):
        op(**call, check=True)
    chain(check=True, temperature=1.0)  # all is well


@pytest.mark.one_backend
def test_eight_requests_are_named():
    named = ", ".join(f"request {b}: the residual was empty[^,]*" for b in range(1, 9))
    with pytest.raises(RuntimeError, match=rf"^op: {named} \(and 3 more\)$"):
        raise_for_status("op", torch.tensor([0] + 11 * [2]))


@pytest.mark.parametrize(
    "cu_drafts",
    [
        [0, 3, 2, 3], [0, -1, 2, 3], [0, 2, 2, 9], [5, 5, 5, 5], [0, 2**31 - 1, -(2**31), 3], [-(2**31)] * 4,
        [0, 2, 2, -(2**31)], [1, 2, 2, 3], [2, 2, 2, 3],
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "options", [{}, {"method": "race", "draft": None}, {"method": "block"}], ids=["rejection", "race", "block"]
)
@pytest.mark.interpreted
def test_bounds_that_point_outside_are_reported_not_followed(backend, cu_drafts, options):
    """The host reads no value of a tensor: requests with bad bounds get token 0 and a status. Bounds begin with 0."""
    good = ragged_chain(**{"packing.max_drafts": 2}, **options)
    bounds = torch.tensor(cu_drafts, dtype=torch.int32)
    verdict = ragged_chain(**{"packing.cu_drafts": bounds, "packing.max_drafts": 2}, **options)
    right = [0, 2, 2, 3]
    for b in range(3):
        low, high = cu_drafts[b : b + 2]
        if [low, high] == right[b : b + 2]:
            assert all(torch.equal(got[b], expected[b]) for got, expected in zip(verdict, good, strict=True))
        elif not 0 <= low <= high <= 3 or (b == 0 and low != 0):
            assert verdict.status[b] & 8
            assert verdict.tokens[b].tolist() == [0, -1, -1]


def test_more_drafts_than_the_width_are_cut_off(backend):
    verdict = ragged_chain(**{"packing.max_drafts": 1})
    assert verdict.tokens.shape == (3, 2)
    assert (verdict.status & 8).tolist() == [8, 0, 0]
