"""What a caller has set for all of torch changes no result: default dtype and device, inference mode, how the processor
takes denormal numbers, fake tensors met before. Every op, shard op, way to generate and adapter, in each state.
"""

import contextlib
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

import specdec_kernels as specdec
from specdec_kernels import Sampling, sharded
from specdec_kernels.engines import flashinfer, sglang, transformers, vllm, vllm_v1
from specdec_kernels.engines.llamacpp import LlamaModel
from specdec_kernels.generate import (
    Controller,
    FixedLength,
    ModelDrafter,
    NgramDrafter,
    RandomLength,
    TextEdits,
    TreeController,
    generate,
)
from tests.engines import llama_stand_in, mlx_stand_in, slot_adapters, test_flashinfer, test_sglang, test_vllm
from tests.engines.conftest import engine, v1, v2  # noqa: F401  fixtures
from tests.engines.slot_machine import NUMBERS, played, wishes
from tests.engines.test_slot_machine import STREAMS, sglang_plugin, tables  # noqa: F401  fixtures
from tests.generate.small import llama
from tests.ops.test_filters import CALLS as FILTERED
from tests.sharded import test_writes
from tests.support.calls import every_call, unsupported
from tests.support.ops import grouped


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def flushing():
    """Denormal numbers count as 0."""
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


STATES = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float16": lambda: default_dtype(torch.float16),
    "meta": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "flushing": flushing,
    "after fake tensors": contextlib.nullcontext,
}
EVERY_STATE = pytest.mark.parametrize("state", STATES)


def copied(value):
    return tree_map_only(torch.Tensor, torch.clone, value)


def outcome(function, arguments, state=None):
    """What a call returns and what it leaves in its arguments: all leaves. Noise that nobody asked for is the same."""
    arguments = copied(arguments)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    if state == "after fake tensors":
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, contextlib.suppress(Exception):
            function(**tree_map_only(torch.Tensor, mode.from_tensor, copied(arguments)))
    with STATES[state]() if state else contextlib.nullcontext():
        found = function(**arguments)
    return tree_leaves((found, arguments))


def assert_unchanged(function, arguments, state):
    expected, found = outcome(function, arguments), outcome(function, arguments, state)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert (got.dtype, got.device, got.shape) == (wanted.dtype, wanted.device, wanted.shape)
            assert type(got) is torch.Tensor
            assert torch.equal(bits(got), bits(wanted))
        elif isinstance(wanted, (int, str, type(None))):
            assert got == wanted


def bits(x):
    """So that a NaN equals itself."""
    return x.clone().view(torch.uint8) if x.ndim and x.is_floating_point() else x


CALLS = every_call() | {f"{name}, filtered": call for name, call in FILTERED.items()}


@pytest.mark.interpreted
@EVERY_STATE
@pytest.mark.parametrize("name", CALLS)
def test_ops(backend, name, state):
    if reason := unsupported(backend, CALLS[name][0]):
        pytest.skip(reason)
    assert_unchanged(*CALLS[name], state)


# ---- rows on which denormal numbers decide -------------------------------------------------------------------------


def denormal_rows(size):
    """Logits that differ by denormal numbers alone, none, and such beside usual ones."""
    small = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 2.0**-130
    return torch.stack([small, torch.zeros(size), torch.where(torch.arange(size) % 3 == 0, small, -1.0)])


HARD = {
    "top_k": Sampling(top_k=5),
    "min_p": Sampling(min_p=0.5),
    "min_p, a denormal one": Sampling(min_p=2.0**-130),
    "both": Sampling(top_k=40, min_p=0.9),
    "top_p": Sampling(top_p=0.5),
    "a temperature that makes them usual": Sampling(2.0**-20, top_k=3),
    "a denormal temperature": Sampling(2.0**-130, top_k=3),
}


@pytest.mark.parametrize("size", [1, 33, 64, 65, 1025, 2049, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HARD)
def test_denormal_numbers_where_they_count_as_0(other_backend, name, dtype, size):
    rows, noise = denormal_rows(size).to(dtype), {"seed": torch.arange(3), "position": 2}
    cut = outcome(specdec.cutoff, {"rows": rows, "sampling": HARD[name]})
    assert min(cut[2].tolist()) >= 1
    with specdec.backend("reference"):
        for got, wanted in zip(cut, outcome(specdec.cutoff, {"rows": rows, "sampling": HARD[name]}), strict=True):
            assert not isinstance(wanted, torch.Tensor) or torch.equal(got, wanted)
    status = torch.empty(3, dtype=torch.int32)
    of_rows = {"sampling": HARD[name], "status": status}
    for function, arguments in (
        (specdec.cutoff, {"rows": rows} | of_rows),
        (specdec.race_sample, {"target": rows} | noise | of_rows),
        (specdec.race_topk, {"draft": rows, "k": min(size, 4)} | noise | of_rows),
        (specdec.residual, {"target": rows, "draft": rows.roll(1, -1)} | of_rows),
        (specdec.overlap, {"target": rows, "draft": rows.roll(1, -1)} | of_rows),
        (specdec.logprobs, {"rows": rows, "tokens": torch.zeros(3).long(), "top": min(size, 3)} | of_rows),
    ):
        assert_unchanged(function, arguments, "flushing")


@pytest.mark.parametrize("isa", specdec._C.isas())
def test_denormal_numbers_in_each_instruction_set_and_thread(isa):
    rows = denormal_rows(40_000).to(torch.bfloat16)
    calls = [{"rows": rows, "sampling": sampling} for sampling in HARD.values()]
    before, threads = specdec._C.isa(), torch.get_num_threads()
    try:
        specdec._C.set_isa(isa)
        torch.set_num_threads(4)
        for call in calls:
            assert_unchanged(specdec.cutoff, call, "flushing")
    finally:
        specdec._C.set_isa(before)
        torch.set_num_threads(threads)


def test_a_callers_mode_is_as_it_was():
    with flushing():
        specdec.cutoff(torch.zeros(3, 40), sampling=HARD["top_k"])
        assert sys.float_info.min / 2 == 0.0
        with specdec.backend("reference"):
            specdec.cutoff(torch.zeros(3, 40), sampling=HARD["top_k"])
        assert sys.float_info.min / 2 == 0.0
        with pytest.raises(TypeError):
            specdec.cutoff(7)
        assert sys.float_info.min / 2 == 0.0
    assert sys.float_info.min / 2 > 0.0


# ---- shards --------------------------------------------------------------------------------------------------------


def alone(op):
    """A sharded op on one rank, which has all columns."""

    def run(**arguments):
        rows = next(rows for rows in map(arguments.get, ("target", "draft", "rows")) if isinstance(rows, torch.Tensor))
        shard = sharded.VocabShard(rows.shape[-1], 0)
        shard.ranks = 1
        return op(**arguments, shard=shard)

    return run


SHARE = Sampling(0.8, top_p=0.9, top_p_after=())
WIDE = torch.randn(3, 4096, generator=torch.Generator().manual_seed(3))
SHARDED = {name: (op, grouped(call)) for name, (op, call) in test_writes.CALLS.items()} | {
    "cutoff, a share of whole rows": (sharded.cutoff, {"rows": WIDE, "sampling": SHARE}),
    "cutoff of denormal numbers": (sharded.cutoff, {"rows": denormal_rows(4096), "sampling": Sampling(top_k=7)}),
    "a share of denormal numbers": (sharded.cutoff, {"rows": denormal_rows(4096), "sampling": SHARE}),
    "race_sample, a share of whole rows": (
        sharded.race_sample, {"target": WIDE, "seed": torch.arange(3), "position": 1, "sampling": SHARE},
    ),
    "race_topk": (sharded.race_topk, {"draft": WIDE, "k": 3, "seed": torch.arange(3), "position": 1}),
    "verify_chain, a share of whole rows": (
        sharded.verify_chain,
        grouped(test_writes.chain(temperature=None, sampling=SHARE) | {"draft.sampling": SHARE}),
    ),
}  # fmt: skip


@EVERY_STATE
@pytest.mark.parametrize("name", SHARDED)
def test_shards(name, state):
    op, arguments = SHARDED[name]
    assert_unchanged(alone(op), arguments, state)


def test_a_share_of_whole_rows_is_that_of_one_rank():
    """What torch.float16 as the default made of it: 42 tokens of 777."""
    for name in ("cutoff, a share of whole rows", "a share of denormal numbers"):
        op, arguments = SHARDED[name]
        assert all(map(torch.equal, alone(op)(**arguments), specdec.cutoff(**arguments)))


# ---- the generator -------------------------------------------------------------------------------------------------

EDITS = TextEdits(frequency=0.3, presence=0.1, repetition=1.2, bias={40: 2.0}, allowed=range(200))
TREE = [-1, 0, 0, 1, 1]
WAYS = {
    "plain": lambda draft: (None, dict(method="plain")),
    "race": lambda draft: (ModelDrafter(draft), dict(method="race", k=3)),
    "race, filtered and edited": lambda draft: (
        ModelDrafter(draft),
        dict(method="race", sampling=Sampling([0.7, 1.2], top_k=[20, 0], top_p=0.9), edits=EDITS, logprobs=2),
    ),
    "rejection": lambda draft: (ModelDrafter(draft), dict(method="rejection", temperature=[0.0, 0.9], logprobs=2)),
    "rejection, at times": lambda draft: (ModelDrafter(draft), dict(method="rejection", draft_prob=0.7)),
    "block": lambda draft: (ModelDrafter(draft), dict(method="block", policy=FixedLength(3))),
    "n-grams": lambda draft: (NgramDrafter(), dict(method="rejection")),
    "tree": lambda draft: (ModelDrafter(draft), dict(method="rejection", tree=TREE, edits=EDITS)),
    "independent siblings": lambda draft: (ModelDrafter(draft), dict(method="rejection", tree=TREE, replacement=True)),
    "traversal": lambda draft: (ModelDrafter(draft), dict(method="traversal", tree=TREE, temperature=0.8)),
    "paths": lambda draft: (ModelDrafter(draft), dict(method="paths", paths=3, k=3)),
    "random lengths": lambda draft: (
        ModelDrafter(draft),
        dict(method="rejection", policy=RandomLength(3, 0.6, "token")),
    ),
    "controlled": lambda draft: (ModelDrafter(draft), dict(method="rejection", policy=Controller(3))),
    "controlled trees": lambda draft: (ModelDrafter(draft), dict(method="traversal", policy=TreeController(5))),
}  # fmt: skip


@pytest.fixture(scope="module")
def models():
    from specdec_kernels.generate import load_model

    return load_model("embedded:target"), load_model("embedded:draft")


def ticks():
    """A clock that all runs agree on."""
    count = iter(range(10**6))
    return lambda: float(next(count))


@EVERY_STATE
@pytest.mark.parametrize("way", WAYS)
def test_the_generator(models, way, state):
    def written():
        drafter, options = WAYS[way](models[1])
        found = generate(["ROMEO:", "What"], models[0], drafter, seed=3, max_new_tokens=8, timer=ticks(), **options)
        return [[entry.tokens, *([x.logprob for x in part.logprobs or ()] for part in entry.rounds)] for entry in found]

    assert_unchanged(written, {}, state)


# ---- adapters ------------------------------------------------------------------------------------------------------

CHAIN = test_flashinfer.drafted(8)  # draft laws, drafts, target laws
LOGITS = torch.randn(6, 9, generator=torch.Generator().manual_seed(7))
LAWS = LOGITS.softmax(-1)
V2 = test_vllm.arguments([test_vllm.K + 1] * 4, range(4), test_vllm.drafted(4), [5] * 4)
SLOTS = torch.arange(6)
FUNCTIONS = {
    "flashinfer, a chain": lambda: flashinfer.chain_speculative_sampling(*CHAIN),
    "flashinfer, logits": lambda: flashinfer.sampling_from_logits(LOGITS),
    "flashinfer, laws": lambda: flashinfer.sampling_from_probs(LAWS, seed=3, offset=1),
    "flashinfer, min_p": lambda: flashinfer.min_p_sampling_from_probs(LAWS, 0.3),
    "flashinfer, top_k and top_p": lambda: flashinfer.top_k_top_p_sampling_from_logits(LOGITS, 3, 0.95),
    "flashinfer, laws made new": lambda: (
        flashinfer.top_p_renorm_probs(LAWS, 0.7),
        flashinfer.top_k_renorm_probs(LAWS, 3),
        flashinfer.top_k_mask_logits(LOGITS, 3),
    ),
    "vLLM, V2": lambda: vllm.rejection_sample(**V2),
    "vLLM, a draw": lambda: vllm.gumbel_sample(
        LOGITS, SLOTS, torch.ones(6, dtype=torch.float32, device="cpu"), SLOTS, SLOTS, True, False
    ),
    "vLLM, V1": lambda: vllm_v1.rejection_sample(**V1),
    "transformers": lambda: transformers.speculative_sampling(
        CANDIDATES, LOGITS[None, :3], 3, LOGITS[None, 2:], last_assistant_token_is_eos=False
    ),
}
V1 = {
    "draft_token_ids": torch.tensor([1, 2, 3], dtype=torch.int32), "num_draft_tokens": [2, 0, 1], "max_spec_len": 2,
    "cu_num_draft_tokens": torch.tensor([2, 2, 3], dtype=torch.int32), "draft_probs": LAWS[:3],
    "target_logits": LOGITS[3:], "bonus_token_ids": torch.tensor([[4], [5], [6]]),
    "sampling_metadata": SimpleNamespace(
        all_greedy=False, all_random=False, temperature=torch.tensor([1.0, 0.0, 0.7]), generators={}
    ),
}  # fmt: skip
CANDIDATES = torch.tensor([[0, 1, 2, 3]])


@EVERY_STATE
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_engines(name, state):
    assert_unchanged(FUNCTIONS[name], {}, state)


@EVERY_STATE
@pytest.mark.parametrize("draft", [None, "laws"])
def test_trees_of_sglang(draft, state):
    given = test_sglang.trees(5)
    given["draft_probs"] = None if draft is None else given["target_probs"].roll(1, -1)
    assert_unchanged(sglang.tree_speculative_sampling_target_only, given, state)
    greedy = {name: given[name] for name in ("predicts", "accept_index", "accept_token_num", "candidates")}
    greedy |= {name: x for name, x in given.items() if name.startswith("retrive")}
    target = given["target_probs"].argmax(-1)
    assert_unchanged(sglang.verify_tree_greedy, greedy | {"target_predict": target}, state)


def of_v2(request):
    request.getfixturevalue("v2")
    return lambda: slot_adapters.VllmV2("rejection"), slot_adapters.VOCABULARY, NUMBERS


def of_v1(request):
    plugin = request.getfixturevalue("v1")
    return lambda: slot_adapters.VllmV1(plugin, "rejection"), slot_adapters.VOCABULARY, NUMBERS


def of_sglang(request):
    plugin = request.getfixturevalue("sglang_plugin")
    return lambda: slot_adapters.Sglang(plugin, "tree"), slot_adapters.VOCABULARY, NUMBERS


def of_llamacpp(request):
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setitem(sys.modules, "llama_cpp", llama_stand_in.MODULE)
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._llamacpp", raising=False)
    models = [LlamaModel(llama_stand_in.Llama(table)) for table in tables()]
    return lambda: slot_adapters.Llama(models, "rejection", tree=TREE), 6, STREAMS


def of_mlx(request):
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, module in mlx_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._mlx_lm", raising=False)
    models = [mlx_stand_in.Model(table) for table in tables()]
    numbers = [each for each in STREAMS if "repetition" not in each]
    return lambda: slot_adapters.Mlx(models, "rejection"), 6, numbers


def of_transformers(request):
    models = [llama(7, seed=seed, spread=0.5).model for seed in (1, 2)]
    how = {"temperature": 0.8, "top_k": 4, "repetition_penalty": 1.2}
    return lambda: slot_adapters.Transformers(*models, "rejection", transformers.generate, **how), 7, ({},)


PLUG_INS = {
    "vLLM's V2 runner": of_v2,
    "vLLM's V1 runner": of_v1,
    "SGLang": of_sglang,
    "llama.cpp": of_llamacpp,
    "mlx-lm": of_mlx,
    "transformers": of_transformers,
}


# The others, or their stand-ins, make tensors of their own on the default device.
PLACED = ("llama.cpp", "mlx-lm")
OF_PLUG_INS = [(name, state) for name in PLUG_INS for state in STATES if state != "meta" or name in PLACED]


@pytest.mark.parametrize("name, state", OF_PLUG_INS)
def test_plug_ins(request, name, state):
    make, vocabulary, numbers = PLUG_INS[name](request)
    asked = wishes(6, vocabulary, numbers)
    engines = [make() for _ in range(3)]
    assert_unchanged(lambda: played(engines.pop(), asked, 0)[0], {}, state)
