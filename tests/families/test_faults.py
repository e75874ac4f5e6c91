"""What tiny random models of transformers need that stands in configs, in caches and in their inputs."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from specdec_kernels.engines.transformers import generate
from specdec_kernels.generate import LanguageModel
from tests.families.build import NAMES, SPECIAL, model_of, random_model, small

NESTED = [
    "beam", "cohere_compass_text", "gemma3_text", "gemma4_text", "laguna", "mellum", "mimo_v2_flash",
    "modernbert-decoder", "olmo3", "zaya",
]  # fmt: skip
SEEING = ["aria_text", "fuyu", "gemma3", "gemma4", "gemma4_unified", "got_ocr2", "phi4_multimodal"]


def rotary(dimensions, first):
    long = [2.0 + index for index in range(dimensions)]
    return dict(
        rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * dimensions, long_factor=long, factor=8.0,
        original_max_position_embeddings=first,
    )  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_frequencies_that_change_in_layers_of_one_kind_end_a_text(name):
    """From 33 tokens on all rows are others, in one forward; a cache that holds the first 32 would not be of them."""
    config = small(CONFIG_MAPPING[name], SPECIAL.get(name, {}))
    text_config = config.get_text_config()
    kind = next(kind for kind in text_config.layer_types if kind in text_config.rope_parameters)
    plain = AutoModelForCausalLM.from_config(config)
    (frequencies,) = {x.shape for key, x in plain.named_buffers() if key.endswith(f"rotary_emb.{kind}_inv_freq")}
    usual = text_config.rope_parameters[kind]
    text_config.rope_parameters[kind] = usual | rotary(frequencies[0], 32)
    model = random_model(config)
    with torch.no_grad():
        text = torch.arange(3, 36)[None]
        shorter, longer = (model(input_ids=text[:, :count], use_cache=False).logits[0, :32] for count in (32, 33))
    assert not torch.allclose(shorter, longer)
    assert LanguageModel(model).max_length == 32


@pytest.mark.parametrize("name", [name for name in SEEING if name in NAMES])
def test_a_model_that_sees_writes_on_from_text_alone(name):
    """Greedily, as transformers lets it; `generate` hands over what it has of images, which is nothing."""
    model, text = model_of(name), torch.tensor([[7, 3, 9, 5]])
    options = dict(attention_mask=torch.ones_like(text), do_sample=False, max_new_tokens=6, eos_token_id=None)
    ours = model.generate(text, custom_generate=generate, method="race", prompt_lookup_num_tokens=3, **options)
    assert ours.tolist() == model.generate(text, **options).tolist()


@pytest.mark.parametrize("name", ["gemma3"])
def test_what_is_seen_is_refused_by_name(name):
    model, text = model_of(name), torch.tensor([[7, 3, 9, 5]])
    images = {"image": torch.ones(1)}
    with pytest.raises(NotImplementedError, match=r"^mm_encoder_outputs: expected None"):
        model.generate(text, custom_generate=generate, method="plain", mm_encoder_outputs=images, max_new_tokens=2)


LACKS = {
    "blt": "whose cache raised AttributeError: ",
    "cpmant": "whose logits depend on later tokens$",
    "mamba": "which begins anew from nothing wherever several tokens are read",
    "musicgen": "which has no single embedding$",
    "xlnet": "whose logits depend on later tokens$",  # its config says that texts have -1 tokens at most
}


@pytest.mark.parametrize("name", LACKS)
def test_a_family_is_refused_by_what_it_lacks(name):
    with pytest.raises(ValueError, match=rf"^{name}: expected .*; got \w+, {LACKS[name]}"):
        LanguageModel(model_of(name), name=name).check_readable()
