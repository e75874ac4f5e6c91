"""Direct calls (csrc/python/direct.cpp): they give what the checks would have led to, or are left to the checks."""

import contextlib
import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import specdec_kernels
from specdec_kernels import (
    Draft,
    InputPositions,
    LogitEdits,
    Sampling,
    backends,
    cutoff,
    race_sample,
    race_topk,
    tree_mask,
    tree_positions,
)  # fmt: skip
from specdec_kernels.backends import _native
from specdec_kernels.calls import torch_names
from specdec_kernels.calls.op import OPS, Op
from specdec_kernels.sharded._parts import mass_tiles
from tests.ops.test_registration import FIRST, Recorded
from tests.support.calls import chain, every_call, public_calls, rows, tree
from tests.support.cases import UNTOUCHED, ragged, seeds
from tests.support.ops import overlap, verify_chain, verify_tree

pytestmark = pytest.mark.one_backend

NATIVE = ("cpu", "cuda-host")


@pytest.fixture
def checked(monkeypatch):
    """A list that gets the name of an op when a call of it passes the checks; direct calls do not appear."""
    names, run = [], Op.run

    def counted(op, call, given=False):
        names.append(op.name)
        return run(op, call, given)

    monkeypatch.setattr(Op, "run", counted)
    return names


def tensors(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def outcome(function, arguments):
    """What a call returns and leaves in its arguments, or the error it raises; the arguments are as before."""
    before = [tensor.clone() for tensor in tensors(arguments)]
    try:
        found = [tensor.clone() for tensor in tensors(function(**arguments), arguments)]
    except Exception as error:
        found = [type(error), str(error)]
    for tensor, values in zip(tensors(arguments), before, strict=True):
        if tensor.device.type != "meta" and not torch.equal(tensor, values):
            with contextlib.suppress(RuntimeError):  # one whose elements share memory
                tensor.copy_(values)
    return found


def by_checks(function, arguments):
    """The outcome where Python reads the call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Op, "direct", lambda op, check, *raw: op.read(check, raw))
        return outcome(function, arguments)


def same(found, expected):
    return len(found) == len(expected) and all(
        torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.device.type != "meta"
        else one.shape == other.shape
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        else not isinstance(one, torch.Tensor) and one == other
        for one, other in zip(found, expected, strict=True)
    )


def assert_as_checked(function, arguments):
    """Assert the outcome of the checks."""
    expected = by_checks(function, arguments)
    found = outcome(function, arguments)
    assert same(found, expected)


def cloned(arguments):
    return tree_map_only(torch.Tensor, torch.clone, arguments)


def variants():
    """Every op's calls: as they are, with outputs given, with a status, with check=True, with all of these."""
    for name, (function, arguments) in every_call().items():
        parameters = inspect.signature(function).parameters
        # A form may need its outputs.
        options = ("status", "check") if "output_format" in arguments else ("out", "status", "check")
        plain = {key: value for key, value in arguments.items() if key not in options}
        shapes = {}
        if "out" in parameters:
            with specdec_kernels.backend("reference"):  # which has every op
                made = function(**cloned(plain))
            shapes["out"] = tree_map_only(torch.Tensor, lambda x: torch.full_like(x, 1), made)
        if "status" in parameters:
            requests = {"tree_mask": 3, "tree_parents": 3, "tree_positions": 3, "compact_kv": 3}.get(function.__name__)
            lead = next((arguments[x] for x in ("target", "draft", "rows") if x in arguments), None)
            if requests and "additive" not in name and "bits" not in name:
                shapes["status"] = torch.full((requests,), UNTOUCHED, dtype=torch.int32)
            elif lead is not None:
                shapes["status"] = torch.full(lead.shape[:-1], UNTOUCHED, dtype=torch.int32)
        chosen = [{}, *({key: value} for key, value in shapes.items()), shapes]
        if "check" in parameters:
            chosen += [{"check": True}, {"check": True, **shapes}]
        for options in chosen:
            yield pytest.param(function, plain | options, id=f"{name} {' '.join(options)}")


@pytest.fixture(params=NATIVE, autouse=True)
def running(request):
    with specdec_kernels.backend(request.param):
        for function, arguments in every_call().values():  # the first call of an op tells the module of it
            if not OPS[function.__name__].ran.get(request.param):
                function(**cloned(arguments))
        yield request.param


@pytest.mark.parametrize("function, arguments", variants())
def test_every_kind_of_call_is_read(running, function, arguments, checked):
    """With the outcome of the checks, and without them."""
    arguments = cloned(arguments)
    assert_as_checked(function, arguments)
    checked.clear()
    found = outcome(function, arguments)
    wrong = isinstance(found[0], type)
    if not arguments.get("check"):
        assert checked == ([] if wrong or OPS[function.__name__].plan else [function.__name__])


class TestTensors:
    def test_a_draft_is_read(self, checked):
        call = chain()
        made = verify_chain(**call)
        checked.clear()
        assert same(verify_chain(**call | {"draft": Draft(call["draft"])}), made)
        assert checked == []

    @pytest.mark.parametrize("group", [tuple, list])
    def test_outputs_in_any_sequence(self, group, checked):
        call = chain()
        made = verify_chain(**call)
        checked.clear()
        out = group(tensor.clone().fill_(UNTOUCHED) for tensor in made)
        assert same(verify_chain(**call, out=out), made)
        assert same(out, made)
        assert checked == []
        with pytest.raises(ValueError, match=r"out.*: expected memory of its own; got some of out"):
            verify_chain(**call, out=group((made.tokens, made.status, made.status)))

    def test_results_are_new(self):
        call = {"target": rows(49)["target"], "seed": seeds(3), "position": 1}
        found = [race_sample(**call) for _ in range(4)]
        assert len({tensor.data_ptr() for tensor in found}) == 4

    def test_results_are_like_any_tensor(self):
        """They can grow, as an `out` of torch may have to, and be in shared memory."""
        made = verify_chain(**chain())
        for tensor in made:
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().resizable()

    def test_a_torch_without_functions_for_new_tensors(self, checked, monkeypatch):
        from specdec_kernels import _C

        call = {"target": rows(49)["target"], "seed": seeds(3), "position": 1}
        with specdec_kernels.backend("cpu"):
            expected = race_sample(**call)
            with monkeypatch.context() as patch:
                patch.setattr(_native, "_functions_of_torch", lambda: None)
                _native.use_torch(_C)
                checked.clear()
                assert torch.equal(race_sample(**call), expected)
                race_sample(**call, out=expected)
            _native.use_torch(_C)
            race_sample(**call)
        assert checked == ["race_sample"]


@pytest.mark.parametrize("name", ["race_sample", "verify_chain", "verify_tree", "overlap", "compact_kv"])
def test_a_torch_without_its_private_names(name, checked, monkeypatch):
    """No call is read directly, and the outcome is the same."""
    from specdec_kernels import _C

    assert torch_names.of_torch("_C.no_such_name", 7) == 7
    function, arguments = FIRST[name]
    with specdec_kernels.backend("cpu"):
        expected = outcome(function, arguments)
        with monkeypatch.context() as patch:
            for ours, (_, otherwise) in torch_names.PRIVATE.items():
                patch.setattr(torch_names, ours, otherwise)
            patch.setattr(torch_names, "forward_mode", lambda: True)
            _native.use_torch(_C)
            checked.clear()
            assert same(outcome(function, arguments), expected)
            assert checked == [name]
            with pytest.raises(ValueError, match="expected a tensor whose values"):
                function(**arguments | {next(iter(arguments)): torch.eye(3).to_sparse()})
        _native.use_torch(_C)


def odd_calls():
    """Right or wrong for one thing that few calls have."""
    noise, one, target = {"seed": seeds(3), "position": 4}, seeds(3), rows(51)["target"]
    wide, eight = torch.randn(3, 102, generator=torch.Generator().manual_seed(7)), target.view(3, *[1] * 6, 51)
    numpys = Sampling(0.5, np.int64(4), 0.9, top_p_after=["top_k"])
    for change in ({"target": wide[:, :51]}, {"draft_map": torch.arange(51).int()}, {"seed": one, "position": one},
                   {"seed": np.uint64(2**63 + 1)}, {"seed": 2**64 - 1, "position": seeds(3)}, {"sampling": numpys},
                   {"temperature": 0.5, "sampling": (0.5,)}, {"request_index": torch.arange(3).int()}):  # fmt: skip
        yield race_sample, {"target": target, **noise} | change
    yield overlap, {"target": target, "draft": target}
    yield overlap, rows(52) | {"draft.space": "probs", "temperature": 0.5}
    yield verify_tree, tree(draft=None)
    for parents in ([-1, 0, 1, 2, 3], [-1, 0, 0, 0, 0], [-1, 0, 1, 0, 3]):  # the depth is how wide the outputs are
        yield verify_tree, tree(parents=torch.tensor(parents), max_depth=None)
    for function, shape, more in ((tree_positions, (3, 5), {}), (tree_mask, (3, 5, 9), {"columns": 9})):
        out = torch.zeros(shape, dtype=torch.bool if more else torch.int64)  # more trees than there are
        yield function, {"parents": torch.tensor([-1, 0, 1, 1, 0]), "prefix_len": 2, "out": out} | more
    yield race_sample, {"target": eight, **noise}
    yield race_topk, {"draft": eight, "k": 2, **noise}
    yield cutoff, {"rows": eight}
    yield mass_tiles, {"rows": eight}
    yield race_sample, {"target": wide.view(3, 2, 1, 51).transpose(0, 1), "seed": seeds(2), "position": 4}
    bias = [seeds(2).int(), torch.ones(2), torch.tensor([0, 1, 2, 2]).int()]
    yield race_sample, {"target": target, "edits": LogitEdits(bias=bias), **noise}
    yield verify_chain, chain() | {"position": InputPositions(None)}
    yield tree_mask, {"parents": torch.tensor([-1, 0]), "prefix_len": 0, "columns": 2**50}
    build, call = public_calls()["build_tree"]
    yield build, call | {"topk": 2**32 + 3}
    verify, call = public_calls()["verify_chain in one row"]
    for requests in (0, 1):
        some = {name: x[:requests] if isinstance(x, torch.Tensor) else x for name, x in call.items()}
        some["output_format"] = call["output_format"]._replace(
            index=call["output_format"].index[:requests], path=call["output_format"].path[:requests]
        )
        some["out"] = (call["out"][0], *(x[:requests] for x in call["out"][1:]))
        for change in ({}, {"out": None}, {"output_format": some["output_format"]._replace(path=None)}):
            yield verify, some | change


@pytest.mark.parametrize("function, arguments", odd_calls())
def test_odd_calls(function, arguments):
    assert_as_checked(function, cloned(arguments))


BY_PYTHON = {
    "rows of four dimensions": (race_sample, {"target": rows(51, count=4)["target"].view(2, 1, 2, 51), "seed": 3}, {
        "position": torch.arange(4).view(2, 1, 2),
    }),
    "numbers of the last dimension": (race_sample, {"target": rows(51, count=6)["target"].view(2, 3, 51), "seed": 3}, {
        "position": torch.arange(6).view(2, 3), "temperature": torch.tensor([0.5, 1.0, 2.0]),
    }),
    "a number of each draft, packed": (verify_chain, ragged(chain(), torch.tensor([2, 0, 1])), {
        "draft_prob": torch.tensor([0.5, 0.75, 1.0]),
    }),
    "masks of all rows in one dimension": (verify_chain, chain(), {
        "edits": LogitEdits(allowed=torch.full((9, 2), -1, dtype=torch.int32)),
    }),
    "no requests": (verify_chain, {key: x[:0] for key, x in chain().items() if isinstance(x, torch.Tensor)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("function, call, change", BY_PYTHON.values(), ids=BY_PYTHON)
def test_what_is_broadcast_or_folded_goes_by_python(function, call, change, checked):
    """The exact check leaves it, and the call gives what it gives by the checks."""
    assert_as_checked(function, call | change)
    checked.clear()
    function(**call | change)
    assert checked == [function.__name__]


@pytest.mark.parametrize("name", ["seed", "temperature", "draft_prob", "epsilon"])
def test_one_number_for_all_is_read(name, checked):
    """A tensor of one number needs no broadcasting: its strides are 0."""
    dtype = torch.int64 if name == "seed" else torch.float32
    for shape in ((), (1,)):
        call = chain() | {name: torch.ones(shape, dtype=dtype)}
        assert_as_checked(verify_chain, call)
        checked.clear()
        verify_chain(**call)
        assert checked == []


def no_drafts():
    """A step without drafts: its draft rows have no memory."""
    call = chain(draft_tokens=torch.empty(3, 0, dtype=torch.int64), epsilon=0.0)
    return call | {"target": call["target"][:, :1], "draft": call["draft"][:, :0], "draft_prob": np.float32(0.5)}


class Word(str):
    pass


NO_BIAS = torch.empty(0, dtype=torch.int32), torch.empty(0)
BY_C = {
    "a number of NumPy": chain(temperature=np.float32(0.7), epsilon=np.float16(0.25)),
    "a word of a class of words": chain(method=Word("rejection")),
    "no drafts": no_drafts(),
    "no drafts, packed": ragged(no_drafts(), torch.zeros(3, dtype=torch.int64)),
    "no drafts, an index": no_drafts() | {"request_index": torch.tensor([2, -1, 1])},
    "no bias": chain(edits=LogitEdits(bias=(*NO_BIAS, torch.zeros(4, dtype=torch.int32)))),
    "no bias of rows": chain(edits=LogitEdits(bias=(*NO_BIAS, torch.zeros(3, 3, 2, dtype=torch.int32)))),
}


@pytest.mark.parametrize("call", BY_C.values(), ids=BY_C)
def test_what_engines_pass_is_read(call, checked):
    """Such calls come from a step without drafts, from a batch without biases, and from settings read by NumPy."""
    for name in ("draft", "edits", "draft_prob", "method"):
        for other in changes(call.get(name)):
            assert_as_checked(verify_chain, call | {name: other})
    assert_as_checked(verify_chain, call)
    checked.clear()
    verify_chain(**call)
    assert checked == []


class NoFloat(np.float32):
    def __float__(self):
        raise ValueError("no float")


def changes(value):
    """What an argument could be instead; mostly wrong."""
    yield from (None, True, -1, 0, 1, 2, 0.5, float("nan"), float("inf"), 2**63, 2**64, "race", "probs", (), [1, 2])
    yield from (np.float32(0.5), np.float16("nan"), np.float64(-1.0), np.bool_(True), NoFloat(0.5))
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            for other in changes(part):
                yield (
                    value._replace(**{value._fields[i]: other})
                    if hasattr(value, "_fields")
                    else (*value[:i], other, *value[i + 1 :])
                )
    if not isinstance(value, torch.Tensor):
        yield from (torch.ones(()), torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(2, 2))
        return
    for dtype in (torch.float64, torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool):
        yield value.to(dtype)
    yield value.to("meta")
    yield value[None]
    yield value.repeat_interleave(2, -1)[..., ::2] if value.ndim else value
    for i in range(value.ndim):
        yield torch.cat([value, value.new_zeros(*value.shape[:i], 1, *value.shape[i + 1 :])], i)
        if value.shape[i] == 0:
            continue
        yield value.narrow(i, 0, value.shape[i] - 1)
        yield value.narrow(i, 0, 1).expand(value.shape)
        yield value.narrow(i, 0, 1)
        yield value.narrow(i, 0, 0)
        yield value.select(i, 0)
        yield value.transpose(i, -1).contiguous().transpose(i, -1)


@pytest.mark.parametrize("name", [name for name, (op, _) in public_calls().items() if OPS[op.__name__].plan])
def test_wrong_arguments_say_what_they_said(name):
    """Each argument of each call is changed in every way of a list."""
    function, arguments = public_calls()[name]
    for argument, value in arguments.items():
        for other in changes(value):
            assert_as_checked(function, cloned(arguments) | {argument: other})


CALL = {"target": rows(55)["target"], "seed": seeds(3), "position": 4}


class TestWhoRunsIt:
    def test_the_backend_that_was_chosen(self):
        assert_as_checked(race_sample, CALL)
        calls = []
        spy = SimpleNamespace(race_sample=lambda call: calls.append(call) or call.tokens.fill_(7))
        backends.register("spy", spy, ("cpu",))
        try:
            for count in (1, 2):
                with specdec_kernels.backend("spy"):
                    assert race_sample(**CALL).tolist() == [7, 7, 7]
                assert len(calls) == count
        finally:
            backends._BACKENDS.pop("spy")
            backends._loaded.pop("spy")
        assert_as_checked(race_sample, CALL)

    def test_an_instruction_set_chosen_meanwhile(self):
        from specdec_kernels import _C

        before = _C.isa()
        try:
            for isa in _C.isas():
                _C.set_isa(isa)
                assert_as_checked(race_sample, CALL)
        finally:
            _C.set_isa(before)


class TestWhoWatches:
    """No call is read directly where torch is to see the op."""

    def test_dispatch_modes(self):
        with Recorded() as record:
            race_sample(**CALL)
        assert [str(op) for op, _, _ in record.calls] == ["specdec.race_sample.default"]

    def test_function_modes(self, checked):
        with torch.overrides.BaseTorchFunctionMode():
            race_sample(**CALL)
        assert checked == ["race_sample"]

    def test_profiler(self):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            race_sample(**CALL)
        assert "specdec::race_sample" in {event.key for event in profile.key_averages()}

    def test_subclasses(self, checked):
        class Mine(torch.Tensor):
            pass

        race_sample(**CALL | {"target": CALL["target"].as_subclass(Mine)})
        assert checked == ["race_sample"]
