"""Drafters and plans on their own."""

import pytest
import torch
import transformers

from specdec_kernels import DraftTree, Sampling, race_sample
from specdec_kernels.generate import (
    CachedNgramDrafter,
    FixedLength,
    ModelDrafter,
    NgramCache,
    NgramDrafter,
    RandomLength,
    early_exit,
    generate,
)
from specdec_kernels.generate.drafters import draw_independent
from specdec_kernels.generate.noise import Noise, at_rows, keywords
from tests.generate.laws import VOCAB, text_law
from tests.generate.small import llama, raced, random_model
from tests.support.laws import follows_law

NOISE = Noise(torch.arange(4), torch.tensor([5, 6, 7, 8]))


@pytest.mark.parametrize(
    "text, count, expected",
    [
        ([1, 2, 3, 1, 2], 4, [3, 1, 2]),
        ([1, 2, 3, 1, 2], 1, [3]),
        ([1, 2, 9, 5, 2, 7, 1, 2], 2, [9, 5]),
        ([5, 1, 5, 2, 5], 1, [2]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([4, 4, 4, 4], 2, [4]),
    ],
    ids=["all that follows", "as many as asked", "longest suffix first", "last occurrence", "none", "one token", "run"],
)
def test_ngram_follows_the_last_occurrence_of_the_longest_suffix(text, count, expected):
    assert NgramDrafter(longest=3).follow(text, count) == expected


def test_ngram_follows_no_suffix_that_is_too_short():
    assert NgramDrafter(longest=3, shortest=2).follow([1, 2, 9, 2], 2) == []


def test_ngram_writes_its_drafts_into_the_text():
    text = torch.tensor([[1, 2, 3, 1, 0, 0], [1, 2, 3, 4, 0, 0]])
    drafts = NgramDrafter().propose(text, [4, 4], [2, 2], 2, None, None)
    assert drafts.tokens.tolist() == [[2, 3], [-1, -1]]
    assert drafts.logits is None
    assert text.tolist() == [[1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 0, 0]]


def test_ngram_sizes():
    with pytest.raises(ValueError, match="shortest: expected 1 <= shortest <= longest; got 3 and 2"):
        NgramDrafter(longest=2, shortest=3)


def test_fixed_length_stops_at_the_limit():
    assert FixedLength(3).plan(NOISE, [0, 2, 3, 9]) == ([0, 2, 3, 3], 1.0)
    with pytest.raises(ValueError, match="k: expected at least 0; got -1"):
        FixedLength(-1)


def test_random_length_is_a_function_of_seed_and_position():
    policy = RandomLength(3, 0.5, "token")
    plan = policy.plan(NOISE, [9] * 4)
    again = policy.plan(at_rows(NOISE, [2]), [9])
    assert plan.lengths[2:3] == again.lengths
    assert plan.draft_prob.tolist() == [[0.5] * 3] * 4
    assert RandomLength(3, 1.0).plan(NOISE, [9, 9, 2, 0]).lengths == [3, 3, 2, 0]
    assert RandomLength(3, 0.0).plan(NOISE, [9] * 4).lengths == [0] * 4


def test_random_length_arguments():
    with pytest.raises(ValueError, match=r"draft_prob: expected a probability; got 1\.5"):
        RandomLength(3, 1.5)
    with pytest.raises(ValueError, match="scheme: expected one of token, chain, uniform; got 'tree'"):
        RandomLength(3, 0.5, "tree")


# A draft that reads fewer ids than the target writes: vocabularies padded to other sizes under one tokenizer.


@pytest.fixture(scope="module")
def padded():
    """A target that reads and writes 5 ids, a draft that reads and writes the first 3 of them."""
    return llama(5, seed=1, spread=0.25), ModelDrafter(llama(3, seed=2, spread=0.25))


@pytest.mark.parametrize("tree", [None, [-1, 0, 0, 1, 0, 2]])
def test_a_draft_reads_on_after_ids_it_does_not_know(padded, tree):
    race = raced([[4, 4, 1], [0], [3]], *padded, dict(tree=tree), seed=3, max_new_tokens=30)
    assert any(token > 2 for text in race for token in text.tokens[:-1])
    assert any(text.accepted for text in race)


@pytest.mark.parametrize("tree", [None, [-1, 0, 0, 1]])
def test_texts_have_the_target_law_after_ids_the_draft_does_not_know(padded, tree):
    texts = generate([[1, 4]] * 8000, *padded, method="rejection", k=2, tree=tree, seed=5, max_new_tokens=3)
    number = (torch.tensor([text.tokens for text in texts]) * torch.tensor([25, 5, 1])).sum(1)
    assert follows_law(number, text_law(padded[0], 1.0))


# A draft that writes some tokens alone.


def test_a_draft_equal_to_the_target_on_its_tokens(small_pair):
    """At temperature 0 it is accepted for as long as the target writes these."""
    sampling = Sampling(0.0)
    (plain,) = generate([[1]], small_pair[0], method="plain", sampling=sampling, max_new_tokens=12)
    drafter = ModelDrafter(small_pair[0], set(plain.tokens))
    (text,) = generate([[1]], small_pair[0], drafter, method="rejection", k=3, sampling=sampling, max_new_tokens=12)
    assert (text.tokens, text.acceptance) == (plain.tokens, 1)


@pytest.mark.parametrize("vocabulary, message", [
    ([], r"vocabulary: expected token ids from 0 to 4; got \[\]"),
    ([3, 5], r"vocabulary: expected token ids from 0 to 4; got \[3, 5\]"),
    ([-1], r"vocabulary: expected token ids from 0 to 4; got \[-1"),
])  # fmt: skip
def test_vocabularies_of_a_draft_that_are_refused(small_pair, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        ModelDrafter(small_pair[1], vocabulary)


def test_tokens_that_the_target_does_not_have(small_pair):
    drafter = ModelDrafter(small_pair[1], torch.tensor([1, 4]).tolist())
    with pytest.raises(ValueError, match="vocabulary: expected tokens below the target's 4; got 4"):
        drafter.start(1, 8, vocabulary=4)


# Drafters made of one model.


def shortened(model, layers):
    """The first layers of a model as a model of its own: another config, the same weights."""
    config = type(model.model.config)(
        **model.model.config.to_dict() | {"num_hidden_layers": layers, "layer_types": None}
    )
    twin = random_model(config)
    twin.model.load_state_dict(model.model.state_dict(), strict=False)
    return twin


EXITS = {
    "llama": dict(num_hidden_layers=3),
    "gpt2": transformers.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=50, n_positions=64),
    "opt": transformers.OPTConfig(
        hidden_size=32, ffn_dim=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=50, word_embed_proj_dim=32,
        max_position_embeddings=64,
    ),
    "mistral": transformers.MistralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, sliding_window=6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXITS)
@pytest.mark.parametrize("layers", [1, 2])
def test_an_early_exit_is_a_model_of_the_first_layers(name, layers):
    target = llama(50, seed=1, spread=0.3, **EXITS[name]) if name == "llama" else random_model(EXITS[name], 1, 0.3)
    text = torch.randint(50, (1, 12), generator=torch.Generator().manual_seed(1))
    before = target.reader(1, 12).read(text, [12], rows=3)
    draft = early_exit(target, layers)
    found = draft.reader(1, 12).read(text, [12], rows=3)
    torch.testing.assert_close(found, shortened(target, layers).reader(1, 12).read(text, [12], rows=3))
    assert (found - before).abs().max() > 0.01
    assert torch.equal(target.reader(1, 12).read(text, [12], rows=3), before)
    assert {p.data_ptr() for p in draft.model.parameters()} < {p.data_ptr() for p in target.model.parameters()}


def test_early_exits_that_there_are_not():
    target = llama(50)
    for layers, error, message in (
        (2, ValueError, r"^layers: expected 1 to 1, less than llama-0 has; got 2$"),
        (0, ValueError, "^layers: expected at least 1; got 0$"),
        (1.0, TypeError, r"^layers: expected a whole number; got 1\.0$"),
    ):
        with pytest.raises(error, match=message):
            early_exit(target, layers)
    target.config.num_hidden_layers = 7
    with pytest.raises(ValueError, match=r"^llama-0: expected a list of 7 layers to leave early; got none"):
        early_exit(target, 3)


def test_a_cache_drafts_what_other_texts_held():
    cache = NgramCache(longest=3, shortest=2)
    cache.add("a", [1, 2, 3, 4, 5])
    cache.add("b", [9, 2, 3, 7])
    assert cache.follow([2, 3], 9) == [7]  # the last time
    assert cache.follow([1, 2, 3], 2) == [4, 5]  # the longest end
    assert cache.follow([3], 2) == cache.follow([8, 9], 2) == []
    cache.add("a", [1, 2, 3, 4, 5, 2, 3, 8])  # it has grown
    assert cache.follow([2, 3], 9) == [8]
    assert cache.follow([4, 5], 2) == [2, 3]
    small = NgramCache(most=4)
    small.add("a", [1, 2, 3, 4, 5])
    small.add("b", [6])
    assert small.follow([1, 2], 1) == []
    with pytest.raises(ValueError, match=r"^shortest: expected 1 <= shortest <= longest; got 4 and 3"):
        NgramCache(3, 4)


def test_a_text_is_drafted_from_the_one_before():
    """With one cache in both runs the second text needs few rounds; with one of its own, as many as the first."""
    target, options = llama(50, seed=1, spread=0.3), dict(seed=3, max_new_tokens=40, k=6)
    plain = generate([[1, 4]], target, method="plain", **options)[0]
    cache = NgramCache()
    first, second, alone = (
        generate([[1, 4]], target, CachedNgramDrafter(which), **options)[0] for which in (cache, cache, NgramCache())
    )
    assert first.tokens == second.tokens == alone.tokens == plain.tokens
    assert second.target_calls < first.target_calls == alone.target_calls
    assert CachedNgramDrafter().cache is CachedNgramDrafter().cache


def test_a_cache_of_another_vocabulary_drafts_only_what_the_target_knows():
    cache = NgramCache()
    cache.add("of another model", [1, 4, 2, 50, 3])
    drafter = CachedNgramDrafter(cache)
    drafter.start(2, 20, vocabulary=50)
    text = torch.tensor([[1, 4, 0, 0], [7, 7, 0, 0]])
    assert drafter.propose(text, [2, 2], [2, 2], 2, NOISE, None).tokens.tolist() == [[2, -1], [-1, -1]]
    drafter.keep([1])
    text = torch.tensor([[7, 7, 1, 4, 0, 0]])
    assert drafter.propose(text, [4], [2], 2, NOISE, None).tokens.tolist() == [[2, -1]]


def test_below_an_absent_node_all_are_absent(small_pair):
    """Of seven children of the root two are absent, for there are five tokens; and each text goes as far as it may."""
    tree, drafter = DraftTree.specinfer((7, 1)), ModelDrafter(small_pair[1])
    drafter.start(3, 30, VOCAB)
    noise = Noise(torch.arange(3), torch.full((3,), 2))
    sampling = Sampling(torch.ones(3))
    tokens = drafter.propose_tree(torch.ones(3, 30).long(), [2] * 3, tree, [2, 1, 0], noise, sampling, False).tokens
    there = tokens[:, 1:].unflatten(1, (2, 7)) >= 0
    assert there.sum(-1).tolist() == [[5, 5], [5, 0], [0, 0]]
    assert there[0, 0].tolist() == there[0, 1].tolist() == [True] * 5 + [False] * 2


def test_siblings_drawn_independently_win_races_of_the_first_nonces():
    logits = torch.randn(4, 2, 30, generator=torch.Generator().manual_seed(1))
    children = draw_independent(logits, 3, NOISE, Sampling(1.5))
    for index in range(3):
        own = [
            race_sample(logits[:, node], **keywords(NOISE._replace(nonce=1 + index), Sampling(1.5)))
            for node in range(2)
        ]
        assert torch.equal(children[..., index], torch.stack(own, dim=1))
