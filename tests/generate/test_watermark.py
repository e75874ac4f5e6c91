"""Watermarked text: that of plain watermarked sampling, of the model's law over keys, and found by its key alone."""

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
import torch
from scipy import stats
from specdec_kernels._C import maths

from specdec_kernels import context_seeds, race_sample, verify_chain
from specdec_kernels.backends.reference import noise
from specdec_kernels.calls.values import Noise
from specdec_kernels.generate import ModelDrafter, Watermark, generate
from specdec_kernels.watermark import detect, p_value, scores
from tests.generate.laws import PROMPTS
from tests.support.laws import FALSE_ALARM, assert_law, follows_law

NEW = 40
KEYS = [12345, 0, -9, 2**64 - 1]


@pytest.mark.parametrize("window", [2, 4])
def test_a_key_finds_its_own_text_alone(pair, window):
    mark = Watermark([12345, 0], window)
    marked, usual = generate(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), watermark=mark, max_new_tokens=150)
    assert detect(marked.tokens, 12345, window=window).p_value < 1e-5
    assert detect(marked.tokens, 999, window=window).p_value > 1e-3
    assert detect(marked.tokens, 12345, window=window + 1).p_value > 1e-3
    assert detect(usual.tokens, 12345, window=window).p_value > 1e-3


@pytest.mark.slow
def test_as_many_drafts_are_accepted(pair):
    """As in any race: on 64 texts the shares differ by less than 5.5 standard errors of the texts' own spread."""
    shares = []
    for mark in (Watermark(list(range(1, 65))), None):
        texts = generate(
            PROMPTS * 16, pair[0], ModelDrafter(pair[1]), method="race", k=4, watermark=mark, max_new_tokens=96
        )
        shares.append([text.accepted / text.drafted for text in texts])
    marked, usual = np.array(shares)
    error = np.sqrt((marked.var(ddof=1) + usual.var(ddof=1)) / 64)
    assert abs(marked.mean() - usual.mean()) < 5.5 * error
    assert error < 0.03


# ---- the law over keys -----------------------------------------------------------------------------------------------

LAW = torch.tensor([[0.5, 0.3, 0.2], [0.7, 0.1, 0.2], [0.3, 0.3, 0.4]])  # of the token after each
MANY, SPAN = 60_000, 4


def chains(masked, drafted=False):
    """Texts [MANY, SPAN] after token 0, each with its key; contexts are one token, so they come again."""
    text = torch.zeros(MANY, 1 + SPAN, dtype=torch.int64)
    keys, logits, guesses = torch.arange(1, MANY + 1), LAW.log(), torch.Generator().manual_seed(1)
    for end in range(1, 1 + SPAN):
        drafts = torch.randint(3, (MANY, SPAN - end if drafted else 0), generator=guesses)
        begin = 0 if masked else end - 1  # of what is looked through
        position = torch.full((MANY,), end - begin)
        rows = context_seeds(text[:, begin:], drafts, key=keys, seed=-keys, position=position, window=1)
        before = torch.cat((text[:, end - 1 : end], drafts), dim=1)
        verdict = verify_chain(drafts, logits[before], method="race", seed=rows, position=0)
        text[:, end] = verdict.tokens[:, 0]
    return text[:, 1:]


def joint(text):
    """(index of each text among all, the law of these)."""
    law = torch.ones(1)
    for place in range(SPAN):
        step = LAW[0] if place == 0 else LAW[torch.arange(len(law)) % 3]
        law = (law[:, None] * step).flatten()
    return (text * 3 ** torch.arange(SPAN - 1, -1, -1)).sum(1), law


@pytest.mark.parametrize("drafted", [False, True])
def test_all_tokens_jointly_have_the_models_law(drafted):
    assert_law(*joint(chains(masked=True, drafted=drafted)))


def test_without_the_mask_it_is_another_and_the_checker_sees_it():
    found = chains(masked=False)
    assert_law(found[:, 0], LAW[0])  # one token alone has it
    assert not follows_law(*joint(found))
    assert (found[found[:, 0] == 0] == 0).all()  # what followed 0 once follows it always


# ---- the detector ----------------------------------------------------------------------------------------------------


def exact(statistic, count):
    """The upper tail of the gamma law of whole shape, as a fraction but for its factor e^-x."""
    x = Fraction(statistic)
    return float(sum(x**i / factorial(i) for i in range(count))) * np.exp(-statistic)


@pytest.mark.parametrize("count", [1, 2, 10, 60])
@pytest.mark.parametrize("tail", [1e-2, 1e-6, 1e-12])
def test_tails_of_the_gamma_law(count, tail):
    low, high = 0.0, 256.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exact(middle, count) > tail else (low, middle)
    assert p_value(low, count) == pytest.approx(tail, rel=1e-9)
    assert p_value(0.0, count) == 1.0


def test_scores_are_those_of_the_kernels_races():
    """U of a token is U of the whole row's arrivals; and the race's winner is the largest of U^(1/p)."""
    tokens = torch.arange(300, 350).repeat_interleave(2)
    tokens[1::2] = torch.arange(50) * 6  # after 300 comes 0, and so on
    seeds = context_seeds(tokens[::2, None], tokens[:0].view(50, 0), key=9, seed=0, position=1, window=1)
    still = torch.zeros(50).long()
    rows = noise.arrivals(Noise(seeds[:, 0], still, still), noise.RACE, 300)
    found = scores(tokens.tolist(), 9, window=1)
    assert len(found) == 99
    own = -torch.log(-torch.expm1(-rows.gather(1, tokens[1::2, None])[:, 0]))
    assert torch.allclose(found[::2], own, rtol=1e-6, atol=1e-7)
    law = torch.randn(50, 300, generator=torch.Generator().manual_seed(1)).softmax(1)
    won = race_sample(law, space="probs", seed=seeds[:, 0], position=0)
    assert torch.equal(won, ((-rows).exp() ** (1 / law.double())).argmax(1))


def test_text_that_knows_nothing_of_the_key():
    """Scores are exponential, p-values uniform: by chi-squared over cells, down to one in 10^4."""
    text = torch.randint(50, (300, 150), generator=torch.Generator().manual_seed(1)).tolist()
    found = [scores(tokens, key) for key, tokens in enumerate(text, start=1)]
    assert sum(map(len, found)) > 300 * 140
    assert_law((20 * torch.tensor([p_value(float(one.sum()), len(one)) for one in found])).long(), [1] * 20)
    every = torch.cat(found)
    edges = torch.tensor([0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0])
    assert_law(torch.bucketize((-every).exp(), edges[1:-1].double()), edges.diff())


@pytest.mark.parametrize("count, texts", [(1, 40), (4, 10)])
def test_false_alarms_down_to_one_in_a_million(count, texts):
    """Of 10 million texts of one token, and of 2.6 million of four, as many are found as the gamma law says.

    Tokens of one context are not independent, but those that score high nearly are: by the binomial law.
    """
    contexts, vocabulary = torch.randint(50, (count * texts, 4), generator=torch.Generator().manual_seed(5)), 2**18
    seeds = context_seeds(contexts, contexts[:, :0], key=7, seed=0, position=4)[:, 0].tolist()
    levels, arrivals = [1e-3, 1e-4, 1e-5, 1e-6], torch.empty(vocabulary)
    least = stats.gamma.isf(levels, count)
    alarms = np.zeros(len(levels), dtype=int)
    for text in range(texts):
        total = torch.zeros(vocabulary, dtype=torch.float64)
        for seed in seeds[text::texts]:
            maths.arrivals(seed, 0, 0, 0, 0, vocabulary, arrivals.data_ptr())
            total -= torch.log(-torch.expm1(-arrivals.double()))
        alarms += [int((total >= statistic).sum()) for statistic in least]
    for level, statistic, some in zip(levels, least, alarms, strict=True):
        assert p_value(statistic, count) == pytest.approx(level, rel=1e-9)
        assert stats.binomtest(int(some), texts * vocabulary, level).pvalue >= FALSE_ALARM


def test_false_alarms_of_repeats():
    """A text of one sentence again and again: left out, its repeats prove nothing; counted, they would."""
    sentence = torch.randint(50, (12,), generator=torch.Generator().manual_seed(3)).tolist()
    worst = min(detect(sentence * 40, key).p_value for key in range(1, 100))
    assert worst > FALSE_ALARM
    counted = [scores(sentence * 2, key).tolist() for key in range(1, 100)]
    assert all(len(one) == 12 for one in counted)
    assert min(p_value(40 * sum(one), 40 * 12) for one in counted) < FALSE_ALARM


def test_edits_spoil_their_own_windows(pair):
    (text,) = generate(PROMPTS[:1], pair[0], method="plain", watermark=Watermark(5), max_new_tokens=150)
    tokens, places = torch.tensor(text.tokens), torch.arange(0, 150, 10)
    whole = detect(tokens.tolist(), 5)
    edited = tokens.clone()
    edited[places] = (edited[places] + 1) % 100
    spoiled = detect(edited.tolist(), 5)
    assert whole.p_value < spoiled.p_value < 1e-4
    assert detect(tokens[37:].tolist(), 5).p_value < 1e-4  # a part is found, too


REFUSED = [
    ({"method": "rejection"}, ValueError, "watermark: expected a race; got rejection, whose accept uniforms"),
    ({"method": "block"}, ValueError, "watermark: expected a race; got block"),
    ({"watermark": 5}, TypeError, "watermark: expected a Watermark; got 5"),
    ({"watermark": Watermark(1.5)}, TypeError, "watermark.key: expected a whole number; got 1.5"),
    ({"watermark": Watermark([1])}, ValueError, r"watermark.key: expected a number or one per prompt \(2\); got 1"),
    ({"watermark": Watermark(2**64)}, ValueError, "watermark.key: expected 64 bits at most"),
    ({"watermark": Watermark(1, 9)}, ValueError, "window: expected an int from 1 to 8; got 9"),
    ({"watermark": Watermark(1, 2.0)}, ValueError, "window: expected an int from 1 to 8; got 2.0"),
    ({"watermark": Watermark(1, None)}, ValueError, "window: expected an int from 1 to 8; got None"),
    ({"watermark": Watermark(0)}, ValueError, "watermark.key: expected a number other than 0, which is no watermark"),
    ({"watermark": Watermark("12")}, TypeError, "watermark.key: expected a whole number; got '12'"),
    ({"watermark": Watermark([1.0, 2])}, TypeError, "watermark.key: expected a whole number or one per prompt; got"),
    ({"watermark": Watermark(None)}, TypeError, "watermark.key: expected a whole number; got None"),
]  # fmt: skip


@pytest.mark.parametrize("changes, error, says", REFUSED)
def test_refused_by_name(pair, changes, error, says):
    call = {"method": "race", "watermark": Watermark(1)} | changes
    with pytest.raises(error, match=says):
        generate(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), **call)


def test_no_ids():
    assert detect([], 1) == (0, 0.0, 1.0)
    assert detect([1, 2, 3, 4], 1).count == 0
    assert detect((), 1) == detect(torch.empty(0, dtype=torch.int32), 1) == detect([], 1)


TEXT = [5, 3, 8, 1, 5, 3, 8, 1, 5, 2**31, 7]
REFUSED_BY_DETECTOR = [
    ({"key": 0}, ValueError, "key: expected a number other than 0, which is no watermark; got 0"),
    ({"key": np.int64(0)}, ValueError, "key: expected a number other than 0, which is no watermark; got 0"),
    ({"key": 1.0}, TypeError, "key: expected an int; got 1.0"),
    ({"key": True}, TypeError, "key: expected an int; got True"),
    ({"key": None}, TypeError, "key: expected an int; got None"),
    ({"key": "12"}, TypeError, "key: expected an int; got '12'"),
    ({"key": torch.tensor(3)}, TypeError, r"key: expected an int; got int64 \[\]"),
    ({"key": 2**64}, ValueError, "key: expected 64 bits at most; got"),
    ({"key": -(2**63) - 1}, ValueError, "key: expected 64 bits at most; got"),
    *(({"tokens": tokens}, TypeError, f"tokens: expected a sequence of token ids, whole numbers; got {says}")
      for tokens, says in (
          ([5.0, 3.0, 8.0, 1.0, 5.0], "5.0"), ([5, 3, 8.5], "8.5"), (["5", "3"], "'5'"), ([5, True], "True"),
          ([5, None], "None"), ([[5, 3], [8, 1]], "list"), ([torch.tensor([5, 3])], r"int64 \[2\]"), ("5381", "'5381'"),
          (b"5381", "bytes"), ((x for x in TEXT), "generator"), ({5, 3}, "set"), (None, "None"), (5, "5"),
          (torch.tensor([5.0, 3.0]), "5.0"), (torch.tensor([True]), "True"), (torch.tensor([[5, 3]]), "list"),
          (torch.tensor(5), r"int64 \[\]"), (np.array([5.0, 3.0]), "5.0"), (np.array([[5, 3]]), "list"),
          (np.array(["5"]), "'5'"),
      )),
    ({"tokens": [1, -1]}, ValueError, "tokens: expected token ids from 0 to 2\\^63 - 1; got -1"),
    ({"tokens": [1, 2**63]}, ValueError, f"tokens: expected token ids from 0 to 2\\^63 - 1; got {2**63}"),
    ({"tokens": torch.tensor([1, -7])}, ValueError, "tokens: expected token ids from 0 to 2\\^63 - 1; got -7"),
    *(({"window": window}, ValueError, f"window: expected an int from 1 to 8; got {window!r}")
      for window in (0, 9, 2.0, None, True, "2")),
    ({"ordered": 1}, TypeError, "ordered: expected a bool; got 1"),
]  # fmt: skip


@pytest.mark.parametrize("changes, error, says", REFUSED_BY_DETECTOR)
@pytest.mark.parametrize("op", [detect, scores])
@pytest.mark.parametrize("length", [0, len(TEXT)])
def test_the_detector_refuses_by_name(op, changes, error, says, length):
    """Whether any token would count or not."""
    if length == 0 and "tokens" in changes:
        return
    with pytest.raises(error, match=says):
        op(**{"tokens": TEXT[:length], "key": 7} | changes)


@pytest.mark.parametrize("window", [1, 4, np.int64(4), 8])
def test_texts_of_any_kind_are_one(window):
    expected = detect(TEXT, 7, window=window)
    assert expected.count == len({tuple(TEXT[i : i + window]) for i in range(len(TEXT) - window)})
    for tokens in (
        tuple(TEXT), torch.tensor(TEXT), torch.tensor(TEXT).repeat_interleave(2)[::2], np.array(TEXT),
        np.array(TEXT, dtype=np.uint64), [*map(np.int64, TEXT)], [*map(torch.tensor, TEXT)],
    ):  # fmt: skip
        assert detect(tokens, 7, window=window) == expected
    assert detect(range(20), 7, window=window) == detect(list(range(20)), 7, window=window)
    assert detect(TEXT, np.int64(7), window=window) == expected
    assert detect(TEXT, -7, window=window) == detect(TEXT, 2**64 - 7, window=window)
