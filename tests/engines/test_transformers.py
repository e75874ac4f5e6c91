"""transformers' generation by our methods, and its verification by our op, against its own."""

import functools

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import logits_process as processors
from transformers.generation import utils

from specdec_kernels import Sampling
from specdec_kernels.engines import _transformers as parts
from specdec_kernels.engines import counters, transformers
from specdec_kernels.engines.transformers import generate, speculative_sampling
from specdec_kernels.generate import ModelDrafter, NgramDrafter, TextEdits, load_model
from specdec_kernels.generate import generate as our_generate
from tests.engines.launches import launches
from tests.generate.small import llama
from tests.generate.test_hybrid import pair as hybrids
from tests.support.laws import P, Q, assert_law, assert_rate

PROMPTS = ["ROMEO:", "First Citizen:\nYou are all", "A"]
METHODS = ("plain", "rejection", "race")
PAD, NEW = 0, 12


@pytest.fixture(scope="module")
def pair():
    """In float64: reading a text at once or token by token gives the same logits."""
    return load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")


@pytest.fixture(scope="module")
def small():
    return llama(5, seed=1, spread=0.5).model, llama(5, seed=2, spread=0.5).model


def padded(target, prompts=PROMPTS):
    """A batch with its padding on the left."""
    texts = [target.encode(prompt) for prompt in prompts]
    width = max(map(len, texts))
    ids = torch.tensor([[PAD] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    return dict(input_ids=ids, attention_mask=mask, pad_token_id=PAD)


def written(pair, batch, method="race", **options):
    target, draft = pair
    assistant = None if method == "plain" else draft.model
    options = dict(custom_generate=generate, do_sample=True, max_new_tokens=NEW, seed=3) | options
    return target.model.generate(**batch, assistant_model=assistant, method=method, **options)


class TestGenerate:
    @pytest.mark.parametrize("method", METHODS)
    def test_writes_what_our_generator_writes(self, pair, method):
        """Padding and batch change nothing: positions are those of the text."""
        target, draft = pair
        found = written(pair, padded(target), method, k=3, temperature=0.8, top_k=30, top_p=0.95, min_p=0.01)
        sampling = Sampling.huggingface(0.8, top_k=30, top_p=0.95, min_p=0.01)
        drafter = None if method == "plain" else ModelDrafter(draft)
        options = dict(method=method, k=3, seed=3, max_new_tokens=NEW, sampling=sampling)
        expected = our_generate(PROMPTS, target, drafter, **options)
        assert [row[-NEW:] for row in found.tolist()] == [text.tokens for text in expected]

    @pytest.mark.parametrize("options", [
        {}, dict(temperature=1.3, top_p=0.9), dict(repetition_penalty=1.3, top_k=12),
        dict(no_repeat_ngram_size=2, temperature=0.7), dict(typical_p=0.8, repetition_penalty=1.2),
    ], ids=str)  # fmt: skip
    def test_race_writes_the_text_of_plain_sampling(self, pair, options):
        batch = padded(pair[0])
        assert torch.equal(written(pair, batch, "race", **options), written(pair, batch, "plain", **options))

    def test_a_race_accepts_drafts_of_processed_logits(self, pair):
        """Because the draft's rows are processed, too: a target drafts for itself, and all it drafts is accepted."""
        target, streamer = pair[0], Heard()
        batch = padded(target, PROMPTS[:1])
        options = dict(no_repeat_ngram_size=2, temperature=0.7, k=3, streamer=streamer)
        written((target, target), batch, "race", **options)
        assert [len(piece) for piece in streamer.pieces[1:]] == [4, 4, 4]

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("options", [
        {}, dict(repetition_penalty=1.4), dict(no_repeat_ngram_size=3, min_new_tokens=5),
        dict(bad_words_ids=[[32], [101]], suppress_tokens=[116]),
        dict(sequence_bias={(32,): -torch.inf, (101,): 2.5}, repetition_penalty=1.2),
    ], ids=str)  # fmt: skip
    def test_greedy_is_that_of_transformers(self, pair, method, options):
        batch = padded(pair[0])
        own = pair[0].model.generate(**batch, do_sample=False, max_new_tokens=NEW, **options)
        assert torch.equal(written(pair, batch, method, do_sample=False, **options), own)

    def test_ends_are_those_of_transformers(self, pair):
        """Texts end at different steps, by a token or a string; what follows is padding."""
        target = pair[0]
        batch = padded(target)
        strings = StoppingCriteriaList([StopStringCriteria(target.tokenizer, ["re", ","])])
        tokens = dict(eos_token_id=[32, 257])
        for ends in (tokens, tokens | dict(no_repeat_ngram_size=2), dict(stopping_criteria=strings)):
            own = target.model.generate(**batch, max_new_tokens=NEW, do_sample=False, **ends)
            assert (own[:, -1] == PAD).any()
            for method in METHODS:
                assert torch.equal(written(pair, batch, method, do_sample=False, **ends), own)

    def test_criteria_are_asked_after_each_token(self, pair):
        batch = padded(pair[0])
        width = batch["input_ids"].shape[1]
        asked = []

        class Third(StoppingCriteria):
            def __call__(self, input_ids, scores, **options):
                asked.append(input_ids.shape)
                return torch.tensor([input_ids.shape[1] >= width + 3])

        found = written(pair, batch, stopping_criteria=StoppingCriteriaList([Third()]), k=5)
        assert found.shape == (3, width + 3)
        assert sorted(asked) == sorted(3 * [(1, width + step) for step in (1, 2, 3)])

    @pytest.mark.parametrize("method", METHODS)
    def test_output_with_scores(self, pair, method):
        batch = padded(pair[0]) | dict(
            do_sample=False, repetition_penalty=1.3, no_repeat_ngram_size=3, max_new_tokens=6,
            return_dict_in_generate=True, output_scores=True, output_logits=True,
        )  # fmt: skip
        own = pair[0].model.generate(**batch)
        found = written(pair, batch, method, **{name: batch.pop(name) for name in ("do_sample", "max_new_tokens")})
        assert torch.equal(found.sequences, own.sequences)
        for ours, theirs in ((found.scores, own.scores), (found.logits, own.logits)):
            assert len(ours) == len(theirs) == 6
            for step in zip(ours, theirs, strict=True):
                torch.testing.assert_close(*step, rtol=1e-5, atol=1e-5)

    def test_scores_after_the_end_are_zero(self, pair):
        options = dict(eos_token_id=32, return_dict_in_generate=True, output_scores=True, do_sample=False)
        found = written(pair, padded(pair[0]), **options)
        tokens = found.sequences[:, -len(found.scores) :]
        ended = tokens.eq(32).cumsum(1) - tokens.eq(32).int() > 0
        assert ended.any()
        assert torch.equal(torch.stack(found.scores, 1).abs().sum(-1) == 0, ended)
        assert found.logits is None

    def test_every_text_is_processed_at_its_place(self, pair):
        """A function of the place in the batch, as transformers' constraints are."""
        letters = [[97, 98], [101, 102, 103], [110, 111]]
        options = dict(prefix_allowed_tokens_fn=lambda place, ids: letters[place], do_sample=False)
        batch = padded(pair[0])
        own = pair[0].model.generate(**batch, max_new_tokens=NEW, **options)
        for method in METHODS:
            assert torch.equal(written(pair, batch, method, **options), own)

    def test_texts_of_other_lengths_are_not_processed_again(self, monkeypatch):
        """By a processor whose scores of a row depend on its text alone; others get a whole batch."""
        texts, rows, calls = [[1, 2, 1], [2, 2], [3, 1, 3]], torch.zeros(3, 5), []

        class Counting(processors.NoRepeatNGramLogitsProcessor):
            def __call__(self, input_ids, scores):
                calls.append(len(scores))
                return super().__call__(input_ids, scores)

        for known, sizes in ((True, [2, 1]), (False, [3, 3])):
            monkeypatch.setattr(parts, "ROW_WISE", {Counting} if known else set())
            found = parts.applied(LogitsProcessorList([Counting(2)]), 3, [0, 1, 2], texts, rows)
            assert calls == sizes
            calls.clear()
            assert (found == -torch.inf).nonzero().tolist() == [[0, 2], [1, 2], [2, 1]]

    def test_processors_see_the_text_before_their_row(self, pair):
        """Each call has texts of one length, no draft that a rejection took back, and rows of the whole vocabulary."""
        seen = set()

        class Seen(LogitsProcessor):
            def __call__(self, input_ids, scores):
                assert scores.shape == (3, 258)
                seen.update(map(tuple, input_ids.tolist()))
                return scores

        batch = padded(pair[0])
        found = written(pair, batch, "plain", logits_processor=LogitsProcessorList([Seen()]))
        width = batch["input_ids"].shape[1]
        assert seen == {tuple(row[:end]) for row in found.tolist() for end in range(width, width + NEW)}
        assert torch.equal(found, written(pair, batch, "plain"))

    def test_streamers_get_each_round(self, pair):
        batch, heard = padded(pair[0], PROMPTS[:1]), Heard()
        found = written(pair, batch, streamer=heard)
        assert torch.equal(torch.cat(heard.pieces), found[0])
        assert len(heard.pieces) < NEW
        assert heard.ended == 1
        with pytest.raises(ValueError, match="streamer: expected None for several texts"):
            written(pair, padded(pair[0]), streamer=Heard())

    def test_accepted_drafts_are_counted_by_position(self, pair, monkeypatch):
        monkeypatch.setattr(counters, "_SEEN", {})
        batch = padded(pair[0])
        written(pair, batch)
        rounds, accepted = counters.accepted_drafts("transformers")
        assert accepted == sorted(accepted, reverse=True)
        texts = len(batch["input_ids"])
        assert 0 <= rounds + sum(accepted) - texts * (NEW - 1) <= 5 * texts  # drafts behind the last token, and it
        verdict = torch.tensor([[9, 9, 0, 0]]), DRAFT, 2, DRAFT[:, [0, 1, 1]]  # equal laws: both are accepted
        speculative_sampling(*verdict)
        assert counters.accepted_drafts("transformers") == (
            rounds + 1,
            [each + (i < 2) for i, each in enumerate(accepted)],
        )

    def test_arguments_of_a_caller_that_hands_them_on(self, pair):
        """A version that gives a callable its assistant, or `partial`."""
        target, draft = pair
        batch = padded(target)
        bound = functools.partial(generate, assistant_model=draft.model)
        found = target.model.generate(**batch, custom_generate=bound, do_sample=True, max_new_tokens=NEW, seed=3)
        assert torch.equal(found, written(pair, batch))

    def test_seeds(self, pair):
        batch = padded(pair[0])
        torch.manual_seed(5)
        first, second = written(pair, batch, seed=None), written(pair, batch, seed=None)
        torch.manual_seed(5)
        assert torch.equal(first, written(pair, batch, seed=None))
        assert not torch.equal(first, second)
        assert torch.equal(written(pair, batch, seed=[3, 4, 5]), written(pair, batch, seed=3))

    def test_other_drafters_and_trees_change_no_race(self, pair):
        batch = padded(pair[0])
        plain = written(pair, batch, "plain")
        alone = (pair[0], type("None", (), {"model": None}))
        assert torch.equal(written(alone, batch, prompt_lookup_num_tokens=3), plain)
        assert torch.equal(written(alone, batch, drafter=NgramDrafter()), plain)
        assert torch.equal(written(pair, batch, tree=[-1, 0, 0, 1]), plain)
        with pytest.raises(ValueError, match="assistant_model: expected a model with method 'race'"):
            written(alone, batch)

    def test_models_with_recurrent_layers(self):
        """transformers refuses assistants of them, and writes the greedy text token by token."""
        target, draft = (model.model for model in hybrids("qwen3_next"))
        text, options = torch.tensor([[7, 3, 9]]), dict(max_new_tokens=NEW, eos_token_id=None, pad_token_id=0)
        greedy = target.generate(text, do_sample=False, **options)
        options |= dict(custom_generate=generate, max_pending=4)
        assert torch.equal(target.generate(text, drafter=draft, do_sample=False, **options), greedy)
        options |= dict(do_sample=True, seed=1)
        plain = target.generate(text, method="plain", **options)
        assert torch.equal(target.generate(text, drafter=draft, **options), plain)
        with pytest.raises(ValueError, match="not supported with stateful models"):
            target.generate(text, assistant_model=draft, **options)
        with pytest.raises(ValueError, match=r"^max_pending: expected at least 1; got 0$"):
            target.generate(text, drafter=draft, **options | dict(max_pending=0))

    @pytest.mark.parametrize("name, options", [
        ("generation_config", dict(num_beams=2)),
        ("assistant_early_exit", dict(assistant_early_exit=2)),
        ("assistant_ensemble_weight", dict(assistant_ensemble_weight=0.5)),
        ("output_attentions", dict(output_attentions=True)),
        ("output_hidden_states", dict(output_hidden_states=True)),
        ("logits_processor", dict(guidance_scale=1.5)),
        ("tree", dict(tree=[-1, 0], no_repeat_ngram_size=2)),
        ("position_ids", dict(position_ids=torch.arange(1, 6)[None])),
    ])  # fmt: skip
    def test_refused_by_name(self, pair, name, options):
        with pytest.raises(NotImplementedError, match=f"^{name}: "):
            written(pair, dict(input_ids=torch.tensor([pair[0].encode("ROME")])), **options)

    def test_wrong_inputs(self, pair):
        ids = torch.tensor([[256, 82, 79, 77]])
        for mask in ([1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]):
            with pytest.raises(ValueError, match="attention_mask: expected zeros on the left alone"):
                written(pair, dict(input_ids=ids, attention_mask=torch.tensor([mask])))
        with pytest.raises(ValueError, match="method: expected one of"):
            written(pair, dict(input_ids=ids), "medusa")
        cache = utils.DynamicCache(config=pair[0].model.config)
        name = pair[0].cache_argument
        pair[0].model(ids, **{name: cache})
        with pytest.raises(NotImplementedError, match=f"{name}: expected an empty cache"):
            written(pair, {"input_ids": torch.cat([ids, ids], 1), name: cache})
        model = llama(5).model.train()
        with pytest.raises(ValueError, match="model: expected a model that is evaluated"):
            model.generate(ids % 5, custom_generate=generate, method="plain", max_new_tokens=2)


class Heard:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.pieces, self.ended = [], 0

    def put(self, tokens):
        self.pieces.append(tokens.flatten())

    def end(self):
        self.ended += 1


class Halved(LogitsProcessor):
    """One that nobody knows: what the last token was has half its logit."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, input_ids[:, -1:], scores.gather(1, input_ids[:, -1:]) / 2)


LAWS = {
    "none": {},
    "filters": dict(temperature=1.4, top_k=4, top_p=0.9),
    "penalty and filter": dict(repetition_penalty=1.7, min_p=0.2),
    "bias and filter": dict(sequence_bias={(1,): 1.5, (4,): -torch.inf}, top_k=3),
    "unknown and filter": dict(logits_processor=LogitsProcessorList([Halved()]), top_k=3),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", LAWS.values(), ids=LAWS)
def test_law(small, method, options):
    """Of texts of two tokens, by transformers' own processors."""
    target, draft = small
    prompt, count = torch.tensor([[1, 3, 2]]), 4000
    given = []

    def caught(model, input_ids, logits_processor=None, **_):
        given.append(logits_processor)
        return input_ids

    shared = dict(do_sample=True, max_new_tokens=2, pad_token_id=0) | options
    target.generate(prompt, custom_generate=caught, **shared)
    (own,) = given
    law = torch.zeros(5, 5, dtype=torch.float64)
    with torch.no_grad():
        first = own(prompt, target(prompt).logits[:, -1]).double().softmax(-1)[0]
        for token in range(5):
            text = torch.cat([prompt, torch.tensor([[token]])], 1)
            law[token] = first[token] * own(text, target(text).logits[:, -1]).double().softmax(-1)[0]
    found = target.generate(
        prompt.repeat(count, 1), custom_generate=generate, assistant_model=draft, method=method, seed=0, k=2, **shared
    )
    assert_law(found[:, 3] * 5 + found[:, 4], law.flatten().nan_to_num())


class TestShaping:
    TEMPERATURE, TOP_K = processors.TemperatureLogitsWarper(0.5), processors.TopKLogitsWarper(3)
    TOP_P, MIN_P = processors.TopPLogitsWarper(0.9), processors.MinPLogitsWarper(0.1)
    PENALTY = processors.RepetitionPenaltyLogitsProcessor(1.5)
    OTHER = processors.NoRepeatNGramLogitsProcessor(2)

    def test_known_warpers_become_filters(self):
        found = parts.shaping_of([self.TEMPERATURE, self.TOP_K, self.TOP_P, self.MIN_P], True, [0])
        assert found == (Sampling.huggingface(0.5, 3, 0.9, 0.1), TextEdits(), [])
        assert parts.shaping_of([self.TEMPERATURE, self.TOP_K], False, [0]) == (Sampling(0.0), TextEdits(), [])
        normal = processors.LogitNormalization()
        assert parts.shaping_of([self.TOP_P, normal], True, [0]) == (Sampling.huggingface(top_p=0.9), TextEdits(), [])

    def test_what_another_order_leaves(self):
        """Only the end of the list that is in our order."""
        found = parts.shaping_of([self.TOP_P, self.TOP_K, self.MIN_P], True, [0])
        assert found == (Sampling.huggingface(top_k=3, min_p=0.1), TextEdits(), [self.TOP_P])
        found = parts.shaping_of([self.TEMPERATURE, self.OTHER, self.TOP_K], True, [0])
        assert found == (Sampling.huggingface(top_k=3), TextEdits(), [self.TEMPERATURE, self.OTHER])
        assert parts.shaping_of([self.TOP_K, self.TOP_K], True, [0]).rest == [self.TOP_K]

    @pytest.mark.parametrize("unusual", [
        processors.TopKLogitsWarper(3, min_tokens_to_keep=2), processors.TopPLogitsWarper(0.9, filter_value=-1e4),
    ])  # fmt: skip
    def test_unusual_warpers_run_as_they_are(self, unusual):
        assert parts.shaping_of([unusual], True, [0]).rest == [unusual]

    def test_biases(self):
        """Of single tokens, before a penalty, without others and without infinity."""
        bias, word = processors.SequenceBiasLogitsProcessor, processors.NoBadWordsLogitsProcessor
        found = parts.shaping_of([bias({(3,): 2.0, (1,): -torch.inf}), self.PENALTY, self.TOP_K], True, [0])
        assert found[1:] == (TextEdits(repetition=1.5, bias={3: 2.0, 1: -torch.inf}), [])
        assert parts.shaping_of([word([[4]])], True, [0]).edits.bias == {4: -torch.inf}
        pair, infinite = bias({(3,): 2.0, (1, 2): 1.0}), bias({(3,): torch.inf})
        for left in ([pair], [infinite], [self.PENALTY, word([[4]])], [bias({(3,): 2.0}), self.OTHER]):
            assert parts.shaping_of(left, True, [0])[1:] == (TextEdits(), left)

    def test_penalties(self):
        """One alone, that counts the prompt without its padding, is an edit."""
        assert parts.shaping_of([self.PENALTY, self.TOP_K], True, [0]).edits.repetition == 1.5
        assert parts.shaping_of([self.PENALTY, self.OTHER], True, [0]).rest == [self.PENALTY, self.OTHER]
        assert parts.shaping_of([self.PENALTY], True, [0, 2]).rest == [self.PENALTY]
        for ignored, padding, is_edit in ((torch.tensor([0, 2]), [0, 2], True), (torch.tensor([3, 3]), [0, 2], False),
                                          (3, [0, 0], False), (None, [0, 0], True)):  # fmt: skip
            penalty = processors.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=ignored)
            assert (parts.shaping_of([penalty], True, padding).edits.repetition == 1.5) == is_edit


V = 4
TARGET, DRAFT = torch.stack([P, P.flip(0), P]).log()[None], torch.stack([Q, P]).log()[None]


def verified(**options):
    """A round on fresh drafts: the tokens of a text of three, what was not emitted drawn from the target."""
    drafts = torch.multinomial(DRAFT[0].exp(), 1).T
    tokens, accepted = speculative_sampling(torch.cat([torch.tensor([[9, 9]]), drafts], 1), DRAFT, 2, TARGET, **options)
    assert tokens.dtype == accepted.dtype == torch.int64
    assert tokens.shape == (1, accepted + 1)
    assert accepted.shape == ()
    assert torch.equal(tokens[0, :accepted], drafts[0, :accepted])
    return tokens[0].tolist()


class TestSpeculativeSampling:
    def test_laws_of_drafts_are_used(self):
        """Drafts without theirs would be verified rightly, too, but accepted less."""
        torch.manual_seed(0)
        assert_rate([len(verified()) > 1 for _ in range(2000)], torch.minimum(P, Q).sum().item())

    @pytest.mark.parametrize("weight", [0.3, 0.8])
    def test_law_of_an_ensemble(self, weight):
        """Drafts are verified by the mixture; the last token, after them all, is the target's."""
        torch.manual_seed(0)
        rows = TARGET[0].exp().clone()
        rows[:2] = weight * rows[:2] + (1 - weight) * DRAFT[0].exp()
        found = [verified(assistant_ensemble_weight=weight) for _ in range(4000)]
        for place, law in enumerate(rows):
            assert_law([tokens[place] for tokens in found if len(tokens) > place], law)
        given = TARGET.clone()
        speculative_sampling(torch.tensor([[1, 1]]), DRAFT, 2, given, weight)
        assert torch.equal(given, TARGET)

    def test_a_residual_without_mass_is_no_error(self):
        """transformers divides by it. A draft that its own law does not have, and the target neither."""
        one = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]]).log()
        tokens, accepted = speculative_sampling(torch.tensor([[3]]), one, 1, torch.cat([one, one], 1))
        assert accepted == 0
        assert tokens.item() in (0, 1)
        with pytest.raises(RuntimeError):
            utils._speculative_sampling(torch.tensor([[3]]), one, 1, torch.cat([one, one], 1))

    def test_no_drafts(self):
        tokens, accepted = speculative_sampling(torch.tensor([[3, 3]]), DRAFT[:, :0], 0, TARGET[:, :1])
        assert tokens.shape == (1, 1)
        assert accepted == 0

    def test_seeds_come_from_torch(self):
        def tokens():
            return [speculative_sampling(torch.tensor([[3, 0]]), DRAFT, 2, TARGET)[0].tolist() for _ in range(20)]

        torch.manual_seed(1)
        first = tokens()
        assert len({str(text) for text in first}) > 2
        torch.manual_seed(1)
        assert first == tokens()

    def test_wrong_arguments(self):
        with pytest.raises(ValueError, match="candidate_input_ids: expected one text"):
            speculative_sampling(torch.ones(2, 2, dtype=torch.int64), DRAFT, 2, TARGET)
        for weight in (0.0, 1.0, -0.5):
            with pytest.raises(ValueError, match=r"assistant_ensemble_weight: expected a number in \(0, 1\)"):
                speculative_sampling(torch.ones(1, 2, dtype=torch.int64), DRAFT, 2, TARGET, weight)

    def test_launches(self):
        """Ours, and a copy of one number; on a CPU the seed is two more."""
        drafts = torch.tensor([[1, 1]])
        names = launches(lambda: speculative_sampling(drafts, DRAFT, 2, TARGET))
        assert names == [
            "aten::random_", "aten::_local_scalar_dense", "specdec::verify_chain", "aten::_to_copy",
            "aten::_local_scalar_dense",
        ]  # fmt: skip


@pytest.fixture
def installed():
    own = utils._speculative_sampling
    transformers.install()
    transformers.install()
    yield own
    transformers.uninstall()
    assert utils._speculative_sampling is own


class TestInstall:
    def test_assisted_generation_uses_it(self, pair, installed, monkeypatch):
        calls = []
        verify = utils._speculative_sampling
        assert verify is not installed
        monkeypatch.setattr(utils, "_speculative_sampling", lambda *a, **k: calls.append(1) or verify(*a, **k))
        target, draft = pair
        batch = padded(target, PROMPTS[:1])
        torch.manual_seed(0)
        found = target.model.generate(**batch, assistant_model=draft.model, do_sample=True, max_new_tokens=NEW)
        assert found.shape[1] == batch["input_ids"].shape[1] + NEW
        assert calls
        weighted = dict(assistant_ensemble_weight=0.5, do_sample=True, max_new_tokens=4)
        assert target.model.generate(**batch, assistant_model=draft.model, **weighted).shape[0] == 1

    @pytest.mark.parametrize("name", ["is_done_candidate", "last_assistant_token_is_eos"])
    def test_an_older_signature(self, monkeypatch, name):
        """The fifth argument says that the last draft ends the text: nothing follows once it is accepted."""
        scope = {}
        exec(f"def old(candidate_input_ids, candidate_logits, candidate_length, new_logits, {name}): 'old'", scope)
        monkeypatch.setattr(utils, "_speculative_sampling", scope["old"])
        transformers.install()
        try:
            one = torch.tensor([[[0.0, 1.0, 0.0, 0.0]]]).log()
            call, drafts = utils._speculative_sampling, torch.tensor([[9, 1]])
            for rows, ended, expected in ((one, True, [1]), (one, False, [1, 1]), (one.roll(1, -1), True, [2])):
                tokens, accepted = call(drafts, one, 1, torch.cat([rows, one], 1), ended)
                assert tokens[0].tolist() == expected
                assert accepted == len(expected) - 1
        finally:
            transformers.uninstall()
        assert utils._speculative_sampling is scope["old"]

    def test_a_signature_that_is_not_known(self, monkeypatch):
        monkeypatch.setattr(utils, "_speculative_sampling", lambda candidate_input_ids, temperature: None)
        with pytest.raises(RuntimeError, match=r"expected _speculative_sampling.*; got temperature, too"):
            transformers.install()
