"""Language models small enough for a test, with random weights."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdec_kernels.generate import LanguageModel, generate


def llama(vocab=5, seed=0, spread=1.0, dtype=torch.float64, **options):
    """A random Llama; `spread` scales its output weights, so that its laws are far from uniform."""
    options = dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=160, eos_token_id=None, bos_token_id=None,
    ) | options  # fmt: skip
    return random_model(LlamaConfig(vocab_size=vocab, **options), seed, spread, dtype)


def random_model(config, seed=0, spread=1.0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # of the vectors, which are left as they are drawn
        model = AutoModelForCausalLM.from_config(config).to(dtype)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # for float64
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                scale = spread if "lm_head" in name or "embed" in name or "wte" in name else 0.3
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return LanguageModel(model, name=f"{config.model_type}-{seed}")


def raced(prompts, target, drafter, how=None, **options):
    """Texts of a race, which are those of plain sampling."""
    race = generate(prompts, target, drafter, **options, **(how or {}))
    plain = generate(prompts, target, method="plain", **options)
    assert [text.tokens for text in race] == [text.tokens for text in plain]
    return race
