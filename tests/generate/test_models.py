"""Reading in pieces, with roll-backs, gives the logits of one forward over the whole text."""

import pytest
import torch
import transformers

import specdec_kernels as specdec
from specdec_kernels.generate import (
    LanguageModel,
    ModelDrafter,
    TextEdits,
    check_vocabularies,
    generate,
    load_model,
    stream,
)
from specdec_kernels.generate.models import default_dtype, device_of
from specdec_kernels.generate.reader import Visibility
from specdec_kernels.generate.train import byte_tokenizer
from tests.generate.small import llama, raced, random_model

SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
WINDOW = dict(sliding_window=6, max_position_embeddings=64)  # shorter than the texts below
GROUPED = dict(SMALL, num_key_value_heads=2, **WINDOW)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
MIXED = ["sliding_attention", "full_attention"]
CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=64),
    "gpt2": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=40),
    "qwen3": transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=64),
    "phi": transformers.PhiConfig(**SMALL, max_position_embeddings=64),
    "mistral": transformers.MistralConfig(**GROUPED, head_dim=8),
    "mixtral": transformers.MixtralConfig(**GROUPED, **EXPERTS),
    "phi3": transformers.Phi3Config(**GROUPED, pad_token_id=0),
    "starcoder2": transformers.Starcoder2Config(**GROUPED),
    "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=8),
    "gemma3": transformers.Gemma3TextConfig(**GROUPED, head_dim=8, layer_types=MIXED),
    "gpt_oss": transformers.GptOssConfig(**GROUPED, **EXPERTS, head_dim=8, layer_types=MIXED),
    "gpt_neo": transformers.GPTNeoConfig(
        hidden_size=32, intermediate_size=32, num_layers=2, num_heads=4, vocab_size=50, window_size=6,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=40,
    ),
    "qwen2": transformers.Qwen2Config(**GROUPED, use_sliding_window=True, max_window_layers=1),
}  # fmt: skip
WINDOWED = ["mistral", "mixtral", "phi3", "starcoder2", "gemma2", "gemma3", "gpt_oss", "gpt_neo", "qwen2"]


def assert_near(logits, expected):
    """Equal but for rounding: GPT-Neo's scores and some softmaxes are in float32, whatever the model is in."""
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-5)


def whole(model, tokens):
    """Logits [T, V] of one text, in one forward without a cache."""
    with torch.no_grad():
        return model.model(input_ids=tokens[None], use_cache=False).logits[0].float()


def assert_pieces_equal_one_forward(model, settle=False):
    """Texts of a batch read and keep other numbers of tokens, and go on differently; one of them leaves."""
    generator = torch.Generator().manual_seed(2)
    lengths, text = [9, 1, 4], torch.randint(50, (3, 40), generator=generator)
    reader = model.reader(3, 40)
    for turn in range(6):
        count = int(torch.randint(1, 5, (), generator=generator))
        ends = [length + count - 1 for length in lengths]
        if settle:
            reader.settle(text, lengths, most=3)
        logits = reader.read(text, ends, rows=count)
        for row, end in enumerate(ends):
            assert_near(logits[row], whole(model, text[row, :end])[-count:])
        kept = [end - int(torch.randint(count, (), generator=generator)) for end in ends]
        for row, end in enumerate(kept):
            text[row, end:] = torch.randint(50, (40 - end,), generator=generator)
        reader.roll_back(kept)
        lengths = [end + 1 for end in kept]
        if turn == 3:
            reader.keep([2, 0])
            text, lengths = text[[2, 0]], [lengths[2], lengths[0]]


@pytest.mark.parametrize("name", CONFIGS)
def test_reading_in_pieces_equals_one_forward(name):
    assert_pieces_equal_one_forward(random_model(CONFIGS[name], seed=1, spread=0.5))


def test_longest_text():
    assert llama(max_position_embeddings=40).max_length == 40
    assert random_model(CONFIGS["gemma2"]).max_length == 64  # not the window
    switching = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[2.0] * 4)
    config = transformers.Phi3Config(
        **GROUPED, pad_token_id=0, original_max_position_embeddings=32, rope_scaling=switching
    )
    assert random_model(config).max_length == 32


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_are_those_of_the_model(name):
    """Without them the logits are others, so that the tests above and below can fail."""
    model = random_model(CONFIGS[name], seed=1, spread=0.5)
    assert 6 in model.layers.windows.values()
    text = torch.randint(50, (1, 20), generator=torch.Generator().manual_seed(0))
    assert_near(model.reader(1, 20).read(text, [20], rows=1)[0], whole(model, text[0])[-1:])
    model.layers = model.layers._replace(windows=dict.fromkeys(model.layers.windows))
    blind = model.reader(1, 20).read(text, [20], rows=1)[0]
    assert (blind - whole(model, text[0])[-1:]).abs().max() > 0.01


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_neo"])
def test_windowed_models_write_on_as_transformers_lets_them(name):
    model = random_model(CONFIGS[name], seed=2, spread=0.5)
    model.model.generation_config.eos_token_id = None
    prompt = [7, 3, 9]
    (ours,) = generate([prompt], model, method="plain", temperature=0, max_new_tokens=30)
    theirs = model.model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert ours.tokens == theirs[0, 3:].tolist()


TEXT_BY_TEXT = {
    "alibi in masks": transformers.FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, alibi=True
    ),
    "no cache": transformers.OpenAIGPTConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=64),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT_BY_TEXT)
def test_what_takes_no_masks_is_read_text_by_text(name):
    """With the masks, the positions and the cache that a model makes; a batch of texts of other lengths."""
    target, draft = (random_model(TEXT_BY_TEXT[name], seed=seed, spread=0.5) for seed in (1, 2))
    prompts, options = [[7, 3, 9], [5], [1] * 12], dict(seed=3, max_new_tokens=20, eos_token_ids=[])
    for index, text in enumerate(raced(prompts, target, ModelDrafter(draft), dict(k=3), **options)):
        rows = whole(target, torch.tensor(text.prompt + text.tokens))[len(text.prompt) - 1 : -1]
        position = torch.arange(len(text.prompt), len(text.prompt) + 20)
        assert specdec.race_sample(rows, seed=3 + index, position=position).tolist() == text.tokens
    with pytest.raises(ValueError, match=r"^tree: expected chains with .*, which makes its masks itself; got a tree$"):
        generate(prompts, target, ModelDrafter(draft), tree=[-1, 0, 0], **options)


def test_positions_may_begin_behind_that_of_padding():
    config = transformers.RobertaConfig(**SMALL, is_decoder=True, pad_token_id=1, max_position_embeddings=40)
    target, draft = (random_model(config, seed=seed, spread=0.5) for seed in (1, 2))
    prompts, unpadded = [[7, 3, 9], [5]], TextEdits(bias={1: float("-inf")})  # padding has no position of its own
    options = dict(seed=3, max_new_tokens=30, edits=unpadded, eos_token_ids=[])
    raced(prompts, target, ModelDrafter(draft), dict(tree=[-1, 0, 0, 1]), **options)
    assert (target.first_position, target.max_length) == (2, 38)
    logits = target.reader(1, 9).read(torch.tensor([[7, 3, 9, 4]]), [4], rows=2)[0]
    assert_near(logits, whole(target, torch.tensor([7, 3, 9, 4]))[-2:])


def test_a_window_that_no_mask_has_ends_a_text():
    """transformers' cache of Moshi holds the last tokens alone, and its masks are of all: more depends on the cache."""
    sizes = dict(audio_vocab_size=16, audio_encoder_config=dict(model_type="mimi"), ffn_dim=32)
    config = transformers.MoshiConfig(**SMALL, **sizes, max_position_embeddings=64, sliding_window=8)
    model = random_model(config)
    assert model.max_length == 8
    assert len(generate([[3]], model, max_new_tokens=7)[0].tokens) == 7
    with pytest.raises(ValueError, match=r"^max_new_tokens: expected at most 7 .*\(moshi-0 ends at 8\)"):
        generate([[3]], model, max_new_tokens=8)


@pytest.mark.parametrize("window", [6, 40])
def test_more_is_checked_than_a_window_has(window, monkeypatch):
    """Masks without it are seen to be wrong, whatever the first tokens give; the model's own are taken."""
    config = transformers.MistralConfig(**dict(GROUPED, sliding_window=window), head_dim=8)
    models = [random_model(config, spread=0.5) for _ in range(2)]
    models[0].check_readable()
    monkeypatch.setattr(Visibility, "within", lambda seen, kind, window: seen.hidden)
    models[1].check_readable()
    assert [model.layers is None for model in models] == [False, True]


REFUSED = {
    "not causal": (transformers.BertConfig(**SMALL), "depend on later tokens"),
    "no cache of all": (
        transformers.JambaConfig(
            **SMALL, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2,
            num_experts_per_tok=1, mamba_d_state=8, pad_token_id=0,
        ),
        "begins anew .* wherever several tokens are read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_read_otherwise_are_refused_before_the_first_token(name):
    config, lack = REFUSED[name]
    model = random_model(config)
    for target, drafter in ((model, None), (llama(50), ModelDrafter(model))):
        with pytest.raises(
            ValueError, match=rf"^{model.name}: expected .*; got {type(model.model).__name__}, .*{lack}"
        ):
            stream([[3, 4]], target, drafter, max_new_tokens=5)


@pytest.mark.parametrize("renamed", [False, True])
def test_either_name_of_a_cache(renamed):
    """transformers 5.24 calls `past_key_values` `cache`."""
    plain, other = llama(50), llama(50)
    read, own = other.model.forward, other.cache_argument

    def by_old(*, position_ids=None, past_key_values=None, **inputs):
        return read(position_ids=position_ids, **{own: past_key_values}, **inputs)

    def by_new(*, position_ids=None, cache=None, **inputs):
        return read(position_ids=position_ids, **{own: cache}, **inputs)

    other.model.forward = by_new if renamed else by_old
    texts = (
        generate([[3, 4]], model, ModelDrafter(model), k=2, max_new_tokens=6)[0]
        for model in (plain, LanguageModel(other.model))
    )
    assert len({tuple(text.tokens) for text in texts}) == 1


def test_what_a_model_raises_is_told_with_its_name():
    model = llama(50)

    def forward(*_, position_ids=None, past_key_values=None, cache=None, **__):
        raise KeyError("mask")

    model.model.forward = forward
    with pytest.raises(ValueError, match=r"llama-0: .* got LlamaForCausalLM, which raised KeyError: 'mask'$"):
        stream([[3, 4]], model, max_new_tokens=5)


def test_end_of_text_tokens():
    model = llama()
    assert model.eos_token_ids == set()
    model.model.generation_config.eos_token_id = [3, 4]
    assert model.eos_token_ids == {3, 4}
    assert load_model("embedded:target").eos_token_ids == {257}


def test_missing_or_foreign_directories_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"/no/such/model: expected .* directory \(no such directory\)"):
        load_model("/no/such/model")
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a Hugging Face causal language model"):
        load_model(tmp_path)


def test_devices_and_what_is_computed_in(monkeypatch):
    assert load_model("embedded:draft", device="auto").model.dtype == torch.float32
    assert device_of("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("auto") == "cuda"
    for supported, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert default_dtype("cuda:0") == dtype
    assert default_dtype("cpu") == torch.float32


def test_experts_are_read_in_float64(tmp_path):
    """The fused kernels for experts have no float64, which the documents recommend."""
    sizes = dict(SMALL, vocab_size=300, num_key_value_heads=2, head_dim=8)
    config = transformers.MixtralConfig(**sizes, **EXPERTS)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    (text,) = generate(["a"], load_model(tmp_path, dtype="float64"), method="plain", max_new_tokens=3)
    assert len(text.tokens) == 3


def test_vocabularies_must_match():
    pair = load_model("embedded:target"), load_model("embedded:draft")
    check_vocabularies(*pair)
    tokenizer = load_model("embedded:draft").tokenizer
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(ValueError, match=r"draft other: .* 1 tokens that are not in it .*'<new>'"):
        check_vocabularies(pair[0], LanguageModel(pair[1].model, tokenizer, "other"))


@pytest.mark.parametrize("sizes", [(5, 6), (6, 5), (5, 64)])
def test_without_tokenizers_sizes_may_differ(sizes):
    """The drafter cuts its logits before it draws, so that what is verified is what was drawn."""
    target, draft = map(llama, sizes)
    check_vocabularies(target, draft)
    for method in ("race", "rejection", "block"):
        (text,) = generate([[1, 2]], target, ModelDrafter(draft), method=method, k=3, seed=4, max_new_tokens=12)
        assert max(text.tokens) < sizes[0]
        assert not any(text.status), method
