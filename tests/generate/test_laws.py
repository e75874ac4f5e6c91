"""Filters and edits in generation: races equal plain sampling, rejection keeps the law, equal drafts are accepted."""

import itertools

import pytest
import torch

from specdec_kernels import Draft, DraftTree, Sampling
from specdec_kernels.generate import ModelDrafter, NgramDrafter, TextEdits, generate, protocols
from specdec_kernels.generate.edits import before
from tests.generate.laws import BATCH, LAWS, NEW, SHAPES, SMALL, of_prompt, place_of
from tests.generate.test_generate import LENGTH, PROMPT, VOCAB, drafter_of, drawn, tokens_of
from tests.support.laws import follows_law


@pytest.fixture(scope="module")
def plain(pair):
    """Plain generations of BATCH by the name of the law, each prompt on its own."""
    return {
        name: [
            generate([prompt], pair[0], method="plain", seed=3 + index, max_new_tokens=NEW,
                     **{option: of_prompt(fields, index) for option, fields in law.items()})[0]
            for index, prompt in enumerate(BATCH)
        ]
        for name, law in LAWS.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_the_law_changes_the_text(pair, plain, name):
    """Else equality would say nothing of it."""
    temperature = LAWS[name].get("sampling", Sampling()).temperature
    unchanged = generate(BATCH, pair[0], method="plain", sampling=Sampling(temperature), seed=3, max_new_tokens=NEW)
    assert tokens_of(unchanged) != tokens_of(plain[name])


WAYS = {name: (name, dict(k=3)) for name in ("model", "ngram", "none")} | {
    f"{shape} trees": ("model", dict(tree=tree)) for shape, tree in SHAPES.items()
}


@pytest.mark.parametrize("drafter, how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", LAWS)
def test_race_equals_plain(pair, plain, name, drafter, how):
    race = generate(BATCH, pair[0], drafter_of(drafter, pair), seed=3, max_new_tokens=NEW, **how, **LAWS[name])
    assert tokens_of(race) == tokens_of(plain[name])
    assert not any(text.status for text in race)
    assert drafter != "model" or all(text.target_calls < NEW for text in race)


@pytest.mark.parametrize("method", ["race", "rejection"])
@pytest.mark.parametrize("tree", [None, DraftTree.chain(3)], ids=["chain", "tree"])
@pytest.mark.parametrize(
    "law",
    [
        LAWS["all filters"],
        # Few tokens, so that drafts of a round repeat each other.
        dict(edits=TextEdits(1.2, 1.0, 2.0, allowed=[97, 98, 101, 32])),
    ],
    ids=["filters", "edits"],
)
def test_a_draft_equal_to_the_target_is_always_accepted(pair, method, tree, law):
    """The drafter changes its rows itself, and the ops those of the target."""
    for text in generate(BATCH, pair[0], ModelDrafter(pair[0]), method=method, k=3, tree=tree, max_new_tokens=NEW,
                         **law):  # fmt: skip
        assert text.acceptance == 1


# The exact law of short texts.

FILTERS = Sampling(0.7, top_k=3, min_p=0.3)


@pytest.fixture(scope="module")
def texts():
    """All texts after PROMPT, which is part of them."""
    return torch.tensor([PROMPT + list(tail) for tail in itertools.product(range(VOCAB), repeat=LENGTH)])


@pytest.fixture(scope="module")
def logits(small_pair, texts):
    """The logits of every token of every text after PROMPT."""
    with torch.no_grad():
        return small_pair[0].model(input_ids=texts).logits[:, len(PROMPT) - 1 : -1]


@pytest.fixture(scope="module")
def filtered(logits):
    """The rows under FILTERS, filtered by sorting."""
    values = logits / FILTERS.temperature
    third = values.sort(descending=True).values[..., FILTERS.top_k - 1, None]
    least = values.amax(-1, keepdim=True) + torch.tensor(FILTERS.min_p).log()
    return values.masked_fill((values < third) | (values < least), -torch.inf)


@pytest.fixture(scope="module")
def edited(logits, texts):
    """The rows under SMALL, each edited by hand."""
    return torch.stack([
        torch.stack([place_of(SMALL, PROMPT, text[:i]).edited(row) for i, row in enumerate(rows)])
        for text, rows in zip(texts[:, len(PROMPT) :].tolist(), logits, strict=True)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def exact(texts, filtered, edited):
    """The law of the texts, by the name of what changes the rows."""

    def law(rows):
        return rows.double().log_softmax(-1).gather(2, texts[:, len(PROMPT) :, None]).sum((1, 2)).exp()

    laws = {"filters": law(filtered), "edits": law(edited)}
    assert 0 < (laws["filters"] > 0).sum() < FILTERS.top_k**LENGTH  # both filters drop something
    return laws


SMALL_LAWS = {"filters": dict(sampling=FILTERS), "edits": dict(edits=SMALL)}


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        dict(method="race", k=2),
        dict(k=2),
        dict(k=2, draft_prob=0.6),
        dict(drafter=NgramDrafter()),
        dict(tree=DraftTree.specinfer((4, 2))),
        dict(tree=DraftTree.specinfer((2, 2)), replacement=True),
        dict(method="block", k=2),
        dict(method="traversal", tree=DraftTree.specinfer((2, 2))),
    ],
    ids=["race", "rejection", "randomised", "ngram", "tree", "with replacement", "block", "traversal"],
)
@pytest.mark.parametrize("name", SMALL_LAWS)
def test_texts_have_the_exact_law(small_pair, exact, name, options):
    assert follows_law(drawn(small_pair, **(dict(method="rejection") | SMALL_LAWS[name] | options)), exact[name])


@pytest.mark.parametrize("tree", [None, DraftTree.specinfer((2, 2))], ids=["chain", "tree"])
def test_filtered_drafts_read_as_unfiltered_ones_are_caught(small_pair, exact, tree, monkeypatch):
    monkeypatch.setattr(protocols, "Draft", lambda rows, sampling, map: Draft(rows, map=map))
    assert not follows_law(drawn(small_pair, method="rejection", k=2, tree=tree, sampling=FILTERS), exact["filters"])


def test_drafts_of_unedited_rows_are_caught(small_pair, exact):
    """Drawn from the rows as they were, and handed over with edited ones."""

    class Unedited(ModelDrafter):
        def propose(self, text, length, counts, slots, noise, sampling, record=None):
            drafts = super().propose(text, length, counts, slots, noise, sampling)
            edited = record.edited(drafts.logits, before(drafts.tokens)) if slots else None
            return drafts._replace(logits=edited)

    texts = drawn(small_pair, drafter=Unedited(small_pair[1]), method="rejection", k=2, edits=SMALL)
    assert not follows_law(texts, exact["edits"])
