"""What the plug-in does inside vLLM's V1 runner where tensor-parallel ranks, played by threads, keep their slices."""

import functools
import sys
import threading
import types

import numpy as np
import pytest
import torch

from tests.engines import vllm_v1_stand_in as stand_in
from tests.engines.slot_adapters import VllmV1
from tests.engines.slot_machine import played, wishes
from tests.support.ranks import PlayedShard, Stage

VOCABULARY, WIDTH = 1100, 1024  # the second rank has 76 tokens, and room for more
GENERATOR = torch.Generator().manual_seed(0)
TARGET = 2 * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)
TARGET[:, 1024:] += 2.0
DRAFT = TARGET + 0.5 * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)
SOME = (*range(5, 30), *range(1020, 1050))
MORE = (
    {},
    {"allowed": SOME},
    {"bad": [[7], [3, 4], [1030, 1031, 1032]], "allowed": SOME},
    {"shortest": (9, {1, 1025, 21, 31}, False), "bias": {5: 2.5, 1025: 19.0}},
)
ASKED = wishes(12, VOCABULARY, more=MORE)
GREEDY = wishes(4, VOCABULARY, ({"temperature": 0.0},))


@pytest.fixture
def sharded(v1, monkeypatch):
    """``sharded(act)``: ``act(group)`` of each of two ranks, which find their group as vLLM's workers do."""
    module, here = types.ModuleType("vllm.distributed"), threading.local()
    module.get_tp_group = lambda: here.group
    monkeypatch.setitem(sys.modules, "vllm.distributed", module)
    monkeypatch.setenv("SPECDEC_VLLM_SHARDED", "1")
    slices = sys.modules["specdec_kernels.engines._ranks"]
    monkeypatch.setattr(
        slices, "VocabShard", lambda vocab, first, group: PlayedShard(vocab, first, group.stage, group.rank_in_group)
    )

    def run(act):
        stage = Stage(2)

        def of_rank(rank):
            here.group = stand_in.Group(stage, rank)
            return act(here.group)

        return stage.run(of_rank)

    return run


def made(draft=None, **given):
    """A runner whose requests have seeds: ranks that are threads share torch's own generator."""
    runner = stand_in.Runner(None if draft is None else stand_in.Proposer(draft), **given)
    for i in range(3):
        runner.requests[f"request {i}"] = types.SimpleNamespace(generator=torch.Generator().manual_seed(i))
    return runner


def on_rank(group, draft=None, vocabulary=VOCABULARY, **given):
    return stand_in.ranked(made(draft, **given), group, vocabulary, WIDTH)


@pytest.mark.parametrize(
    "method, draft, asked",
    [
        ("race", None, ASKED), ("race", DRAFT, ASKED), ("rejection", DRAFT, ASKED),
        ("block", DRAFT, ASKED), ("rejection", DRAFT, GREEDY),
    ],
    ids=["no drafts", "race", "rejection", "block", "greedy"],
)  # fmt: skip
def test_texts_are_those_of_one_rank(v1, sharded, method, draft, asked):
    """And as many drafts are accepted."""

    def texts(runner):
        engine = VllmV1(v1, method, TARGET, draft, runner)
        engine.most *= draft is not None
        return played(engine, asked, 0)

    first, second = sharded(lambda group: texts(on_rank(group, draft)))
    assert first == second == texts(made(draft))
    assert {token >= WIDTH for text in first[0] for token in text} == {False, True}
    assert draft is None or first[2]["accepted"] > 0.3 * first[2]["offered"]


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize(
    "mode, thinks", [("raw_logprobs", False), ("processed_logprobs", False), ("raw_logprobs", True)]
)
def test_logprobs_and_what_is_gathered(v1, sharded, method, mode, thinks):
    """Of uneven requests, one of which names its tokens. What has no form over slices is done on whole rows."""
    counts, names = (2, 0, 1), [f"request {i}" for i in range(3)]

    def step(runner):
        v1.take_over(runner, method)
        kinds = [{"temperature": 0.0}, {"top_k": 6}, {"bias": {1030: 4.0}}]
        metadata = stand_in.metadata_of(kinds, [0] * 3, [[]] * 3, [[]] * 3, VOCABULARY, num_logprobs=2)
        metadata.logprob_token_ids = {1: [30, 1050], 2: [7]}
        metadata.thinking_budget_state_holder = types.SimpleNamespace(has_tracked_requests=lambda: thinks)
        runner.batch(names, metadata)
        runner.propose([3, 4, 5], [9, 9, 9], steps=2)
        rows = TARGET[[3, 1030, 8, 4, 5, 9]]
        if hasattr(runner, "model"):
            rows = runner.model.compute_logits(rows)
        return runner.step(rows, [[1030, 8], [], [9]], [12, 10, 11])

    given = {"draft": DRAFT, "logprobs_mode": mode}
    wanted = step(made(**given))
    for found in sharded(lambda group: step(on_rank(group, **given))):
        assert torch.equal(found.sampled_token_ids, wanted.sampled_token_ids)
        for name, x in found.logprobs_tensors._asdict().items():
            assert torch.equal(x, getattr(wanted.logprobs_tensors, name)), name
    assert wanted.logprobs_tensors.logprobs.isfinite().any()
    assert len(wanted.sampled_token_ids) == len(counts)


def test_drafts_that_are_drawn_at_once(v1, sharded):
    def drawn(runner):
        v1.take_over(runner, "rejection")
        kinds = [{"temperature": 0.8}, {"temperature": 0.0}, {"top_k": 12, "top_p": 0.9}]
        metadata = stand_in.metadata_of(kinds, [0] * 3, [[]] * 3, [], VOCABULARY)
        runner.batch([f"request {i}" for i in range(3)], metadata)
        runner.propose([0, 0, 0], [9, 14, 2], steps=0)
        tokens, none = runner.drafter._sample_draft_tokens(DRAFT[torch.arange(6)], metadata)
        assert none is None
        rows, names = runner._sample.__self__.drafter.taken()
        assert names == [f"request {i}" for i in range(3)]
        return tokens, rows

    tokens, rows = drawn(made(DRAFT))
    (found, left), (again, right) = sharded(lambda group: drawn(on_rank(group, DRAFT)))
    assert torch.equal(found, tokens)
    assert torch.equal(again, tokens)
    assert torch.equal(torch.cat((left, right), 2), rows)


def test_grammars_are_cut_and_prompts_gathered(v1, sharded):
    masks = np.arange(2 * 35, dtype=np.int32).reshape(2, 35)  # of 1,100 tokens
    rows = TARGET[:2]

    def act(group):
        runner = on_rank(group)
        v1.take_over(runner, "race")
        own = runner.sample_tokens(stand_in.GrammarOutput(masks))
        assert runner.sample_tokens(None) is None
        return own.tolist(), runner._get_prompt_logprobs_dict(rows), runner.model.compute_logits(rows)

    (first, whole, left), (second, again, right) = sharded(act)
    assert (first, second) == (masks[:, :32].tolist(), masks[:, 32:].tolist())
    assert torch.equal(whole, rows)
    assert torch.equal(again, rows)
    assert torch.equal(torch.cat((left, right), 1), rows)


def flipped(runner):
    compute = runner.model.compute_logits
    return lambda hidden_states: compute(hidden_states).flip(-1)


@pytest.mark.parametrize("path, value, words", [
    ("lora_config", object(), "LoRA beside SPECDEC_VLLM_SHARDED"),
    ("parallel_config.pipeline_parallel_size", 2, "pipeline_parallel_size beside SPECDEC_VLLM_SHARDED"),
    ("model.compute_logits", flipped, r"expected logits of the model that are columns \d+ to \d+ of 1100"),
    ("drafter.use_heterogeneous_vocab", True, "probabilities of vLLM's own drafts beside SPECDEC_VLLM_SHARD"),
    ("drafter.model.draft_id_to_target_id", torch.arange(4), "a drafter's own vocabulary beside SPECDEC_VLLM_SHARDED"),
    ("model.head.vocabulary", 1000, "SPECDEC_VLLM_SHARDED: expected columns on each of 2 ranks; got"),
])  # fmt: skip
def test_what_is_refused_as_the_engine_starts(v1, sharded, path, value, words):
    """By every rank, before any waits for another."""
    refused = []

    def act(group):
        runner = on_rank(group, DRAFT)
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, runner)
        setattr(owner, name, value(runner) if value is flipped else value)
        with pytest.raises((NotImplementedError, ValueError), match=words):
            v1.take_over(runner, "rejection")
        refused.append(group.rank_in_group)

    sharded(act)
    assert sorted(refused) == [0, 1]


def test_watermarks_are_refused(v1, sharded, monkeypatch):
    monkeypatch.setenv("SPECDEC_WATERMARK", "77")
    monkeypatch.setattr(v1, "Marks", lambda *_: object())

    def act(group):
        runner = on_rank(group)
        runner.max_num_reqs, runner.max_model_len = 2, 8
        v1.take_over(runner, "race")

    with pytest.raises(NotImplementedError, match="SPECDEC_WATERMARK beside SPECDEC_VLLM_SHARDED"):
        sharded(act)


def test_slices_begin_with_tiles(v1):
    def pad(size, to):
        return -(-size // to) * to

    make = sys.modules["specdec_kernels.engines._vllm_sharded"].padded
    assert make(pad, lambda: 1)(1100) == 1152
    padded = make(pad, lambda: 2)
    assert [padded(size) for size in (128_256, 151_936, 1100, 2048)] == [129_024, 153_600, 2048, 2048]
    assert padded(2049, 64 * 3) == 6144
