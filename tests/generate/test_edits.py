"""Edits in generation: races equal plain sampling, rejection keeps the edited law, log-probabilities are right."""

import itertools

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling
from specdec_kernels.generate import Controller, ModelDrafter, NgramDrafter, TextEdits, generate, load_model
from specdec_kernels.generate.edits import before
from tests.conftest import NATIVE
from tests.generate.small import llama
from tests.generate.test_generate import LENGTH, PROMPT, PROMPTS, VOCAB, drafter_of, drawn, tokens_of
from tests.support.edits import Place
from tests.support.laws import follows_law

BATCH, NEW = PROMPTS[:3], 16
LETTERS = [*range(32, 127), 10]
EDITS = {
    "penalties": TextEdits(1.3, 0.25, 0.5),
    "of each prompt": TextEdits([1.2, 1.0, 0.9], [0.0, 1.5, 0.3], [0.4, 2.0, -0.2]),
    "bias": TextEdits(bias={101: -float("inf"), 32: 1.5, 257: 3.0}),
    "allowed": TextEdits(allowed=[97, 98, 99, 32, 101, 10]),
    "all": TextEdits(1.2, 0.3, 0.4, {116: -2.0, 111: 1.0}, LETTERS),
}
SHAPES = {"wide": DraftTree.specinfer((3, 2, 1)), "deep": DraftTree.chain(3)}


@pytest.fixture(scope="module", autouse=True)
def backend():
    """The quickest; tests/ops compares them."""
    with specdec.backend(NATIVE):
        yield


@pytest.fixture(scope="module")
def pair():
    return load_model("embedded:target", dtype="float64"), load_model("embedded:draft", dtype="float64")


def place_of(edits, index, prompt, output):
    """The place of a text of the batch (tests/support/edits.py)."""
    return Place(edits.bias or {}, *of_prompt(edits, index)[:3], prompt=prompt, output=output)


@torch.no_grad()
def edited_rows(model, text, edits, index):
    """The logits that decide each token of a generation, edited by hand, [T, V]."""
    logits = model.model(torch.tensor([text.prompt + text.tokens])).logits[0, len(text.prompt) - 1 : -1].float()
    allowed = None if edits.allowed is None else set(edits.allowed)
    return torch.stack([
        place_of(edits, index, text.prompt, text.tokens[:i]).edited(row, allowed=allowed)
        for i, row in enumerate(logits)
    ])  # fmt: skip


def of_prompt(edits, index):
    return TextEdits(
        *(value[index] if isinstance(value, list) and value is not edits.allowed else value for value in edits)
    )


@pytest.fixture(scope="module")
def plain(pair):
    """Plain generations of BATCH by the name of the edits, each prompt on its own."""
    return {
        name: [
            generate([prompt], pair[0], method="plain", edits=of_prompt(edits, index), seed=3 + index,
                     max_new_tokens=NEW)[0]
            for index, prompt in enumerate(BATCH)
        ]
        for name, edits in EDITS.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_plain_draws_from_edited_rows(pair, plain, name):
    """Each token is the winner over the row that was edited by hand; without edits the texts are others."""
    for index, text in enumerate(plain[name]):
        rows = edited_rows(pair[0], text, EDITS[name], index)
        begin = len(text.prompt)
        wanted = specdec.race_sample(rows, seed=3 + index, position=torch.arange(begin, begin + NEW))
        assert text.tokens == wanted.tolist()
    unedited = generate(BATCH, pair[0], method="plain", seed=3, max_new_tokens=NEW)
    assert tokens_of(unedited) != tokens_of(plain[name])


@pytest.mark.parametrize("drafter", ["model", "ngram", "none"])
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_race_equals_plain(pair, plain, name, drafter):
    race = generate(BATCH, pair[0], drafter_of(drafter, pair), k=3, edits=EDITS[name], seed=3, max_new_tokens=NEW)
    assert tokens_of(race) == tokens_of(plain[name])
    assert not any(text.status for text in race)
    assert drafter != "model" or all(text.target_calls < NEW for text in race)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_race_of_trees_equals_plain(pair, plain, name, shape):
    options = dict(tree=SHAPES[shape], edits=EDITS[name], seed=3, max_new_tokens=NEW)
    race = generate(BATCH, pair[0], ModelDrafter(pair[1]), **options)
    assert tokens_of(race) == tokens_of(plain[name])
    assert not any(text.status for text in race)


@pytest.mark.parametrize("tree", [None, SHAPES["wide"]], ids=["chain", "tree"])
def test_edits_and_filters_together(pair, tree):
    options = dict(edits=EDITS["all"], sampling=Sampling(0.9, top_k=8, top_p=0.9), seed=3, max_new_tokens=NEW)
    race = generate(BATCH, pair[0], ModelDrafter(pair[1]), tree=tree, **options)
    assert tokens_of(race) == tokens_of(generate(BATCH, pair[0], method="plain", **options))


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize("tree", [None, DraftTree.chain(3)], ids=["chain", "tree"])
def test_a_draft_equal_to_the_target_is_always_accepted(pair, method, tree):
    """Draft rows are edited here and target rows by the ops: all tokens agree, and so do the laws."""
    few = TextEdits(1.2, 1.0, 2.0, allowed=[97, 98, 101, 32])  # so that drafts of a round repeat each other
    options = dict(k=3, tree=tree, edits=few, max_new_tokens=NEW)
    for text in generate(BATCH, pair[0], ModelDrafter(pair[0]), method=method, **options):
        assert text.acceptance == 1


# Rejection.

SMALL = TextEdits(1.5, 0.5, 0.25, {3: -float("inf"), 0: 0.5})


@pytest.fixture(scope="module")
def small_pair():
    return llama(VOCAB, seed=1, spread=0.25), llama(VOCAB, seed=2, spread=0.25)


@pytest.fixture(scope="module")
def edited_law(small_pair):
    """The exact law of all texts under SMALL, each row edited by hand."""
    texts = torch.tensor([PROMPT + list(tail) for tail in itertools.product(range(VOCAB), repeat=LENGTH)])
    with torch.no_grad():
        logits = small_pair[0].model(input_ids=texts).logits[:, len(PROMPT) - 1 : -1]
    law = []
    for text, rows in zip(texts[:, len(PROMPT) :].tolist(), logits, strict=True):
        edited = [place_of(SMALL, 0, PROMPT, text[:i]).edited(row) for i, row in enumerate(rows)]
        law.append(sum(row.double().log_softmax(-1)[token] for row, token in zip(edited, text, strict=True)).exp())
    return torch.stack(law)


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
def test_texts_have_the_edited_law(small_pair, edited_law, options):
    assert follows_law(drawn(small_pair, **(dict(method="rejection", edits=SMALL) | options)), edited_law)


def test_drafts_of_unedited_rows_are_caught(small_pair, edited_law):
    """Drawn from the rows as they were, and handed over with edited ones."""

    class Unedited(ModelDrafter):
        def propose(self, text, length, counts, slots, noise, sampling, record=None):
            drafts = super().propose(text, length, counts, slots, noise, sampling)
            edited = record.edited(drafts.logits, before(drafts.tokens)) if slots else None
            return drafts._replace(logits=edited)

    texts = drawn(small_pair, drafter=Unedited(small_pair[1]), method="rejection", k=2, edits=SMALL)
    assert not follows_law(texts, edited_law)


def test_a_controller_sees_edited_rows(small_pair):
    seen = []

    class Watching(Controller):
        def look(self, drafts, target_logits, draft_logits, sampling):
            seen.append((drafts, target_logits, draft_logits))
            super().look(drafts, target_logits, draft_logits, sampling)

    policy = Watching(2, randomised=True)
    (text,) = generate(
        [PROMPT], small_pair[0], ModelDrafter(small_pair[0]), method="rejection", policy=policy, edits=SMALL,
        max_new_tokens=30,
    )  # fmt: skip
    assert len(text.tokens) == 30
    assert 3 not in text.tokens
    for drafts, target, draft in seen:
        count = int((drafts >= 0).sum())
        if count:
            torch.testing.assert_close(target[:, :count], draft[:, :count])
            assert target[0, 0, 3] == -torch.inf


# Log-probabilities.


@pytest.mark.parametrize(
    "options",
    [dict(method="plain"), dict(k=3), dict(method="rejection", k=3), dict(tree=SHAPES["wide"])],
    ids=["plain", "race", "rejection", "tree"],
)
def test_log_probabilities_are_those_of_the_edited_law(pair, options):
    drafter = None if options.get("method") == "plain" else ModelDrafter(pair[1])
    texts = generate(BATCH, pair[0], drafter, edits=EDITS["all"], logprobs=3, max_new_tokens=NEW, **options)
    for index, text in enumerate(texts):
        logs = edited_rows(pair[0], text, EDITS["all"], index).double().log_softmax(-1)
        for token, row, found in zip(text.tokens, logs, text.logprobs, strict=True):
            assert found.logprob == pytest.approx(row[token].item(), abs=1e-5)
            assert found.rank == (row >= row[token]).sum()
            assert found.top_tokens == row.argsort(descending=True, stable=True)[:3].tolist()


# Arguments.


def test_edits_that_change_nothing(pair):
    (plain,) = generate(BATCH[:1], pair[0], method="plain", max_new_tokens=4)
    for edits in (TextEdits(), TextEdits(1.0, 0.0, 0.0, {}), TextEdits([1.0])):
        assert generate(BATCH[:1], pair[0], method="plain", edits=edits, max_new_tokens=4)[0].tokens == plain.tokens


@pytest.mark.parametrize(
    "edits, error, message",
    [
        ({"repetition": 1.2}, TypeError, "edits: expected a TextEdits"),
        (TextEdits(repetition=0.0), ValueError, "edits.repetition: expected numbers above 0; got 0.0"),
        (
            TextEdits(repetition=[1.0, -1.0]),
            ValueError,
            r"edits.repetition: expected numbers above 0; got \[1.0, -1.0\]",
        ),
        (TextEdits(frequency=float("nan")), ValueError, "edits.frequency: expected finite numbers; got nan"),
        (TextEdits(presence=[1.0]), ValueError, r"edits.presence: expected a number or one per prompt \(2\); got 1"),
        (TextEdits(bias=[3]), TypeError, "edits.bias: expected a dict from token ids to numbers"),
        (
            TextEdits(bias={5: 1.0}),
            ValueError,
            "edits.bias: expected token ids from 0 to 4, which llama-1 writes; got 5",
        ),
        (TextEdits(bias={1: float("nan")}), ValueError, r"edits.bias\[1\]: expected a finite number or -inf; got nan"),
        (TextEdits(allowed=[]), ValueError, "edits.allowed: expected one token at least; got none"),
        (TextEdits(allowed=[1, -1]), ValueError, "edits.allowed: expected token ids from 0 to 4"),
        (TextEdits(allowed=3), TypeError, "edits.allowed: expected a list of token ids; got 3"),
    ],
)
def test_bad_edits(small_pair, edits, error, message):
    with pytest.raises(error, match=f"^{message}"):
        generate([PROMPT, PROMPT], small_pair[0], edits=edits)


def test_what_stands_before_each_token():
    assert before(torch.tensor([[7, 8, 9]])).tolist() == [[[-1, -1, -1], [7, -1, -1], [7, 8, -1]]]
