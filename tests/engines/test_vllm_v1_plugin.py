"""What the plug-in does inside vLLM's V1 runner, with stand-ins of what it takes over."""

import itertools
import sys
import types

import numpy as np
import pytest
import torch

import specdec_kernels
from specdec_kernels.engines import vllm
from specdec_kernels.engines._methods import METHODS
from tests.engines import vllm_v1_stand_in as stand_in
from tests.engines.launches import launches
from tests.engines.slot_adapters import DRAFT, TARGET, VOCABULARY, K, VllmV1
from tests.engines.slot_machine import Wish, assert_all_accepted
from tests.support.laws import assert_law


@pytest.mark.parametrize("method", METHODS)
def test_drafts_of_the_target_itself_are_all_accepted(v1, method):
    assert_all_accepted(VllmV1(v1, method, draft=TARGET), VOCABULARY)


@pytest.mark.parametrize("method", METHODS)
def test_law_of_several_rounds(v1, method):
    """Four tokens after one another, with top-k; drafts that are drawn again at a place are new draws."""
    generator = torch.Generator().manual_seed(3)
    target, draft = (1.5 * torch.randn(3, 3, generator=generator) for _ in range(2))
    engine, texts = VllmV1(v1, method, target, draft), {name: [] for name in range(6000)}
    for name in texts:
        engine.admit(name, Wish([name % 3], name, 4, top_k=2), [])
    while running := [name for name, text in texts.items() if len(text) < 4]:
        for name, tokens in engine.step(running, [K - name % 3 for name in running]).items():
            texts[name] += tokens
    law = target.masked_fill(target == target.amin(1, keepdim=True), -torch.inf).double().softmax(-1)
    for prompt in range(3):
        joint = law[prompt]
        for _ in range(3):
            joint = (joint.view(-1, 3)[:, :, None] * law).flatten()
        found = torch.tensor([text[:4] for text in texts.values()][prompt::3])
        assert_law(found @ torch.tensor([27, 9, 3, 1]), joint)


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_drafts_that_are_drawn_at_once(v1, method):
    """K rows of a request in one call, as in parallel drafting: what K calls draw from these rows."""
    found = {}
    for steps in (1, K):
        torch.manual_seed(1)
        runner = stand_in.Runner(stand_in.Proposer(DRAFT))
        v1.take_over(runner, method)
        kinds = [{"temperature": 0.7, "top_k": 9}, {"temperature": 1.2, "top_k": 30}]
        metadata, rows = stand_in.metadata_of(kinds, [0, 0], [], [], VOCABULARY), torch.arange(2 * K).view(2, K)
        runner.batch("ab", metadata)
        runner.drafter.table = None  # no drafts of its own
        runner.propose([0, 0], [9, 14], steps=0)
        calls = rows.T if steps == 1 else rows.view(1, -1)
        tokens = [runner.drafter._sample_draft_tokens(DRAFT[call], metadata)[0].view(2, -1) for call in calls]
        found[steps] = torch.cat(tokens, 1)
    assert torch.equal(found[1], found[K])


def test_seeds_stay_with_their_requests(v1):
    """Whatever place a request has in the batch; of equal seeds the tokens are equal, and generators draw nothing."""
    runner = stand_in.Runner()
    v1.take_over(runner, "race")
    for name, seed in (("a", 5), ("b", -1), ("d", 5)):
        runner.requests[name] = types.SimpleNamespace(generator=torch.Generator().manual_seed(seed))

    def tokens(names):
        runner.batch(names, stand_in.metadata_of([{}] * len(names), [0] * len(names), [], [], VOCABULARY))
        runner.input_batch.generators = {0: runner.requests["a"].generator}
        found = runner.step(torch.zeros(len(names), VOCABULARY), [[]] * len(names), [9] * len(names))
        assert not runner.input_batch.generators
        return dict(zip(names, found.sampled_token_ids[:, 0].tolist(), strict=True))

    first = tokens("abcde")
    assert tokens("cdba") == {name: first[name] for name in "cdba"}
    assert first["a"] == first["d"]
    assert len(set(first.values())) > 2


def test_emitted_tokens_are_counted_where_they_are(v1, monkeypatch):
    """Without a copy, so that a step needs no token of the one before on the host; those of half a prompt are none."""
    runner = stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False))
    v1.take_over(runner, "rejection")
    kind, outputs = {"temperature": 0.0, "frequency": 1.0, "bias": {9: 99.0}}, [[4, 4, -1], []]
    runner.batch("ab", stand_in.metadata_of([kind] * 2, [7, 33], outputs, [[9], [9]], VOCABULARY))
    copies = copies_to_the_device(v1, monkeypatch)
    for unread in ("b", ""):
        copies.clear()
        runner.unread = unread
        runner.step(torch.zeros(4, VOCABULARY), [[9], [9]], [9, 9])
    edits = runner._sample.__self__.laws(runner.input_batch.sampling_metadata, VOCABULARY).seen
    assert edits.output_counts[0, [4, 9]].tolist() == [2, 4]
    assert edits.output_counts[1, 9] == 2
    assert edits.output_mask.tolist() == [[1 << 4 | 1 << 9, 0], [1 << 9, 0]]
    assert edits.prompt_mask.tolist() == [[1 << 7, 0], [0, 1 << 1]]
    assert not copies


@pytest.mark.parametrize("grammar", ["none", "leaves others", "leaves none"])
@pytest.mark.parametrize("counts", [(K, K), (K, 1)], ids=["even", "uneven"])
def test_lengths_are_counted_by_places(v1, counts, grammar):
    """With asynchronous scheduling vLLM's lists hold -1 for each draft that may have been accepted."""
    runner = stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False))
    runner.use_async_scheduling, runner._draft_token_req_ids = True, None
    v1.take_over(runner, "rejection")
    kind = {"temperature": 0.0, "shortest": (5, {11, 31}, grammar != "none")}
    outputs = [[4] * length + [-1] * K for length in (3, 5)]
    metadata = stand_in.metadata_of([kind] * 2, [[8, 9]] * 2, outputs, [[]] * 2, VOCABULARY)
    runner.batch("ab", metadata)
    row = torch.full((VOCABULARY,), -torch.inf if grammar == "leaves none" else 0.0)
    row[7], row[31] = (-torch.inf if grammar == "leaves none" else 20.0), 50.0
    ends = [2 + length + count for length, count in zip((3, 5), counts, strict=True)]
    found = runner.step(row.expand(sum(counts) + 2, -1), [[7] * count for count in counts], ends).sampled_token_ids
    first = [31, -1, -1, -1] if grammar == "leaves none" else [7, 7, 31, -1]
    assert found.tolist() == [first, [31, -1, -1, -1]]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("counts", [(2, 0, 1), (2, 2, 2), (0, 0, 0)], ids=["uneven", "even", "no drafts"])
@pytest.mark.parametrize("asked", [{}, {1: [30, 5], 2: [7]}], ids=["likeliest", "given tokens"])
def test_logprobs(v1, mode, counts, asked):
    """A row for each place of the tokens. vLLM's processors make what is processed: here they forbid a token."""
    runner = stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False), logprobs_mode=mode)
    v1.take_over(runner, "rejection")
    kinds = [{"temperature": 0.0, "top_k": 6}, {"temperature": 0.7, "top_k": 6}]
    kinds.append({"temperature": 0.7, "top_k": 6, "bias": {9: 4.0}})  # vLLM has no processor of it beside drafts
    metadata = stand_in.metadata_of(kinds, [0] * 3, [[]] * 3, [[]] * 3, VOCABULARY, num_logprobs=2)
    metadata.logprob_token_ids = asked
    runner.batch("abc", metadata)
    runner.drafter.rows = None
    inputs = torch.randint(VOCABULARY, (sum(counts) + 3,), generator=torch.Generator().manual_seed(1))
    logits = TARGET[inputs]
    drafts, row = [], 0
    for count in counts:  # the likeliest: many are accepted
        drafts.append([int(logits[row + i].argmax()) for i in range(count)])
        row += count + 1
    given = logits.clone()
    output = runner.step(logits, drafts, [9] * 3)
    assert torch.equal(given, logits)
    tokens, scores = output.sampled_token_ids, output.logprobs_tensors
    width = max(counts) + 1
    assert tokens.shape == (3, width)
    assert scores.logprobs.shape == (3 * width, 3)
    assert (scores.logprob_token_ids.dtype, scores.selected_token_ranks.dtype) == (torch.int32, torch.int64)
    for request, begin in enumerate(torch.tensor([0, *counts]).cumsum(0)[:3] + torch.arange(3)):
        for place in range(counts[request] + 1):
            token, values = tokens[request, place], logits[begin + place].clone()
            if token < 0:
                continue
            if mode.startswith("processed"):
                values[9] += 4.0 * (request == 2)
                values[3] = -torch.inf
                values /= kinds[request]["temperature"] or 1.0
                values[values < values.topk(6).values[-1]] = -torch.inf
            wanted = values.clone() if mode.endswith("logits") else values.double().log_softmax(-1).float()
            at = request * width + place
            ids = scores.logprob_token_ids[at].long()
            named = asked.get(request, values.topk(2).indices.tolist())
            assert ids.tolist() == [token, *named, *[0] * (2 - len(named))]
            if len(named) < 2:
                assert scores.logprobs[at, 2] == -torch.inf
                wanted[0] = -torch.inf
            torch.testing.assert_close(scores.logprobs[at], wanted[ids], rtol=1e-5, atol=1e-5)
            assert scores.selected_token_ranks[at] == (values >= values[token]).sum()


def test_what_is_not_fused_is_named_once(v1, caplog):
    runner = stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False))
    v1.take_over(runner, "rejection")
    row = torch.zeros(1, VOCABULARY)
    row[0, 3] = 50.0  # what the stand-in of vLLM's processors forbids
    for holder, counts in ((None, [1]), (types.SimpleNamespace(has_tracked_requests=lambda: True), [1, 0])):
        metadata = stand_in.metadata_of([{}], [0], [[]], [[]], VOCABULARY)
        metadata.thinking_budget_state_holder = holder
        runner.batch(["a"], metadata)
        with caplog.at_level("INFO", "vllm"):
            for count in counts:
                found = runner.step(row.expand(count + 1, -1), [[3] * count], [9]).sampled_token_ids
                assert (found[0, 0] == 3) == (holder is None)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["specdec-kernels: vLLM's own processors do thinking_token_budget, on a float32 copy"]


@pytest.mark.parametrize("method", ["rejection", "block"])
@pytest.mark.parametrize("counts", [(K, K, K, K), (K, 1, 2, 0)], ids=["even", "uneven"])
def test_rows_of_drafts_in_another_batch(v1, monkeypatch, method, counts):
    """The rows lie where they were drawn; a batch of another order, smaller or larger, finds those of its requests."""
    kinds = [
        {"temperature": 0.7, "top_k": 20, "repetition": 1.3, "presence": 0.2}, {"top_p": 0.9, "frequency": 0.3},
        {"temperature": 1.4, "allowed": range(3, 37)}, {"bias": {5: 2.0, 9: -1.0}, "min_p": 0.01},
    ]  # fmt: skip
    kinds, many = (dict(zip("abcd", x, strict=True)) for x in (kinds, counts))

    def verdicts(*batches):
        """Tokens by request of the last batch, which verifies drafts of those before it: a, b, c and d have some."""
        runner, drafted = stand_in.Runner(stand_in.Proposer(DRAFT)), {}
        v1.take_over(runner, method)
        for name in "".join(batches):
            generator = torch.Generator().manual_seed(ord(name))
            runner.requests[name] = types.SimpleNamespace(generator=generator)
        for names in batches:
            drafts = [drafted.get(name, [])[: many.get(name, 0)] for name in names]
            texts = [[ord(name) % VOCABULARY] for name in names]
            given = [kinds.get(name, {}) for name in names], [1] * len(names), texts, drafts, VOCABULARY
            metadata = stand_in.metadata_of(*given)
            runner.batch(names, metadata)
            rows = [text + row for text, row in zip(texts, drafts, strict=True)]
            ends = [8 + len(row) for row in rows]
            output = runner.step(TARGET[list(itertools.chain(*rows))], drafts, ends)
            new = runner.propose([text[0] for text in texts], [9] * len(names))
            drafted |= dict(zip(names, new.tolist(), strict=True))
        found = output.sampled_token_ids.tolist()
        return {name: [token for token in row if token >= 0] for name, row in zip(names, found, strict=True)}

    same = verdicts("abcd", "abcd")
    assert any(len(tokens) > 1 for tokens in same.values())
    for names in ("dcba", "cb", "d", "xcadb", "cagbhijfd"):
        for name, tokens in verdicts("abcd", names).items():
            assert tokens == same[name] if name in same else len(tokens) == 1
    assert verdicts("dbxacij", "cab") == {name: same[name] for name in "cab"}
    lost = verdicts("abcd", "cbd", "abcd")  # in between "a" waited, and vLLM has its drafts still
    assert len(lost.pop("a")) == 1
    assert lost == {name: same[name] for name in "bcd"}


def test_rows_of_drafts_serve_one_step(v1, monkeypatch):
    """In a step whose drafts are not ours, vLLM's zeros for instance, the rows of earlier ones are no laws."""
    runner, calls, verify = stand_in.Runner(stand_in.Proposer(DRAFT)), [], specdec_kernels.verify_chain
    v1.take_over(runner, "rejection")
    monkeypatch.setattr(specdec_kernels, "verify_chain", lambda **call: calls.append(call) or verify(**call))
    metadata = stand_in.metadata_of([{}] * 2, [0] * 2, [[]] * 2, [[]] * 2, VOCABULARY)
    runner.batch("ab", metadata)
    runner.propose([1, 2], [9, 9])
    assert runner.drafter.rows is None  # vLLM has nothing to stack
    for _ in range(2):
        runner.step(TARGET[: 2 * K + 2], [[1] * K] * 2, [9, 9])
    assert ["draft" in call for call in calls] == [True, False]


def test_likeliest_drafts(v1):
    """Where vLLM drafts greedily, or requests are greedy: the argmax of each row, and no laws. A drafter's own way, as
    that of Gemma 4, stays."""

    class Gemma(stand_in.Proposer):
        def _greedy_sample(self, hidden_states):
            return torch.full((3,), 8)

    greedy = {"temperature": 0.0}
    for proposer, probabilistic, kind in (
        (stand_in.Proposer, False, {}), (stand_in.Proposer, True, greedy), (Gemma, False, {}), (Gemma, True, greedy),
    ):  # fmt: skip
        runner = stand_in.Runner(proposer(DRAFT, probabilistic))
        v1.take_over(runner, "rejection")
        metadata = stand_in.metadata_of([kind] * 3, [0] * 3, [[]] * 3, [[]] * 3, VOCABULARY)
        runner.batch("abc", metadata)
        drafts = runner.propose([1, 2, 3], [9, 9, 4], steps=2)
        first = DRAFT[1:4].argmax(1)
        likeliest = torch.stack((first, DRAFT[first].argmax(1)), 1)
        assert torch.equal(drafts, torch.full((3, 2), 8) if proposer is Gemma else likeliest)
        assert runner._sample.__self__.drafter.taken() is None


def test_biases_are_copied_once_for_a_batch(v1, monkeypatch):
    """A step copies nothing more, whatever is short; new ends of bad words are copied once."""
    kinds = [
        {"bias": dict.fromkeys(range(30), 0.5)}, {"shortest": (9, {1, 11}, False), "bias": {3: 1.0}},
        {"bad": [[7], [4, 5], [4, 4, 6]]},
    ]  # fmt: skip
    runner, outputs = stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False)), [[8, 8] for _ in kinds]
    v1.take_over(runner, "rejection")
    drafts = [[1, 1], [2, 2], [3, 3]]
    metadata = stand_in.metadata_of(kinds, [0] * 3, outputs, drafts, VOCABULARY)
    runner.batch("abc", metadata)
    copies = copies_to_the_device(v1, monkeypatch)

    def copied(drafts_of_c=(3, 3)):
        copies.clear()
        drafts[2][:] = drafts_of_c
        runner.step(TARGET[:9], drafts, [12] * 3)
        return [tuple(x.shape) for x in copies]

    copied()
    assert copied() == []
    outputs[1] += [8] * 9  # long enough
    assert copied() == []
    (table, rows, lists), again = copied((4, 4)), copied((4, 4))
    assert (table[1], rows, lists[0]) == (5, (9,), 2)
    assert again == [(9,)]
    assert copied() == []
    metadata.max_num_logprobs = 2
    copies.clear()
    runner.step(TARGET[:7], [[1, 1], [2], [3]], [12] * 3)  # other numbers of drafts
    assert copies == []


def test_copies_to_a_gpu_come_from_pinned_memory(v1, monkeypatch):
    steps = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: steps.append("pinned") or x)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, device, non_blocking: steps.append((device.type, non_blocking)))
    v1.moved(np.zeros(2), torch.device("cuda"))
    assert steps == ["pinned", ("cuda", True)]


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize(
    "counts, prompts, more",
    [((K, K), False, []), ((K, K), True, ["index"]), ((K, 1), False, ["constant_pad_nd"]), ((0, 0), False, [])],
    ids=["even", "beside prompts", "uneven", "no drafts"],
)
def test_launches(v1, monkeypatch, method, counts, prompts, more):
    """A verification is one, and what places need; K drafts are K, K - 1 copies of rows and an addition for all."""
    runner = stand_in.Runner(stand_in.Proposer(DRAFT))
    runner.prompts = prompts
    v1.take_over(runner, method)
    metadata = stand_in.metadata_of([{"top_k": 5}] * 2, [0] * 2, [[]] * 2, [[]] * 2, VOCABULARY)
    runner.batch("ab", metadata)
    logits, drafts = TARGET[: sum(counts) + 2], [[1] * count for count in counts]
    sample, rows, found = runner._sample, torch.zeros(2, VOCABULARY), []
    runner._sample = lambda *given: found.append(launches(lambda: sample(*given)))
    copies = copies_to_the_device(v1, monkeypatch)
    runner.step(logits, drafts, [9, 9])
    copies.clear()
    runner.propose([1, 2], [9, 9])
    found.clear()
    runner.step(logits, drafts, [9, 9])
    assert found == [[*(f"aten::{name}" for name in more), "specdec::verify_chain"]]
    assert not copies
    runner.drafter.propose = lambda **given: runner.drafter._sample_draft_tokens(rows, metadata)
    v1.take_over(runner, method)
    more = [] if method == "race" else ["aten::copy_"]
    given = {
        "next_token_ids": torch.tensor([1, 2]), "sampling_metadata": metadata, "num_rejected_tokens_gpu": None,
        "common_attn_metadata": types.SimpleNamespace(seq_lens=torch.tensor([9, 9])),
    }  # fmt: skip
    drawn = launches(lambda: runner.drafter.propose(**given))
    assert drawn == ["aten::add", "aten::clone", "specdec::race_sample", *more]


def copies_to_the_device(v1, monkeypatch):
    """The arrays that are copied to the device from now on, as many as are in a list."""
    copies, modules = [], [sys.modules[f"specdec_kernels.engines.{name}"] for name in ("_vllm_biases", "_vllm_rows")]
    for module in (v1, modules[0]):
        monkeypatch.setattr(module, "moved", lambda x, device: copies.append(x) or modules[1].moved(x, device))
    return copies


class TestSettled:
    """What is said of an engine of the V1 runner."""

    def line(self, caplog, runner, method="race", drafts=True, missing=()):
        caplog.clear()
        worker = types.SimpleNamespace(
            vllm_config=types.SimpleNamespace(
                additional_config={"specdec": method}, speculative_config=runner.speculative_config if drafts else None,
                _get_v2_model_runner_unsupported_features=lambda: list(missing),
            ),
            is_driver_worker=True, model_runner=runner,
        )  # fmt: skip
        with caplog.at_level("INFO", "vllm"):
            vllm.settle(worker)
        (record,) = caplog.records
        return record.getMessage().removeprefix(f"specdec-kernels: method {method!r}")

    def test_what_it_does(self, v1, caplog):
        begins = ", V1 model runner (V2 needs a Triton for this device), "
        assert self.line(caplog, stand_in.Runner()) == begins + "no drafts"
        drawn = begins + "drafts of draft_model drawn by our noise"
        assert self.line(caplog, stand_in.Runner(stand_in.Proposer(DRAFT, probabilistic=False))) == drawn
        assert self.line(caplog, stand_in.Runner(stand_in.Proposer(DRAFT)), "rejection") == drawn
        theirs = begins + "drafts of draft_model as vLLM makes them"
        greedy = stand_in.Proposer(DRAFT, probabilistic=False)
        assert self.line(caplog, stand_in.Runner(greedy), "rejection") == theirs
        for name in ("use_heterogeneous_vocab", "use_local_argmax_reduction"):
            proposer = stand_in.Proposer(DRAFT)
            setattr(proposer, name, True)
            assert self.line(caplog, stand_in.Runner(proposer)) == theirs
        assert self.line(caplog, stand_in.Runner(types.SimpleNamespace())) == theirs  # n-grams

    def test_why_v1_was_chosen(self, v1, caplog, monkeypatch):
        said = self.line(caplog, stand_in.Runner(), missing=("speculative method 'suffix'", "ubatching"))
        assert said == ", V1 model runner (V2 has no speculative method 'suffix', ubatching), no drafts"
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        assert self.line(caplog, stand_in.Runner()).startswith(", V1 model runner (VLLM_USE_V2_MODEL_RUNNER is set), ")

    def test_why_it_does_nothing(self, v1, caplog):
        begins = " changes nothing: "
        runner = stand_in.Runner()
        assert self.line(caplog, runner, "block") == begins + "without speculative decoding there is nothing to verify"
        runner.input_batch.logitsprocs.all = [stand_in.MinPLogitsProcessor(), v1]
        assert self.line(caplog, runner) == begins + "our ops have no rule for the logits processors module"
        with pytest.raises(AssertionError, match="vLLM's own"):
            runner._sample(None, None)

    def test_refused_by_name(self, v1):
        for method, name in (("synthetic", "synthetic_mode"), ("fly", "fly_window_size")):
            with pytest.raises(NotImplementedError, match=name):
                v1.take_over(stand_in.Runner(stand_in.Proposer(DRAFT), method), "race")
        other = type("Runner", (stand_in.Runner,), {"_sample": lambda self, logits, more, spec_decode_metadata: None})
        with pytest.raises(RuntimeError, match=r"expected .*\(self logits spec_decode_metadata\), as in 0.32.0"):
            v1.take_over(other(), "race")
