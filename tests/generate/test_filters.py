"""Filters in generation: races equal plain sampling, rejection keeps the filtered law, log-probabilities are right."""

import itertools
from types import SimpleNamespace

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling, backends
from specdec_kernels.generate import Controller, ModelDrafter, NgramDrafter, chains, generate, load_model, trees
from specdec_kernels.generate.control import log_probability
from specdec_kernels.generate.noise import keywords
from tests.generate.small import llama
from tests.generate.test_generate import LENGTH, PROMPT, PROMPTS, VOCAB, drafter_of, drawn, tokens_of
from tests.support.filters import scaled
from tests.support.laws import follows_law

BATCH, NEW = PROMPTS[:3], 24
SAMPLINGS = {
    "all": Sampling(0.9, top_k=12, top_p=0.9, min_p=0.02),
    "of each prompt": Sampling([0.7, 1.0, 1.5], top_k=[0, 5, 40], top_p=[0.8, 1.0, 0.95], min_p=[0.0, 0.1, 0.01]),
    "before the temperature": Sampling.llamacpp(1.7, top_k=20, top_p=0.8, min_p=0.05),
    "top_p of the row": Sampling.flashinfer_joint(1.2, top_k=30, top_p=0.7),
}
SHAPES = {"wide": DraftTree.specinfer((4, 2, 1)), "deep": DraftTree.chain(3)}


def of_prompt(sampling, index):
    """The sampling of one prompt of the batch."""
    return Sampling(*(field[index] if isinstance(field, list) else field for field in sampling))


@pytest.fixture(scope="module")
def pair():
    return load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")


@pytest.fixture(scope="module")
def plain(pair):
    """Plain generations of BATCH by the name of the sampling, each prompt on its own."""
    return {
        name: [
            generate([prompt], pair[0], method="plain", sampling=of_prompt(sampling, index), seed=3 + index,
                     max_new_tokens=NEW)[0]
            for index, prompt in enumerate(BATCH)
        ]
        for name, sampling in SAMPLINGS.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def rows(pair):
    """The target's logits that decide the tokens of a generation, [T, V]."""

    @torch.no_grad()
    def rows(text):
        logits = pair[0].model(torch.tensor([text.prompt + text.tokens])).logits
        return logits[0, len(text.prompt) - 1 : -1].float()

    return rows


def kept(logits, sampling):
    """Which tokens of rows [T, V] the filters keep, by `cutoff`."""
    cut = specdec.cutoff(logits, sampling=sampling)
    values = torch.from_numpy(scaled(logits, sampling.temperature if sampling.at_temperature else 1.0))
    before = torch.arange(logits.shape[-1]) <= cut.last[:, None]
    return (values > cut.value[:, None]) | ((values == cut.value[:, None]) & before)


# The race.


@pytest.mark.parametrize("drafter", ["model", "ngram", "none"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_filtered_race_equals_plain(pair, plain, name, drafter):
    race = generate(
        BATCH, pair[0], drafter_of(drafter, pair), k=3, sampling=SAMPLINGS[name], seed=3, max_new_tokens=NEW
    )
    assert tokens_of(race) == tokens_of(plain[name])
    assert not any(text.status for text in race)
    assert drafter != "model" or all(text.target_calls < NEW for text in race)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_filtered_race_of_trees_equals_plain(pair, plain, name, shape):
    options = dict(tree=SHAPES[shape], sampling=SAMPLINGS[name], seed=3, max_new_tokens=NEW)
    race = generate(BATCH, pair[0], ModelDrafter(pair[1]), **options)
    assert tokens_of(race) == tokens_of(plain[name])
    assert not any(text.status for text in race)


@pytest.mark.parametrize("tree", [None, SHAPES["wide"]], ids=["chain", "tree"])
def test_a_filtered_race_of_one_prompt_equals_plain(pair, plain, tree):
    for index, prompt in enumerate(BATCH):
        sampling = of_prompt(SAMPLINGS["of each prompt"], index)
        race = generate(
            [prompt], pair[0], ModelDrafter(pair[1]), tree=tree, sampling=sampling, seed=3 + index, max_new_tokens=NEW
        )
        assert tokens_of(race) == [plain["of each prompt"][index].tokens]


def test_filters_change_the_text(pair, plain):
    """Else equality would say nothing of them."""
    for name in SAMPLINGS:
        for index, prompt in enumerate(BATCH):
            temperature = of_prompt(SAMPLINGS[name], index).temperature
            (text,) = generate(
                [prompt], pair[0], method="plain", temperature=temperature, seed=3 + index, max_new_tokens=NEW
            )
            assert text.tokens != plain[name][index].tokens


# Rejection.


@pytest.mark.parametrize(
    "options",
    [dict(k=3), dict(k=3, draft_prob=0.5), dict(tree=SHAPES["wide"]), dict(tree=SHAPES["wide"], replacement=True)],
    ids=["chain", "randomised", "tree", "with replacement"],
)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_rejection_emits_kept_tokens_only(pair, rows, name, options):
    texts = generate(
        BATCH, pair[0], ModelDrafter(pair[1]), method="rejection", sampling=SAMPLINGS[name], logprobs=0, seed=3,
        max_new_tokens=NEW, **options,
    )  # fmt: skip
    for index, text in enumerate(texts):
        assert kept(rows(text), of_prompt(SAMPLINGS[name], index))[range(NEW), text.tokens].all()
        assert all(found.rank > 0 for found in text.logprobs)


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize("tree", [None, DraftTree.chain(3)], ids=["chain", "tree"])
def test_a_draft_equal_to_the_target_is_always_accepted(pair, method, tree):
    options = dict(k=3, tree=tree, sampling=SAMPLINGS["all"], max_new_tokens=NEW)
    for text in generate(BATCH, pair[0], ModelDrafter(pair[0]), method=method, **options):
        assert text.acceptance == 1


FILTERS = Sampling(0.7, top_k=3, min_p=0.3)


@pytest.fixture(scope="module")
def small_pair():
    return llama(VOCAB, seed=1, spread=0.25), llama(VOCAB, seed=2, spread=0.25)


@pytest.fixture(scope="module")
def filtered_law(small_pair):
    """The exact law of all texts under FILTERS, filtered here by sorting."""
    texts = torch.tensor([PROMPT + list(tail) for tail in itertools.product(range(VOCAB), repeat=LENGTH)])
    with torch.no_grad():
        values = small_pair[0].model(input_ids=texts).logits / FILTERS.temperature
    third = values.sort(descending=True).values[..., FILTERS.top_k - 1, None]
    least = values.amax(-1, keepdim=True) + torch.tensor(FILTERS.min_p).log()
    logs = values.masked_fill((values < third) | (values < least), -torch.inf).log_softmax(-1)
    following = logs[:, len(PROMPT) - 1 : -1].gather(2, texts[:, len(PROMPT) :, None])
    law = following.sum((1, 2)).exp()
    assert 0 < (law > 0).sum() < 3**LENGTH  # both filters drop something
    return law


@pytest.mark.parametrize(
    "options",
    [
        dict(method="race", k=2),
        dict(k=2),
        dict(k=2, draft_prob=0.6),
        dict(drafter=NgramDrafter()),
        dict(tree=DraftTree.specinfer((4, 2))),
        dict(tree=DraftTree.specinfer((2, 2)), replacement=True),
    ],
    ids=["race", "rejection", "randomised", "ngram", "tree", "with replacement"],
)
def test_texts_have_the_filtered_law(small_pair, filtered_law, options):
    texts = drawn(small_pair, **(dict(method="rejection", sampling=FILTERS) | options))
    assert follows_law(texts, filtered_law)


@pytest.mark.parametrize("tree", [None, DraftTree.specinfer((2, 2))], ids=["chain", "tree"])
def test_filtered_drafts_read_as_unfiltered_ones_are_caught(small_pair, filtered_law, tree, monkeypatch):
    for module in (chains, trees):
        monkeypatch.setattr(module, "keywords", lambda noise, sampling, draft=None: keywords(noise, sampling))
    texts = drawn(small_pair, method="rejection", k=2, tree=tree, sampling=FILTERS)
    assert not follows_law(texts, filtered_law)


def test_a_controller_reads_filtered_laws():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    first, sampling = torch.tensor([1, 0]), Sampling(torch.ones(2), top_k=torch.tensor([2, 1]))
    controller = Controller(2, randomised=True)
    controller.look(first[:, None], logits[:, None], torch.zeros(2, 1, 3), sampling)
    # Of three alike the draft keeps the first two, with 1/2 each, and the first alone; the target drops that one.
    kept_two = torch.tensor([2.0, 1.0]).softmax(0)[1].item()
    assert list(controller.ratios) == pytest.approx([2 * kept_two, 0.0])


def test_both_ways_to_a_log_probability_are_one():
    logits, tokens = torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0]]), torch.tensor([1, 2])
    off, on = Sampling(torch.tensor([0.5, 2.0])), Sampling(torch.tensor([0.5, 2.0]), top_p=torch.ones(2))
    torch.testing.assert_close(log_probability(logits, tokens, off), log_probability(logits, tokens, on))


def test_a_learning_policy_goes_with_filters(pair, rows):
    (text,) = generate(
        BATCH[:1], pair[0], ModelDrafter(pair[1]), method="rejection", policy=Controller(4, randomised=True),
        sampling=SAMPLINGS["all"], max_new_tokens=60,
    )  # fmt: skip
    assert kept(rows(text), SAMPLINGS["all"])[range(60), text.tokens].all()


# Log-probabilities.


@pytest.mark.parametrize(
    "options",
    [dict(method="plain"), dict(k=3), dict(method="rejection", k=3), dict(tree=SHAPES["wide"])],
    ids=["plain", "race", "rejection", "tree"],
)
@pytest.mark.parametrize("top", [0, 15])
def test_log_probabilities_are_those_of_the_filtered_law(pair, rows, options, top):
    drafter = None if options.get("method") == "plain" else ModelDrafter(pair[1])
    texts = generate(
        BATCH, pair[0], drafter, sampling=SAMPLINGS["all"], logprobs=top, max_new_tokens=NEW, **options
    )  # fmt: skip
    for text in texts:
        logits = rows(text)
        dropped = ~kept(logits, SAMPLINGS["all"])
        logs = (logits.double() / 0.9).masked_fill(dropped, -torch.inf).log_softmax(-1)
        assert len(text.logprobs) == len(text.tokens) == NEW
        for token, row, found in zip(text.tokens, logs, text.logprobs, strict=True):
            assert found.logprob == pytest.approx(row[token].item(), abs=1e-5)
            assert found.rank == (row >= row[token]).sum()
            order = row.argsort(descending=True, stable=True)[: min(top, int((row > -torch.inf).sum()))]
            assert found.top_tokens == order.tolist()
            assert found.top_logprobs == pytest.approx(row[order].tolist(), abs=1e-5)


def test_greedy_tokens_are_certain(pair):
    (text,) = generate(BATCH[:1], pair[0], ModelDrafter(pair[1]), temperature=0, logprobs=2, max_new_tokens=8)
    assert [tuple(found) for found in text.logprobs] == [(0.0, 1, [token], [0.0]) for token in text.tokens]


def test_log_probabilities_end_where_a_text_ends(pair):
    options = dict(drafter=ModelDrafter(pair[0]), k=8, max_new_tokens=NEW)
    (whole,) = generate(BATCH[:1], pair[0], logprobs=1, **options)
    (text,) = generate(BATCH[:1], pair[0], logprobs=1, stop=[whole.text[3:5]], **options)
    assert text.finish == "stop"
    assert text.logprobs == whole.logprobs[: len(text.tokens)]
    for entry in text.rounds:
        assert len(entry.logprobs) == len(entry.tokens)
    assert set(text.seconds) == {"draft", "target", "verify", "logprobs"}


def test_nothing_is_told_that_was_not_asked_for(pair):
    (text,) = generate(BATCH[:1], pair[0], method="plain", max_new_tokens=2)
    assert (text.logprobs, [entry.logprobs for entry in text.rounds]) == ([], [None, None])


# A backend without filters.


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(sampling=Sampling(top_p=0.9)), "cannot do this race_sample: another has it"),
        (dict(sampling=Sampling(top_k=[0])), "cannot do this race_sample: another has it"),
        (dict(logprobs=0), "cannot do this logprobs: another has it"),
    ],
    ids=["number", "of each prompt", "logprobs"],
)
def test_a_backend_that_lacks_something_says_so_before_the_first_token(small_pair, monkeypatch, options, message):
    def unsupported(op, call):
        return "another has it" if op.name == "logprobs" or call.law.rules else None

    module = SimpleNamespace(unsupported=unsupported, race_sample=lambda call: None)
    monkeypatch.setitem(backends._BACKENDS, "bare", (module, ("cpu",)))
    monkeypatch.delitem(backends._loaded, "bare", raising=False)
    with specdec.backend("bare"), pytest.raises(RuntimeError, match=message):
        generate([PROMPT], small_pair[0], **options)
