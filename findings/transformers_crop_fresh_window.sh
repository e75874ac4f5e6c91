#!/bin/sh
# One would guess that a cache which has read nothing can be cropped: there is nothing to take off, and a loop that crops after
# every round need not ask whether a model was used in it (a draft that had no room to draft in the last round).
#
# What happens: DynamicCache.crop(0) of a fresh cache is a no-op for layers with full attention, with a comment that says so, and
# an AttributeError ('NoneType' object has no attribute 'shape') for layers with a sliding window, whose crop reads the shape of
# keys that do not exist yet. One window among the layers is enough, so Llama's cache takes it and Mistral's or Gemma 3's does not.
#
# Seen on 2026-11-29, transformers 5.23.0 and 5.24.0, torch 2.13.0:
#   LlamaConfig: crop(0) of a fresh cache returns
#   MistralConfig: crop(0) of a fresh cache: AttributeError
#   Gemma3TextConfig: crop(0) of a fresh cache: AttributeError
#   MistralConfig: crop(0) after 3 tokens returns
#
# What to do: count the tokens that were read, and crop only where there are some.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q "transformers==${1:-5.23.0}"
"$folder/venv/bin/python" - <<'PY'
import torch
import transformers
from transformers import DynamicCache, Gemma3TextConfig, LlamaConfig, MistralConfig

print("transformers", transformers.__version__, "torch", torch.__version__)
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50)
configs = LlamaConfig(**SIZES), MistralConfig(**SIZES, sliding_window=8), Gemma3TextConfig(**SIZES, sliding_window=8, head_dim=8)
results = []


def crop(name, cache, when):
    cache.activate_past_recording()
    try:
        cache.crop(0)
        results.append("returns")
        print(f"{name}: crop(0) {when} returns")
    except AttributeError as error:
        results.append("AttributeError")
        print(f"{name}: crop(0) {when}: AttributeError ({error})")


for config in configs:
    crop(type(config).__name__, DynamicCache(config=config), "of a fresh cache")
cache = DynamicCache(config=configs[1])
for layer in range(2):
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), layer)
crop("MistralConfig", cache, "after 3 tokens")
raise SystemExit(0 if results == ["returns", "AttributeError", "AttributeError", "returns"] else 1)
PY
