"""The embedded pair as GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

EMBEDDED = Path(__file__).resolve().parent.parent / "models"
# The names of a model's sizes, and of a layer's parts, in GGUF and in the checkpoint.
SIZES = {
    "vocab_size": "vocab_size", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size", "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads", "rope_dimension_count": "head_dim", "layer_norm_rms_eps": "rms_norm_eps",
}  # fmt: skip
PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def write(name: str, path: Path) -> None:
    """Write "embedded:target" or "embedded:draft" to a file, in float32."""
    if name not in ("embedded:target", "embedded:draft"):
        raise ValueError(f"name: expected embedded:target or embedded:draft; got {name!r}")
    folder = EMBEDDED / name.removeprefix("embedded:")
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for size, ours in SIZES.items():
        getattr(writer, f"add_{size}")(config[ours])
    write_tokens(writer, json.loads((folder / "tokenizer.json").read_text()), config)
    weights = load_file(folder / "model.safetensors")
    weights = {part: weight.astype(np.float32) for part, weight in weights.items()}
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])  # the head, too
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(config["num_hidden_layers"]):
        for part, ours in PARTS.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if part in ("attn_q", "attn_k"):
                weight = pairs_together(weight, config["num_attention_heads"])
            writer.add_tensor(f"blk.{layer}.{part}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokens(writer: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    """Bytes, in the letters of byte-level BPE, and two special tokens. No merge ever applies."""
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    letters = {token: text for text, token in tokenizer["model"]["vocab"].items()} | special
    tokens = [letters[token] for token in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in range(len(tokens))])
    writer.add_token_merges(["\u0100 \u0100"])  # llama.cpp needs one merge; this pair never occurs
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)


def pairs_together(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp, which rotates entries 2 i and 2 i + 1 of a head, not i and i + half of it."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
