"""LogitEdits in generation: rows and policies under them. Log-probabilities are in test_filters, laws in test_laws."""

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels.generate import Controller, ModelDrafter, TextEdits, generate
from specdec_kernels.generate.arguments import record_of
from specdec_kernels.generate.edits import before
from tests.generate.laws import BATCH, EDITS, NEW, PROMPT, SMALL, of_prompt, place_of


@torch.no_grad()
def edited_rows(model, text, edits, index):
    """The logits that decide each token of a generation, edited by hand, [T, V]."""
    logits = model.model(torch.tensor([text.prompt + text.tokens])).logits[0, len(text.prompt) - 1 : -1].float()
    allowed = None if edits.allowed is None else set(edits.allowed)
    return torch.stack([
        place_of(of_prompt(edits, index), text.prompt, text.tokens[:i]).edited(row, allowed=allowed)
        for i, row in enumerate(logits)
    ])  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_plain_draws_from_edited_rows(pair, name):
    """Each token is the winner over the row that was edited by hand."""
    texts = generate(BATCH, pair[0], method="plain", edits=EDITS[name], seed=3, max_new_tokens=NEW)
    for index, text in enumerate(texts):
        rows = edited_rows(pair[0], text, EDITS[name], index)
        begin = len(text.prompt)
        wanted = specdec.race_sample(rows, seed=3 + index, position=torch.arange(begin, begin + NEW))
        assert text.tokens == wanted.tolist()


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


def test_rows_of_a_draft_that_knows_fewer_tokens(small_pair):
    """Bias, penalties of what was said and of what comes next, of the tokens that it has."""
    edits = TextEdits(1.5, 0.5, 0.25, {2: 1.5, 4: 9.0}, [0, 1, 2, 4])
    record = record_of(edits, [[1, 4], [2]], small_pair[0])
    record.count(torch.tensor([[1, 1], [-1, -1]]))
    rows = torch.tensor([0.5, -0.5, 1.0]).expand(2, 2, 3)
    pending = torch.tensor([[[-1, -1], [0, -1]], [[2, -1], [2, 2]]])
    for text, (prompt, said) in enumerate((([1, 4], [1, 1]), ([2], []))):
        for row in range(2):
            after = [token for token in pending[text, row].tolist() if token >= 0]
            place = place_of(edits._replace(bias={2: 1.5}), prompt, said + after)
            wanted = place.edited(rows[text, row], allowed={0, 1, 2})
            torch.testing.assert_close(record.edited(rows, pending)[text, row], wanted)
