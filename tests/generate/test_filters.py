"""Filters in generation: tokens and policies under them, log-probabilities. The law of whole texts is in test_laws."""

from types import SimpleNamespace

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling, backends
from specdec_kernels.generate import Controller, ModelDrafter, generate
from specdec_kernels.generate.control import log_probability
from tests.generate.laws import BATCH, EDITS, LAWS, NEW, PROMPT, SAMPLINGS, SHAPES
from tests.generate.test_edits import edited_rows
from tests.support.filters import scaled


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


@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}], ids=str)
def test_any_filter_changes_a_log_probability(filters):
    logits, tokens, warm = torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]), torch.tensor([1.0])
    dropped, whole = (log_probability(logits, tokens, Sampling(warm, **each)) for each in (filters, {}))
    assert dropped > whole


def test_a_learning_policy_goes_with_filters(pair, rows):
    (text,) = generate(
        BATCH[:1], pair[0], ModelDrafter(pair[1]), method="rejection", policy=Controller(4, randomised=True),
        sampling=SAMPLINGS["all filters"], max_new_tokens=60,
    )  # fmt: skip
    assert kept(rows(text), SAMPLINGS["all filters"])[range(60), text.tokens].all()


# Log-probabilities.


@pytest.mark.parametrize(
    "options",
    [dict(method="plain"), dict(k=3), dict(method="rejection", k=3), dict(tree=SHAPES["wide"])],
    ids=["plain", "race", "rejection", "tree"],
)
@pytest.mark.parametrize("law, top", [("all filters", 0), ("all filters", 15), ("all edits", 3)])
def test_log_probabilities_are_those_of_the_law(pair, rows, options, law, top):
    drafter = None if options.get("method") == "plain" else ModelDrafter(pair[1])
    texts = generate(BATCH, pair[0], drafter, logprobs=top, max_new_tokens=NEW, **LAWS[law], **options)
    for index, text in enumerate(texts):
        if law == "all edits":
            logits = edited_rows(pair[0], text, EDITS[law], index)
        else:
            logits = (rows(text).double() / 0.9).masked_fill(~kept(rows(text), SAMPLINGS[law]), -torch.inf)
        logs = logits.double().log_softmax(-1)
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


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(sampling=Sampling(top_p=0.9)), "cannot do this race_sample: another has it"),
        (dict(logprobs=0), "cannot do this logprobs: another has it"),
    ],
    ids=["filter", "logprobs"],
)
def test_a_backend_that_lacks_something_says_so_before_the_first_token(small_pair, monkeypatch, options, message):
    def unsupported(op, call):
        return "another has it" if op.name == "logprobs" or call.law.rules else None

    module = SimpleNamespace(unsupported=unsupported, race_sample=lambda call: None)
    monkeypatch.setitem(backends._BACKENDS, "bare", (module, ("cpu",)))
    monkeypatch.delitem(backends._loaded, "bare", raising=False)
    with specdec.backend("bare"), pytest.raises(RuntimeError, match=message):
        generate([PROMPT], small_pair[0], **options)
