"""SGLang's own code beside ours: its PyTorch sampler, its Triton kernels in the interpreter, its penalizers."""

import ast
import importlib.util
import inspect
import sys
import types
from enum import Enum
from functools import partial
from typing import Optional
from unittest import mock

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling
from specdec_kernels.engines import sglang
from tests.engines import sglang_stand_in as stand_in
from tests.engines.sglang_stand_in import Registry, installed, place
from tests.engines.sglang_unpacked import load
from tests.engines.unpacked import FOLDER, differences, fields, functions, made, signature, strangers
from tests.ops.test_build_tree import drafted

PATH, NAME = "sglang/srt/layers/sampler.py", "top_k_top_p_min_p_sampling_from_probs_torch"


def test_filters(table):
    """On rows without ties it keeps what ``Sampling.sglang`` keeps, with the same law."""
    sampler = made(PATH, NAME, {"torch": torch, "Optional": Optional})
    generator = torch.Generator().manual_seed(3)
    for top_k, top_p, min_p in ((50, 1.0, 0.0), (200, 0.9, 0.0), (1000, 0.8, 0.0), (40, 1.0, 0.05), (1000, 0.3, 0.0)):
        logits = 4 * torch.randn(64, 1000, generator=generator, dtype=torch.float64).float()
        weights, order = sampler(
            logits.softmax(-1), torch.full((64,), top_k), torch.full((64,), top_p), torch.full((64,), min_p),
            min_p > 0, None, torch.zeros(64), return_filtered_probs=True,
        )[1:3]  # fmt: skip
        theirs = torch.zeros_like(logits).scatter(-1, order, weights)
        theirs /= theirs.sum(-1, keepdim=True)
        sampling = Sampling.sglang(1.0, top_k, top_p, min_p)
        ours = specdec.residual(logits, logits, sampling=sampling, draft_prob=0.0).probs
        same = ((ours > 0) == (theirs > 0)).all(-1).sum().item()
        filters = {"top-k": top_k, "top-p": top_p, "min-p": min_p, "rows that keep the same": f"{same} of 64"}
        table("SGLang: its PyTorch sampler beside Sampling.sglang", filters)
        assert same >= 63  # a sum of float32 may fall on the other side of top_p
        agree = ((ours > 0) == (theirs > 0)).all(-1)
        torch.testing.assert_close(ours[agree], theirs[agree], rtol=1e-4, atol=1e-6)


TITLE = "SGLang: its Triton code in the interpreter, beside ours"
BATCH = 6


def built(build, numbers, lengths, shape, mask, mode):
    """Links, positions and mask of trees of EAGLE's, by SGLang's function or ours."""
    nodes = numbers[1].shape[1] + 1
    outputs = torch.full((BATCH * nodes,), -5), *torch.full((3, BATCH, nodes), -1)
    build(*numbers, lengths, mask, *outputs, *shape, nodes, mode)
    return mask, *outputs


def random_trees(topk, depth, nodes, seed=0):
    """(parent lists, selected numbers) of a batch."""
    generator = torch.Generator().manual_seed(seed)
    groups, selected, _ = zip(*(drafted(topk, depth, nodes - 1, generator) for _ in range(BATCH)), strict=True)
    return torch.tensor(groups), torch.tensor(selected)


@pytest.mark.parametrize("mode", [sglang.FULL_MASK, sglang.QLEN_ONLY])
@pytest.mark.parametrize("topk, depth, nodes", [(1, 4, 5), (2, 3, 8), (4, 4, 33)])
def test_trees_are_built_alike(topk, depth, nodes, mode, table):
    theirs = load("spec_tree")
    numbers, lengths = random_trees(topk, depth, nodes, seed=nodes), torch.tensor([5, 0, 17, 1, 2, 9])
    size = nodes * int((lengths + nodes).sum()) if mode == sglang.FULL_MASK else BATCH * nodes**2
    found, expected = (
        built(build, numbers, lengths, (topk, depth), torch.ones(size, dtype=torch.bool), mode)
        for build in (sglang.build_tree_kernel_efficient, theirs.sgl_build_tree_kernel_triton)
    )
    for ours, wanted in zip(found, expected, strict=True):
        assert torch.equal(ours, wanted)
    name = "FULL_MASK" if mode == sglang.FULL_MASK else "QLEN_ONLY"
    table(TITLE, {
        "what": f"trees of {nodes} nodes, {name}", "compared": f"{BATCH} trees",
        "the same": "links, positions, mask",
    })  # fmt: skip


def test_greedy_walks_alike(table):
    theirs, nodes, width = load("spec_tree"), 20, 5
    numbers, mask = random_trees(4, 4, nodes), torch.zeros(BATCH * nodes**2).bool()
    _, _, *links = built(sglang.build_tree_kernel_efficient, numbers, torch.zeros(BATCH).long(), (4, 4), mask, 1)
    generator, lengths = torch.Generator().manual_seed(1), set()
    for _ in range(8):
        tokens, wanted = torch.randint(3, (2, BATCH, nodes), generator=generator)
        results = []
        for verify in (sglang.verify_tree_greedy, theirs.verify_tree_greedy_triton):
            outputs = torch.zeros(BATCH * nodes).int(), torch.full((BATCH, width), -1).int(), torch.zeros(BATCH).int()
            verify(*outputs, tokens, *links, wanted)
            results.append(outputs)
        for ours, expected in zip(*results, strict=True):
            assert torch.equal(ours, expected)
        lengths |= set(outputs[2].tolist())
    assert len(lengths) >= 4
    table(TITLE, {
        "what": "`verify_tree_greedy`", "compared": f"{8 * BATCH} trees of {nodes} nodes",
        "the same": "tokens, paths, counts",
    })  # fmt: skip


@pytest.mark.parametrize("block", [False, True])
def test_chains_that_no_uniform_can_change(block, table):
    """Targets that are certain; drafts of which most are right."""
    theirs, width, vocabulary = load("reject_sampling"), 5, 11
    generator = torch.Generator().manual_seed(2)
    wanted = torch.randint(vocabulary, (40, width), generator=generator)
    wrong = torch.rand(40, width - 1, generator=generator) < 0.25
    drafts = torch.where(wrong, (wanted[:, :-1] + 1) % vocabulary, wanted[:, :-1])
    target = torch.nn.functional.one_hot(wanted, vocabulary).float()
    draft = torch.rand(40, width - 1, vocabulary, generator=generator).softmax(-1)
    given = (
        torch.nn.functional.pad(drafts, (1, 0)), torch.arange(40 * width).view(40, width), None, None,
        torch.rand(40, width, generator=generator), torch.rand(40, generator=generator), target, draft, 1.0, 1.0, True,
    )  # fmt: skip
    results = []
    for verify in (sglang.chain_speculative_sampling_triton, theirs.chain_speculative_sampling_triton):
        outputs = torch.zeros(40 * width).int(), torch.full((40, width), -1).int(), torch.zeros(40).int()
        verify(*outputs, *given, block_verification=block)
        results.append(outputs)
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
    assert len(set(outputs[2].tolist())) == width
    table(TITLE, {
        "what": f"`chain_speculative_sampling_triton`{', block' * block}, certain targets", "compared": "40 chains",
        "the same": "tokens, paths, counts",
    })  # fmt: skip


@pytest.fixture
def own_penalizers(monkeypatch):
    """SGLang's own penalizers, the plug-in registered; all else that it imports is a stand-in."""
    folder = FOLDER / "sglang/srt/sampling"
    if not folder.exists():
        pytest.skip("sglang is not unpacked")
    name = "sglang.srt.sampling.penaltylib"
    for _ in installed(monkeypatch):
        utils = {"get_compiler_backend": lambda: "eager", "is_npu": lambda: True}  # so nothing is compiled
        place(monkeypatch, {
            "sglang.srt.sampling": {"__path__": [str(folder)]}, "sglang.srt.utils": utils,
            "sglang.srt.utils.common": {"is_pin_memory_available": lambda device: False},
        })  # fmt: skip
        monkeypatch.setenv("SPECDEC_SGLANG", "race")
        sglang.register()
        yield importlib.import_module(name)
        for module in [module for module in sys.modules if module.startswith(name)]:
            del sys.modules[module]


def test_penalties(own_penalizers):
    """Rows are those that SGLang's penalizers make of the same texts, each of whose tokens they are given once."""
    generator, size, length, vocabulary = torch.Generator().manual_seed(3), 6, 40, 30
    numbers = ((0.5,), (0.0, 1.25, 1.0, 41), (0.0, 0.0, 1.5, 40), (-0.25, 0.5, 1.25, 99), (), (1.0, -1.5, 0.5))
    reqs = [stand_in.request(*each, stop=(3, 7), prompt=[1, 2]) for each in numbers]
    texts = torch.randint(vocabulary, (size, length), generator=generator)
    for slot, (req, text) in enumerate(zip(reqs, texts.tolist(), strict=True)):
        req.output_ids.extend(text)
        req.kv.req_pool_idx = slot
    pool, slots = stand_in.Pool(size), torch.arange(size)
    batch = stand_in.schedule_batch(stand_in.info(size), torch.full((size,), length + 1), slots, reqs, pool)
    batch = stand_in.attached(batch)
    kinds = {getattr(own_penalizers, kind) for kind in own_penalizers.__all__ if kind.endswith("Penalizer")}
    assert len(kinds) == 4
    theirs = own_penalizers.BatchedPenalizerOrchestrator(vocabulary, batch, kinds)
    for column in texts.T:
        theirs.cumulate_output_tokens(column)
    rows = torch.randn(size, vocabulary, generator=generator)
    wanted, added = rows.clone(), torch.zeros_like(rows)
    theirs.accumulate_additive_penalties(added)
    wanted += added
    module = sys.modules["sglang.srt.sampling.penaltylib.repetition_penalty"]
    module.apply_scaling_penalties(wanted, theirs.accumulate_scaling_penalties())
    forward = types.SimpleNamespace(
        sampling_info=batch.sampling_info, req_pool_indices=slots, positions=torch.full((size,), length + 1),
        input_ids=texts[:, -1], forward_mode=types.SimpleNamespace(is_decode=lambda: True),
    )  # fmt: skip
    runner, output = types.SimpleNamespace(req_to_token_pool=pool), types.SimpleNamespace(next_token_logits=rows)
    Registry.hook("sample")(runner, output, forward)
    assert torch.equal(rows, wanted)
    assert wanted.isneginf().sum(1).tolist() == [0, 2, 0, 2, 0, 0]


def test_the_stand_ins_have_its_types(own_penalizers, monkeypatch):
    """Of what SGLang makes itself, here by its own code; of the rest by what its classes say of their fields."""
    execution = mock.MagicMock()
    execution.features.enable_custom_logit_processor = execution.features.enable_watermark = False
    place(monkeypatch, {
        "sglang.srt.constrained.base_grammar_backend": {
            "BaseGrammarObject": None, "GrammarMask": None, "GrammarRow": None,
        },
        "sglang.srt.runtime_context": {"get_exec": lambda: execution},
        "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": None},
        "sglang.srt.sampling.sampling_params": {"TOP_K_ALL": 1 << 30},
        "sglang.srt.sampling.watermarking.core": {"build_watermark_batch_config": None},
        "sglang.srt.managers.schedule_batch": {"ScheduleBatch": type("ScheduleBatch", (), {})},
    })  # fmt: skip
    reqs = [stand_in.request(0.5, 0.5, 1.5, least=3, stop=[1], prompt=[1, 2]) for _ in range(3)]
    for req in reqs:
        vars(req).update(return_sampling_mask=False, custom_logit_processor=None)
        vars(req.sampling_params).update(
            temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, sampling_seed=None, logit_bias=None
        )
    batch = stand_in.schedule_batch(None, torch.full((3,), 5), torch.arange(3), reqs, stand_in.Pool(4))
    theirs = importlib.import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo
    theirs = theirs.from_schedule_batch(batch, 8)
    assert not list(differences(stand_in.info(3), theirs.copy_for_forward()))
    theirs, ours = theirs.penalizer_orchestrator, stand_in.Orchestrator(batch)
    assert (theirs.batch, theirs.is_required) == (ours.batch, ours.is_required)
    assert {kind.__name__ for kind in theirs.penalizers} == {kind.__name__ for kind in ours.penalizers}
    for each in theirs.penalizers.values():
        assert each.is_prepared()
        each.teardown()
        assert not each.is_prepared()
    drafts = stand_in.verify_input(torch.zeros(3, 4, dtype=torch.int64), DraftTree.chain(3), 1)
    for one, path, owner in (
        (batch, "managers/schedule_batch.py", "ScheduleBatch"),
        (drafts, "speculative/eagle_info.py", "EagleVerifyInput"),
        (stand_in.speculative(), "arg_groups/fields/spec.py", "Spec"),
    ):
        assert not list(strangers(one, fields(f"sglang/srt/{path}", owner)))


@pytest.mark.parametrize(("path", "owner", "name", "arguments"), [
    ("sampling/sampling_batch_info.py", "SamplingBatchInfo", "from_schedule_batch", ["cls", "batch", "vocab_size"]),
    ("sampling/sampling_batch_info.py", "SamplingBatchInfo", "copy_for_forward", ["self"]),
    ("sampling/sampling_batch_info.py", "SamplingBatchInfo", "apply_logits_bias", ["self", "logits"]),
    ("model_executor/model_runner.py", "ModelRunner", "load_model", ["self"]),
    ("model_executor/model_runner.py", "ModelRunner", "sample", ["self", "logits_output", "forward_batch"]),
    ("managers/scheduler.py", "Scheduler", "init_model_worker", ["self"]),
])  # fmt: skip
def test_what_is_hooked_is_there(path, owner, name, arguments):
    given, by_name = signature(functions(f"sglang/srt/{path}", owner)[name])
    assert [argument for argument, _ in given] == arguments
    assert not by_name


BLOCKS = "sglang/srt/speculative/dspark_components"


def test_what_drafts_blocks_is_there(own_penalizers):
    """What our workers of DFLASH and DSPARK take the place of, call and make has the arguments of the stand-ins."""

    def of(function):
        given = inspect.getfullargspec(function)
        return given.args, given.kwonlyargs

    def theirs(path, name, owner=None):
        given, by_name = signature(functions(path, owner)[name])
        return [argument for argument, _ in given], by_name

    for name, function in vars(stand_in.DFlashWorkerV2).items():
        if inspect.isfunction(function):
            assert theirs("sglang/srt/speculative/dflash_worker_v2.py", name, "DFlashWorkerV2") == of(function), name
    assert theirs(f"{BLOCKS}/dspark_draft.py", "_draft_step") == of(stand_in._draft_step)
    asked = theirs(f"{BLOCKS}/dspark_verify.py", "accept_and_finalize", "TargetVerifyExecutor")[1]
    seen = {}
    worker = stand_in.DSparkWorkerV2(torch.zeros(4, 4))
    worker._verify_executor.accept_and_finalize = lambda **given: seen.update(given)
    batch = types.SimpleNamespace(sampling_info=stand_in.info(2), seq_lens=torch.ones(2, dtype=torch.int64))
    worker._forward_decode(
        batch, None, torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64), torch.eye(4).__getitem__
    )
    assert list(seen) == asked
    for owner, file in ((stand_in.AcceptOuts, "dspark_verify"), (stand_in.DraftBlockResult, "dspark_draft")):
        assert {*owner._fields} == {*fields(f"{BLOCKS}/{file}.py", owner.__name__)}
    worker = ast.unparse(functions(f"{BLOCKS}/dspark_worker_v2.py", "DSparkWorkerV2")["__init__"])
    names = "_hosts_draft", "_sampling_accept_graph", "_verify_executor", "_proposer", "_greedy_draft", "draft_model"
    assert all(f"self.{name} = " in worker or f"self.{name}: " in worker for name in (*names, "_simulated_correct_len"))
    given, _ = signature(functions("sglang/srt/speculative/spec_info.py", "SpeculativeAlgorithm")["create_worker"])
    assert [argument for argument, _ in given] == ["self", "server_args"]


def test_hooks_are_applied(own_penalizers, monkeypatch, caplog):
    """By SGLang's own registry, to classes and functions with the names of what they are for."""
    name = "sglang.srt.plugins.hook_registry"
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name.replace('.', '/')}.py")
    registry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(registry)
    batch = types.SimpleNamespace(reqs=[stand_in.request(0.5, prompt=[1])], req_to_token_pool=stand_in.Pool(1))
    batch.reqs[0].output_ids.extend([4, 4])

    class SamplingBatchInfo(types.SimpleNamespace):
        @classmethod
        def from_schedule_batch(cls, batch, vocab_size):
            return cls(penalizer_orchestrator=stand_in.Orchestrator(batch))

        def copy_for_forward(self):
            return types.SimpleNamespace(penalizer_orchestrator=None)

    class ModelRunner:
        req_to_token_pool = batch.req_to_token_pool

        def sample(self, logits_output, forward_batch):
            return logits_output.next_token_logits

    class Scheduler:
        spec_algorithm = mock.MagicMock()
        tp_worker = mock.MagicMock()

        def init_model_worker(self):
            self.loaded = True

    class SpeculativeAlgorithm(Enum):
        DFLASH = 1

        def is_dflash(self):
            return True

        def create_worker(self, server_args):
            return stand_in.DFlashWorkerV2

    def fast_sample(*given, **named):
        raise AssertionError("it is replaced")

    place(monkeypatch, {
        name: vars(registry),
        "sglang.srt.sampling.sampling_batch_info": {"SamplingBatchInfo": SamplingBatchInfo},
        "sglang.srt.model_executor.model_runner": {"ModelRunner": ModelRunner},
        "sglang.srt.managers.scheduler": {"Scheduler": Scheduler},
        "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": SpeculativeAlgorithm},
        "sglang.srt.speculative.eagle_utils": {"eagle_sample": lambda *given: None},
        "sglang.srt.speculative.spec_utils": {"fast_sample": fast_sample},
        "sglang.srt.speculative.eagle_worker_v2": {"fast_sample": fast_sample},
    })  # fmt: skip
    sglang.register()
    registry.HookRegistry.apply_hooks()
    scheduled = SamplingBatchInfo.from_schedule_batch(batch, 9)
    assert not scheduled.penalizer_orchestrator.is_required
    forward = types.SimpleNamespace(
        sampling_info=scheduled.copy_for_forward(), forward_mode=types.SimpleNamespace(is_decode=lambda: True),
        positions=torch.tensor([2]), input_ids=torch.tensor([4]), req_pool_indices=torch.tensor([0]),
    )  # fmt: skip
    output = types.SimpleNamespace(next_token_logits=torch.zeros(1, 6))
    assert ModelRunner().sample(output, forward).tolist() == [[0.0, 0.0, 0.0, 0.0, -1.0, 0.0]]
    scheduler = Scheduler()
    with caplog.at_level("INFO", "sglang"):
        scheduler.init_model_worker()
    assert scheduler.loaded
    assert "method 'race', for drafts of" in caplog.text
    seeds, probs = torch.arange(5), torch.rand(5, 9, generator=torch.Generator().manual_seed(0))
    worker = sys.modules["sglang.srt.speculative.eagle_worker_v2"]
    tokens = worker.fast_sample(probs, num_samples=1, sampling_seed=seeds, positions=seeds)[1]
    assert tokens[:, 0].tolist() == specdec.race_sample(probs, space="probs", seed=seeds, position=seeds + 1).tolist()
    assert SpeculativeAlgorithm.DFLASH.create_worker(None) is not stand_in.DFlashWorkerV2
    idle = types.SimpleNamespace(device="cpu", forward_mode=types.SimpleNamespace(is_idle=lambda: True))
    assert len(sys.modules["sglang.srt.speculative.eagle_utils"].eagle_sample(None, idle, None)) == 3


def test_the_backend_that_seeds_ask_for_can_be_ours():
    """A factory that is registered comes before SGLang's own backends."""
    path = "sglang/srt/layers/sampler.py"
    factories = {"pytorch": dict}
    scope = dict(
        get_server_args=lambda: True, _CUSTOM_SAMPLER_FACTORIES=factories, Sampler=dict, Optional=Optional
    )  # fmt: skip
    assert made(path, "create_sampler", scope)("pytorch") == {}
    overrides = functions("sglang/srt/arg_groups/overrides.py")["_deterministic_sampling_backend"]
    assert "{'sampling_backend': 'pytorch'}" in ast.unparse(overrides)


def test_drafts_are_drawn_by_the_function_that_is_hooked(own_penalizers):
    """A greedy request's draft is the likeliest token all the same."""
    path = "sglang/srt/speculative/spec_utils.py"
    given, by_name = signature(functions(path)["fast_sample"])
    assert [argument for argument, _ in given] == ["probs", "num_samples"]
    assert by_name == ["sampling_seed", "positions", "draft_step"]
    scope = {
        "torch": torch, "Optional": Optional, "fast_sample": partial(Registry.hook("fast_sample"), None),
        "sampling_softmax": lambda logits, temperatures: (logits / temperatures).softmax(-1),
    }  # fmt: skip
    logits, seeds = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), torch.arange(40)
    ks = torch.where(seeds < 20, 1, 1 << 30)
    probs, mass, tokens = made(path, "sample_draft_proposal", scope)(
        logits, torch.full((40, 1), 0.7), ks, sampling_seed=seeds, positions=seeds + 100, draft_step=3
    )
    raced = specdec.race_sample(logits, temperature=0.7, seed=seeds, position=seeds + 101)
    assert torch.equal(tokens[:, 0], torch.where(seeds < 20, logits.argmax(-1), raced))
    assert torch.equal(mass, probs.gather(1, tokens))
