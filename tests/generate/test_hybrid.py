"""Models with recurrent layers: what was accepted is read again, and texts are those of plain sampling.

Parts of these models compute in float32, whatever their weights are in. Here they do so in float64, so that forwards of
any shape give the same float32 logits, and equality of whole texts can be asked for.
"""

import functools

import pytest
import torch
import transformers

from specdec_kernels.generate import (
    Controller,
    ModelDrafter,
    NgramDrafter,
    ParallelDrafter,
    RandomLength,
    early_exit,
    generate,
)
from tests.generate.laws import drawn, text_law
from tests.generate.small import llama, raced, random_model
from tests.generate.test_models import assert_pieces_equal_one_forward
from tests.support.laws import follows_law

slow = pytest.mark.slow
SMALL = dict(
    hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    eos_token_id=None, bos_token_id=None, pad_token_id=0,
)  # fmt: skip
TWO = dict(SMALL, num_hidden_layers=2)
STATES, CONV, FULL, WINDOW = "linear_attention", "conv", "full_attention", "sliding_attention"
DELTA = dict(
    TWO, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    layer_types=[STATES, FULL],
)  # fmt: skip
MAMBA = dict(TWO, mamba_n_heads=4, mamba_d_head=8, mamba_expand=1, mamba_d_state=8, mamba_chunk_size=8)
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1, shared_intermediate_size=32)
NEMOTRON = dict(
    SMALL, layers_block_type=[STATES, "mlp", FULL], head_dim=8, ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=8,
    n_groups=2, chunk_size=8, expand=1,
    time_step_min=1e-30,  # transformers has this limit where several tokens are read, and not where one is
)  # fmt: skip
FAMILIES = {
    "qwen3_next": (transformers.Qwen3NextConfig, dict(DELTA, head_dim=8, num_experts=0, mlp_only_layers=[0, 1])),
    "qwen3_5": (transformers.Qwen3_5TextConfig, dict(DELTA, head_dim=8)),
    "olmo_hybrid": (transformers.OlmoHybridConfig, DELTA),
    "nemotron_h": (transformers.NemotronHConfig, NEMOTRON),
    "falcon_h1": (transformers.FalconH1Config, dict(MAMBA, mamba_d_ssm=32)),  # both in one layer
    "granite": (transformers.GraniteMoeHybridConfig, dict(MAMBA, **EXPERTS, layer_types=[STATES, FULL])),
    "states alone": (transformers.GraniteMoeHybridConfig, dict(MAMBA, **EXPERTS, layer_types=[STATES, STATES])),
    "bamba": (transformers.BambaConfig, dict(MAMBA, attn_layer_indices=[1])),
    "lfm2": (transformers.Lfm2Config, dict(TWO, layer_types=[CONV, FULL])),
    "windows": (
        transformers.Lfm3Config,
        dict(SMALL, num_hidden_layers=3, head_dim=8, layer_types=[CONV, WINDOW, FULL], sliding_window=6),
    ),
}
QUICK = ("qwen3_next", "nemotron_h", "falcon_h1", "windows")
EVERY = [pytest.param(name, marks=[] if name in QUICK else slow) for name in FAMILIES]
PROMPTS = [[7, 3, 9], [1] * 22, [5]]  # of other lengths, one of them longer than may be pending
NEW = 20


def model_of(name, seed=1, spread=0.5, vocab=50):
    """A random model of a family. With a fractional seed it is near the one without, to draft for it."""
    config, options = FAMILIES[name]
    model = random_model(config(vocab_size=vocab, **options), int(seed), spread)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.model.parameters() if seed % 1 else ():
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    model.model.forward = in_float64(model.model.forward)
    return model


def in_float64(forward):
    """The forward, float64 wherever it asks for float32."""

    def wider(value):
        return torch.float64 if value is torch.float32 else value

    @functools.wraps(forward)
    def called(*args, **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            to = torch.Tensor.to
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(
                torch.Tensor, "to",
                lambda self, *a, **k: to(self, *map(wider, a), **{name: wider(value) for name, value in k.items()}),
            )  # fmt: skip
            return forward(*args, **kwargs)

    return called


@functools.cache
def pair(name):
    return model_of(name), model_of(name, 1.5)


@functools.cache
def plain(name, temperature=1.0):
    options = dict(method="plain", temperature=temperature, max_new_tokens=NEW)
    return [
        generate([prompt], pair(name)[0], seed=3 + index, **options)[0].tokens for index, prompt in enumerate(PROMPTS)
    ]


def written(name, drafter="draft", **options):
    target, draft = pair(name)
    drafter = {"draft": lambda: ModelDrafter(draft), "self": lambda: ModelDrafter(target), "ngram": NgramDrafter,
               "early exit": lambda: ModelDrafter(early_exit(target, 1)),
               "attention": lambda: ModelDrafter(llama(50, seed=2))}[drafter]()  # fmt: skip
    return generate(PROMPTS, target, drafter, seed=3, max_new_tokens=NEW, **options)


def tokens_of(texts):
    return [text.tokens for text in texts]


@pytest.mark.parametrize("name", EVERY)
def test_reading_in_pieces_equals_one_forward(name):
    assert_pieces_equal_one_forward(pair(name)[0], settle=True)


@pytest.mark.parametrize("name", EVERY)
def test_race_equals_plain(name):
    texts = written(name, k=3)
    assert tokens_of(texts) == plain(name)
    assert 0 < sum(text.accepted for text in texts) < sum(text.drafted for text in texts)


@slow
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("name", FAMILIES)
def test_race_equals_plain_at_each_length(name, k):
    assert tokens_of(written(name, k=k, max_pending=(1, 4, 16)[k % 3])) == plain(name)


@pytest.mark.parametrize("method", ["rejection", "race", "block"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "qwen3_next" else slow) for name in FAMILIES])
def test_greedy_is_the_same_by_every_method(name, method):
    assert tokens_of(written(name, method=method, temperature=0.0)) == plain(name, 0.0)


@pytest.mark.parametrize("drafter", ["self", "ngram", "early exit", "attention"])
def test_whatever_drafts(drafter):
    assert tokens_of(written("qwen3_next", drafter, k=3)) == plain("qwen3_next")


def test_a_draft_may_be_the_only_hybrid():
    raced(PROMPTS, llama(50), ModelDrafter(pair("qwen3_next")[0]), dict(k=3), seed=3, max_new_tokens=NEW)


def test_drafts_of_one_pass():
    """Look-ahead tokens are taken back in each round, so that the draft advances by settling alone."""
    draft = model_of("qwen3_next", 1.5)
    draft.config.look_ahead_token_ids = [48, 49]
    drafter = ParallelDrafter(draft)
    race = generate(PROMPTS, pair("qwen3_next")[0], drafter, k=3, seed=3, max_new_tokens=NEW)
    assert tokens_of(race) == plain("qwen3_next")
    rounds = max(len(text.rounds) for text in race)
    assert rounds / 2 < len(drafter.reader.passes) < 2 * rounds


@pytest.mark.parametrize("policy", [Controller(4), RandomLength(3, 0.6, "token")])
def test_a_policy_may_choose(policy):
    method = "rejection" if policy.randomised else "race"
    texts = written("qwen3_next", policy=policy, method=method, temperature=0.0)
    assert tokens_of(texts) == plain("qwen3_next", 0.0)


def read_by_hand(text, most):
    """The tokens of each round's forward, from how many were drafted and accepted; no drafts behind `most` pending."""
    length, known, found = len(text.prompt), 0, []
    for entry in text.rounds:
        found.append([])
        assert not entry.drafted or length - 1 - known < most
        found[-1].append(length - known + entry.drafted)
        if entry.accepted == entry.drafted:
            known = length + entry.drafted
        length += entry.accepted + 1
    return found


@pytest.mark.parametrize("most", [1, 4, 100])
def test_forwards_and_tokens_are_counted(most):
    target, draft = pair("qwen3_next")
    (text,) = generate([[7, 3, 9]], target, ModelDrafter(draft), k=4, seed=3, max_new_tokens=32, max_pending=most)
    assert [entry.read for entry in text.rounds] == read_by_hand(text, most)
    assert any(entry.accepted < entry.drafted for entry in text.rounds)
    assert text.target_calls == len(text.rounds) <= 32
    assert any(not entry.drafted for entry in text.rounds[:-1]) == (most < 100)


@pytest.mark.parametrize("method", ["race", "rejection", "block"])
@pytest.mark.parametrize("name", ["bamba", "qwen3_next", "falcon_h1", "lfm2"])
def test_passes_are_at_most_one_more_than_those_of_plain_sampling(name, method):
    """What n-grams draft is mostly wrong, so that each round leaves a token pending."""
    options = dict(method=method, k=3, seed=3, max_new_tokens=40, max_pending=4)
    for prompts in ([[7, 3, 9] * 5], PROMPTS):
        texts = generate(prompts, pair(name)[0], NgramDrafter(1), **options)
        assert sum(text.drafted for text in texts) > 2 * sum(text.accepted for text in texts)
        assert all(len(text.tokens) == 40 and text.target_calls <= 41 for text in texts)


def test_accepted_drafts_pay_for_forwards_of_their_own():
    """Texts of a batch that a good draft writes are settled together: a round without drafts for each costs more."""
    target, draft = pair("qwen3_next")
    texts = generate(PROMPTS, target, ModelDrafter(draft), k=3, seed=3, max_new_tokens=40, max_pending=4)
    reads = [entry.read for entry in texts[1].rounds]
    assert any(len(read) > 1 for read in reads)
    assert all(text.target_calls <= 41 for text in texts)
    for end in range(len(reads)):
        written = sum(len(entry.tokens) for entry in texts[1].rounds[:end])
        assert sum(len(read) for read in reads[:end]) <= written + 1


def test_a_pass_settles_as_many_tokens_as_one_pass_can():
    model, text = pair("qwen3_next")[0], torch.randint(50, (4, 40), generator=torch.Generator().manual_seed(2))
    reader = model.reader(4, 40)
    reader.settle(text, [3, 8, 9, 18], most=16)
    assert (reader.passes, reader.cached) == ([7], [0, 7, 7, 7])
    reader.settle(text, [3, 8, 9, 18], most=2)
    assert (reader.passes, reader.cached) == ([7, 10, 2], [2, 7, 7, 17])


def test_trees_are_refused_by_name():
    target, draft = pair("qwen3_next")
    wanted = r"^tree: expected chains with qwen3_next-1, which has recurrent layers; got a tree$"
    for model, drafter in ((target, llama(50)), (llama(50), draft)):
        for options in (dict(tree=[-1, 0, 0]), dict(method="paths", paths=2, k=2)):
            with pytest.raises(ValueError, match=wanted):
                generate(PROMPTS, model, ModelDrafter(drafter), max_new_tokens=5, **options)


@pytest.mark.parametrize("most, error", [(0, ValueError), (1.5, TypeError)])
def test_a_bound_that_is_none_is_named(most, error):
    with pytest.raises(error, match=r"^max_pending: expected"):
        written("qwen3_next", max_pending=most)


@pytest.fixture(scope="module")
def five_tokens():
    """A target and a draft whose texts of three tokens can be counted; the target's law."""
    models = model_of("falcon_h1", 1, 0.25, vocab=5), model_of("falcon_h1", 2, 0.25, vocab=5)
    return models, text_law(models[0], 1.0)


@pytest.mark.parametrize("texts", [2000, pytest.param(8000, marks=slow)])
@pytest.mark.parametrize("method", ["rejection", "block", pytest.param("race", marks=slow)])
@pytest.mark.parametrize("most", [None, pytest.param(1, marks=slow)])
def test_texts_have_the_target_law(five_tokens, most, method, texts):
    """With rounds without drafts, too, of texts that share a batch. False alarms: 1e-6 a case."""
    assert follows_law(drawn(five_tokens[0], texts, method=method, k=2, max_pending=most), five_tokens[1])
