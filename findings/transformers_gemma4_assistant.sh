#!/bin/sh
# One would guess that a Gemma 4 assistant (the drafter of transformers' multi-token prediction) can be built from a config
# that its class takes: `Gemma4AssistantConfig` asks that all layers share the target's keys and values, and sees to it.
#
# What happens: the model raises "The set of layer types producing a cache is different than the set of layer types using
# them": the text model wants a layer of each kind before the first one that shares, and an assistant has none. No number
# of layers is taken by both, so neither a config nor a checkpoint of an assistant becomes a model.
#
# Seen on 2026-11-29, transformers 5.23.0, torch 2.13.0 on x86-64, 2 to 8 layers:
#   Gemma4Config's text model, none shared: built
#   Gemma4AssistantConfig: taken 7 times of 7, built 0 times
#
# What to do: draft by another model, or by n-grams; look whether a later version builds it.
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
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

print("python", platform.python_version(), "torch", torch.__version__, "transformers", transformers.__version__)


def text_config(layers, shared):
    return Gemma4TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=layers, num_kv_shared_layers=shared, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
    )


Gemma4ForCausalLM(text_config(4, shared=0))
print("Gemma4Config's text model, none shared: built")
taken = built = 0
for layers in range(2, 9):
    config = Gemma4AssistantConfig(text_config=text_config(layers, shared=layers), backbone_hidden_size=32)
    taken += 1
    try:
        Gemma4AssistantForCausalLM(config)
        built += 1
    except ValueError as error:
        said = str(error)
print(f"Gemma4AssistantConfig: taken {taken} times of 7, built {built} times")
raise SystemExit(0 if (taken, built) == (7, 0) and said.startswith("The set of layer types producing a cache") else 1)
PY
