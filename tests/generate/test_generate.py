"""Whole generations: the race equals plain sampling, batches equal their texts alone, outputs have the target's law."""

import pytest

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling, Status
from specdec_kernels.generate import (
    FixedLength,
    ModelDrafter,
    NgramDrafter,
    TextEdits,
    generate,
    stream,
)
from tests.generate.laws import NEW, PROMPT, PROMPTS, tokens_of

BRANCHES = DraftTree.specinfer((2, 2))


def drafter_of(name, pair):
    return {"model": lambda: ModelDrafter(pair[1]), "self": lambda: ModelDrafter(pair[0]), "ngram": NgramDrafter,
            "none": lambda: None}[name]()  # fmt: skip


def test_greedy_is_the_same_by_every_method(pair, plain):
    model, options, tree = ModelDrafter(pair[1]), dict(temperature=0, seed=99, max_new_tokens=NEW), dict(tree=BRANCHES)
    for drafter, how in (
        *((drafter, {}) for drafter in (model, NgramDrafter())), (model, tree), (model, dict(tree, replacement=True)),
    ):  # fmt: skip
        for method in ("rejection", "race", "block") if not how else ("rejection", "race", "traversal"):
            if method == "race" and "replacement" in how:
                continue
            texts = generate(PROMPTS, pair[0], drafter, method=method, **options, **how)
            assert tokens_of(texts) == tokens_of(plain[0.0])


@pytest.mark.parametrize("method, fresh", [("block", True), ("rejection", False), ("race", False)])
def test_rounds_that_look_ahead_have_noise_of_their_own(small_pair, method, fresh):
    """Under one nonce their texts are biased: tests/ops/test_traversal_laws.py has the law."""

    class Listening(ModelDrafter):
        def propose(self, text, length, counts, slots, noise, sampling, record=None):
            nonces.append(noise.nonce)
            return super().propose(text, length, counts, slots, noise, sampling, record)

    nonces = []
    generate([PROMPT], small_pair[0], Listening(small_pair[1]), method=method, k=2, max_new_tokens=20)
    assert len(nonces) > 4
    assert len(set(nonces)) == (len(nonces) if fresh else 1)


def test_rounds_without_a_draft_run_both_models_on_the_text_only(small_pair):
    drafter = ModelDrafter(small_pair[1])
    rounds = stream([PROMPT], small_pair[0], drafter, method="rejection", draft_prob=0.0, max_new_tokens=6)
    for index, entry in zip(range(4), rounds, strict=False):
        assert (entry.drafted, len(entry.tokens)) == (0, 1)
        assert len(drafter.reader.passes) == index + 1
        assert drafter.reader.cached == [len(PROMPT) + index]


# Ends of texts.


def test_eos_ends_a_text(pair, plain):
    newline = ord("\n")
    expected = [
        tokens[: tokens.index(newline) + 1] if newline in tokens else tokens for tokens in tokens_of(plain[1.0])
    ]
    texts = generate(PROMPTS, pair[0], ModelDrafter(pair[1]), seed=3, max_new_tokens=NEW, eos_token_ids=[newline])
    assert tokens_of(texts) == expected
    assert [entry.finish for entry in texts] == ["eos" if newline in tokens else "length" for tokens in expected]
    assert "eos" in [entry.finish for entry in texts]


@pytest.mark.parametrize("method, drafter", [("plain", "none"), ("race", "model"), ("race", "self"), ("race", "ngram")])
def test_stop_strings_end_a_text_and_are_left_out(pair, plain, method, drafter):
    whole = plain[1.0][0].text
    stop = whole[10:13]
    end = whole.index(stop)
    text = generate(
        PROMPTS[:1], pair[0], drafter_of(drafter, pair), method=method, seed=3, max_new_tokens=NEW, stop=["~~", stop]
    )[0]
    assert (text.text, text.finish) == (whole[:end], "stop")
    assert text.tokens == plain[1.0][0].tokens[: end + len(stop)]


def test_an_end_that_completes_a_stop_string_is_an_end(pair, plain):
    whole = plain[1.0][0]
    token, stop = whole.tokens[5], whole.text[4:6]
    options = dict(method="plain", seed=3, max_new_tokens=NEW, stop=[stop])
    (text,) = generate(PROMPTS[:1], pair[0], eos_token_ids=[token], **options)
    assert (text.tokens, text.finish) == (whole.tokens[: whole.tokens.index(token) + 1], "eos")


@pytest.mark.parametrize(
    "options",
    [
        dict(method="plain"),
        dict(method="rejection", k=2, draft_prob=0.6),
        dict(method="race", tree=[-1, 0, 0, 1]),
        dict(method="rejection", tree=[-1, 0, 0, 1]),
        dict(method="rejection", tree=[-1, 0, 0, 1], replacement=True),
        dict(method="traversal", tree=[-1, 0, 0, 1]),
        dict(method="block", k=3),
        dict(method="paths", paths=3, k=2),
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_what_is_a_text_s_own_stays_with_it_when_others_end(small_pair, options):
    """Seed, filters, penalties, prompt, log-probabilities: each text is that of its prompt alone."""
    prompts = [[1, 4], [2, 2], [3, 0, 3], [4, 1, 0, 2], [3]]
    own = {
        "seed": [11, -5, 2**40, 0, 3],
        "sampling": Sampling([1.0, 0.6, 1.4, 1.0, 0.9], [0, 3, 2, 0, 4], [1, 0.9, 1, 0.7, 1], [0, 0.1, 0, 0.1, 0]),
        "edits": TextEdits([1.0, 1.6, 1.0, 1.3, 0.8], [0.0, 0.4, 0.9, 0.0, 0.2], [0.5, 0.0, -0.3, 0.0, 0.0]),
    }
    draft = None if options["method"] == "plain" else ModelDrafter(small_pair[1])
    shared = dict(logprobs=2, max_new_tokens=16, eos_token_ids=[1], **options)
    texts = generate(prompts, small_pair[0], draft, **own, **shared)
    assert len({len(text.tokens) for text in texts}) > 2
    assert {text.finish for text in texts} == {"eos", "length"}
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        alone = {
            "seed": [own["seed"][row]], "sampling": Sampling(*(field[row] for field in own["sampling"][:4])),
            "edits": TextEdits(*(field[row] for field in own["edits"][:3])),
        }  # fmt: skip
        (found,) = generate([prompt], small_pair[0], draft, **alone, **shared)
        assert (text.tokens, text.finish) == (found.tokens, found.finish)
        assert [(entry.drafted, entry.accepted) for entry in text.rounds] == [
            (entry.drafted, entry.accepted) for entry in found.rounds
        ]
        for one, other in zip(text.logprobs, found.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert one.top_tokens == other.top_tokens


# Rounds and statistics.


@pytest.mark.parametrize("tree", [None, [-1, 0, 0]], ids=["chain", "tree"])
def test_a_text_has_the_status_of_its_own_rounds(small_pair, monkeypatch, tree):
    """Also when others of its batch have ended."""
    op = "verify_chain" if tree is None else "verify_tree"
    verify = getattr(specdec, op)

    def marked(*rows, seed, **call):
        verdict = verify(*rows, seed=seed, **call)
        return verdict._replace(status=(seed % 2 * Status.EMPTY_RESIDUAL).int())

    monkeypatch.setattr(specdec, op, marked)
    texts = generate(
        [PROMPT] * 5,
        small_pair[0],
        ModelDrafter(small_pair[1]),
        tree=tree,
        k=2,
        seed=0,
        max_new_tokens=9,
        eos_token_ids=[0],
    )
    assert [set(text.status) for text in texts] == [{Status.EMPTY_RESIDUAL} if row % 2 else set() for row in range(5)]
    assert len({text.target_calls for text in texts}) > 1


def test_rounds_add_up(pair):
    rounds = list(stream(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), method="rejection", k=3, max_new_tokens=NEW))
    assert [sum(len(entry.tokens) for entry in rounds if entry.request == index) for index in (0, 1)] == [NEW, NEW]
    for entry in rounds:
        assert 0 <= entry.accepted <= entry.drafted <= 3
        assert entry.tested == entry.accepted + (entry.accepted < entry.drafted)
        assert entry.finish == "length" or len(entry.tokens) == entry.accepted + 1
        assert set(entry.seconds) == {"draft", "target", "verify"}
        assert min(entry.seconds.values()) >= 0
        kinds = [kind for kind, _ in entry.pieces]
        last = "replaced" if entry.accepted < entry.drafted else "bonus"
        assert kinds == ["accepted"] * (entry.accepted > 0) + [last] * (len(entry.tokens) > entry.accepted)
    assert rounds[-1].finish == "length"


def test_statistics_of_a_generation(pair):
    text = generate(PROMPTS[:1], pair[0], ModelDrafter(pair[1]), method="rejection", k=3, max_new_tokens=NEW)[0]
    tested = sum(entry.tested for entry in text.rounds)
    assert text.acceptance == text.accepted / tested
    assert text.tokens_per_call == NEW / text.target_calls
    assert text.seconds["target"] == sum(entry.seconds["target"] for entry in text.rounds)
    assert generate(PROMPTS[:1], pair[0], method="plain", max_new_tokens=2)[0].acceptance is None


def test_a_policy_sees_every_round(pair):
    seen = []
    policy = FixedLength(2)
    policy.observe = seen.extend
    text = generate(PROMPTS[:1], pair[0], ModelDrafter(pair[1]), policy=policy, max_new_tokens=10)[0]
    assert seen == text.rounds


def test_nothing_is_drafted_past_the_end(pair):
    text = generate(PROMPTS[:1], pair[0], ModelDrafter(pair[0]), k=8, max_new_tokens=5)[0]
    assert (text.drafted, text.accepted, len(text.tokens)) == (4, 4, 5)
    tree = generate(PROMPTS[:1], pair[0], ModelDrafter(pair[0]), tree=DraftTree.chain(3), max_new_tokens=6)[0]
    assert [(entry.drafted, len(entry.tokens)) for entry in tree.rounds] == [(3, 4), (1, 2)]
    longest = pair[0].max_length
    for how in (dict(k=8), dict(tree=BRANCHES)):
        text = generate([[65] * (longest - 3)], pair[0], ModelDrafter(pair[0]), max_new_tokens=3, **how)[0]
        assert len(text.tokens) == 3


def test_no_prompts_give_no_texts(small_pair):
    assert generate([], small_pair[0]) == []


def test_any_64_bit_seed_is_a_seed(small_pair):
    seeds = [2**64 - 1, -1, 2**63]
    first, second, third = tokens_of(generate([PROMPT] * 3, small_pair[0], seed=seeds, max_new_tokens=20))
    assert first == second != third
