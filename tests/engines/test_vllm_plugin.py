"""What the plug-in does inside vLLM's V2 runner, with stand-ins of the classes that it hooks into."""

import sys
import types

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import vllm
from specdec_kernels.engines._methods import METHODS
from specdec_kernels.engines._vllm_rounds import TARGET as TARGET_NONCE
from specdec_kernels.engines._vllm_rows import bits
from tests.engines import vllm_stand_in as stand_in
from tests.engines.launches import launches
from tests.engines.slot_adapters import DRAFT, TARGET, VOCABULARY, K, VllmV2
from tests.engines.slot_machine import assert_all_accepted
from tests.support.filters import kept
from tests.support.laws import assert_law

SLOTS = 5


pytestmark = pytest.mark.usefixtures("v2")


def samplers(method, config=None, **shaping):
    """The runner's two samplers, as `ModelState` gives them."""
    vllm.register()
    state = stand_in.ModelState(config or stand_in.speculative(K), {"specdec": method})
    both = state.custom_sampler(stand_in.Sampler(SLOTS, VOCABULARY, **shaping))
    admit(both[0])
    return both


def admit(sampler, params=None):
    """Requests with these parameters in all slots."""
    for slot in range(len(sampler.needs_logits_processing)):
        sampler.add_request(slot, params or stand_in.SamplingParams())
    sampler.apply_staged_writes()


def verified(rejection, batch, logits, tokens, draft_logits=None, num_logprobs=-1):
    """What the runner's call makes of drafts."""
    tokens = tokens.int()
    return rejection._verify_in_chunks(logits, batch, draft_logits, tokens, batch.positions, 1, num_logprobs, tokens)


def test_off_unless_asked_for(monkeypatch):
    original = stand_in.ModelState.custom_sampler
    vllm.register()
    vllm.register()
    state = stand_in.ModelState(stand_in.speculative(K))
    assert state.custom_sampler(object()) is None
    assert "specdec_kernels.engines._vllm" not in sys.modules
    vllm.uninstall()
    assert stand_in.ModelState.custom_sampler is original
    monkeypatch.setenv("SPECDEC_VLLM", "fast")
    with pytest.raises(ValueError, match="SPECDEC_VLLM: expected one of 'rejection', 'race', 'block'; got 'fast'"):
        vllm.register()


@pytest.mark.parametrize("asked", ["rejection", None])
def test_a_vllm_that_does_not_fit(monkeypatch, asked):
    """It is an error for who asked, and none for who only has this package installed."""
    if asked:
        monkeypatch.setenv("SPECDEC_VLLM", asked)
        monkeypatch.setattr(stand_in.Sampler, "sample", lambda self, logits: None)
        with pytest.raises(
            RuntimeError, match=r"vllm: expected Sampler.sample\(self logits .* as in 0.32.0 and 0.33.0; got"
        ):
            vllm.register()
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.model_states.interface", None)
    if asked:
        with pytest.raises(ImportError):
            vllm.register()
    else:
        vllm.register()


@pytest.mark.parametrize("how", ["environment", "additional_config"])
def test_switched_on(monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("SPECDEC_VLLM", "rejection")
    vllm.register()
    config = {} if how == "environment" else {"specdec": "rejection"}
    sampler = stand_in.Sampler(SLOTS, VOCABULARY)
    given, rejection = stand_in.ModelState(stand_in.speculative(K), config).custom_sampler(sampler)
    assert given is sampler
    assert rejection.method == "rejection"
    assert "sample" not in vars(sampler)
    assert stand_in.ModelState(None, config).custom_sampler(sampler) is None
    block = stand_in.ModelState(stand_in.speculative(K, "block"), config).custom_sampler(sampler)[1]
    assert block.method == "block"


def test_no_parameter_is_refused_where_we_verify(monkeypatch):
    """min_p and logit_bias, where the engine's own configuration or the environment asks for us; else as vLLM says."""
    drafts, asked = stand_in.speculative(K), stand_in.SamplingParams(0.1, {3: 1.0})
    theirs = stand_in.InputProcessor(drafts, {})
    vllm.register()
    assert stand_in.InputProcessor(drafts, {"specdec": "race"})._validate_params(asked, ("generate",))
    for processor in (theirs, stand_in.InputProcessor(drafts, {"specdec": None})):
        with pytest.raises(ValueError, match="not yet supported with speculative decoding"):
            processor._validate_params(asked, supported_tasks=("generate",))
    monkeypatch.setenv("SPECDEC_VLLM", "rejection")
    assert not theirs._validate_params(asked, ())
    vllm.uninstall()
    with pytest.raises(ValueError, match="not yet supported"):
        theirs._validate_params(asked, ())


@pytest.mark.parametrize(
    "name, given",
    [
        ("fly_window_size", {"speculative": stand_in.speculative(K, "fly")}),
        ("synthetic_acceptance_rates", {"speculative": stand_in.speculative(K, "synthetic")}),
        ("watermark_config", {"speculative": stand_in.speculative(K), "watermark": object()}),
    ],
)
def test_refused_by_name(name, given):
    vllm.register()
    state = stand_in.ModelState(**given, additional_config={"specdec": "rejection"})
    with pytest.raises(NotImplementedError, match=name):
        state.custom_sampler(stand_in.Sampler(SLOTS, VOCABULARY))


@pytest.mark.parametrize("words, method, error, says", [
    ("7", "rejection", ValueError, "SPECDEC_WATERMARK: expected a race; got rejection, whose accept uniforms are"),
    ("7,9", "race", ValueError, "SPECDEC_WATERMARK: expected KEY or KEY,WINDOW, .* a window of 1 to 8; got '7,9'"),
    ("key", "race", ValueError, "SPECDEC_WATERMARK: expected KEY or KEY,WINDOW"),
    ("7,4,2", "race", ValueError, "SPECDEC_WATERMARK: expected KEY or KEY,WINDOW, .*; got '7,4,2'"),
    ("7,2.0", "race", ValueError, "SPECDEC_WATERMARK: expected KEY or KEY,WINDOW, .*; got '7,2.0'"),
])  # fmt: skip
def test_watermarks_that_are_refused(monkeypatch, words, method, error, says):
    monkeypatch.setenv("SPECDEC_WATERMARK", words)
    with pytest.raises(error, match=says):
        samplers(method)


@pytest.mark.parametrize("case", [("rejection", "0"), ("rejection", "1"), ("race", "1")], ids="-".join)
def test_drafts_have_the_filters_of_their_requests(monkeypatch, case):
    """Unless it is turned off; of two slots each its own, which may change. The target's law is the same."""
    method, filters = case
    monkeypatch.setenv("SPECDEC_DRAFT_FILTERS", filters)
    count, temperature = 4000, 0.7
    vllm.register()
    sampler = stand_in.Sampler(count, VOCABULARY, temperature=temperature)
    state = stand_in.ModelState(stand_in.speculative(1), {"specdec": method})
    (_, rejection), speculator = state.custom_sampler(sampler), stand_in.DraftModelSpeculator()
    speculator.set_attn(state)
    states, shapes = sampler.sampling_states, [{"top_k": 4, "min_p": 0.02}, {"top_p": 0.7}]
    for each, shape in enumerate(shapes):
        for name, number in shape.items():
            getattr(states, name).np[each::2] = number
    sampler.apply_staged_writes()
    rows, cache, slots = DRAFT[3].expand(count, -1), torch.zeros(count, 1, VOCABULARY), torch.arange(count)
    cache = None if method == "race" else cache
    drafts = speculator.sample_draft(
        rows, torch.full((count,), 9), slots, states.temperature.gpu, states.seeds.gpu, torch.tensor(0), cache
    )
    assert method == "race" or torch.equal(cache[:, 0], rows)
    batch, tokens = stand_in.batch_of([2] * count, range(count), [9] * count), torch.stack((slots * 0, drafts), 1)
    found, *_ = verified(rejection, batch, TARGET[3].expand(2 * count, -1), tokens.flatten(), cache)
    for each, shape in enumerate(shapes):
        laws = [
            (row.double() / temperature).softmax(-1) * kept(row, Sampling.vllm(temperature, **shape))
            for row in (TARGET[3], DRAFT[3])
        ]
        assert_law(found[each::2, 0], laws[0])
        assert_law(drafts[each::2], laws[1] if filters == "1" else (DRAFT[3].double() / temperature).softmax(-1))
    monkeypatch.setenv("SPECDEC_DRAFT_FILTERS", "yes")
    with pytest.raises(ValueError, match="SPECDEC_DRAFT_FILTERS: expected '0' or '1'; got 'yes'"):
        state.custom_sampler(sampler)


FILTERS = {"temperature": 0.8, "top_k": 12, "top_p": 0.9}


@pytest.mark.parametrize("counts", [[K + 1] * 3, [1, K + 1, 2]], ids=["as many", "ragged"])
@pytest.mark.parametrize("shaping", [FILTERS, FILTERS | {"forbidden": 4, "penalties": {"frequency": 0.5}}], ids=str)
def test_sampling_masks(counts, shaping):
    """The sets of a verdict's tokens, as vLLM reads them: by request and place, ids below the width, else bits."""
    sampler, rejection = samplers("race", **shaping)
    sampler.return_sampling_mask = True
    slots = [3, 0, 4]
    batch = stand_in.batch_of(counts, slots, [9] * 3)
    tokens = torch.randint(0, VOCABULARY, (sum(counts),), generator=torch.Generator().manual_seed(2))
    logits = TARGET[tokens]
    found, num, _, masks = verified(rejection, batch, logits, tokens)
    context = stand_in.LogitsContext(
        batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, batch.expanded_local_pos, tokens,
        batch.positions, batch.seq_lens_cpu_upper_bound.numpy(),
    )  # fmt: skip
    rows = logits.clone()
    for processor in sampler.logits_processors:
        rows = processor.apply(rows, context)
    sets = torch.stack([kept(row, Sampling.vllm(**FILTERS)) for row in rows]) & (rows > -torch.inf)
    assert masks.rows_per_request == K + 1
    assert masks.token_ids.shape == (3 * (K + 1), 0)
    for request, emitted in enumerate(num.tolist()):
        for place in range(emitted):
            row, at = batch.cu_num_logits[request] + place, request * (K + 1) + place
            bits = np.unpackbits(masks.packed_mask[at].numpy(), count=VOCABULARY, bitorder="little")
            assert torch.equal(torch.tensor(bits).bool(), sets[row])
            assert masks.counts[at] == sets[row].sum()
            assert sets[row, found[request, place]]


def test_sampling_masks_of_plain_steps():
    """vLLM takes them from what `sample` gives for processed logits: those that are finite."""
    sampler, _ = samplers("race", **FILTERS)
    sampler.return_sampling_mask = True
    batch, logits = stand_in.batch_of([1] * 3, [3, 0, 4], [9] * 3), TARGET[:3].bfloat16()
    sampled, processed = sampler.sample(
        logits, batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, batch.positions,
        torch.arange(3).int(), batch.expanded_local_pos, batch.seq_lens_cpu_upper_bound.numpy(),
    )  # fmt: skip
    sets = torch.stack([kept(row, Sampling.vllm(**FILTERS)) for row in logits.float()])
    assert torch.equal(processed > -torch.inf, sets)
    assert torch.equal(processed[sets], (logits.float() / 0.8)[sets])
    assert sets[torch.arange(3), sampled].all()


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_drafts_of_the_target_itself_are_all_accepted(method):
    assert_all_accepted(VllmV2(method, draft=TARGET), VOCABULARY)
    vllm.uninstall()
    draft = stand_in.DraftModelSpeculator.sample_draft(None, torch.tensor([[0.0, 2.0]]), *[None] * 6)
    assert draft.tolist() == [1]  # vLLM's own is back


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_a_block_of_drafts_at_once(method):
    """As DFlash calls it: all places of all requests, columns as a tensor, slot -1 behind the last request."""
    vllm.register()
    sampler = stand_in.Sampler(SLOTS, VOCABULARY, temperature=0.8, top_k=6)
    state, speculator = (
        stand_in.ModelState(stand_in.speculative(K), {"specdec": method}),
        stand_in.DraftModelSpeculator(),
    )
    state.custom_sampler(sampler)
    speculator.set_attn(state)
    sampler.apply_staged_writes()
    slots, rows = torch.tensor([3, 0, -1]).repeat_interleave(K), TARGET[: 3 * K]
    places, columns = (
        torch.tensor([7, 30, 0]).repeat_interleave(K) + torch.arange(K).repeat(3),
        torch.arange(K).repeat(3),
    )
    kept_rows = None if method == "race" else torch.full((SLOTS, K, VOCABULARY), 7.0)
    states = sampler.sampling_states
    given = rows, places, slots, states.temperature.gpu, states.seeds.gpu, columns.int(), kept_rows
    found = speculator.sample_draft(*given)
    nonce = TARGET_NONCE if method == "race" else columns[: 2 * K]
    wanted = specdec.race_sample(
        rows[: 2 * K], seed=states.seeds.gpu[slots[: 2 * K]], position=places[: 2 * K] + 1, nonce=nonce,
        sampling=Sampling.vllm(0.8, top_k=6),
    )  # fmt: skip
    assert found.tolist() == wanted.tolist() + [0] * K
    if kept_rows is not None:
        assert torch.equal(kept_rows[[3, 0]].flatten(0, 1), rows[: 2 * K])
        assert (kept_rows[[1, 2, 4]] == 7).all()


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize("vocabulary", ["whole", "fewer tokens", "fewer tokens, probabilistic"])
def test_dspark_draws_with_the_noise_of_a_race(method, vocabulary):
    """Place by place; where there is no room for rows among the target's tokens, and beside rejection, as vLLM does."""
    vllm.register()
    sampler = stand_in.Sampler(SLOTS, VOCABULARY)
    state = stand_in.ModelState(stand_in.speculative(K, drafter="dspark"), {"specdec": method})
    state.custom_sampler(sampler)
    known = None if vocabulary == "whole" else torch.arange(1, VOCABULARY, 3)
    speculator = stand_in.DSparkSpeculator(K, SLOTS, VOCABULARY, known, "probabilistic" in vocabulary)
    speculator.set_attn(state)
    slots, places = torch.tensor([[3] * K, [0] * K]), torch.tensor([[8], [31]]) + torch.arange(K)
    rows = DRAFT[:2] if known is None else DRAFT[:2, known]
    found = speculator._sample_logits(rows, slots[:, 1], places[:, 1], 1)
    if method == "rejection" or vocabulary == "fewer tokens":
        assert torch.equal(found, rows.argmax(-1) if known is None else known[rows.argmax(-1)])
        return
    whole = DRAFT[:2] if known is None else torch.full((2, VOCABULARY), -torch.inf).index_copy_(1, known, rows)
    seeds = speculator.seeds[slots[:, 1]]
    assert torch.equal(found, specdec.race_sample(whole, seed=seeds, position=places[:, 1], nonce=TARGET_NONCE))
    assert torch.equal(speculator.predicted, rows)


@pytest.mark.parametrize("order", [("race", "rejection"), ("rejection", "race")])
def test_each_speculator_follows_its_own_engine(order):
    """Of two in a process: a race stores no logits of drafts, rejection those that its drafts came from."""
    speculators, rows = {}, DRAFT[:SLOTS]
    for method in order:
        vllm.register()
        sampler = stand_in.Sampler(SLOTS, VOCABULARY, temperature=0.7)
        state = stand_in.ModelState(stand_in.speculative(1), {"specdec": method})
        state.custom_sampler(sampler)
        speculators[method] = stand_in.DraftModelSpeculator()
        speculators[method].set_attn(state)
    numbers, slots, places = sampler.sampling_states, torch.arange(SLOTS), torch.full((SLOTS,), 9)
    given = rows, places, slots, numbers.temperature.gpu, numbers.seeds.gpu, torch.tensor(0)
    for method, nonce in (("race", TARGET_NONCE), ("rejection", 0)):
        cache = None if method == "race" else torch.zeros(SLOTS, 1, VOCABULARY)
        wanted = specdec.race_sample(rows, temperature=0.7, seed=numbers.seeds.gpu, position=places + 1, nonce=nonce)
        assert torch.equal(speculators[method].sample_draft(*given, cache), wanted)
    assert torch.equal(cache[:, 0], rows)


class TestSaid:
    """Of each engine that asks for us, one line in vLLM's log."""

    def line(self, caplog, *given, **named):
        caplog.clear()
        with caplog.at_level("INFO", "vllm"):
            wrapper = stand_in.WorkerWrapperBase(*given, **named)
            wrapper.initialize_from_config(["a cache"])
        assert wrapper.worker.caches == ["a cache"]
        assert all(record.name.startswith("vllm.") for record in caplog.records)
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        return lines[0] if lines else None

    def loaded(self, method, config):
        """A state whose samplers were chosen, and the sampler."""
        state, sampler = stand_in.ModelState(config, {"specdec": method}), stand_in.Sampler(SLOTS, VOCABULARY)
        state.custom_sampler(sampler)
        return state, sampler

    @pytest.mark.parametrize("method", METHODS)
    def test_what_it_does(self, method, caplog):
        vllm.register()
        said = "INFO", f"specdec-kernels: method {method!r}, V2 model runner"
        given = self.loaded(method, stand_in.speculative(K))
        assert self.line(caplog, *given) == said
        assert self.line(caplog, *given, is_driver_worker=False) is None
        if method == "race":
            assert self.line(caplog, *self.loaded(method, None)) == said

    def test_why_it_does_nothing(self, caplog, monkeypatch):
        vllm.register()
        begins = "specdec-kernels: method 'rejection' changes nothing: "
        asked = {"specdec": "rejection"}
        alone = self.line(caplog, *self.loaded("rejection", None))
        assert alone == ("WARNING", f"{begins}without speculative decoding there is nothing to verify")
        pools = self.line(caplog, stand_in.ModelState(None, asked), is_pooling_model=True)
        assert pools == ("WARNING", f"{begins}a pooling model samples nothing")

        class Diffusion(stand_in.ModelState):
            def custom_sampler(self, sampler):
                return sampler, None

        own = self.line(caplog, Diffusion(stand_in.speculative(K), asked), object())
        assert own == ("WARNING", f"{begins}Diffusion has other samplers")

    def test_slices_of_logits_are_refused(self, caplog, monkeypatch):
        """By V2, and where no method is asked for."""
        embedding = types.ModuleType("vllm.model_executor.layers.vocab_parallel_embedding")
        embedding.pad_vocab_size, embedding.get_tensor_model_parallel_world_size = lambda size, to: size, lambda: 2
        monkeypatch.setitem(sys.modules, embedding.__name__, embedding)
        monkeypatch.setenv("SPECDEC_VLLM_SHARDED", "1")
        vllm.register()
        given = self.loaded("race", stand_in.speculative(K))
        with pytest.raises(NotImplementedError, match="SPECDEC_VLLM_SHARDED: expected the V1 runner"):
            self.line(caplog, *given)
        with pytest.raises(ValueError, match="SPECDEC_VLLM_SHARDED: expected a method beside it"):
            self.line(caplog)
        assert embedding.pad_vocab_size.__module__ == "specdec_kernels.engines._vllm_sharded"

    def test_nothing_where_nothing_was_asked_for(self, caplog):
        vllm.register()
        assert self.line(caplog, stand_in.ModelState(stand_in.speculative(K)), object()) is None
        assert self.line(caplog) is None
        another_stage = stand_in.ModelState(stand_in.speculative(K), {"specdec": "race"})
        assert self.line(caplog, another_stage) is None


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_logprobs(mode, adaptive):
    """Of each emitted token and the likeliest, with ranks, in rows of the batch; uneven and greedy ones among them."""
    shaping = dict(temperature=0.7, top_k=6, penalties={"frequency": 0.5}, logprobs_mode=mode)
    _, rejection = samplers("rejection", stand_in.speculative(K, adaptive=adaptive), **shaping)
    states = rejection.sampler.sampling_states
    states.temperature.gpu[1] = 0.0
    counts, slots = [4, 1, 3], [1, 4, 0]
    batch = stand_in.batch_of(counts, slots, [9, 5, 7])
    tokens = torch.randint(VOCABULARY, (8,), generator=torch.Generator().manual_seed(1))
    rejection.sampler.penalties_state.output_bin_counts[:, :20] += 1
    admit(rejection.sampler)
    found, _, scores, masks = verified(rejection, batch, TARGET[tokens], tokens, num_logprobs=2)
    assert masks is None
    rows = TARGET[tokens].clone()
    if mode.startswith("processed"):
        context = stand_in.LogitsContext(
            batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, batch.expanded_local_pos,
            tokens.int(), batch.positions, None,
        )  # fmt: skip
        rows = rejection.sampler.penalties_state.apply(rows, context)
        rows /= torch.where(batch.expanded_idx_mapping == 1, 1.0, 0.7)[:, None]
        rows[rows < rows.topk(6, dim=1).values[:, -1:]] = -torch.inf
    wanted = rows if mode.endswith("logits") else rows.double().log_softmax(-1).float()
    flat = torch.cat([row[:count] for row, count in zip(found, counts, strict=True)])
    there = flat >= 0
    assert scores.logprob_token_ids.shape == scores.logprobs.shape == (8, 3)
    assert torch.equal(scores.logprob_token_ids[there, 0], flat[there])
    assert torch.equal(scores.logprob_token_ids[:, 1:], rows.topk(2, dim=1).indices)
    ids = scores.logprob_token_ids[there]
    torch.testing.assert_close(scores.logprobs[there], wanted[there].gather(1, ids), rtol=1e-5, atol=1e-5)
    own = rows[there].gather(1, flat[there, None])
    assert torch.equal(scores.selected_token_ranks[there], (rows[there] >= own).sum(1))
    assert scores.selected_token_ranks.dtype == torch.int64
    if adaptive:
        assert scores.cu_num_generated_tokens is None
        assert torch.equal(scores.cu_num_generated_tokens_tensor, batch.cu_num_logits)
    else:
        assert scores.cu_num_generated_tokens == [0, 4, 5, 8]


@pytest.mark.parametrize("top", [stand_in.NO_LOGPROBS, 1, 3])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_log_probabilities_of_given_tokens(mode, top):
    """In the place of the likeliest, for those who named some; where a row has fewer, -inf stands."""
    _, rejection = samplers("rejection", temperature=0.5, logprobs_mode=mode)
    rejection.sampler.logprob_token_ids_state.put(4, [30, 5])
    rejection.sampler.logprob_token_ids_state.put(0, [2])
    batch, rows = stand_in.batch_of([2, 1, 2], [1, 4, 0], [9, 5, 7]), TARGET[:5]
    _, _, scores, _ = verified(rejection, batch, rows, rows.argmax(1), num_logprobs=top)
    wanted = rows.double().log_softmax(-1).float() if mode == "raw_logprobs" else rows / 0.5
    likeliest = rows.topk(max(top, 0)).indices
    for row, named in enumerate([*likeliest[:2].tolist(), [30, 5], [2], [2]]):
        ids, values = scores.logprob_token_ids[row, 1:].tolist(), scores.logprobs[row, 1:]
        assert len(ids) == max(top, 2)
        assert ids[: len(named)] == named
        torch.testing.assert_close(values[: len(named)], wanted[row, named])
        assert (values[len(named) :] == -torch.inf).all()


def test_an_invalid_draft_ends_verification():
    """Of a grammar: verification sees -1, the processors see the real draft."""
    _, rejection = samplers("rejection")
    batch = stand_in.batch_of([K + 1] * 2, [0, 1], [9, 9])
    tokens = TARGET.argmax(1)[torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])]
    tokens = tokens.int()
    seen = tokens.clone()
    seen[2] = -1
    rejection.sampler.sampling_states.temperature.gpu[:] = 0.0
    rows = TARGET[torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])]
    _, num, *_ = rejection._verify_in_chunks(rows, batch, None, tokens, batch.positions, 1, -1, seen)
    assert num.tolist() == [2, 4]


@pytest.mark.parametrize(
    "shaping, params, names",
    [
        ({"temperature": 0.8, "top_k": 5}, {}, ["specdec::verify_chain"]),
        ({}, {"logit_bias": {3: 1.0}}, ["aten::index", "specdec::verify_chain"]),
        ({}, {"min_tokens": 3, "all_stop_token_ids": [5], "bad_words_token_ids": [[9]]},
         ["aten::index", "aten::lt", "aten::where", "specdec::verify_chain"]),
        ({"penalties": {"frequency": 0.5}}, {},
         ["aten::sub", "aten::clamp", "aten::gather", "aten::sub", "specdec::count_tokens", "specdec::verify_chain"]),
        ({}, {"logit_bias": {3: 1.0}, "allowed_token_ids": [1, 3]}, None),
        ({}, {"bad_words_token_ids": [[9, 4]]}, None),
        ({}, {"min_tokens": 3, "all_stop_token_ids": [5], "structured_outputs": object()}, None),
    ],
    ids=["none", "bias", "minimum of tokens", "penalties", "allowed tokens", "bad words", "grammar"],
)  # fmt: skip
def test_edits_of_a_step(shaping, params, names):
    """They are read on the device, without rows of their own; what has no such form is left to vLLM's processors."""
    sampler, rejection = samplers("rejection", **shaping)
    admit(sampler, stand_in.SamplingParams(**params))
    batch = stand_in.batch_of([K + 1] * SLOTS, range(SLOTS), [9] * SLOTS)
    tokens = torch.zeros(SLOTS * (K + 1), dtype=torch.int32)
    rows, draft = TARGET[tokens], DRAFT[:K].expand(SLOTS, K, -1)
    found = launches(lambda: verified(rejection, batch, rows, tokens, draft))
    assert "aten::copy_" in found if names is None else found == names


def test_masks_of_outputs_follow_steps_that_vllm_processes():
    """A request with penalties beside one whose allowed tokens need vLLM's processors, and then alone."""
    sampler, rejection = samplers("rejection", penalties={"presence": 0.5})
    sampler.req_states.begin(0, [1, 2], [3])
    counts = sampler.penalties_state.output_bin_counts
    counts[0, 3] = 1
    sampler.add_request(0, stand_in.SamplingParams())
    sampler.add_request(1, stand_in.SamplingParams(allowed_token_ids=[5]))
    sampler.apply_staged_writes()
    text = torch.arange(10, 10 + 4 * (K + 1))
    for step, slots in enumerate(([0], [0, 1], [1, 0], [0])):
        batch = stand_in.batch_of([K + 1] * len(slots), slots, [9] * len(slots))
        tokens = torch.zeros(len(slots) * (K + 1), dtype=torch.int64)
        verified(rejection, batch, TARGET[tokens], tokens)
        assert torch.equal(sampler.specdec_edits.output_mask[0], bits(counts[:1] > 0)[0])
        new = text[step * (K + 1) :][: K + 1]
        sampler.req_states.write(0, new.tolist())
        counts[0, new] += 1


def test_bits_of_counts():
    for vocabulary in (1, 8, 31, 32, 33, 100):
        counts = torch.randint(-1, 2, (3, vocabulary))
        words = bits(counts > 0)
        seen = (words[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :vocabulary]
        assert words.dtype == torch.int32
        assert torch.equal(seen.bool(), counts > 0)
