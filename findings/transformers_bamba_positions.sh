#!/bin/sh
# One would guess that `model(tokens, past_key_values=cache)` gives tokens the positions behind those in the cache where no
# `position_ids` are given, as every Llama of transformers does.
#
# What happens: Bamba begins at position 0 again, whatever its cache holds: its attention layers rotate what comes behind a
# cache as if it were the beginning of a text. `generate` is right, since it hands positions over; loops of one's own (a
# verifier of drafts, prompts in chunks) are wrong without an error.
#
# Seen on 2026-11-29, transformers 5.23.0, torch 2.13.0 on x86-64, random models, 4 tokens behind 4:
#   bamba: off by 2e+00 without position_ids, by 2e-06 with them
#   llama: off by 1e-06 without position_ids, by 1e-06 with them
#
# What to do: give `position_ids` in every forward behind a cache.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" numpy==2.4.6
"$folder/venv/bin/pip" install -q "transformers==${1:-5.23.0}"
"$folder/venv/bin/python" - 2> /dev/null <<'PY'
import platform

import torch
import transformers
from transformers import BambaConfig, BambaForCausalLM, LlamaConfig, LlamaForCausalLM

print("python", platform.python_version(), "torch", torch.__version__, "transformers", transformers.__version__)
TEXT = torch.tensor([[5, 9, 13, 7, 21, 30, 11, 8]])
SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
MAMBA = dict(attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8)


@torch.no_grad()
def off(model):
    """How far logits behind a cache of four tokens are from those of one forward: without positions, and with them."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.3 * torch.randn_like(parameter)
    whole, apart = model.eval()(TEXT, use_cache=False).logits[:, 4:], []
    for given in ({}, {"position_ids": torch.arange(4, 8)[None]}):
        cache = model(TEXT[:, :4], use_cache=True).past_key_values
        rows = model(TEXT[:, 4:], past_key_values=cache, use_cache=True, **given).logits
        apart.append(float((rows - whole).abs().max()))
    return apart


found = {
    "bamba": off(BambaForCausalLM(BambaConfig(**SIZES, **MAMBA))),
    "llama": off(LlamaForCausalLM(LlamaConfig(**SIZES))),
}
for name, (without, with_them) in found.items():
    print(f"{name}: off by {without:.0e} without position_ids, by {with_them:.0e} with them")
raise SystemExit(0 if found["bamba"][0] > 0.5 and max(found["bamba"][1], *found["llama"]) < 1e-3 else 1)
PY
