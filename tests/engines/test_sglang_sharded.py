"""What the plug-in does inside SGLang where tensor-parallel ranks, played by threads, keep slices of the logits."""

import sys
import threading
import types
from typing import NamedTuple

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree
from specdec_kernels.engines import sglang
from specdec_kernels.engines._noise import seed_of
from tests.engines.sglang_stand_in import (
    LogitsMetadata,
    LogitsProcessor,
    Pool,
    Registry,
    attached,
    info,
    request,
    schedule_batch,
)
from tests.engines.test_sglang_plugin import prepared
from tests.support.ranks import PlayedShard, Stage

VOCABULARY, WIDTH = 1100, 1024  # the second rank has 76 tokens, and room for more
GENERATOR = torch.Generator().manual_seed(0)
CHAIN, TREE = DraftTree.chain(3), DraftTree.from_parents([-1, 0, 0, 1])
FILTERS = dict(
    top_ks=torch.tensor([1, 12, 1100, 40], dtype=torch.int32), top_ps=torch.tensor([1.0, 0.9, 0.8, 1.0]),
    min_ps=torch.tensor([0.0, 0.0, 0.0, 0.05]), temperatures=torch.tensor([1.0, 1.0, 0.6, 1.5])[:, None],
    need_top_k_sampling=True, need_top_p_sampling=True, need_min_p_sampling=True,
)  # fmt: skip
PENALTIES = [torch.randint(VOCABULARY, (size,), generator=GENERATOR).tolist() for size in (0, 300, 900, 40)]  # outputs
BIAS = dict(logit_bias=2.0 * torch.randn(4, VOCABULARY, generator=GENERATOR))


class Mask(NamedTuple):
    """A GrammarMask of 32 tokens a word, or of bools for those that are forbidden."""

    grammar: None
    vocab_mask: torch.Tensor

    def apply(self, logits):
        words = self.vocab_mask
        if words.dtype != torch.bool:
            assert words.is_contiguous()
            words = ((words[..., None] >> torch.arange(32, dtype=torch.int32)) & 1).flatten(1)[
                :, : logits.shape[1]
            ] == 0
        logits.masked_fill_(words, -torch.inf)


class Head(torch.nn.Module):
    """Of a model whose row i of hidden states [VOCABULARY] are the logits themselves."""

    def __init__(self, group, width=WIDTH):
        super().__init__()
        self.columns = slice(group.rank_in_group * width, (group.rank_in_group + 1) * width)
        self.room = group.world_size * width

    def of(self, rows):
        """These columns of whole rows."""
        return torch.nn.functional.pad(rows, (0, self.room - rows.shape[1]))[:, self.columns]


class Model(torch.nn.Module):
    def __init__(self, group, vocabulary=VOCABULARY, **changed):
        super().__init__()
        self.lm_head, self.logits_processor = Head(group), LogitsProcessor(vocabulary, lambda x: group.all_gather(x))
        for name, value in changed.items():
            setattr(self if name == "_suppress_idx" else self.logits_processor, name, value)


@pytest.fixture(autouse=True)
def sharded(monkeypatch):
    monkeypatch.setenv("SPECDEC_SGLANG_SHARDED", "1")


@pytest.fixture
def ranks(engine, monkeypatch):
    """``ranks(act, method)``: ``act(slices, group)`` of each of two ranks, whose target is loaded."""
    here = threading.local()
    runtime = sys.modules["sglang.srt.runtime_context"]
    parallel = lambda: types.SimpleNamespace(tp_group=here.group, tp_rank=0, tp_size=2, pp_size=engine.pipelines)  # noqa: E731
    engine.pipelines = 1
    monkeypatch.setattr(runtime, "get_parallel", parallel)

    def run(act, method="race", **changed):
        monkeypatch.setenv("SPECDEC_SGLANG", method)
        if not Registry.hooks:
            sglang.register()
        slices = sys.modules["specdec_kernels.engines._sglang_sharded"]
        shard = lambda vocabulary, first, group: PlayedShard(vocabulary, first, group.stage, group.rank_in_group)  # noqa: E731
        monkeypatch.setattr(sys.modules["specdec_kernels.engines._ranks"], "VocabShard", shard)
        monkeypatch.setattr(slices, "_slices", Own(here))
        stage = Stage(2)

        def of_rank(rank):
            here.group, here.slices = Group(stage, rank), []
            here.runner = runner_of(here.group, **changed)
            slices.loaded(None, here.runner)
            return act(here)

        return stage.run(of_rank)

    return run


class Own(list):
    """A list of each thread."""

    def __init__(self, here):
        self.here = here

    def __bool__(self):
        return bool(getattr(self.here, "slices", None))

    def __getitem__(self, place):
        return self.here.slices[place]

    def __setitem__(self, place, value):
        self.here.slices[place] = value


class Group:
    def __init__(self, stage, rank):
        self.stage, self.rank_in_group, self.world_size, self.device_group = stage, rank, stage.ranks, self

    def all_gather(self, x, dim=-1):
        return torch.cat([*self.stage.gather(self.rank_in_group, x.contiguous())], dim)

    def broadcast(self, x, src=0):
        return self.stage.gather(self.rank_in_group, x)[src]


def runner_of(group, draft=False, **changed):
    return types.SimpleNamespace(
        model=Model(group, **changed), is_draft_worker=draft, device="cpu", dtype=torch.float32,
        model_config=types.SimpleNamespace(hidden_size=VOCABULARY),
    )  # fmt: skip


def given(seed, tree):
    """Logits [4, 4, V] and candidates [4, 4] that many rows would draw."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 4, VOCABULARY, generator=generator)
    logits[..., WIDTH:] += 2.5
    tokens = logits.argmax(-1)[:, [3, 0, 0, 1] if tree is TREE else [3, 0, 1, 2]]
    if tree is TREE:
        tokens[:, 2] = logits[:, 0].topk(2).indices[:, 1]
    again = tokens[:, None, 1:].expand(-1, 4, -1)  # what is penalised would be drawn again
    logits.scatter_(-1, again, (logits.amax(-1, keepdim=True) + 0.5).expand(again.shape))
    return logits, tokens


def penalised(outputs):
    """A request for each of these outputs."""
    reqs = [request(0.5, 0.5, 1.5, least=2000 * (i == 2), stop=[1, 1030], prompt=range(6)) for i in range(4)]
    for slot, (req, output) in enumerate(zip(reqs, outputs, strict=True)):
        req.output_ids.extend(output)
        req.kv.req_pool_idx = slot
    return reqs


def rounds(method, tree, edits, mask=None, rows=lambda logits: logits):
    """Outputs of `eagle_sample` for six rounds, where a rank's rows are `rows` of the logits."""
    found = []
    for seed in range(6):
        logits, tokens = given(seed, tree)
        cut, reqs = rows(logits.flatten(0, 1)).view(4, 4, -1), penalised(PENALTIES) if edits is PENALTIES else None
        sampling = info(4, **FILTERS, **(BIAS if edits is BIAS else {}))
        hook, drafts, batch, output = prepared(
            cut, tokens, tree, sampling, topk=1 if tree is CHAIN else 2, method=method, reqs=reqs
        )
        batch.return_logprob = False
        found.append(hook(drafts, batch, output, mask))
    return found


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize("edits", [None, PENALTIES, BIAS], ids=["plain", "penalties", "bias"])
def test_verdicts_are_those_of_whole_rows(ranks, engine, method, tree, edits):
    mask = None
    if edits is BIAS:
        words = torch.randint(-(2**31), 2**31 - 1, (16, 35), generator=torch.Generator().manual_seed(3)).int()
        mask = Mask(None, words)

    def act(here):
        columns = here.slices[0].columns
        return rounds(method, tree, edits, mask, lambda rows: rows[:, columns].clone())

    first, second = ranks(act, method)
    engine.group.world_size = 1
    sys.modules["specdec_kernels.engines._sglang"].get_parallel = lambda: types.SimpleNamespace(tp_group=engine.group)
    whole = rounds(method, tree, edits, mask)
    accepted = 0
    for mine, other, wanted in zip(first, second, whole, strict=True):
        for x, y, z in zip(mine, other, wanted, strict=True):
            assert torch.equal(x, z)
            assert torch.equal(y, z)
        accepted += int((wanted[1] > 1).sum())
    assert accepted
    assert {bool(token >= WIDTH) for predict, *_ in whole for token in predict[predict > 0]} == {False, True}


def asked_by_sampling(here, output, **changed):
    """Before a step without drafts, and what it draws."""
    named = {"return_logprob": False, "sampling_info": info(16)} | changed
    engines = sys.modules["specdec_kernels.engines._sglang"]
    here.runner.sampler, here.runner.sampling_observer = engines.SpecdecSampler(), None
    Registry.hook("sample again")(here.runner, output, types.SimpleNamespace(**named))
    rest = named["return_logprob"], [], [], torch.arange(16)
    return here.runner.sampler.forward(output, named["sampling_info"], *rest)


GREEDY, UNSEEDED = {"is_all_greedy": True}, {"sampling_seed": None}


@pytest.mark.parametrize("changed", [{}, GREEDY, UNSEEDED], ids=["seeds", "greedy", "no seeds"])
def test_a_step_without_drafts(ranks, changed):
    rows, sampling = given(1, CHAIN)[0].flatten(0, 1), info(16, **changed)

    def act(here):
        torch.manual_seed(here.group.rank_in_group)
        output = types.SimpleNamespace(next_token_logits=rows[:, here.slices[0].columns].clone())
        return asked_by_sampling(here, output, sampling_info=sampling)

    first, second = ranks(act)
    assert torch.equal(first, second)
    noise = {"seed": torch.arange(16), "position": torch.arange(16) + 1}
    if changed is UNSEEDED:
        torch.manual_seed(0)  # the first rank's is for all
        noise |= {"seed": seed_of(None, rows.device), "nonce": torch.arange(16)}
    assert torch.equal(first, specdec.race_sample(rows, temperature=0.0 if changed is GREEDY else 1.0, **noise))


OUTPUT, SAMPLES = object(), types.SimpleNamespace(specdec_samples=True)


def test_what_wants_whole_rows_gets_them(ranks):
    """Log-probabilities, masks of what was kept, processors; prompts; beams; verification that tells of scores."""
    rows = given(1, CHAIN)[0].flatten(0, 1)

    def act(here):
        slices, found = here.slices[0], []

        def seen_by(hook, *call):
            output = types.SimpleNamespace(next_token_logits=rows[:, slices.columns].clone())
            Registry.hook(hook)(*(output if each is OUTPUT else each for each in call))
            return output.next_token_logits

        ours, theirs = (types.SimpleNamespace(sampler=x, sampling_observer=None) for x in (SAMPLES, None))
        for runner, changed in (
            (ours, {"return_logprob": True}), (ours, {"sampling_info": info(16, has_custom_logit_processor=True)}),
            (ours, {"sampling_info": info(16, sampling_mask_batch_indices=torch.arange(2))}), (theirs, {}),
        ):  # fmt: skip
            step = types.SimpleNamespace(**{"return_logprob": False, "sampling_info": info(16)} | changed)
            found.append(seen_by("sample again", runner, OUTPUT, step))
        alone, beam = (types.SimpleNamespace(beam_group=group) for group in (None, 1))
        found.append(seen_by("capture_pre_sample_logits", types.SimpleNamespace(reqs=[alone, beam]), None, OUTPUT))
        processor, head = here.runner.model.logits_processor, here.runner.model.lm_head
        for metadata in (LogitsMetadata("extend", extend_return_logprob=True), LogitsMetadata("extend", False, True)):
            found.append(processor._get_logits(rows, head, metadata))
        drafts = torch.zeros(4, 4, dtype=torch.int64)
        hook, tree, batch, output = prepared(rows[:, slices.columns].view(4, 4, -1), drafts, CHAIN, info(4), topk=1)
        batch.return_logprob = True
        hook(tree, batch, output)
        found.append(output.next_token_logits)
        kept = processor._get_logits(rows, head, LogitsMetadata("decode"))
        return found, kept, seen_by("capture_pre_sample_logits", types.SimpleNamespace(reqs=[alone]), None, OUTPUT)

    (found, left, first), (again, right, second) = ranks(act, "rejection")
    assert len(found) == 8
    assert all(torch.equal(x, rows) for x in found + again)
    assert torch.equal(torch.cat((left, right), 1), rows)
    assert torch.equal(torch.cat((first, second), 1), rows)


def test_edits_of_a_step_without_drafts(ranks):
    words = torch.randint(-(2**31), 2**31 - 1, (4, 35), generator=torch.Generator().manual_seed(3)).int()
    forbidden = torch.rand(4, VOCABULARY, generator=torch.Generator().manual_seed(4)) < 0.5
    rows = given(1, CHAIN)[0][0]

    def bias(sampling, logits):
        logits += sampling.logit_bias
        sampling.grammar_mask.apply(logits)

    def penalties(logits):
        batch = attached(schedule_batch(info(4), torch.full((4,), 7), torch.arange(4), penalised(PENALTIES), Pool(4)))
        forward = types.SimpleNamespace(
            sampling_info=batch.sampling_info, forward_mode=types.SimpleNamespace(is_decode=lambda: True),
            positions=torch.full((4,), 2000), input_ids=torch.tensor([3, 1050, 1099, 5]),
            req_pool_indices=torch.arange(4),
        )  # fmt: skip
        runner = types.SimpleNamespace(req_to_token_pool=batch.req_to_token_pool)
        Registry.hook("sample")(runner, types.SimpleNamespace(next_token_logits=logits), forward)
        return logits

    def act(here):
        found = []
        for mask in (words, forbidden):
            sampling = info(4, grammar_mask=Mask(None, mask), **BIAS)
            own = rows[:, here.slices[0].columns].clone()
            Registry.hook("apply_logits_bias")(bias, sampling, own)
            assert torch.equal(sampling.grammar_mask.vocab_mask, mask)
            found.append(own)
        return [*found, penalties(rows[:, here.slices[0].columns].clone())]

    *biased, penalties_of_ranks = (torch.cat(each, 1) for each in zip(*ranks(act), strict=True))
    for found, mask in zip(biased, (words, forbidden), strict=True):
        wanted = rows.clone()
        bias(info(4, grammar_mask=Mask(None, mask), **BIAS), wanted)
        assert torch.equal(found, wanted)
    sys.modules["specdec_kernels.engines._sglang_penalties"].slices_of = lambda rows: None
    assert torch.equal(penalties_of_ranks, penalties(rows.clone()))
    assert not torch.equal(penalties_of_ranks, rows)


class OnDevice(torch.Tensor):
    is_cuda = True


def test_a_captured_graph_gathers_its_drafts(ranks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    rows = given(1, CHAIN)[0][0]

    def drafted(here):
        return here.runner.model.logits_processor._logits_gatherer(
            here.runner.model.lm_head.of(rows).as_subclass(OnDevice)
        )

    assert torch.equal(ranks(drafted, draft=True)[0].as_subclass(torch.Tensor)[:, :VOCABULARY], rows)


@pytest.mark.parametrize("top", [1, 3])
def test_the_likeliest_drafts_are_told_of_alone(ranks, engine, top):
    """Their probabilities, all others alike. Drafts that are drawn, and rows that are cut elsewhere, are gathered."""
    engine.options.speculative_eagle_topk = top
    rows = given(1, CHAIN)[0][0]

    def act(here):
        processor, before = here.runner.model.logits_processor, here.group.stage.sent
        found = processor._logits_gatherer(here.runner.model.lm_head.of(rows))
        sent = here.group.stage.sent - before
        others = [processor._logits_gatherer(x).shape[1] for x in (rows[:, :600], torch.cat((rows, rows[:, :948]), 1))]
        return found, sent, others

    (found, sent, others), (again, *_) = ranks(act, "rejection", draft=True)
    assert torch.equal(found, again)
    wanted = rows.double().softmax(1)
    shares, tokens = found.double().softmax(1).topk(top)
    assert torch.equal(tokens, rows.topk(top).indices)
    torch.testing.assert_close(shares, wanted.gather(1, tokens), rtol=1e-4, atol=1e-6)
    assert sent < 2 * 4 * 150
    assert others == [1200, 4096]
    engine.options.speculative_use_rejection_sampling = True

    def drawn(here):
        return here.runner.model.logits_processor._logits_gatherer(here.runner.model.lm_head.of(rows))

    assert torch.equal(ranks(drawn, "race", draft=True)[1][:, :VOCABULARY], rows)


@pytest.mark.parametrize("part, name, value, words", [
    (None, "pipelines", 2, "pipeline_parallel_size beside SPECDEC_SGLANG_SHARDED"),
    ("lora", "enable_lora", True, "LoRA beside"),
    ("options", "speculative_algorithm", "DFLASH", "DFLASH beside"),
    ("options", "speculative_use_rejection_sampling", True, "speculative_use_rejection_sampling beside"),
    ("options", "speculative_accept_threshold_single", 0.5, "speculative_accept_threshold beside"),
])  # fmt: skip
def test_what_is_refused_as_the_engine_starts(ranks, engine, part, name, value, words):
    setattr(engine if part is None else getattr(engine, part), name, value)
    with pytest.raises(NotImplementedError, match=words):
        ranks(lambda here: None, "rejection")


def test_models_that_are_refused(ranks, monkeypatch):
    for changed in ({"_suppress_idx": 1}, {"do_tensor_parallel_all_gather": False}, {"_get_logits": lambda *_: ROW}):
        with pytest.raises(NotImplementedError, match="SPECDEC_SGLANG_SHARDED"):
            ranks(lambda here: None, **changed)
    with pytest.raises(ValueError, match="SPECDEC_SGLANG_SHARDED: expected columns on each of 2 ranks; got"):
        ranks(lambda here: None, vocabulary=1000)
    monkeypatch.setenv("SPECDEC_WATERMARK", "77")
    with pytest.raises(NotImplementedError, match="SPECDEC_WATERMARK beside SPECDEC_SGLANG_SHARDED"):
        ranks(lambda here: None)


ROW = torch.zeros(1, VOCABULARY)


def test_slices_begin_with_tiles(ranks):
    def act(here):
        padded = Registry.hook("__init__")
        return padded("layer", 1100, 8, padding_size=64 * 3), padded("layer", 1100, 8)

    given = "layer", 1100, 8
    assert ranks(act) == [((given, {"padding_size": 6144}), (given, {"padding_size": 2048}))] * 2


def test_one_rank_and_no_method(engine, monkeypatch):
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    Registry.hook("load_model")(None, None)
    assert not sys.modules["specdec_kernels.engines._sglang_sharded"]._slices
    monkeypatch.delenv("SPECDEC_SGLANG")
    with pytest.raises(ValueError, match="SPECDEC_SGLANG_SHARDED: expected a method beside it, as SPECDEC_SGLANG=race"):
        sglang.register()
