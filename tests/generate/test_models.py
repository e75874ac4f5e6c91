"""Reading in pieces, with roll-backs, gives the logits of one forward over the whole text."""

import pytest
import torch
import transformers

from specdec_kernels.generate import LanguageModel, check_vocabularies, load_model
from tests.generate.small import llama, random_model

SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=64),
    "gpt2": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=40),
    "qwen3": transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=64),
    "gemma2": transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=48),
    "phi": transformers.PhiConfig(**SMALL, max_position_embeddings=64),
}


def whole(model, tokens):
    """Logits [T, V] of one text, in one forward without a cache."""
    with torch.no_grad():
        return model.model(input_ids=tokens[None], use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", CONFIGS)
def test_reading_in_pieces_equals_one_forward(name):
    model = random_model(CONFIGS[name], seed=1, spread=0.5)
    generator = torch.Generator().manual_seed(2)
    lengths = [9, 1, 4]
    text = torch.randint(50, (3, 40), generator=generator)
    reader = model.reader(3, 40)
    for _ in range(5):
        count = int(torch.randint(1, 5, (), generator=generator))
        ends = [length + count - 1 for length in lengths]
        logits = reader.read(text, ends, rows=count)
        for row, end in enumerate(ends):
            torch.testing.assert_close(logits[row], whole(model, text[row, :end])[-count:], rtol=1e-6, atol=1e-6)
        # Each text keeps another number of the tokens read, and goes on differently.
        kept = [end - int(torch.randint(count, (), generator=generator)) for end in ends]
        for row, end in enumerate(kept):
            text[row, end:] = torch.randint(50, (40 - end,), generator=generator)
        reader.roll_back(kept)
        lengths = [end + 1 for end in kept]


def test_dropping_texts_leaves_the_others_alone():
    model = llama(vocab=50)
    text = torch.randint(50, (3, 20), generator=torch.Generator().manual_seed(0))
    reader = model.reader(3, 20)
    reader.read(text, [5, 9, 3], rows=1)
    reader.keep([2, 1])
    logits = reader.read(text[[2, 1]], [4, 12], rows=1)
    torch.testing.assert_close(logits[0, 0], whole(model, text[2, :4])[-1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits[1, 0], whole(model, text[1, :12])[-1], rtol=1e-6, atol=1e-6)


def test_longest_text():
    assert llama(max_position_embeddings=40).max_length == 40
    assert random_model(CONFIGS["gemma2"]).max_length == 48
    hybrid = llama()
    hybrid.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match="llama-0: expected attention layers; got linear_attention"):
        _ = hybrid.max_length


def test_end_of_text_tokens():
    model = llama()
    assert model.eos_token_ids == set()
    model.model.generation_config.eos_token_id = [3, 4]
    assert model.eos_token_ids == {3, 4}
    assert load_model("embedded:target").eos_token_ids == {257}


def test_a_model_without_position_ids_is_refused():
    bloom = transformers.BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=8)
    with pytest.raises(ValueError, match="expected a model with position_ids and a cache; got BloomForCausalLM"):
        LanguageModel(transformers.AutoModelForCausalLM.from_config(bloom))


def test_missing_or_foreign_directories_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"/no/such/model: expected .* directory \(no such directory\)"):
        load_model("/no/such/model")
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a Hugging Face causal language model"):
        load_model(tmp_path)


def test_vocabularies_must_match():
    pair = load_model("embedded:target"), load_model("embedded:draft")
    check_vocabularies(*pair)
    tokenizer = load_model("embedded:draft").tokenizer
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(ValueError, match=r"draft other: .* 1 tokens that are not in it .*'<new>'"):
        check_vocabularies(pair[0], LanguageModel(pair[1].model, tokenizer, "other"))
    with pytest.raises(ValueError, match=r"expected a vocabulary of at most 5 tokens, .* got 6"):
        check_vocabularies(llama(5), llama(6))
    check_vocabularies(llama(6), llama(5))
