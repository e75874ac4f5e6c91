#!/bin/sh
# One would guess that a Mamba of transformers that has read the first half of a text into its cache gives the second half
# the logits of one forward over all of it, whether it reads that half token by token or at once: the cache holds the state.
#
# What happens: at once, its scan begins from a state of zeros. The convolution goes on from the cache, the state-space
# state does not, and no error says so; the cache is then wrong, too. One token at a time is right. Falcon-Mamba, Jamba and
# Zamba do the same, so drafts that are read at once, or a prompt in chunks, get wrong logits. Mamba 2 goes on from its state.
#
# Seen on 2026-11-29, transformers 5.23.0, torch 2.13.0 on x86-64, random models, 4 tokens behind 4:
#   mamba: one by one off by 4e-06, at once off by 4e+00
#   mamba2: one by one off by 2e-06, at once off by 1e-06
#
# What to do: read what comes behind a cache of these models token by token.
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
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

print("python", platform.python_version(), "torch", torch.__version__, "transformers", transformers.__version__)
TEXT, SIZES = torch.tensor([[5, 9, 13, 7, 21, 30, 11, 8]]), dict(vocab_size=64, hidden_size=32, num_hidden_layers=2)


@torch.no_grad()
def off(model):
    """How far logits behind a cache of four tokens are from those of one forward: one by one, and at once."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.3 * torch.randn_like(parameter)
    whole, apart = model.eval()(TEXT, use_cache=False).logits[:, 4:], []
    for size in (1, 4):
        cache, rows = model(TEXT[:, :4], use_cache=True).cache_params, []
        for piece in TEXT[:, 4:].split(size, dim=1):
            output = model(piece, cache_params=cache, use_cache=True)
            cache = output.cache_params
            rows.append(output.logits)
        apart.append(float((torch.cat(rows, dim=1) - whole).abs().max()))
    return apart


torch.manual_seed(0)  # of the parameters that are no matrices
heads = dict(num_heads=8, head_dim=8, n_groups=2, chunk_size=8)
found = {
    "mamba": off(MambaForCausalLM(MambaConfig(**SIZES, state_size=8))),
    "mamba2": off(Mamba2ForCausalLM(Mamba2Config(**SIZES, **heads, state_size=8))),
}
for name, (steps, chunk) in found.items():
    print(f"{name}: one by one off by {steps:.0e}, at once off by {chunk:.0e}")
right = found["mamba"][0], *found["mamba2"]
raise SystemExit(0 if max(right) < 1e-3 and found["mamba"][1] > 0.05 else 1)
PY
