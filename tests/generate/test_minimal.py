"""The generator on one page writes the tokens of `generate`, and names the caches that cannot be cropped."""

import sys

import pytest
import torch
import transformers

from specdec_kernels.generate import LanguageModel, ModelDrafter, NgramDrafter, generate, load_model, minimal
from tests.generate.test_models import CONFIGS

CHECKED = (*((k, temperature) for k in (1, 4) for temperature in (0.0, 0.7, 1.0)),)
EVERY = [(k, temperature) for k in range(1, 9) for temperature in (0.0, 0.7, 1.0)]


@pytest.fixture(scope="module")
def pair():
    """The embedded models in float64: a text must not depend on how many rows a pass reads."""
    return load_model("embedded:target", dtype=torch.float64), load_model("embedded:draft", dtype=torch.float64)


def compare(target, draft, prompt, method, cases, tokens):
    """Both generators' tokens, by a model and by n-grams; how many drafts were accepted in all."""
    accepted = 0
    for k, temperature in cases:
        options = {"method": method, "k": k, "temperature": temperature, "seed": 5, "max_new_tokens": tokens}
        for drafter in (ModelDrafter(draft), NgramDrafter()):
            model = draft.model if isinstance(drafter, ModelDrafter) else None
            written = list(minimal.generate(prompt, target.model, model, **options))
            (text,) = generate(
                [prompt], target, None if method == "plain" else drafter, eos_token_ids=(), **options
            )  # fmt: skip
            assert [token for _, token in written] == text.tokens, (k, temperature, drafter)
            kinds = [kind for kind, _ in written]
            assert kinds.count("accepted") == sum(entry.accepted for entry in text.rounds)
            accepted += kinds.count("accepted")
    return accepted


@pytest.mark.parametrize("method", minimal.METHODS)
@pytest.mark.parametrize("cases", [CHECKED, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_tokens_are_those_of_generate(method, cases, pair):
    target, draft = pair
    prompt = target.tokenizer.encode("ROMEO:\nWhat")
    accepted = compare(target, draft, prompt, method, cases, 12 if cases is CHECKED else 24)
    assert (accepted > 0) == (method != "plain")


FAMILIES = ["llama", "gpt2", "mistral", "gemma3", "qwen2"]  # three with windows of six tokens


@pytest.mark.parametrize("name", FAMILIES)
def test_families_whose_cache_crops(name):
    torch.manual_seed(0)
    models = [transformers.AutoModelForCausalLM.from_config(CONFIGS[name]).double().eval() for _ in range(2)]
    target, draft = (LanguageModel(model, None, name) for model in models)
    prompt = [7, 3, 9, 4, 4, 1, 7, 3]
    for method in minimal.METHODS:
        compare(target, draft, prompt, method, [(3, 0.5)], 14)


def test_a_cache_that_cannot_be_cropped_is_named():
    config = transformers.Qwen3NextConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_num_value_heads=2, linear_num_key_heads=1, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(TypeError, match="Qwen3NextForCausalLM: expected a cache that can be cropped; got Linear"):
        next(minimal.generate([1, 2], model))


def test_bad_arguments_and_logits_are_named(pair):
    target, _ = pair
    with pytest.raises(ValueError, match="method: expected one of race, rejection, block, plain; got 'traversal'"):
        next(minimal.generate([1], target.model, method="traversal"))
    bad = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"])
    bad.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="expected finite logits after 2 tokens; got others"):
        next(minimal.generate([1, 2], bad))


def test_a_text_ends_at_its_end_token(pair):
    target, draft = pair
    written = [token for _, token in minimal.generate([5, 6], target.model, draft.model, max_new_tokens=12)]
    stop = written[5]
    ended = minimal.generate([5, 6], target.model, draft.model, max_new_tokens=12, eos_token_ids=(stop,))
    assert [token for _, token in ended] == written[: written.index(stop) + 1]


def test_the_command_prints_accepted_replaced_and_bonus_tokens(monkeypatch, capsys):
    for draft in ("embedded:draft", "ngram"):
        monkeypatch.setattr(sys, "argv", ["minimal", "--max-new-tokens", "24", "--draft", draft])
        minimal.main()
        printed = capsys.readouterr().out
        assert printed.startswith("ROMEO:")
        assert "‹" in printed
        assert "«" in printed
