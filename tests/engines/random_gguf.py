"""Llamas of random weights as GGUF."""

import gguf
import numpy as np


def write_llama(
    path, vocabulary, seed, spread=3.0, *, hidden_size, num_hidden_layers, intermediate_size, num_attention_heads
):
    """Write a Llama in float32 whose logits are N(0, spread²), without a tokenizer; the path."""
    random, writer = np.random.default_rng(seed), gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    writer.add_layer_norm_rms_eps(1e-6)
    for name, value in {
        "vocab_size": vocabulary, "context_length": 512, "embedding_length": hidden_size,
        "block_count": num_hidden_layers, "feed_forward_length": intermediate_size, "head_count": num_attention_heads,
        "rope_dimension_count": hidden_size // num_attention_heads,
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    square, up, down = (hidden_size, hidden_size), (intermediate_size, hidden_size), (hidden_size, intermediate_size)
    parts = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
    parts |= {"ffn_gate": up, "ffn_up": up, "ffn_down": down}
    weights = {"token_embd": (vocabulary, hidden_size), "output_norm": (hidden_size,)}
    for layer in range(num_hidden_layers):
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (hidden_size,))
        weights |= {f"blk.{layer}.{part}": shape for part, shape in (parts | norms).items()}
    for name, shape in weights.items():
        scale = spread / hidden_size**0.5 if name == "token_embd" else 0.02
        weight = np.ones(shape) if "norm" in name else scale * random.standard_normal(shape)
        writer.add_tensor(f"{name}.weight", weight.astype(np.float32))
    for finish in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, finish)()
    return str(path)
