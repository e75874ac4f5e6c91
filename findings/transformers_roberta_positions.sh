#!/bin/sh
# One would guess that the greedy text of transformers' `generate` is the one that the model's own forward writes: each
# token is the argmax of `model(text).logits` behind the tokens before it.
#
# What happens: with RoBERTa as a decoder (and its kin: CamemBERT, XLM-RoBERTa, Data2Vec text, ...) it is another text. The
# forward gives a text the positions from padding_idx + 1 on, as in training; `generate` hands over `position_ids` from 0
# on, which the forward takes as they are. So every token stands two positions before where it was trained, with a cache
# and without.
#
# Seen on 2026-11-29, transformers 5.23.0, torch 2.13.0 on x86-64, a random RoBERTa, 40 tokens:
#   generate with a cache: 10 of 40 tokens are those of forwards
#   generate without a cache: 10 of 40 tokens are those of forwards
#   logits of one text: off by 6.500 with positions from 0 on, by 0.000 from padding_idx + 1 on
#   Llama: 40 of 40
#
# What to do: give `position_ids` that begin at padding_idx + 1, or compare with forwards that get those of `generate`.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" numpy==2.4.6
"$folder/venv/bin/pip" install -q "transformers==${1:-5.23.0}"
"$folder/venv/bin/python" - <<'PY'
import platform

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, RobertaConfig, RobertaForCausalLM

print("python", platform.python_version(), "torch", torch.__version__, "transformers", transformers.__version__)
SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
PROMPT = torch.tensor([[5, 9, 13, 7, 21, 30, 11, 8]])


def random_weights(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.5 * torch.randn_like(parameter)
    return model.eval()


@torch.no_grad()
def equal_tokens(model, use_cache):
    """How many tokens of the greedy text are the argmax of a forward over the text before them."""
    options = dict(max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=1, use_cache=use_cache)
    text = model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **options)
    best = model(text, use_cache=False).logits.argmax(-1)
    return int((best[:, :-1] == text[:, 1:])[0, PROMPT.shape[1] - 1 :].sum())


roberta = random_weights(RobertaForCausalLM(RobertaConfig(**SIZES, is_decoder=True, max_position_embeddings=66)))
llama = random_weights(LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64)))
counts = {cache: equal_tokens(roberta, cache) for cache in (True, False)}
for cache, count in counts.items():
    print(f"generate {'with' if cache else 'without'} a cache: {count} of 40 tokens are those of forwards")
with torch.no_grad():
    own, begin = roberta(PROMPT).logits, roberta.config.pad_token_id + 1
    moved = [roberta(PROMPT, position_ids=torch.arange(8)[None] + first).logits for first in (0, begin)]
    off = [float((logits - own).abs().max()) for logits in moved]
print(f"logits of one text: off by {off[0]:.3f} with positions from 0 on, by {off[1]:.3f} from padding_idx + 1 on")
count = equal_tokens(llama, True)
print(f"Llama: {count} of 40")
raise SystemExit(0 if max(counts.values()) < 30 and off[0] > 1 and off[1] == 0 and count == 40 else 1)
PY
