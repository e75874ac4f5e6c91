"""Checkpoints of drafters that draft a block at once, for the embedded target: DFlash and DSpark of Qwen3's kind.

Their layers are random and small: they read the target's hidden states and change little. DSpark's head for pairs of
tokens is the target's own law after one token alone, so that its drafts are better than chance.
"""

import json

import torch
from safetensors.torch import save_file

from specdec_kernels.generate import load_model

LAYERS = [1, 3]  # of the target, whose hidden states are read
MASK = 32  # a space, which the target writes often: the shared head likes a masked place's own token best


def write(folder, kind):
    """The folder, with a "DFlash" or "DSpark" in it."""
    target = load_model("embedded:target").model
    given = target.config
    vocab, hidden, heads, width = given.vocab_size, given.hidden_size, given.num_attention_heads, given.head_dim
    config = {
        "model_type": "qwen3", "architectures": ["DFlashDraftModel" if kind == "DFlash" else "Qwen3DSparkModel"],
        "hidden_size": hidden, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": width, "intermediate_size": 64, "vocab_size": vocab, "rms_norm_eps": 1e-6, "dtype": "float32",
        "max_position_embeddings": given.max_position_embeddings, "hidden_act": "silu", "attention_bias": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": False,
        "bos_token_id": 256, "eos_token_id": 257, "block_size": 5, "num_target_layers": given.num_hidden_layers,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": LAYERS},
        "mask_token_id": MASK, "target_layer_ids": LAYERS, "markov_rank": vocab,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def small(*shape):
        return 0.05 * torch.randn(*shape, generator=generator)

    at, inner = "layers.0", heads * width
    tensors = {f"{at}.self_attn.{name}_proj.weight": small(inner, hidden) for name in "qkv"}
    tensors |= {f"{at}.self_attn.{name}_norm.weight": torch.ones(width) for name in "qk"}
    tensors |= {f"{at}.mlp.{name}_proj.weight": small(64, hidden) for name in ("gate", "up")}
    names = "norm", "hidden_norm", f"{at}.input_layernorm", f"{at}.post_attention_layernorm"
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in names}
    tensors["norm.weight"] *= 0.1  # flatter rows
    tensors |= {
        f"{at}.self_attn.o_proj.weight": small(hidden, inner), f"{at}.mlp.down_proj.weight": small(hidden, 64),
        "fc.weight": small(hidden, hidden * len(LAYERS)),
    }  # fmt: skip
    if kind == "DSpark":
        with torch.inference_mode():
            laws = target.float()(torch.arange(vocab)[:, None]).logits[:, 0].log_softmax(-1)
        tensors |= {
            "markov_head.markov_w1.weight": torch.eye(vocab),
            "markov_head.markov_w2.weight": laws.T.contiguous(),
        }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
